//! An object that every cluster has, and how one that is there is mended.

use json::{Value, json};

use crate::auth::rbac::{cover, policy as roles};

/// The annotation that lets the server mend a default role or binding; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The label of APIServices that the server mends; without it they are the administrator's.
pub const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// An object that must exist.
#[derive(Debug, Clone, PartialEq)]
pub struct BootstrapObject {
    pub group: &'static str,
    pub plural: &'static str,
    pub object: Value,
    /// JSON pointers to the parts that are the server's: they are set again when they differ.
    pub owned: &'static [&'static str],
}

impl BootstrapObject {
    pub fn new(group: &'static str, plural: &'static str, object: Value) -> Self {
        BootstrapObject { group, plural, object, owned: &[] }
    }

    #[must_use]
    pub fn owning(mut self, owned: &'static [&'static str]) -> Self {
        self.owned = owned;
        self
    }

    /// The object with what is missing in it, or `None` when nothing is.
    pub fn mended(&self, present: &Value) -> Option<Value> {
        match (autoupdates(&self.object), autoupdates(present)) {
            (true, true) => mended_policy(present, self),
            (true, false) => None,
            (false, _) if is_managed(&self.object) && !is_managed(present) => None,
            (false, _) => {
                let mut object = present.clone();
                for pointer in self.owned {
                    set(&mut object, pointer, self.object.pointer(pointer)?.clone());
                }
                (object != *present).then_some(object)
            }
        }
    }
}

/// Whether an object is a default role or binding that the server may mend.
fn autoupdates(object: &Value) -> bool {
    object["metadata"]["annotations"][AUTOUPDATE] == "true"
}

/// Whether an APIService is the server's to mend and to take away.
pub fn is_managed(object: &Value) -> bool {
    matches!(object["metadata"]["labels"][AUTOMANAGED].as_str(), Some("onstart" | "true"))
}

/// Default roles get back rules that they lost, default bindings subjects; more than the default is left alone.
fn mended_policy(present: &Value, wanted: &BootstrapObject) -> Option<Value> {
    let mut object = present.clone();
    if wanted.object.get("roleRef").is_some() {
        let mut subjects = present.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
        for subject in wanted.object.get("subjects").and_then(Value::as_array).into_iter().flatten() {
            if !subjects.contains(subject) {
                subjects.push(subject.clone());
            }
        }
        if !subjects.is_empty() {
            object["subjects"] = json!(subjects);
        }
    } else if wanted.object.get("aggregationRule").is_some() {
        // The rules of these are the aggregation controller's.
        object["aggregationRule"] = wanted.object["aggregationRule"].clone();
    } else {
        let mut rules = roles::rules(present);
        rules.extend(cover::uncovered(&rules, &roles::rules(&wanted.object)));
        let same = rules.len() == present.get("rules").and_then(Value::as_array).map_or(0, Vec::len);
        if !same {
            object["rules"] = json!(rules);
        }
    }
    for (key, value) in wanted.object["metadata"]["labels"].as_object().into_iter().flatten() {
        object["metadata"]["labels"][key] = value.clone();
    }
    (object != *present).then_some(object)
}

/// Sets what a pointer of object keys names, making objects on the way.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for key in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[key];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_service_is_mended_as_long_as_its_label_stands() {
        let wanted = json!({"metadata": {"labels": {AUTOMANAGED: "onstart"}}, "spec": {"group": "apps"}});
        let wanted = BootstrapObject::new("apiregistration.k8s.io", "apiservices", wanted).owning(&["/spec"]);
        let mut present = wanted.object.clone();
        assert_eq!(wanted.mended(&present), None);
        present["spec"]["service"] = json!({"name": "captor"});
        assert_eq!(wanted.mended(&present), Some(wanted.object.clone()));
        present["metadata"]["labels"] = json!({});
        assert_eq!(wanted.mended(&present), None);
    }
}
