//! A configuration as it was written: checked field by field, with what it says to flags and what it says in vain.

use json::{Map, Value};

use super::{
    fields::{FIELDS, Field, Use},
    settings::Settings,
    time::duration,
};
use crate::eviction::pressure;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// A configuration whose fields are all known.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    value: Value,
    warnings: Vec<String>,
}

fn is_same(given: &Value, usual: &str) -> bool {
    let Ok(usual) = serde_json::from_str::<Value>(usual) else { return false };
    let time = |value: &Value| value.as_str().and_then(|text| duration(text).ok());
    *given == usual || time(given).is_some() && time(given) == time(&usual)
}

impl Document {
    /// Checks what files say together. Fields that nobody knows, and values that cannot be done, are errors.
    pub fn new(value: Value) -> Result<Self, String> {
        let Some(map) = value.as_object() else { return Err(format!("it must be a {KIND}")) };
        for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match map.get(field).and_then(Value::as_str) {
                Some(text) if text == expected => {}
                Some(text) => return Err(format!("{field} is {text:?}, it must be {expected:?}")),
                None => return Err(format!("{field} is missing, it must be {expected:?}")),
            }
        }
        let mut warnings = Vec::new();
        check(map, FIELDS, "", &mut warnings)?;
        let document = Document { value, warnings };
        Settings::of(&document.value)?;
        Ok(document)
    }

    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The fields that it sets in vain, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The values that it has for flags, by their names.
    pub fn flags(&self) -> Result<Vec<(&'static str, String)>, String> {
        let mut flags = Vec::new();
        collect(&self.value, FIELDS, "", &mut flags)?;
        if self.value["mergeDefaultEvictionSettings"] == true
            && let Some((_, hard)) = flags.iter_mut().find(|(name, _)| *name == "eviction-hard")
        {
            let given = pressure::parse(hard)?;
            let usual = pressure::DEFAULT.split(',').filter(|one| {
                let signal = one.split('<').next().unwrap_or_default();
                !given.iter().any(|threshold| threshold.signal.name() == signal)
            });
            *hard = usual.map(str::to_owned).chain([hard.clone()]).collect::<Vec<_>>().join(",");
        }
        Ok(flags)
    }
}

fn check(map: &Map, fields: &[Field], above: &str, warnings: &mut Vec<String>) -> Result<(), String> {
    for (name, value) in map {
        let path = format!("{above}{name}");
        let Some((_, does)) = fields.iter().find(|(known, _)| *known == &**name) else {
            return Err(format!("unknown field \"{path}\""));
        };
        if value.is_null() {
            continue;
        }
        match does {
            Use::Flag(_) | Use::Setting => {}
            Use::Object(inner) => {
                let map = value.as_object().ok_or_else(|| format!("{path}: it must be an object"))?;
                check(map, inner, &format!("{path}."), warnings)?;
            }
            Use::Without(usual, why) if !is_same(value, usual) => {
                warnings.push(format!("{path} has no effect: {why}"));
            }
            Use::Only(only, why) if !is_same(value, only) => {
                let value = value.to_string();
                return Err(format!("{path}: {value} cannot be done here: {why}"));
            }
            Use::Without(..) | Use::Only(..) => {}
        }
    }
    Ok(())
}

