//! `metadata.managedFields`: who set which field. [`update`] tracks creates, updates and patches; [`crate::write::apply`] is
//! the declarative side. Times come in from the caller.

use std::{borrow::Cow, collections::HashMap};

use json::{Map, Value};

use crate::{
    meta,
    schema::Type,
    write::{
        changes::Changes,
        entries::{
            Writer, entries, fields, fields_mut, give_up, is_of, is_valid, new_entry, owner_of, put, stamp, strip, take,
        },
        field_set::{self, Set},
        structured_merge,
    },
};

/// Entries of updates kept per object; older ones are merged into [`ANCIENT`].
const MAX_UPDATE_MANAGERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// The manager's name where a request gives none: the user agent up to its first slash.
pub fn default_manager(user_agent: &str) -> &str {
    let prefix = user_agent.split('/').next().unwrap_or("");
    let printable = prefix.char_indices().find(|(at, c)| c.is_control() || at + c.len_utf8() > 128);
    let prefix = printable.map_or(prefix, |(at, _)| &prefix[..at]);
    if prefix.is_empty() { "unknown" } else { prefix }
}

/// Sets `metadata.managedFields` of `new` for a create (`old` is `None`), an update or a patch. Call it when defaults are
/// filled in and before admission and the kind's own preparation: what those set belongs to nobody.
pub fn update(ty: &Type, old: Option<&Value>, new: &mut Value, by: &Writer<'_>) {
    let sent = take(new);
    let mut entries = match start(old, sent, by) {
        Start::Tracked(mut entries) => {
            reconcile(ty, &mut entries);
            entries
        }
        Start::Untracked => return,
    };
    let blank;
    let before = match old {
        Some(old) => old,
        None => {
            blank = structured_merge::blank(ty);
            &blank
        }
    };
    let mut difference = structured_merge::compare(ty, before, new);
    strip(&mut difference.changed);
    strip(&mut difference.removed);
    by.resets.take_from_difference(&mut difference);
    if difference.is_empty() {
        return put(new, entries);
    }
    let old = old.map(|old| bare(old, by));
    let mut changes = Changes::new(&difference, (old.as_deref(), new), by);
    entries.retain_mut(|entry| changes.of(entry).is_some_and(|change| give_up(entry, change)));
    if !difference.changed.is_empty() {
        take_over(&mut entries, difference.changed, by);
    }
    cap(&mut entries);
    sort(&mut entries);
    put(new, entries);
}

/// An object without its managers, where it is shown to a webhook.
fn bare<'v>(object: &'v Value, by: &Writer<'_>) -> Cow<'v, Value> {
    let mut object = Cow::Borrowed(object);
    if by.versions.is_some() {
        take(object.to_mut());
    }
    object
}

enum Start {
    Tracked(Vec<Value>),
    /// The object was stripped of its managers: updates do not track it again.
    Untracked,
}

/// The entries to go on from: those of the request, if it may set them, or those of the object.
fn start(old: Option<&Value>, sent: Option<Vec<Value>>, by: &Writer<'_>) -> Start {
    let live = || old.map(entries).unwrap_or_default();
    let entries = match sent {
        _ if !by.subresource.is_empty() => live(),
        // `[]` and `[{}]` are the ways to strip an object of its managers.
        Some(sent) if sent.iter().all(|entry| entry.as_object().is_some_and(Map::is_empty)) && sent.len() < 2 => {
            Vec::new()
        }
        Some(sent) if sent.iter().all(is_valid) => by_owner(sent),
        _ => live(),
    };
    let exists = old.is_some_and(|o| !meta::uid(o).is_empty());
    if entries.is_empty() && exists { Start::Untracked } else { Start::Tracked(entries) }
}

/// Brings entries after a change of their kind's schema. Those of built-in kinds do not change.
pub(crate) fn reconcile(ty: &Type, entries: &mut [Value]) {
    if matches!(ty.resolve(), Type::Object(object) if object.custom) {
        entries.iter_mut().filter_map(fields_mut).for_each(|fields| field_set::reconcile(ty, fields));
    }
}

