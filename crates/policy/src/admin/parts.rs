//! The parts that rules of administrators are made of: selectors, and ports in the forms of both versions. Pure.
//!
//! Each reader refuses what it does not know, because a field that is ignored would change what a rule is about.

use api::rules::selector::Selector;
use json::{Key, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::{ports::Listed, traffic::Protocol};

/// The one field that is set.
pub fn only(object: &Value) -> Result<(&str, &Value), String> {
    let fields = object.as_object().ok_or("not an object")?;
    let mut set = fields.iter().filter(|(_, value)| !value.is_null());
    match (set.next(), set.next()) {
        (Some((name, value)), None) => Ok((name.as_str(), value)),
        (None, _) => Err("no field is set that is known".to_owned()),
        (Some((first, _)), Some((second, _))) => Err(format!("{first:?} and {second:?} are set together")),
    }
}

/// The values of these fields, which may be all that there are.
pub fn fields<'a, const COUNT: usize>(
    object: &'a Value,
    names: [&str; COUNT],
) -> Result<[Option<&'a Value>; COUNT], String> {
    let fields = object.as_object().ok_or("not an object")?;
    let unknown = |key: &&Key| !names.contains(&key.as_str());
    match fields.keys().find(unknown) {
        Some(name) => Err(format!("{name:?} is not known")),
        None => Ok(names.map(|name| fields.get(name).filter(|value| !value.is_null()))),
    }
}

/// A list that is not empty.
pub fn list(list: &Value) -> Result<&[Value], String> {
    match list.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        Some(_) => Err("nothing is listed".to_owned()),
        None => Err("not a list".to_owned()),
    }
}

pub fn selector(selector: &Value) -> Result<Selector, String> {
    fields(selector, ["matchLabels", "matchExpressions"])?;
    let read: LabelSelector = json::from_value(selector.clone()).map_err(|why| why.to_string())?;
    for expression in read.match_expressions.iter().flatten() {
        let wants_values = matches!(expression.operator.as_str(), "In" | "NotIn");
        let has_values = expression.values.as_ref().is_some_and(|values| !values.is_empty());
        if wants_values != has_values {
            return Err(format!("values of {:?} do not fit {}", expression.key, expression.operator));
        }
    }
    Selector::of_object(Some(&read)).map_err(|why| why.to_string())
}

/// All ports of a list, whose items are read by `one`.
pub fn listed(ports: &Value, one: fn(&Value, &mut Listed) -> Result<(), String>) -> Result<Listed, String> {
    let mut listed = Listed::default();
    for port in list(ports)? {
        one(port, &mut listed)?;
    }
    Ok(listed)
}

/// An item of `ports` of v1alpha1.
pub fn port(port: &Value, into: &mut Listed) -> Result<(), String> {
    match only(port)? {
        ("portNumber", port) => {
            let [protocol, number] = fields(port, ["protocol", "port"])?;
            let number = self::number(number)?;
            into.range(named_protocol(protocol)?, number..=number);
        }
        ("portRange", range) => {
            let [protocol, start, end] = fields(range, ["protocol", "start", "end"])?;
            let (protocol, start, end) = (named_protocol(protocol)?, number(start)?, number(end)?);
            into.range(protocol, start..=not_before(start, end)?);
        }
        ("namedPort", name) => named(name, into)?,
        (other, _) => return Err(format!("{other:?} is not known")),
    }
    Ok(())
}

/// An item of `protocols` of v1alpha2.
pub fn protocol(item: &Value, into: &mut Listed) -> Result<(), String> {
    let (protocol, of) = match only(item)? {
        ("tcp", of) => (Protocol::Tcp, of),
        ("udp", of) => (Protocol::Udp, of),
        ("sctp", of) => (Protocol::Sctp, of),
        ("destinationNamedPort", name) => return named(name, into),
        (other, _) => return Err(format!("{other:?} is not known")),
    };
    let [port] = fields(of, ["destinationPort"])?;
    let Some(port) = port else {
        into.protocol(protocol);
        return Ok(());
    };
    match only(port)? {
        ("number", at) => {
            let number = number(Some(at))?;
            into.range(protocol, number..=number);
        }
        ("range", range) => {
            let [start, end] = fields(range, ["start", "end"])?;
            let (start, end) = (number(start)?, number(end)?);
            into.range(protocol, start..=not_before(start, end)?);
        }
        (other, _) => return Err(format!("{other:?} is not known")),
    }
    Ok(())
}

/// A name stands for the port of any protocol that has it.
fn named(name: &Value, into: &mut Listed) -> Result<(), String> {
    let name = name.as_str().filter(|name| !name.is_empty()).ok_or("not a name of a port")?;
    Protocol::ALL.into_iter().for_each(|protocol| into.name(protocol, name));
    Ok(())
}

fn named_protocol(name: Option<&Value>) -> Result<Protocol, String> {
    let text = name.map(|name| name.as_str().unwrap_or_default());
    Protocol::parse(text).ok_or_else(|| "not a protocol that is known".to_owned())
}

fn number(number: Option<&Value>) -> Result<u16, String> {
    let number = number.and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or_else(|| "not a number of a port".to_owned())
}

fn not_before(start: u16, end: u16) -> Result<u16, String> {
    if start <= end { Ok(end) } else { Err(format!("a range cannot lead from {start} to {end}")) }
}
