//! The kubelet's part in a request for a Pod's log, exec, attach or port-forward: pure functions from the Pod and
//! the query to a path.

use api::{Value, status::StatusError};

use stream::websocket::Streams;

use crate::http::request::is_true;
use api::rules::url::query_pairs;

fn field<'a>(pod: &'a Value, pointer: &str) -> &'a str {
    pod.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

pub(super) fn node_name(pod: &Value) -> &str {
    field(pod, "/spec/nodeName")
}

fn names<'a>(pod: &'a Value, list: &str) -> Vec<&'a str> {
    let containers = pod.pointer(list).and_then(Value::as_array);
    containers.into_iter().flatten().filter_map(|c| c.get("name")?.as_str()).collect()
}

/// The container that is meant: the one named, or the only one.
fn container(pod: &Value, wanted: &str) -> Result<String, StatusError> {
    let name = field(pod, "/metadata/name");
    let (main, init, ephemeral) =
        (names(pod, "/spec/containers"), names(pod, "/spec/initContainers"), names(pod, "/spec/ephemeralContainers"));
    if !wanted.is_empty() {
        if [&main, &init, &ephemeral].iter().any(|list| list.contains(&wanted)) {
            return Ok(wanted.to_owned());
        }
        return Err(StatusError::bad_request(format!("container {wanted} is not valid for pod {name}")));
    }
    let mut message = match main[..] {
        [only] => return Ok(only.to_owned()),
        [] => format!("a container name must be specified for pod {name}"),
        _ => format!("a container name must be specified for pod {name}, choose one of: [{}]", main.join(" ")),
    };
    if main.len() > 1 && !init.is_empty() {
        message += &format!(" or one of the init containers: [{}]", init.join(" "));
    }
    if main.len() > 1 && !ephemeral.is_empty() {
        message += &format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" "));
    }
    Err(StatusError::bad_request(message))
}

/// Builds a query string.
#[derive(Default)]
pub(super) struct Query(String);

impl Query {
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn add(&mut self, key: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0 += key;
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => self.0.push(byte as char),
                b' ' => self.0.push('+'),
                other => self.0 += &format!("%{other:02X}"),
            }
        }
    }
}

/// The pod's own part of a kubelet path.
fn place(pod: &Value) -> String {
    format!("{}/{}", field(pod, "/metadata/namespace"), field(pod, "/metadata/name"))
}

pub(super) fn log_path(pod: &Value, query: &str) -> Result<String, StatusError> {
    let (mut wanted, mut out) = (String::new(), Query::default());
    for (key, value) in query_pairs(query) {
        match key.as_str() {
            "container" => wanted = value,
            "follow" | "previous" | "timestamps" if is_true(&value) => out.add(&key, "true"),
            "sinceSeconds" | "tailLines" | "limitBytes" => {
                number(&key, &value)?;
                out.add(&key, &value);
            }
            "sinceTime" | "stream" => out.add(&key, &value),
            _ => {}
        }
    }
    let container = container(pod, &wanted)?;
    Ok(format!("/containerLogs/{}/{container}{}", place(pod), out.0))
}

fn number(key: &str, value: &str) -> Result<(), StatusError> {
    let least = if key == "tailLines" { 0 } else { 1 };
    let invalid = |why: &str| {
        let message = format!("PodLogOptions \"\" is invalid: {key}: Invalid value: {value}: {why}");
        Err(StatusError::new(422, "Invalid", message))
    };
    match value.parse::<i64>() {
        Ok(n) if n >= least => Ok(()),
        Ok(_) if least == 0 => invalid("must be greater than or equal to 0"),
        Ok(_) => invalid("must be greater than 0"),
        Err(_) => Err(StatusError::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))),
    }
}

