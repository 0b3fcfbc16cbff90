//! The kubelet's part in a request for a Pod's log, exec, attach or port-forward: pure functions from the Pod and
//! the query to a path.

use api::{
    Value,
    rules::{
        pod_log::LogOptions,
        url::{is_true, query_firsts, query_pairs},
    },
    status::StatusError,
};
use stream::websocket::Streams;

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

/// The options of a request for the log of this Pod. Wrong ones are refused before anything is asked about it.
pub(super) fn log_options(name: &str, query: &str, selects_streams: bool) -> Result<LogOptions, StatusError> {
    let options = LogOptions::read(query).map_err(StatusError::bad_request)?;
    let faults = options.faults(selects_streams);
    if faults.is_empty() { Ok(options) } else { Err(StatusError::invalid("", "PodLogOptions", name, &faults)) }
}

/// The path of the log that is meant at the Pod's kubelet.
pub(super) fn log_path(pod: &Value, options: &LogOptions) -> Result<String, StatusError> {
    let container = container(pod, &options.container)?;
    let mut query = Query::default();
    for (name, on) in [("follow", options.follow), ("previous", options.previous), ("timestamps", options.timestamps)] {
        if on {
            query.add(name, "true");
        }
    }
    let numbers = [
        ("sinceSeconds", options.since_seconds),
        ("tailLines", options.tail_lines),
        ("limitBytes", options.limit_bytes),
    ];
    for (name, number) in numbers {
        number.iter().for_each(|number| query.add(name, &number.to_string()));
    }
    for (name, text) in [("sinceTime", &options.since_time), ("stream", &options.stream)] {
        text.iter().for_each(|text| query.add(name, text));
    }
    Ok(format!("/containerLogs/{}/{container}{}", place(pod), query.text()))
}

/// `what` is `exec` or `attach`. Gives the path and the streams that it opens.
pub(super) fn stream_path(what: &str, pod: &Value, query: &str) -> Result<(String, Streams), StatusError> {
    let (mut wanted, mut stdin, mut tty, mut out) = (String::new(), false, false, Query::default());
    for (key, value) in query_firsts(query) {
        match key.as_str() {
            "container" => wanted = value,
            "stdin" => stdin = is_true(&value),
            "tty" => tty = is_true(&value),
            _ => {}
        }
    }
    let command = query_pairs(query).filter(|(key, _)| key == "command" && what == "exec");
    command.for_each(|(key, value)| out.add(&key, &value));
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
        let log = |query| log_path(&one, &log_options("p", query, false)?);
        check(log(""), "/containerLogs/d/p/a");
        let query = "container=a&follow=true&previous=false&tailLines=10&sinceTime=2020-01-01T00%3A00%3A00Z&x=y";
        let path = "/containerLogs/d/p/a?follow=true&tailLines=10&sinceTime=2020-01-01T00%3A00%3A00Z";
        check(log(query), path);
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

    #[test]
    fn wrong_options_of_logs_are_refused_in_upstreams_words() {
        let told = |query, selects_streams| match log_options("p", query, selects_streams) {
            Ok(_) => "taken".to_owned(),
            Err(error) => format!("{} {error}", error.code).replace("422 PodLogOptions \"p\" is invalid: ", ""),
        };
        for (query, expected) in [
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            (
                "tailLines=-1&limitBytes=-1",
                "[tailLines: Invalid value: -1: must be greater than or equal to 0, limitBytes: Invalid value: -1: must \
                 be greater than 0]",
            ),
            (
                "sinceSeconds=0&sinceTime=2020-01-01T00:00:00Z",
                "[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            ("stream=Stdout", "stream: Forbidden: may not be specified"),
            ("tailLines=x", "400 strconv.ParseInt: parsing \"x\": invalid syntax"),
            (
                "sinceTime=yesterday",
                "400 parsing time \"yesterday\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"",
            ),
            ("sinceTime=&tailLines=0", "taken"),
        ] {
            assert_eq!(told(query, false), expected, "{query}");
        }
        for (query, expected) in [
            ("stream=All&tailLines=3", "taken"),
            ("stream=Stdout", "taken"),
            ("stream=x", "stream: Unsupported value: \"x\": supported values: \"All\", \"Stderr\", \"Stdout\""),
            (
                "stream=Stderr&tailLines=3",
                "[]: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
            ),
        ] {
            assert_eq!(told(query, true), expected, "{query}");
        }
    }
}