fn collect(
    value: &Value,
    fields: &[Field],
    above: &str,
    flags: &mut Vec<(&'static str, String)>,
) -> Result<(), String> {
    for (name, does) in fields {
        let given = &value[*name];
        match does {
            _ if given.is_null() => {}
            Use::Object(inner) => collect(given, inner, &format!("{above}{name}."), flags)?,
            Use::Flag(flag) => {
                let text =
                    flag_value(name, given).ok_or_else(|| format!("{above}{name}: {given} is of another type"))?;
                flags.extend(text.into_iter().map(|text| (*flag, text)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The values of a flag, one for each time that it is given.
fn flag_value(name: &str, given: &Value) -> Option<Vec<String>> {
    // Thresholds are written with `<`, all other pairs with `=`.
    let sign = if matches!(name, "evictionHard" | "evictionSoft") { '<' } else { '=' };
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.to_string()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    match given {
        Value::Array(all) if name == "vmodule" => all.iter().map(module).collect(),
        Value::Array(all) => all.iter().map(plain).collect(),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| Some(format!("{key}{sign}{}", plain(value)?)));
            Some(vec![pairs.collect::<Option<Vec<_>>>()?.join(",")])
        }
        one => Some(vec![plain(one)?]),
    }
}

/// Files and their verbosity in the log, as a flag has them.
fn module(given: &Value) -> Option<String> {
    let map = given.as_object()?;
    let (pattern, verbosity) = (map.get("filePattern")?.as_str()?, map.get("verbosity")?.as_u64()?);
    (map.len() == 2).then(|| format!("{pattern}={verbosity}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn read(mut value: Value) -> Result<Document, String> {
        value["apiVersion"] = API_VERSION.into();
        value["kind"] = KIND.into();
        Document::new(value)
    }

    #[test]
    fn fields_are_known_and_what_cannot_be_done_is_refused_by_name() {
        for (value, expected) in [
            (json!({"maxPod": 3}), "unknown field \"maxPod\""),
            (json!({"authentication": {"x509": {"ca": "x"}}}), "unknown field \"authentication.x509.ca\""),
            (json!({"authentication": 3}), "authentication: it must be an object"),
            (
                json!({"cgroupsPerQOS": false}),
                "cgroupsPerQOS: false cannot be done here: classes of Pods always have cgroups of their own",
            ),
            (
                json!({"authentication": {"anonymous": {"enabled": true}}}),
                "authentication.anonymous.enabled: true cannot be done here: nobody is let in without a credential",
            ),
            (json!({"podPidsLimit": "many"}), "podPidsLimit: it must be a number"),
        ] {
            assert_eq!(read(value).unwrap_err(), expected);
        }
        assert_eq!(Document::new(json!([])).unwrap_err(), "it must be a KubeletConfiguration");
        let other = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": KIND});
        assert!(Document::new(other).unwrap_err().starts_with("apiVersion is \"kubelet.config.k8s.io/v1\""));
        assert!(Document::new(json!({"kind": KIND})).unwrap_err().starts_with("apiVersion is missing"));
    }

    #[test]
    fn what_is_said_in_vain_is_told_and_what_is_so_anyway_is_not() {
        let said = |value: Value| read(value).unwrap().warnings().to_vec();
        let usual = json!({"syncFrequency": "60s", "rotateCertificates": true, "volumeStatsAggPeriod": "60s", "kubeAPIQPS": null,
            "cgroupDriver": "cgroupfs", "tlsMinVersion": "VersionTLS12", "authorization": {"mode": "Webhook"}});
        assert_eq!(said(usual), Vec::<String>::new());
        let other = json!({"kubeAPIQPS": 7, "authorization": {"webhook": {"cacheAuthorizedTTL": "5m"}}});
        assert_eq!(
            said(other),
            [
                "authorization.webhook.cacheAuthorizedTTL has no effect: the API server is asked about each request",
                "kubeAPIQPS has no effect: the server bounds what a node may ask for at once",
            ]
        );
    }

    #[test]
    fn flags_get_what_stands_for_them() {
        let flags = |value: Value| -> Vec<String> {
            let flags = read(value).unwrap().flags().unwrap();
            flags.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        let given = json!({"maxPods": 30, "featureGates": {"A": true, "B": false}, "clusterDNS": ["10.0.0.10"],
            "evictionHard": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "30s"},
            "allowedUnsafeSysctls": ["net.*", "kernel.msg*"], "authentication": {"x509": {"clientCAFile": "/ca"}},
            "logging": {"verbosity": 3, "vmodule": [{"filePattern": "work*", "verbosity": 5}, {"filePattern": "b", "verbosity": 1}]}, "port": 10251});
        let expected = [
            "kubelet-port=10251",
            "client-ca-file=/ca",
            "cluster-dns=10.0.0.10",
            "max-pods=30",
            "eviction-hard=memory.available<1Gi",
            "eviction-soft-grace-period=memory.available=30s",
            "feature-gates=A=true,B=false",
            "allowed-unsafe-sysctls=net.*",
            "allowed-unsafe-sysctls=kernel.msg*",
            "v=3",
            "vmodule=work*=5",
            "vmodule=b=1",
        ];
        assert_eq!(flags(given), expected);
        let merged = flags(json!({"evictionHard": {"nodefs.available": "1%"}, "mergeDefaultEvictionSettings": true}));
        let [hard] = &merged[..] else { panic!("{merged:?}") };
        assert!(hard.starts_with("eviction-hard=memory.available<100Mi,nodefs.inodesFree<5%"), "{hard}");
        assert!(hard.ends_with(",nodefs.available<1%"), "{hard}");
    }
}