/// `what` is `exec` or `attach`. Gives the path and the streams that it opens.
pub(super) fn stream_path(what: &str, pod: &Value, query: &str) -> Result<(String, Streams), StatusError> {
    let (mut wanted, mut stdin, mut tty, mut out) = (String::new(), false, false, Query::default());
    for (key, value) in query_pairs(query) {
        match key.as_str() {
            "container" => wanted = value,
            "stdin" => stdin = is_true(&value),
            "tty" => tty = is_true(&value),
            "command" if what == "exec" => out.add("command", &value),
            _ => {}
        }
    }
    let container = container(pod, &wanted)?;
    has_host(pod)?;
    // Output and error are on whatever the client says; the kubelet leaves the error stream out of a terminal.
    for (name, on) in [("input", stdin), ("output", true), ("error", true), ("tty", tty)] {
        if on {
            out.add(name, "1");
        }
    }
    let streams = Streams { stdin, stdout: true, stderr: true, tty };
    Ok((format!("/{what}/{}/{container}{}", place(pod), out.0), streams))
}

pub(super) fn port_forward_path(pod: &Value, query: &str) -> Result<String, StatusError> {
    has_host(pod)?;
    let mut out = Query::default();
    for (key, value) in query_pairs(query) {
        if key == "ports" {
            out.add("port", &value);
        }
    }
    Ok(format!("/portForward/{}{}", place(pod), out.0))
}

fn has_host(pod: &Value) -> Result<(), StatusError> {
    if node_name(pod).is_empty() {
        let name = field(pod, "/metadata/name");
        return Err(StatusError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn pod(node: &str, containers: &[&str], init: &[&str]) -> Value {
        let list = |names: &[&str]| names.iter().map(|n| json!({ "name": n })).collect::<Vec<_>>();
        json!({"metadata": {"name": "p", "namespace": "d"},
            "spec": {"nodeName": node, "containers": list(containers), "initContainers": list(init)}})
    }

    fn check(got: Result<String, StatusError>, expected: &str) {
        assert_eq!(got.unwrap_or_else(|e| format!("{}: {e}", e.code)), expected);
    }

    #[test]
    fn containers() {
        let two = pod("n", &["a", "b"], &["i"]);
        check(container(&pod("n", &["a"], &["i"]), ""), "a");
        check(container(&two, "i"), "i");
        check(container(&two, "x"), "400: container x is not valid for pod p");
        let choose = "400: a container name must be specified for pod p, choose one of: [a b] \
            or one of the init containers: [i]";
        check(container(&two, ""), choose);
    }

    #[test]
    fn paths() {
        let one = pod("n", &["a"], &[]);
        check(log_path(&one, ""), "/containerLogs/d/p/a");
        let query = "container=a&follow=true&previous=false&tailLines=10&sinceTime=2020-01-01T00%3A00%3A00Z&x=y";
        let path = "/containerLogs/d/p/a?follow=true&tailLines=10&sinceTime=2020-01-01T00%3A00%3A00Z";
        check(log_path(&one, query), path);
        let refused = "422: PodLogOptions \"\" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0";
        check(log_path(&one, "sinceSeconds=0"), refused);
        let query = "command=sh&command=-c&command=echo+%26&stdin=true&stdout=true&tty=true";
        let path = "/exec/d/p/a?command=sh&command=-c&command=echo+%26&input=1&output=1&error=1&tty=1";
        let stream = |what, pod: &Value, query| stream_path(what, pod, query).map(|(path, _)| path);
        check(stream("exec", &one, query), path);
        check(stream("attach", &one, "command=x"), "/attach/d/p/a?output=1&error=1");
        check(port_forward_path(&one, ""), "/portForward/d/p");
        check(port_forward_path(&one, "ports=80&ports=81"), "/portForward/d/p?port=80&port=81");
        let nowhere = "400: pod p does not have a host assigned";
        check(stream("exec", &pod("", &["a"], &[]), ""), nowhere);
        check(port_forward_path(&pod("", &["a"], &[]), ""), nowhere);
    }
}