/// The last entry of each owner: who renames one may give two the same.
fn by_owner(sent: Vec<Value>) -> Vec<Value> {
    let last: HashMap<_, usize> = sent.iter().enumerate().map(|(at, entry)| (owner_of(entry), at)).collect();
    let mut kept: Vec<bool> = vec![false; sent.len()];
    last.into_values().for_each(|at| kept[at] = true);
    sent.into_iter().zip(kept).filter_map(|(entry, kept)| kept.then_some(entry)).collect()
}

/// Gives the writer's entry the fields it changed.
fn take_over(entries: &mut Vec<Value>, changed: Set, by: &Writer<'_>) {
    match entries.iter_mut().find(|entry| is_of(entry, "Update", by)) {
        Some(entry) => {
            stamp(entry, by);
            if let Some(fields) = fields_mut(entry) {
                field_set::union(fields, &changed);
                by.resets.take_from(fields);
            }
        }
        None => entries.push(new_entry("Update", changed, by)),
    }
}

/// Merges the oldest updates into one entry per version when there are too many.
fn cap(entries: &mut Vec<Value>) {
    let is_update = |entry: &Value| {
        entry["operation"] == "Update" && entry["manager"] != ANCIENT && entry.get("subresource").is_none()
    };
    let mut count = entries.iter().filter(|e| e["operation"] == "Update").count();
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or("").to_owned();
    let mut oldest: Vec<usize> = (0..entries.len()).filter(|&i| is_update(&entries[i])).collect();
    oldest.sort_by_cached_key(|&i| (text(&entries[i], "time"), text(&entries[i], "manager")));
    // The entry of old changes to each version, by its place.
    let mut buckets: HashMap<Value, usize> = HashMap::new();
    for (at, entry) in entries.iter().enumerate().filter(|(_, e)| e["manager"] == ANCIENT) {
        buckets.entry(entry["apiVersion"].clone()).or_insert(at);
    }
    let mut kept: Vec<Option<Value>> = std::mem::take(entries).into_iter().map(Some).collect();
    for at in oldest {
        if count <= MAX_UPDATE_MANAGERS {
            break;
        }
        let Some(mut old) = kept[at].take() else { continue };
        match buckets.get(&old["apiVersion"]).and_then(|&bucket| kept[bucket].as_mut()) {
            Some(bucket) => {
                if let (Some(into), Some(from)) = (fields_mut(bucket), fields(&old)) {
                    field_set::union(into, from);
                }
                bucket["time"] = old["time"].take();
                count -= 1;
            }
            None => {
                old["manager"] = ANCIENT.into();
                buckets.insert(old["apiVersion"].clone(), kept.len());
                kept.push(Some(old));
            }
        }
    }
    entries.extend(kept.into_iter().flatten());
}

