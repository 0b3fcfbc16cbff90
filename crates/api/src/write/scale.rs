//! Owners of fields where an object is applied to through its Scale: they own one field, under one name in the object and
//! under another in the Scale.

use json::{Map, Value};

use crate::write::{
    entries::{Writer, entries, fields, fields_mut, is_same, put, take},
    field_set::{self, Set},
    managed_fields::sort,
};

/// The version in which a Scale is written, whatever the object's is: its owners own the field in this one.
pub const VERSION: &str = "autoscaling/v1";

/// The field of a Scale that can be owned.
const OF_SCALE: &str = "spec.replicas";

/// Shows the owners of the object's replicas, which are at the path, as those of its Scale.
pub fn show(object: &Value, path: &str, scale: &mut Value) {
    let (here, there) = (set(path), set(OF_SCALE));
    let owners = entries(object).into_iter().filter(|entry| owns(entry, &here)).map(|mut entry| {
        entry["apiVersion"] = VERSION.into();
        entry["fieldsV1"] = Value::Object(there.clone());
        entry
    });
    put(scale, owners.collect());
}

/// Gives the object the owners that its Scale has now: whoever is none any more loses the replicas, and a new one gets them, in the
/// object's version, which is the writer's.
pub fn take_over(object: &mut Value, path: &str, scale: &mut Value, by: &Writer<'_>) {
    let (here, there) = (set(path), set(OF_SCALE));
    let mut owners = take(scale).unwrap_or_default();
    owners.retain(|entry| owns(entry, &there));
    let mut kept = take(object).unwrap_or_default();
    kept.retain_mut(|entry| {
        if !owns(entry, &here) {
            return true;
        }
        let mut shown = entry.clone();
        shown["apiVersion"] = VERSION.into();
        let stays = owners.iter().position(|owner| is_same(owner, &shown));
        if let Some(at) = stays {
            owners.swap_remove(at);
            return true;
        }
        let Some(fields) = fields_mut(entry) else { return false };
        field_set::subtract(fields, &here);
        !fields.is_empty()
    });
    kept.extend(owners.into_iter().map(|mut owner| {
        owner["apiVersion"] = by.api_version.into();
        owner["fieldsV1"] = Value::Object(here.clone());
        owner
    }));
    sort(&mut kept);
    put(object, kept);
}

/// The one field at a path such as `spec.replicas`.
fn set(path: &str) -> Set {
    path.rsplit('.').filter(|name| !name.is_empty()).fold(Map::new(), |inner, name| {
        let mut outer = Map::new();
        outer.insert(format!("f:{name}"), Value::Object(inner));
        outer
    })
}

fn owns(entry: &Value, field: &Set) -> bool {
    fields(entry).is_some_and(|fields| !field_set::intersection(fields, field).is_empty())
}
