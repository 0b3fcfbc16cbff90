//! Where a new volume gets its first data from: `dataSource`, and `dataSourceRef`, which came later and takes every kind.
//! Each is filled in from the other. Upstream counterpart: pkg/api/persistentvolumeclaim.

use json::{Map, Value};

type Object = Map;

fn spec_of(claim: &Value) -> Option<&Object> {
    claim.get("spec").and_then(Value::as_object)
}

fn given<'a>(spec: &'a Object, field: &str) -> Option<&'a Value> {
    spec.get(field).filter(|value| !value.is_null())
}

fn text<'a>(source: &'a Value, field: &str) -> &'a str {
    source.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Drops what `dataSource` never took, and fills in the other field; `old` on a change.
pub(super) fn prepare(claim: &mut Value, old: Option<&Value>) {
    let old = old.and_then(spec_of);
    let had = |field: &str| old.is_some_and(|spec| given(spec, field).is_some());
    let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if !had("dataSource") && !had("dataSourceRef") && given(spec, "dataSourceRef").is_none() {
        let known = given(spec, "dataSource").is_some_and(|source| {
            matches!(
                (text(source, "apiGroup"), text(source, "kind")),
                ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
            )
        });
        if !known {
            spec.remove("dataSource");
        }
    }
    fill_in(spec);
}

/// Both fields say the same, where only one of them was given.
pub(super) fn fill_in(spec: &mut Object) {
    let copy = |source: &Value| {
        let fields = ["apiGroup", "kind", "name"].iter().filter_map(|field| {
            let value = source.get(*field).filter(|value| !value.is_null())?;
            Some(((*field).to_owned(), value.clone()))
        });
        Value::Object(fields.collect())
    };
    match (given(spec, "dataSource"), given(spec, "dataSourceRef")) {
        (Some(source), None) => {
            let made = copy(source);
            spec.insert("dataSourceRef", made);
        }
        (None, Some(source)) if text(source, "namespace").is_empty() => {
            let made = copy(source);
            spec.insert("dataSource", made);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::{super::PERSISTENT_VOLUME_CLAIM, *};
    use crate::features::{Feature, Features};
    use crate::kind::Target;

    #[test]
    fn each_field_is_filled_in_from_the_other() {
        let check = |old: Option<Value>, new: Value, expected: Value| {
            let mut claim = json!({"spec": new});
            prepare(&mut claim, old.map(|spec| json!({"spec": spec})).as_ref());
            assert_eq!(claim["spec"], expected, "{new}");
        };
        let other = || json!({"kind": "PersistentVolumeClaim", "name": "a"});
        let snapshot = || json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a"});
        let custom = || json!({"apiGroup": "example.com", "kind": "Image", "name": "a"});
        let both = |source: Value| json!({"dataSource": source, "dataSourceRef": source});
        check(None, json!({}), json!({}));
        check(None, json!({"dataSource": other()}), both(other()));
        check(None, json!({"dataSource": snapshot()}), both(snapshot()));
        check(None, json!({"dataSourceRef": custom()}), both(custom()));
        check(None, json!({"dataSource": custom()}), json!({}));
        check(Some(both(custom())), json!({"dataSource": custom()}), both(custom()));
        let mut elsewhere = other();
        elsewhere["namespace"] = json!("n");
        for old in [None, Some(json!({"dataSourceRef": elsewhere}))] {
            check(old, json!({"dataSourceRef": elsewhere}), json!({"dataSourceRef": elsewhere}));
        }
        let two = json!({"dataSource": other(), "dataSourceRef": custom()});
        check(None, two.clone(), two);
    }

    #[test]
    fn sources_in_other_namespaces_are_taken_where_their_feature_is_on() {
        let claim = |namespace: &str| {
            let source = json!({"kind": "PersistentVolumeClaim", "name": "a", "namespace": namespace});
            json!({"metadata": {"name": "c"}, "spec": {"dataSourceRef": source}})
        };
        let off = Features::default();
        let on = off.with(Feature::CrossNamespaceVolumeDataSource, true);
        let kept = |features: Features, namespace: &str, old: Option<&Value>| {
            let (mut new, strategy) = (claim(namespace), PERSISTENT_VOLUME_CLAIM.define(features).strategy);
            match old {
                None => drop(strategy.prepare_create(&mut new)),
                Some(old) => strategy.prepare_update(&mut new, old, Target::Object),
            }
            !new["spec"]["dataSourceRef"].is_null()
        };
        assert!(!kept(off, "n", None) && kept(off, "", None) && kept(on, "n", None));
        assert!(kept(off, "n", Some(&claim("n"))), "it had it before");
        assert!(!kept(off, "n", Some(&json!({"metadata": {"name": "c"}, "spec": {}}))));
    }
}
