//! An object that every cluster has, and how one that is there is mended.

use json::{Value, json};

use crate::auth::rbac::{cover, policy as roles};

/// The annotation that lets the server mend a default role or binding; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The annotation that lets the server mend an object of priority and fairness; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE_SPEC: &str = "apf.kubernetes.io/autoupdate-spec";

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
    /// Of objects of priority and fairness, whether they must be as they are here.
    pub mandatory: Option<bool>,
}

impl BootstrapObject {
    pub fn new(group: &'static str, plural: &'static str, object: Value) -> Self {
        BootstrapObject { group, plural, object, owned: &[], mandatory: None }
    }

    #[must_use]
    pub fn owning(mut self, owned: &'static [&'static str]) -> Self {
        self.owned = owned;
        self
    }

    /// The object with what is missing in it, or `None` when nothing is.
    pub fn mended(&self, present: &Value) -> Option<Value> {
        if let Some(mandatory) = self.mandatory {
            return mended_flow_control(present, &self.object, mandatory);
        }
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

/// A suggested object is mended as long as nobody has changed it, or its annotation asks for it. Of a mandatory level shares and
/// what it lends are the administrator's.
fn mended_flow_control(present: &Value, wanted: &Value, mandatory: bool) -> Option<Value> {
    let annotation = present["metadata"]["annotations"][AUTOUPDATE_SPEC].as_str();
    let wants = match annotation {
        Some(text) => text == "true",
        None => present["metadata"]["generation"] == 1,
    };
    let mut object = present.clone();
    if wants || mandatory {
        object["spec"] = wanted["spec"].clone();
    }
    if mandatory && !wants {
        for field in ["nominalConcurrencyShares", "lendablePercent", "borrowingLimitPercent"] {
            for sort in ["exempt", "limited"].into_iter().filter(|sort| wanted["spec"].get(sort).is_some()) {
                if let Some(value) = present["spec"][sort].get(field) {
                    object["spec"][sort][field] = value.clone();
                }
            }
        }
    }
    if annotation.is_none() {
        object["metadata"]["annotations"][AUTOUPDATE_SPEC] = json!(wants.to_string());
    }
    (object != *present).then_some(object)
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
    fn what_is_suggested_is_mended_until_somebody_changes_it() {
        let spec = |shares: i32| json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "lendablePercent": 9}});
        let annotations = |text: &str| json!({AUTOUPDATE_SPEC: text});
        let wanted = json!({"metadata": {"annotations": annotations("true")}, "spec": spec(5)});
        let mut wanted = BootstrapObject::new("g", "p", wanted);
        let mut check = |mandatory: bool, metadata: Value, shares: i32, expected: Option<(&str, Value)>| {
            wanted.mandatory = Some(mandatory);
            let present = json!({"metadata": metadata, "spec": spec(shares)});
            let mended = wanted.mended(&present).map(|m| (m["metadata"]["annotations"].clone(), m["spec"].clone()));
            assert_eq!(mended, expected.map(|(text, spec)| (annotations(text), spec)), "{present}");
        };
        check(false, json!({"annotations": annotations("true")}), 5, None);
        check(false, json!({"annotations": annotations("true")}), 7, Some(("true", spec(5))));
        check(false, json!({"annotations": annotations("false")}), 7, None);
        check(false, json!({"generation": 1}), 7, Some(("true", spec(5))));
        check(false, json!({"generation": 2}), 7, Some(("false", spec(7))));
        check(true, json!({"annotations": annotations("false")}), 7, None);
        let mut other = json!({"metadata": {"annotations": annotations("false")}, "spec": spec(7)});
        other["spec"]["limited"]["limitResponse"] = json!({"type": "Queue"});
        let mended = wanted.mended(&other).unwrap();
        assert_eq!(mended["spec"], spec(7), "of a mandatory one only its shares may be others");
    }

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
