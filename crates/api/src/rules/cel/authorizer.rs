//! `authorizer.group('').resource('pods').check('list').allowed()`: expressions ask whether somebody may do something.
//! The authorizer that answers is given with the variable.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use cel::{Call, EvaluationError, Library, Opaque, Type, Value, cost, function};

use crate::validation::names::{NameRule, dns1123_label};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub const AUTHORIZER_TYPE: &str = "kubernetes.authorization.Authorizer";
pub const RESOURCE_CHECK_TYPE: &str = "kubernetes.authorization.ResourceCheck";
const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
const DECISION: &str = "kubernetes.authorization.Decision";

/// A question: a verb on a path or on a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Question {
    /// The namespace and name of the service account that is asked about; `None` is the user of the request.
    pub account: Option<(String, String)>,
    pub path: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Selectors as they were written.
    pub field_selector: String,
    pub label_selector: String,
    pub verb: String,
}

/// Whoever answers questions.
pub trait Authority: Send + Sync {
    fn decide(&self, question: &Question) -> Decision;
}

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("kubernetes.authorization.Authorizer::path(string): kubernetes.authorization.PathCheck", path),
        function("kubernetes.authorization.Authorizer::group(string): kubernetes.authorization.GroupCheck", group),
        function(
            "kubernetes.authorization.Authorizer::serviceAccount(string, string): kubernetes.authorization.Authorizer",
            service_account,
        ),
        function(
            "kubernetes.authorization.GroupCheck::resource(string): kubernetes.authorization.ResourceCheck",
            resource,
        ),
        function(
            "kubernetes.authorization.ResourceCheck::subresource(string): kubernetes.authorization.ResourceCheck",
            subresource,
        ),
        function(
            "kubernetes.authorization.ResourceCheck::namespace(string): kubernetes.authorization.ResourceCheck",
            namespace,
        ),
        function("kubernetes.authorization.ResourceCheck::name(string): kubernetes.authorization.ResourceCheck", name),
        function(
            "kubernetes.authorization.ResourceCheck::fieldSelector(string): kubernetes.authorization.ResourceCheck",
            field_selector,
        )
        .costs(selector_cost),
        function(
            "kubernetes.authorization.ResourceCheck::labelSelector(string): kubernetes.authorization.ResourceCheck",
            label_selector,
        )
        .costs(selector_cost),
        function("kubernetes.authorization.PathCheck::check(string): kubernetes.authorization.Decision", check)
            .costs(check_cost),
        function("kubernetes.authorization.ResourceCheck::check(string): kubernetes.authorization.Decision", check)
            .costs(check_cost),
        function("kubernetes.authorization.Decision::allowed(): bool", allowed),
        function("kubernetes.authorization.Decision::reason(): string", reason),
        function("kubernetes.authorization.Decision::errored(): bool", errored),
        function("kubernetes.authorization.Decision::error(): string", error),
    ],
    types: &[
        (AUTHORIZER_TYPE, Type::Opaque(AUTHORIZER_TYPE)),
        (PATH_CHECK, Type::Opaque(PATH_CHECK)),
        (GROUP_CHECK, Type::Opaque(GROUP_CHECK)),
        (RESOURCE_CHECK_TYPE, Type::Opaque(RESOURCE_CHECK_TYPE)),
        (DECISION, Type::Opaque(DECISION)),
    ],
};

/// Two checks fit into one expression, and no third.
fn check_cost(_: &[Value<'_>], _: Option<&Value<'_>>) -> u64 {
    350_000
}

/// A list, a walk over the text, and a requirement for every second character.
fn selector_cost(given: &[Value<'_>], _: Option<&Value<'_>>) -> u64 {
    let length = cost::size(given, 1);
    10 + cost::walk(length) + length.div_ceil(2) * 50
}

/// A question that is being put, in one of its stages.
#[derive(Clone)]
struct Asked {
    stage: &'static str,
    authority: Arc<dyn Authority>,
    question: Question,
}

impl Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.stage).field(&self.question).finish()
    }
}

