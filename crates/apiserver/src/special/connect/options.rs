//! The options of a connection's subresource as admission sees them, made from the query and the path.

use api::{
    Value,
    rules::url::{is_true, query_firsts, query_pairs},
    status::StatusError,
};
use json::json;

use super::{Target, pod::Query};
use crate::{call::Call, special::object::connecting};

/// Asks admission about a connection, and has the request ask for what admission made of it.
pub(super) async fn admit(call: &mut Call, target: Target) -> Result<(), StatusError> {
    let Some(options) = of(call, target) else { return Ok(()) };
    let admitted = connecting(call, options.clone()).await?;
    if admitted == options {
        return Ok(());
    }
    if matches!(target, Target::Log | Target::PodProxy | Target::NodeProxy | Target::ServiceProxy) {
        return Err(StatusError::internal("admission cannot change the path of a request that is passed on"));
    }
    call.query = query(&admitted);
    Ok(())
}

/// Reading a log is no connection.
fn of(call: &Call, target: Target) -> Option<Value> {
    let options = |kind: &str| json!({"kind": kind, "apiVersion": "v1"});
    match target {
        Target::Log => None,
        Target::Stream("exec") => Some(streams(options("PodExecOptions"), &call.query, true)),
        Target::Stream(_) => Some(streams(options("PodAttachOptions"), &call.query, false)),
        Target::PortForward => Some(ports(options("PodPortForwardOptions"), &call.query)),
        Target::PodProxy => Some(path(options("PodProxyOptions"), call)),
        Target::NodeProxy => Some(path(options("NodeProxyOptions"), call)),
        Target::ServiceProxy => Some(path(options("ServiceProxyOptions"), call)),
    }
}

/// Output and error are on unless the client says otherwise.
fn streams(mut options: Value, query: &str, command: bool) -> Value {
    let mut on = [("stdin", false), ("stdout", true), ("stderr", true), ("tty", false)];
    let words = query_pairs(query).filter(|(key, _)| key == "command" && command);
    let words: Vec<String> = words.map(|(_, value)| value).collect();
    for (key, value) in query_firsts(query) {
        match key.as_str() {
            "container" => options["container"] = json!(value),
            name => on.iter_mut().filter(|(stream, _)| *stream == name).for_each(|(_, on)| *on = is_true(&value)),
        }
    }
    on.iter().filter(|(_, on)| *on).for_each(|(stream, _)| options[*stream] = json!(true));
    if !words.is_empty() {
        options["command"] = json!(words);
    }
    options
}

fn ports(mut options: Value, query: &str) -> Value {
    let ports = query_pairs(query).filter(|(key, _)| key == "ports");
    let ports: Vec<i64> = ports
        .flat_map(|(_, value)| value.split(',').filter_map(|port| port.parse().ok()).collect::<Vec<_>>())
        .collect();
    if !ports.is_empty() {
        options["ports"] = json!(ports);
    }
    options
}

fn path(mut options: Value, call: &Call) -> Value {
    let rest = call.info.passed.as_ref().map(|passed| passed.rest.as_str()).unwrap_or_default();
    if !rest.is_empty() {
        options["path"] = json!(rest);
    }
    options
}

/// Options as a query.
fn query(options: &Value) -> String {
    let mut query = Query::default();
    for (key, value) in options.as_object().into_iter().flatten() {
        let key: &str = key;
        if matches!(key, "kind" | "apiVersion") {
            continue;
        }
        match value {
            Value::Array(list) => list.iter().for_each(|one| query.add(key, &word(one))),
            one => query.add(key, &word(one)),
        }
    }
    query.text().trim_start_matches('?').to_owned()
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_become_options_and_options_queries() {
        let check = |options: Value, expected: Value, back: &str| {
            assert_eq!((&options, query(&options).as_str()), (&expected, back));
        };
        let text = "container=c&container=d&command=sh&command=echo+%26&stdin=true&stderr=false&tty=1";
        check(
            streams(json!({}), text, true),
            json!({"container": "c", "stdin": true, "stdout": true, "tty": true, "command": ["sh", "echo &"]}),
            "command=sh&command=echo+%26&container=c&stdin=true&stdout=true&tty=true",
        );
        check(
            streams(json!({}), "command=x", false),
            json!({"stdout": true, "stderr": true}),
            "stderr=true&stdout=true",
        );
        check(ports(json!({}), "ports=80&ports=81,82"), json!({"ports": [80, 81, 82]}), "ports=80&ports=81&ports=82");
        check(ports(json!({}), ""), json!({}), "");
    }
}
