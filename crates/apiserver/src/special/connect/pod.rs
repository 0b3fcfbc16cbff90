//! The kubelet's part in a request for a Pod's log, exec, attach or port-forward: pure functions from the Pod and
//! the query to a path.

use std::collections::BTreeMap;

use api::{
    Value,
    codec::decode,
    status::StatusError,
    validation::field::{FieldError, Path},
};

use stream::websocket::Streams;

use crate::http::request::is_true;
use api::rules::url::{query_firsts, query_pairs};

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

/// The options of a request for a log as far as the kubelet has to know them, and the container that is meant.
pub(super) struct LogOptions {
    container: String,
    query: Query,
}

impl LogOptions {
    /// Reads the options and refuses wrong ones, before anything is asked about the Pod of this name.
    pub(super) fn parse(name: &str, query: &str, selects_streams: bool) -> Result<Self, StatusError> {
        let mut options = LogOptions { container: String::new(), query: Query::default() };
        let (mut numbers, mut since, mut stream) = (BTreeMap::new(), false, None);
        for (key, value) in query_firsts(query) {
            match key.as_str() {
                "container" => options.container = value,
                "follow" | "previous" | "timestamps" if is_true(&value) => options.query.add(&key, "true"),
                "sinceSeconds" | "tailLines" | "limitBytes" => {
                    let number: i64 = value.parse().map_err(|_| {
                        StatusError::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
                    })?;
                    numbers.insert(key.clone(), number);
                    options.query.add(&key, &value);
                }
                "sinceTime" if !value.is_empty() => {
                    decode::time(&value).map_err(StatusError::bad_request)?;
                    since = true;
                    options.query.add(&key, &value);
                }
                "stream" => {
                    options.query.add(&key, &value);
                    stream = Some(value);
                }
                _ => {}
            }
        }
        let errors = faults(&numbers, since, stream.as_deref(), selects_streams);
        if errors.is_empty() { Ok(options) } else { Err(StatusError::invalid("", "PodLogOptions", name, &errors)) }
    }

    /// The path of the Pod's kubelet.
    pub(super) fn path(&self, pod: &Value) -> Result<String, StatusError> {
        let container = container(pod, &self.container)?;
        Ok(format!("/containerLogs/{}/{container}{}", place(pod), self.query.text()))
    }
}

/// The faults of options for a log, in upstream's order.
fn faults(
    numbers: &BTreeMap<String, i64>,
    since: bool,
    stream: Option<&str>,
    selects_streams: bool,
) -> Vec<FieldError> {
    const STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];
    let path = Path::new;
    // The path of the whole, as Go prints one without a name.
    let whole = || path("[]");
    let mut errors = Vec::new();
    let mut least = |name: &str, least: i64, why: &str| {
        if let Some(number) = numbers.get(name).filter(|number| **number < least) {
            errors.push(FieldError::invalid(&path(name), number, why));
        }
    };
    least("tailLines", 0, "must be greater than or equal to 0");
    least("limitBytes", 1, "must be greater than 0");
    if since && numbers.contains_key("sinceSeconds") {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden(&whole(), why));
    } else {
        least("sinceSeconds", 1, "must be greater than 0");
    }
    match stream {
        Some(_) if !selects_streams => errors.push(FieldError::forbidden(&path("stream"), "may not be specified")),
        Some(stream) if !STREAMS.contains(&stream) => {
            errors.push(FieldError::not_supported(&path("stream"), stream, &STREAMS));
        }
        Some(stream) if stream != "All" && numbers.contains_key("tailLines") => {
            let why = "`tailLines` and specific `stream` are mutually exclusive for now";
            errors.push(FieldError::forbidden(&whole(), why));
        }
        _ => {}
    }
    errors
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
        let log = |query| LogOptions::parse("p", query, false)?.path(&one);
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
        let told = |query, selects_streams| match LogOptions::parse("p", query, selects_streams) {
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