impl Opaque for Asked {
    fn type_name(&self) -> &'static str {
        self.stage
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Asked>().is_some_and(|other| self.question == other.question)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The answer to a question.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    /// Why it could not be found out.
    pub error: Option<String>,
}

impl Opaque for Decision {
    fn type_name(&self) -> &'static str {
        DECISION
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Decision>().is_some_and(|other| self == other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The value of the variable `authorizer`.
pub fn authorizer(authority: Arc<dyn Authority>) -> Value<'static> {
    Value::opaque(Asked { stage: AUTHORIZER_TYPE, authority, question: Question::default() })
}

/// The value of `authorizer.requestResource`: a question about the resource of a request.
pub fn request_resource(authority: Arc<dyn Authority>, question: Question) -> Value<'static> {
    Value::opaque(Asked { stage: RESOURCE_CHECK_TYPE, authority, question })
}

fn wrong() -> EvaluationError {
    EvaluationError::no_such_overload()
}

/// The question with one more part.
fn with<'a>(given: &[Value<'_>], stage: &'static str, put: fn(&mut Question, String)) -> Outcome<'a> {
    let (Some(asked), Some(text)) = (given[0].downcast::<Asked>(), given[1].as_str()) else { return Err(wrong()) };
    let mut next = Asked { stage, ..asked.clone() };
    put(&mut next.question, text.to_owned());
    Ok(Value::opaque(next))
}

fn not_empty(given: &[Value<'_>], what: &str) -> Result<(), EvaluationError> {
    match given[1].as_str() {
        Some(text) if text.trim().is_empty() => Err(EvaluationError::new(format!("{what} must not be empty"))),
        _ => Ok(()),
    }
}

fn path<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    not_empty(given, "path")?;
    with(given, PATH_CHECK, |q, text| q.path = text)
}

fn group<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    with(given, GROUP_CHECK, |q, text| q.group = text)
}

fn resource<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    not_empty(given, "resource")?;
    with(given, RESOURCE_CHECK_TYPE, |q, text| q.resource = text)
}

fn subresource<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    with(given, RESOURCE_CHECK_TYPE, |q, text| q.subresource = text)
}

fn namespace<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    with(given, RESOURCE_CHECK_TYPE, |q, text| q.namespace = text)
}

fn name<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    with(given, RESOURCE_CHECK_TYPE, |q, text| q.name = text)
}

fn field_selector<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    with(given, RESOURCE_CHECK_TYPE, |q, text| q.field_selector = text)
}

fn label_selector<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    with(given, RESOURCE_CHECK_TYPE, |q, text| q.label_selector = text)
}

fn service_account<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let [asked, Value::String(namespace), Value::String(name)] = given else { return Err(wrong()) };
    let asked = asked.downcast::<Asked>().ok_or_else(wrong)?;
    if !NameRule::Subdomain.check(name, false).is_empty() {
        return Err(EvaluationError::new("Invalid service account name"));
    }
    if !dns1123_label(namespace).is_empty() {
        return Err(EvaluationError::new("Invalid service account namespace"));
    }
    let account = Some((namespace.to_string(), name.to_string()));
    Ok(Value::opaque(Asked { question: Question { account, ..asked.question.clone() }, ..asked.clone() }))
}

fn check<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (Some(asked), Some(verb)) = (given[0].downcast::<Asked>(), given[1].as_str()) else { return Err(wrong()) };
    let question = Question { verb: verb.to_owned(), ..asked.question.clone() };
    Ok(Value::opaque(asked.authority.decide(&question)))
}

fn decision<'v>(given: &'v [Value<'_>]) -> Result<&'v Decision, EvaluationError> {
    given[0].downcast::<Decision>().ok_or_else(wrong)
}

fn allowed<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    decision(given).map(|d| Value::Bool(d.allowed))
}

fn reason<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    decision(given).map(|d| Value::string(d.reason.as_str()))
}

fn errored<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    decision(given).map(|d| Value::Bool(d.error.is_some()))
}

fn error<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    decision(given).map(|d| Value::string(d.error.as_deref().unwrap_or_default()))
}
