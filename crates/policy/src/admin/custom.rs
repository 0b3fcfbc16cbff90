//! Objects of kinds that a user installs, and the definitions of these kinds, as far as policies ask.

use api::object::{Object, without_managers};
use client::rest::{Collection, Resource};
use json::{Error, Value};
use k8s_openapi::{ClusterResourceScope, Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::kind;

/// An object of one of the kinds that administrators write, whose spec may hold anything.
#[derive(Debug, Clone)]
pub struct Custom {
    metadata: ObjectMeta,
    pub spec: Value,
    /// The conditions of its status, whoever wrote them.
    pub conditions: Vec<Value>,
}

impl Object for Custom {
    fn from_value(value: &Value) -> Result<Self, Error> {
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        let ObjectMeta { name, uid, resource_version, generation, .. } = json::from_value(metadata)?;
        let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
        Ok(Custom {
            metadata: ObjectMeta { name, uid, resource_version, generation, ..ObjectMeta::default() },
            spec: value.get("spec").cloned().unwrap_or_default(),
            conditions: conditions.map(|all| all.to_vec()).unwrap_or_default(),
        })
    }

    fn from_json(text: &str) -> Result<Self, Error> {
        Custom::from_value(&without_managers(text.as_bytes())?)
    }

    /// Never written: this is not the whole object.
    fn to_value(&self) -> Value {
        Value::Null
    }
}

/// One type serves all the kinds, so whoever follows one says which.
impl k8s_openapi::Resource for Custom {
    const API_VERSION: &'static str = "";
    const GROUP: &'static str = kind::GROUP;
    const KIND: &'static str = "";
    const VERSION: &'static str = "";
    const URL_PATH_SEGMENT: &'static str = "";
    type Scope = ClusterResourceScope;
}

impl Metadata for Custom {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A CustomResourceDefinition: the versions in which its objects can be read. Its schema is large, and not kept.
#[derive(Debug, Clone, Default)]
pub struct Definition {
    served: Vec<String>,
}

impl Definition {
    /// The definition of a resource, as a collection of one.
    pub fn collection(of: &Resource) -> Collection {
        let resource = Resource {
            group: "apiextensions.k8s.io".to_owned(),
            version: "v1".to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            plural: "customresourcedefinitions".to_owned(),
        };
        Collection::one(resource, "", &format!("{}.{}", of.plural, of.group))
    }

    pub fn serves(&self, version: &str) -> bool {
        self.served.iter().any(|served| served == version)
    }
}

impl Object for Definition {
    fn from_value(value: &Value) -> Result<Self, Error> {
        let list = |path: &str| value.pointer(path).and_then(Value::as_array).into_iter().flatten();
        let is_established = list("/status/conditions").any(|condition| {
            condition["type"].as_str() == Some("Established") && condition["status"].as_str() == Some("True")
        });
        let served =
            list("/spec/versions").filter(|version| is_established && version["served"].as_bool() == Some(true));
        let names = served.filter_map(|version| version["name"].as_str().map(str::to_owned));
        Ok(Definition { served: names.collect() })
    }

    fn from_json(text: &str) -> Result<Self, Error> {
        Definition::from_value(&without_managers(text.as_bytes())?)
    }

    /// Never written: this is not the whole object.
    fn to_value(&self) -> Value {
        Value::Null
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_version_is_served_when_it_says_so_and_its_names_are_accepted() {
        let check = |established: &str, served: Value, expected: bool| {
            let definition = json!({
                "spec": {"versions": [{"name": "v1", "served": served}, {"name": "v2", "served": true}]},
                "status": {"conditions": [{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": established}]},
            });
            let read = Definition::from_json(&definition.to_string()).unwrap();
            assert_eq!(read.serves("v1"), expected, "{definition}");
        };
        check("True", json!(true), true);
        check("True", json!(false), false);
        check("True", json!("true"), false);
        check("False", json!(true), false);
        assert!(!Definition::from_json("{}").unwrap().serves("v1"));
        let resource = kind::PolicyKind::Admin.resource();
        let path = Definition::collection(&resource).path(&[]);
        assert!(path.ends_with("metadata.name%3Dadminnetworkpolicies.policy.networking.k8s.io"), "{path}");
    }
}