/// Upstream's order: appliers first, then by time, manager, version, subresource.
pub(crate) fn sort(entries: &mut [Value]) {
    let key = |entry: &Value| {
        ["operation", "time", "manager", "apiVersion", "subresource"]
            .map(|name| entry.get(name).and_then(Value::as_str).unwrap_or("").to_owned())
    };
    entries.sort_by_cached_key(key);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::Timestamp;
    use json::json;

    use super::*;
    use crate::{schema, write::resets::Resets};

    fn writer<'a>(manager: &'a str, second: i64) -> Writer<'a> {
        let now = Timestamp::from_second(second).expect("in range");
        Writer { manager, api_version: "apps/v1", subresource: "", now, resets: Resets::STATUS, versions: None }
    }

    fn managers(object: &Value) -> HashSet<String> {
        entries(object).iter().filter_map(|e| e["manager"].as_str()).map(str::to_owned).collect()
    }

    fn deployment() -> &'static Type {
        schema::of("io.k8s.api.apps.v1.Deployment").expect("known")
    }

    fn sample(image: &str) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "labels": {"app": "a"}}, "status": {},
            "spec": {"replicas": 1, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                "selector": {"matchLabels": {"app": "a"}},
                "template": {"metadata": {}, "spec": {"containers": [{"name": "c", "image": image, "resources": {},
                    "ports": [{"containerPort": 80, "protocol": "TCP"}], "args": ["x"]}]}}}})
    }

    /// As a real server shows it after `kubectl create`.
    #[test]
    fn a_create_owns_what_it_sets() {
        let mut new = sample("i");
        update(deployment(), None, &mut new, &writer("kubectl-create", 0));
        let expected = json!([{
            "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "manager": "kubectl-create", "operation": "Update",
            "time": "1970-01-01T00:00:00Z",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:replicas": {}, "f:selector": {},
                    "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
                    "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                        ".": {}, "f:args": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                            ".": {}, "f:containerPort": {}, "f:protocol": {}}}}}}},
                },
            },
        }]);
        assert_eq!(new["metadata"]["managedFields"], expected);
    }

    #[test]
    fn owners_follow_a_schema_that_becomes_atomic() {
        let ty = |kind: &str, map: &str| {
            let item = json!({"type": "object", "properties": {"n": {"type": "string"}}});
            schema::custom(
                "Widget",
                &json!({"type": "object", "properties": {
                    "list": {"type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": ["n"], "items": item},
                    "map": {"type": "object", "x-kubernetes-map-type": map, "additionalProperties": {"type": "string"}}}}),
            )
        };
        let own = |object: &Value| object["metadata"]["managedFields"][0]["fieldsV1"].clone();
        let mut old = json!({"metadata": {"name": "a"}, "list": [{"n": "a"}], "map": {"a": "b"}});
        update(&ty("map", "granular"), None, &mut old, &writer("one", 0));
        old["metadata"]["uid"] = "u".into();
        let granular = json!({"f:list": {".": {}, "k:{\"n\":\"a\"}": {".": {}, "f:n": {}}},
            "f:map": {".": {}, "f:a": {}}});
        assert_eq!(own(&old), granular);
        let mut new = old.clone();
        update(&ty("atomic", "atomic"), Some(&old), &mut new, &writer("two", 1));
        assert_eq!(own(&new), json!({"f:list": {}, "f:map": {}}));
        let mut back = new.clone();
        update(&ty("map", "granular"), Some(&new), &mut back, &writer("two", 1));
        assert_eq!(own(&back), own(&new), "the other way around nothing is known of the parts");
    }

    #[test]
    fn an_update_takes_over_what_it_changes() {
        let mut old = sample("i");
        update(deployment(), None, &mut old, &writer("one", 0));
        old["metadata"]["uid"] = "u".into();
        let mut new = old.clone();
        new["spec"]["replicas"] = 3.into();
        new["spec"]["template"]["spec"]["containers"][0].as_object_mut().expect("object").remove("args");
        update(deployment(), Some(&old), &mut new, &writer("two", 60));
        let managed = &new["metadata"]["managedFields"];
        assert_eq!(managed[0]["manager"], "one");
        assert_eq!(managed[0]["time"], "1970-01-01T00:00:00Z");
        assert_eq!(managed[0]["fieldsV1"]["f:spec"]["f:replicas"], Value::Null);
        let container = &managed[0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"];
        assert_eq!((&container["f:args"], &container["f:image"]), (&Value::Null, &json!({})));
        assert_eq!(managed[1]["manager"], "two");
        assert_eq!(managed[1]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));

        let mut scaled = new.clone();
        scaled["spec"]["replicas"] = 4.into();
        update(deployment(), Some(&new), &mut scaled, &Writer { subresource: "scale", ..writer("two", 90) });
        let scaled = scaled["metadata"]["managedFields"].as_array().expect("a list");
        let expected = json!({"apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}},
            "manager": "two", "operation": "Update", "subresource": "scale"});
        assert_eq!((scaled.len(), &scaled[0]), (2, &expected));

        let mut same = new.clone();
        update(deployment(), Some(&new), &mut same, &writer("two", 120));
        assert_eq!(same, new, "a write that changes nothing changes no time");
    }

    #[test]
    fn managers_can_be_stripped_and_stay_away() {
        let mut old = sample("i");
        update(deployment(), None, &mut old, &writer("one", 0));
        old["metadata"]["uid"] = "u".into();
        let mut new = old.clone();
        new["metadata"]["managedFields"] = json!([{}]);
        update(deployment(), Some(&old), &mut new, &writer("two", 1));
        assert_eq!(managers(&new), HashSet::new());
        let mut newer = new.clone();
        newer["spec"]["replicas"] = 9.into();
        update(deployment(), Some(&new), &mut newer, &writer("two", 2));
        assert_eq!(managers(&newer), HashSet::new());
        let mut empty = old.clone();
        empty["metadata"]["managedFields"] = json!([]);
        update(deployment(), Some(&old), &mut empty, &writer("two", 1));
        assert_eq!(managers(&empty), HashSet::new());
    }

    #[test]
    fn of_two_entries_with_one_owner_the_last_counts() {
        let mut old = sample("i");
        update(deployment(), None, &mut old, &writer("one", 0));
        old["metadata"]["uid"] = "u".into();
        let mut new = old.clone();
        let entry = |label: &str, operation: &str, version: &str| {
            json!({"apiVersion": version, "fieldsType": "FieldsV1", "operation": operation, "manager": "m",
                "fieldsV1": {"f:metadata": {"f:labels": {label: {}}}}})
        };
        let sent =
            [("f:a", "Apply", "apps/v1"), ("f:b", "Apply", "v1"), ("f:c", "Update", "v1"), ("f:d", "Update", "v2")];
        let sent: Vec<Value> = sent.map(|(label, operation, version)| entry(label, operation, version)).into();
        new["metadata"]["managedFields"] = sent.clone().into();
        update(deployment(), Some(&old), &mut new, &writer("two", 1));
        assert_eq!(entries(&new), sent[1..], "an applier is one owner in all versions");
    }

    #[test]
    fn old_updates_are_merged_when_there_are_too_many() {
        let mut object = sample("i");
        update(deployment(), None, &mut object, &writer("m0", 0));
        object["metadata"]["uid"] = "u".into();
        for i in 1..=10 {
            let mut new = object.clone();
            new["metadata"]["labels"][format!("l{i}")] = "x".into();
            let manager = format!("m{i}");
            update(deployment(), Some(&object), &mut new, &writer(&manager, i));
            object = new;
        }
        let names = managers(&object);
        assert_eq!(names.len(), 10);
        assert!(names.contains(ANCIENT) && !names.contains("m0") && !names.contains("m1") && names.contains("m2"));
    }

    /// A client may send as many managers as fit into a request.
    #[test]
    fn many_managers_are_merged_in_one_go() {
        let mut old = sample("i");
        update(deployment(), None, &mut old, &writer("one", 0));
        old["metadata"]["uid"] = "u".into();
        let mut new = old.clone();
        new["spec"]["replicas"] = 7.into();
        let entry = |i: usize| {
            json!({"apiVersion": format!("v{}", i % 2), "fieldsType": "FieldsV1", "operation": "Update",
                "manager": format!("m{i}"), "time": format!("2024-01-01T00:00:{:02}Z", i % 60),
                "fieldsV1": {format!("f:x{i}"): {}}})
        };
        new["metadata"]["managedFields"] = (0..20_000).map(entry).collect::<Vec<_>>().into();
        update(deployment(), Some(&old), &mut new, &writer("two", 1_800_000_000));
        let entries = entries(&new);
        assert_eq!(entries.len(), 10);
        let fields = |e: &Value| fields(e).map_or(0, Map::len);
        let ancient: Vec<&Value> = entries.iter().filter(|e| e["manager"] == ANCIENT).collect();
        assert_eq!(ancient.len(), 2, "one for each version");
        assert_eq!(entries.iter().map(fields).sum::<usize>(), 20_001);
    }

    #[test]
    fn names_come_from_user_agents() {
        let check = |agent, expected| assert_eq!(default_manager(agent), expected);
        check("kubectl/v1.35.0 (linux/amd64)", "kubectl");
        check("", "unknown");
    }
}
