//! Upstream's TracingConfiguration: where spans go, and how many.
//! Upstream counterpart: k8s.io/component-base/tracing/api/v1.

use std::path::PathBuf;

use json::{Map, Value};

/// The port of collectors on this machine.
const USUAL: &str = "localhost:4317";
const KIND: &str = "TracingConfiguration";
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1alpha1"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collector {
    /// A host and its port, without TLS, as upstream.
    Remote(String),
    Socket(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub collector: Collector,
    /// The number of traces that are sent of a million that begin here.
    pub per_million: u32,
}

impl Config {
    /// Reads a file's document. The error says what is wrong.
    pub fn of_file(value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or_else(|| format!("it must be a {KIND}"))?;
        let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
        if !VERSIONS.contains(&text("apiVersion")) || text("kind") != KIND {
            return Err(format!("it is no {KIND} of {}", VERSIONS[0]));
        }
        Self::of(map)
    }

    /// Reads the part of another document that has the fields, and neither kind nor version.
    pub fn of_part(value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or("it must be an object")?;
        match map.iter().find(|(name, _)| ["apiVersion", "kind"].contains(&&***name)) {
            Some((name, _)) => Err(format!("unknown field {:?}", &**name)),
            None => Self::of(map),
        }
    }

    fn of(map: &Map) -> Result<Self, String> {
        let mut config = Config { collector: Collector::Remote(USUAL.to_owned()), per_million: 0 };
        for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            match &*name.to_string() {
                "apiVersion" | "kind" => {}
                "endpoint" => config.collector = collector(value)?,
                "samplingRatePerMillion" => config.per_million = rate(value)?,
                other => return Err(format!("unknown field {other:?}")),
            }
        }
        Ok(config)
    }
}

fn rate(value: &Value) -> Result<u32, String> {
    let wrong = |why: &str| Err(format!("samplingRatePerMillion: Invalid value: {value}: {why}"));
    match value.as_i64() {
        None => wrong("it must be a whole number"),
        Some(..0) => wrong("sampling rate must be positive"),
        Some(rate) => match u32::try_from(rate) {
            Ok(rate) if rate <= 1_000_000 => Ok(rate),
            _ => wrong("sampling rate per million must be less than or equal to one million"),
        },
    }
}

fn collector(value: &Value) -> Result<Collector, String> {
    let text = value.as_str().ok_or("endpoint: it must be a text")?;
    let wrong = |why: &str| Err(format!("endpoint: Invalid value: {text:?}: {why}"));
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme, rest),
        None => ("dns", text),
    };
    match scheme {
        "unix" if rest.starts_with('/') => Ok(Collector::Socket(rest.into())),
        "unix" => wrong("the path of a socket begins with a slash"),
        "dns" => {
            // Of `dns:///host:port` the part before the third slash names a resolver.
            let address = rest.strip_prefix('/').unwrap_or(rest);
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            let is_port = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
            let is_plain = address.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c));
            if is_port && is_plain { Ok(Collector::Remote(address.to_owned())) } else { wrong("it is no host:port") }
        }
        other => wrong(&format!("unsupported scheme: {other}.  Options are none, dns, or unix.")),
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn with(field: &str, value: Value) -> Result<Config, String> {
        let mut file = json!({"apiVersion": VERSIONS[0], "kind": KIND});
        file[field] = value;
        Config::of_file(&file)
    }

    #[test]
    fn files_are_read_strictly() {
        let usual = with("endpoint", Value::Null).unwrap();
        assert_eq!(usual, Config { collector: Collector::Remote("localhost:4317".to_owned()), per_million: 0 });
        let endpoint = |text: &str| with("endpoint", json!(text)).map(|config| config.collector);
        let remote = |text: &str| Ok(Collector::Remote(text.to_owned()));
        assert_eq!(endpoint("c.example:4317"), remote("c.example:4317"));
        assert_eq!(endpoint("dns:///c.example:4317"), remote("c.example:4317"));
        assert_eq!(endpoint("[::1]:4317"), remote("[::1]:4317"));
        assert_eq!(endpoint("unix:///run/otel.sock"), Ok(Collector::Socket("/run/otel.sock".into())));
        for wrong in
            ["", "host", ":4317", "host:0", "host:x", "https://host:4317", "unix://x", "a b:1", "host:1/path", "u@h:1"]
        {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
        assert_eq!(with("samplingRatePerMillion", json!(1_000_000)).unwrap().per_million, 1_000_000);
        for wrong in [json!(-1), json!(1_000_001), json!("1"), json!(0.5)] {
            assert!(with("samplingRatePerMillion", wrong.clone()).is_err(), "{wrong}");
        }
        assert!(with("samplingRate", json!(1)).unwrap_err().contains("unknown field"));
        let part = Config::of_part(&json!({"endpoint": "c:1", "samplingRatePerMillion": 7})).unwrap();
        assert_eq!(part, Config { collector: Collector::Remote("c:1".to_owned()), per_million: 7 });
        for wrong in [json!([]), json!({"kind": KIND}), json!({"rate": 1}), json!({"samplingRatePerMillion": -1})] {
            assert!(Config::of_part(&wrong).is_err(), "{wrong}");
        }
        assert!(with("kind", json!("Other")).is_err() && Config::of_file(&json!([])).is_err());
    }
}
