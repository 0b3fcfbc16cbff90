//! The messages as extenders know them: names in capitals, as Go writes them; read as Go reads them, whatever the case of
//! the names.

use std::collections::BTreeMap;

use json::Value;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::{Deserialize, Serialize};

/// The arguments of a question about nodes.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Args<'a> {
    pub pod: &'a Pod,
    pub nodes: Option<NodeList<'a>>,
    pub node_names: Option<Vec<&'a str>>,
}

#[derive(Serialize)]
pub struct NodeList<'a> {
    pub metadata: BTreeMap<String, Value>,
    pub items: Vec<&'a Node>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Filtered {
    pub nodes: Option<Names>,
    #[serde(rename = "nodenames")]
    pub node_names: Option<Vec<String>>,
    #[serde(rename = "failednodes")]
    pub failed: Option<BTreeMap<String, String>>,
    #[serde(rename = "failedandunresolvablenodes")]
    pub unresolvable: Option<BTreeMap<String, String>>,
    pub error: String,
}

/// The nodes of a list, of which only the names matter.
#[derive(Deserialize)]
pub struct Names {
    pub items: Option<Vec<Named>>,
}

#[derive(Deserialize)]
pub struct Named {
    pub metadata: Name,
}

#[derive(Deserialize)]
pub struct Name {
    pub name: String,
}

#[derive(Deserialize)]
pub struct Priority {
    pub host: String,
    pub score: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptionArgs<'a> {
    pub pod: &'a Pod,
    pub node_name_to_victims: Option<BTreeMap<&'a str, Victims<'a>>>,
    pub node_name_to_meta_victims: Option<BTreeMap<&'a str, MetaVictims>>,
}

#[derive(Serialize)]
pub struct Victims<'a> {
    #[serde(rename = "Pods")]
    pub pods: Vec<&'a Pod>,
    #[serde(rename = "NumPDBViolations")]
    pub guarded: usize,
}

#[derive(Serialize)]
pub struct MetaVictims {
    #[serde(rename = "Pods")]
    pub pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations")]
    pub guarded: usize,
}

#[derive(Serialize)]
pub struct MetaPod {
    #[serde(rename = "UID")]
    pub uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Preempted {
    #[serde(rename = "nodenametometavictims")]
    pub nodes: Option<BTreeMap<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Going {
    pub pods: Option<Vec<Value>>,
    #[serde(rename = "numpdbviolations")]
    pub guarded: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Gone {
    pub uid: String,
}

#[derive(Serialize)]
pub struct BindingArgs<'a> {
    #[serde(rename = "PodName")]
    pub name: &'a str,
    #[serde(rename = "PodNamespace")]
    pub namespace: &'a str,
    #[serde(rename = "PodUID")]
    pub uid: &'a str,
    #[serde(rename = "Node")]
    pub node: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Bound {
    pub error: String,
}

/// An object with its own names in small letters, as the types here have them. Values stay as they are.
pub fn lowered<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    let Value::Object(map) = value else { return Err("expected an object".to_owned()) };
    let given = map.into_iter().filter(|(_, value)| !value.is_null());
    let map = given.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect();
    json::from_value(Value::Object(map)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn names_are_read_in_any_case() {
        for name in ["NodeNames", "nodeNames", "nodenames"] {
            let read: Filtered = lowered(json!({name: ["A", "b"], "Error": null})).unwrap();
            assert_eq!(read.node_names.unwrap(), ["A", "b"], "{name}");
        }
        assert!(lowered::<Filtered>(json!([])).is_err());
    }
}
