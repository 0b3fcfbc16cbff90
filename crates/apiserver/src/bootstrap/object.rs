//! An object that every cluster has, and how one that is there is mended.

use json::{Value, json};

use super::authorities;
use crate::auth::rbac::{cover, policy as roles};

/// The annotation that lets the server mend a default role or binding; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The annotation that lets the server mend an object of priority and fairness; `"false"` keeps it as the administrator made it.
pub const AUTOUPDATE_SPEC: &str = "apf.kubernetes.io/autoupdate-spec";

/// The priority level of requests that never wait.
pub const EXEMPT: &str = "exempt";

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
    /// These parts are joined with what other servers have written. It is what this server told in them before, if anything.
    pub joins: Option<Value>,
    /// Of objects of priority and fairness, whether they must be as they are here.
    pub mandatory: Option<bool>,
}

impl BootstrapObject {
    pub fn new(group: &'static str, plural: &'static str, object: Value) -> Self {
        BootstrapObject { group, plural, object, owned: &[], joins: None, mandatory: None }
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
                    let wanted = self.object.pointer(pointer)?;
                    let value = match &self.joins {
                        Some(told) => {
                            authorities::joined(present.pointer(pointer).unwrap_or(&Value::Null), told, wanted)
                        }
                        None => wanted.clone(),
                    };
                    set(&mut object, pointer, value);
                }
                (object != *present).then_some(object)
            }
        }
    }
}

/// A mandatory object is always mended. A suggested one is where its annotation asks for it, and without one as long as nobody
/// has changed it.
fn mended_flow_control(present: &Value, wanted: &Value, mandatory: bool) -> Option<Value> {
    let annotation = asks_for_mending(present);
    let wants = mandatory || annotation.unwrap_or(present["metadata"]["generation"] == 1);
    let mut object = present.clone();
    if wants {
        object["spec"] = spec_beside(wanted, present);
    }
    if annotation != Some(wants) {
        object["metadata"]["annotations"][AUTOUPDATE_SPEC] = json!(wants.to_string());
    }
    (object != *present).then_some(object)
}

/// The spec that a wanted object has beside one that is there: shares of the exempt level, and how much it lends, are the
/// administrator's.
pub fn spec_beside(wanted: &Value, present: &Value) -> Value {
    let mut spec = wanted["spec"].clone();
    if wanted["metadata"]["name"] == EXEMPT && present["spec"]["exempt"].is_object() {
        spec["exempt"] = present["spec"]["exempt"].clone();
    }
    spec
}

/// The annotation of an object of priority and fairness, where it says yes or no.
pub fn asks_for_mending(object: &Value) -> Option<bool> {
    api::features::boolean(object["metadata"]["annotations"][AUTOUPDATE_SPEC].as_str()?).ok()
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
        check(false, json!({"annotations": annotations("f")}), 7, None);
        check(false, json!({"annotations": annotations("T")}), 5, None);
        check(false, json!({"annotations": annotations("maybe"), "generation": 3}), 7, Some(("false", spec(7))));
        check(true, json!({"annotations": annotations("false")}), 7, Some(("true", spec(5))));
        check(true, json!({"annotations": annotations("true")}), 7, Some(("true", spec(5))));
        check(true, json!({"annotations": annotations("true"), "generation": 9}), 5, None);
    }

    #[test]
    fn shares_of_the_exempt_level_are_the_administrators() {
        let object = |text: &str, shares: i32| {
            let exempt = json!({"nominalConcurrencyShares": shares, "lendablePercent": shares});
            json!({"metadata": {"name": "exempt", "annotations": {AUTOUPDATE_SPEC: text}},
                "spec": {"type": "Exempt", "exempt": exempt}})
        };
        let mut wanted = BootstrapObject::new("g", "p", object("true", 0));
        wanted.mandatory = Some(true);
        assert_eq!(wanted.mended(&object("true", 7)), None);
        assert_eq!(wanted.mended(&object("false", 7)), Some(object("true", 7)));
        let mut without = object("true", 7);
        without["spec"] = json!({"type": "Exempt"});
        assert_eq!(wanted.mended(&without), Some(object("true", 0)));
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
