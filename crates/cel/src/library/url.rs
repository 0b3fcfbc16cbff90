//! `url('https://example.com:80/a?b=c')` and its parts, read as Go's `net/url` reads them.

use std::any::Any;

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::go_url::{self, Url, check_uri, query_text};
use crate::typing::Type;
use crate::value::{Map, Opaque, Value};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

const NAME: &str = "kubernetes.URL";

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("url(string): kubernetes.URL", url).costs(cost::first).estimated(estimate::as_large),
        function("isURL(string): bool", is_url),
        function("kubernetes.URL::getScheme(): string", scheme),
        function("kubernetes.URL::getHost(): string", host),
        function("kubernetes.URL::getHostname(): string", hostname),
        function("kubernetes.URL::getPort(): string", port),
        function("kubernetes.URL::getEscapedPath(): string", escaped_path),
        function("kubernetes.URL::getQuery(): map<string, list<string>>", query),
    ],
    types: &[(NAME, Type::Opaque(NAME))],
};

impl Opaque for Url {
    fn type_name(&self) -> &'static str {
        NAME
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Url>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn text<'v>(value: &'v Value<'_>) -> Result<&'v str, EvaluationError> {
    value.as_str().ok_or_else(EvaluationError::no_such_overload)
}

fn read(value: &Value<'_>) -> Result<Url, EvaluationError> {
    let text = text(value)?;
    go_url::read(text)
        .map_err(|why| EvaluationError::new(format!("URL parse error during conversion from string: {why}")))
}

fn url<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    read(&given[0]).map(Value::opaque)
}

fn is_url<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(check_uri(text(&given[0])?).is_ok()))
}

fn of<'v>(given: &'v [Value<'_>]) -> Result<&'v Url, EvaluationError> {
    given[0].downcast::<Url>().ok_or_else(EvaluationError::no_such_overload)
}

fn scheme<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(u.scheme.as_str()))
}

fn host<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(u.host.as_str()))
}

fn hostname<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(u.name_and_port().0))
}

fn port<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(u.name_and_port().1))
}

fn escaped_path<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let path = &of(given)?.path;
    call.making(path.len())?;
    Ok(Value::string(path.as_str()))
}

/// All values of each key. Pairs with a `;` or a broken escape are left out.
fn query<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let query = of(given)?.query.as_deref().unwrap_or_default();
    call.making(query.len().saturating_mul(8))?;
    let mut found: Vec<(String, Vec<Value<'a>>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(key), Some(value)) = (query_text(key), query_text(value)) else { continue };
        let place = *places.entry(key.clone()).or_insert_with(|| {
            found.push((key, Vec::new()));
            found.len() - 1
        });
        found[place].1.push(Value::string(value));
    }
    let mut map = Map::empty();
    for (key, values) in found {
        map = map.insert(Value::string(key), Value::list(values))?;
    }
    Ok(Value::Map(map))
}
