//! Event: something that happened to an object, in the core group and in events.k8s.io; both serve the same objects.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::events::v1::Event as NewEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use serde_json::{Map, Value};

use crate::field::{Errors, FieldError, Path};
use crate::kind::{Column, FieldLabel, Kind, col, label, name, wide};
use crate::meta::{field_text, field_text_or};
use crate::table;

pub const EVENT: Kind<Event> = Kind {
    create_on_update: true,
    short: &["ev"],
    validate: Some(validate),
    columns: COLUMNS,
    field_labels: &[
        label("involvedObject.kind", |o| field_text(o, &["involvedObject", "kind"])),
        label("involvedObject.namespace", |o| field_text(o, &["involvedObject", "namespace"])),
        label("involvedObject.name", |o| field_text(o, &["involvedObject", "name"])),
        label("involvedObject.uid", |o| field_text(o, &["involvedObject", "uid"])),
        label("involvedObject.apiVersion", |o| field_text(o, &["involvedObject", "apiVersion"])),
        label("involvedObject.resourceVersion", |o| field_text(o, &["involvedObject", "resourceVersion"])),
        label("involvedObject.fieldPath", |o| field_text(o, &["involvedObject", "fieldPath"])),
        label("reason", |o| field_text(o, &["reason"])),
        label("reportingComponent", |o| field_text(o, &["reportingComponent"])),
        label("source", |o| field_text_or(o, &["source", "component"], &field_text(o, &["reportingComponent"]))),
        label("type", |o| field_text(o, &["type"])),
    ],
    ..Kind::BASE
};

pub const NEW_EVENT: Kind<NewEvent> = Kind {
    create_on_update: true,
    short: &["ev"],
    storage: Some(("", "v1")),
    validate: Some(validate_new),
    columns: NEW_COLUMNS,
    field_labels: NEW_LABELS,
    to_storage: Some(to_core),
    from_storage: Some(from_core),
    ..Kind::BASE
};

const NEW_LABELS: &[FieldLabel] = &[
    label("regarding.kind", |o| field_text(o, &["regarding", "kind"])),
    label("regarding.namespace", |o| field_text(o, &["regarding", "namespace"])),
    label("regarding.name", |o| field_text(o, &["regarding", "name"])),
    label("regarding.uid", |o| field_text(o, &["regarding", "uid"])),
    label("regarding.apiVersion", |o| field_text(o, &["regarding", "apiVersion"])),
    label("regarding.resourceVersion", |o| field_text(o, &["regarding", "resourceVersion"])),
    label("regarding.fieldPath", |o| field_text(o, &["regarding", "fieldPath"])),
    label("reason", |o| field_text(o, &["reason"])),
    label("reportingController", |o| field_text(o, &["reportingController"])),
    label("source", |o| field_text_or(o, &["deprecatedSource", "component"], &field_text(o, &["reportingController"]))),
    label("type", |o| field_text(o, &["type"])),
];

const COLUMNS: &[Column<Event>] = &[
    col("Last Seen", LAST, |e, now| Value::from(table::since(last_seen(e), now))),
    col("Type", "Normal or Warning.", |e, _| table::text(e.type_.as_ref())),
    col("Reason", "Why it happened, in one word.", |e, _| table::text(e.reason.as_ref())),
    col("Object", "The object that it is about.", |e, _| Value::from(target(e))),
    wide("Subobject", "The part of the object that it is about.", |e, _| {
        table::text(e.involved_object.field_path.as_ref())
    }),
    wide("Source", "Who reports it.", |e, _| Value::from(source(e))),
    col("Message", "What happened, for people.", |e, _| Value::from(e.message.as_deref().unwrap_or_default().trim())),
    wide("First Seen", "The time at which it was first recorded.", |e, now| {
        Value::from(table::since(first_seen(e), now))
    }),
    wide("Count", "How often it has occurred.", |e, _| Value::from(count(e).to_string())),
    name().wide(),
];

const LAST: &str = "The time at which the most recent occurrence was recorded.";

/// The columns of the same event in the core group.
const NEW_COLUMNS: &[Column<NewEvent>] = &[
    col("Last Seen", LAST, |e, now| cell(e, 0, now)),
    col("Type", "Normal or Warning.", |e, now| cell(e, 1, now)),
    col("Reason", "Why it happened, in one word.", |e, now| cell(e, 2, now)),
    col("Object", "The object that it is about.", |e, now| cell(e, 3, now)),
    wide("Subobject", "The part of the object that it is about.", |e, now| cell(e, 4, now)),
    wide("Source", "Who reports it.", |e, now| cell(e, 5, now)),
    col("Message", "What happened, for people.", |e, now| cell(e, 6, now)),
    wide("First Seen", "The time at which it was first recorded.", |e, now| cell(e, 7, now)),
    wide("Count", "How often it has occurred.", |e, now| cell(e, 8, now)),
    name().wide(),
];

fn cell(event: &NewEvent, column: usize, now: Timestamp) -> Value {
    let mut object = serde_json::to_value(event).unwrap_or_default();
    to_core(&mut object);
    let core: Event = serde_json::from_value(object).unwrap_or_default();
    (COLUMNS[column].cell)(&core, now)
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|t| t.0)
}

fn micro(time: Option<&MicroTime>) -> Option<Timestamp> {
    time.map(|t| t.0)
}

fn first_seen(event: &Event) -> Option<Timestamp> {
    time(event.first_timestamp.as_ref()).or_else(|| micro(event.event_time.as_ref()))
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|s| micro(s.last_observed_time.as_ref()));
    series.or_else(|| time(event.last_timestamp.as_ref())).or_else(|| first_seen(event))
}

fn count(event: &Event) -> i32 {
    let series = event.series.as_ref().and_then(|s| s.count);
    // An event that says nothing happened once.
    series.or(event.count).filter(|c| *c != 0).unwrap_or(1)
}

fn target(event: &Event) -> String {
    let object = &event.involved_object;
    let kind = object.kind.as_deref().unwrap_or_default().to_lowercase();
    match object.name.as_deref() {
        Some(name) if !name.is_empty() => format!("{kind}/{name}"),
        _ => kind,
    }
}

fn source(event: &Event) -> String {
    let given = event.source.as_ref();
    let component = given.and_then(|s| s.component.as_deref()).filter(|c| !c.is_empty());
    let component = component.or(event.reporting_component.as_deref()).unwrap_or_default();
    let host = given.and_then(|s| s.host.as_deref()).filter(|h| !h.is_empty());
    match host.or(event.reporting_instance.as_deref().filter(|h| !h.is_empty())) {
        Some(host) => format!("{component}, {host}"),
        None => component.to_owned(),
    }
}

/// Field names of events.k8s.io and of the core group for the same field.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
];

fn rename(object: &mut Value, version: &str, names: impl Iterator<Item = (&'static str, &'static str)>) {
    let Some(map) = object.as_object_mut() else { return };
    let mut moved = Map::new();
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            moved.insert(to.to_owned(), value);
        }
    }
    map.extend(moved);
    map.insert("apiVersion".to_owned(), Value::from(version));
}

/// Fields that the core group always writes and the new one may leave out.
fn to_core(object: &mut Value) {
    rename(object, "v1", RENAMED.iter().copied());
    if let Some(map) = object.as_object_mut() {
        map.entry("involvedObject").or_insert_with(|| Value::Object(Map::new()));
        map.entry("reportingComponent").or_insert_with(|| Value::from(""));
        map.entry("reportingInstance").or_insert_with(|| Value::from(""));
    }
}

fn from_core(object: &mut Value) {
    rename(object, "events.k8s.io/v1", RENAMED.iter().map(|(new, core)| (*core, *new)));
}

/// Events of cluster-scoped objects live in `default` (or in `kube-system`).
fn namespace_error(event: &str, involved: &str, path: &Path) -> Option<FieldError> {
    let fits = if involved.is_empty() { matches!(event, "" | "default" | "kube-system") } else { event == involved };
    (!fits).then(|| FieldError::invalid(path, involved, "does not match event.namespace"))
}

fn validate(event: &Event) -> Errors {
    let path = Path::new("involvedObject").child("namespace");
    let place = event.metadata.namespace.as_deref().unwrap_or_default();
    let involved = event.involved_object.namespace.as_deref().unwrap_or_default();
    namespace_error(place, involved, &path).into_iter().collect()
}

fn validate_new(event: &NewEvent) -> Errors {
    let mut errors = Errors::new();
    let regarding = event.regarding.as_ref().and_then(|r| r.namespace.as_deref()).unwrap_or_default();
    let place = event.metadata.namespace.as_deref().unwrap_or_default();
    errors.extend(namespace_error(place, regarding, &Path::new("involvedObject").child("namespace")));
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    if event.event_time.is_none() {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    for (field, value, max) in [
        ("reportingController", text(&event.reporting_controller), 253),
        ("reportingInstance", text(&event.reporting_instance), 128),
        ("action", text(&event.action), 128),
        ("reason", text(&event.reason), 128),
    ] {
        let path = Path::new(field);
        if value.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if value.len() > max {
            errors.push(FieldError::invalid(&path, "", &format!("can have at most {max} characters")));
        }
    }
    if !matches!(event.type_.as_deref(), Some("Normal" | "Warning")) {
        errors.push(FieldError::invalid(&Path::new("type"), "", "has invalid value"));
    }
    if text(&event.note).len() > 1024 {
        errors.push(FieldError::invalid(&Path::new("message"), "", "can have at most 1024 characters"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_groups_show_the_same_event() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "hi",
            "regarding": {"kind": "Pod", "name": "p"}, "reportingController": "c", "reportingInstance": "i"});
        let mut object = new.clone();
        to_core(&mut object);
        assert_eq!(object["involvedObject"]["name"], "p");
        assert_eq!(object["message"], "hi");
        assert_eq!(object["apiVersion"], "v1");
        from_core(&mut object);
        assert_eq!(object, new);
    }
}
