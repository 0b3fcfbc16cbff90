//! Event: something that happened to an object, in the core group and in events.k8s.io; both serve the same objects.

use jiff::Timestamp;
use json::{Map, Value};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::events::v1::Event as NewEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

use crate::kind::cell;
use crate::kind::{Column, FieldLabel, Kind, col, label, name, wide};
use crate::meta::{field_text, field_text_or};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

/// The default of upstream's `--event-ttl`.
const LIFETIME_SECONDS: u32 = 3600;

pub const EVENT: Kind<Event> = Kind {
    create_on_update: true,
    lifetime_seconds: Some(LIFETIME_SECONDS),
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
    lifetime_seconds: Some(LIFETIME_SECONDS),
    short: &["ev"],
    storage: Some(("", "v1")),
    // A series without its time is told of by validation.
    fit: Some(|event| {
        if let Some(series) = event.get_mut("series").and_then(Value::as_object_mut) {
            series.entry("lastObservedTime").or_insert_with(|| Value::from(NEVER));
        }
    }),
    validate: Some(validate_new),
    validate_create: Some(validate_new_create),
    validate_update: Some(|new, old, _| validate_new_update(new, old)),
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
    col("Last Seen", LAST, |e, now| Value::from(cell::since(last_seen(e), now))),
    col("Type", "Normal or Warning.", |e, _| cell::text(e.type_.as_ref())),
    col("Reason", "Why it happened, in one word.", |e, _| cell::text(e.reason.as_ref())),
    col("Object", "The object that it is about.", |e, _| Value::from(target(e))),
    wide("Subobject", "The part of the object that it is about.", |e, _| {
        cell::text(e.involved_object.field_path.as_ref())
    }),
    wide("Source", "Who reports it.", |e, _| Value::from(source(e))),
    col("Message", "What happened, for people.", |e, _| Value::from(e.message.as_deref().unwrap_or_default().trim())),
    wide("First Seen", "The time at which it was first recorded.", |e, now| {
        Value::from(cell::since(first_seen(e), now))
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
    (COLUMNS[column].cell)(&as_core(event), now)
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
    map.insert("apiVersion", Value::from(version));
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

/// Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00.000000Z";
const NEVER_SECOND: i64 = -62_135_596_800;

const TEXT_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// The rules for an event in both groups. `controller` is the group's name for the field of the reporting component.
fn validate_common(event: &Event, controller: &str) -> Errors {
    let mut errors = Errors::new();
    let own = event.metadata.namespace.as_deref().unwrap_or_default();
    let involved = event.involved_object.namespace.as_deref().unwrap_or_default();
    // Events of cluster-scoped objects live in `default`; those of the newer form also in `kube-system`.
    let newer = event.event_time.is_some();
    let fits = match (involved.is_empty(), newer) {
        (true, false) => matches!(own, "" | "default"),
        (true, true) => matches!(own, "default" | "kube-system"),
        (false, false) => own == involved,
        (false, true) => true,
    };
    if !fits {
        let path = Path::new("involvedObject").child("namespace");
        errors.push(FieldError::invalid(&path, involved, "does not match event.namespace"));
    }
    if newer {
        let reporter = event.reporting_component.as_deref().unwrap_or_default();
        if reporter.is_empty() {
            errors.push(FieldError::required(&Path::new(controller), ""));
        }
        errors.extend(invalid(&Path::new(controller), reporter, names::qualified_name(reporter)));
        for (field, text) in
            [("reportingInstance", &event.reporting_instance), ("action", &event.action), ("reason", &event.reason)]
        {
            let text = text.as_deref().unwrap_or_default();
            if text.is_empty() {
                errors.push(FieldError::required(&Path::new(field), ""));
            }
            errors.extend(too_many_characters(text, field, TEXT_MAX));
        }
        errors.extend(too_many_characters(event.message.as_deref().unwrap_or_default(), "message", NOTE_MAX));
    }
    errors.extend(invalid(&Path::new("namespace"), own, names::dns1123_subdomain(own)));
    errors
}

fn too_many_characters(text: &str, field: &str, most: usize) -> Option<FieldError> {
    let detail = format!("can have at most {most} characters");
    (text.len() > most).then(|| FieldError::invalid(&Path::new(field), "", &detail))
}

fn validate(event: &Event) -> Errors {
    validate_common(event, "reportingComponent")
}

/// The event as the core group has it.
fn as_core(event: &NewEvent) -> Event {
    let mut object = json::to_value(event).unwrap_or_default();
    to_core(&mut object);
    json::from_value(object).unwrap_or_default()
}

fn validate_new(event: &NewEvent) -> Errors {
    let core = as_core(event);
    validate_common(&core, "reportingController")
}

/// The newer group takes only events of the newer form.
fn validate_new_create(event: &NewEvent) -> Errors {
    let core = as_core(event);
    let mut errors = validate_series(&core);
    if core.event_time.is_none() {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    let kind = core.type_.as_deref().unwrap_or_default();
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid(&Path::new("type"), "", &format!("has invalid value: {kind}")));
    }
    let source = core.source.as_ref();
    let named = |text: &Option<String>| text.as_deref().is_some_and(|t| !t.is_empty());
    for (field, set) in [
        ("firstTimestamp", core.first_timestamp.is_some()),
        ("lastTimestamp", core.last_timestamp.is_some()),
        ("count", core.count.is_some_and(|count| count != 0)),
        ("source", source.is_some_and(|s| named(&s.component) || named(&s.host))),
    ] {
        if set {
            errors.push(FieldError::invalid(&Path::new(field), "", "needs to be unset"));
        }
    }
    errors
}

fn validate_series(event: &Event) -> Errors {
    let mut errors = Errors::new();
    let Some(series) = &event.series else { return errors };
    if series.count.unwrap_or(0) < 2 {
        errors.push(FieldError::invalid(&Path::new("series.count"), "", "should be at least 2"));
    }
    let never = |time: &MicroTime| time.0.as_second() == NEVER_SECOND;
    if series.last_observed_time.as_ref().is_none_or(never) {
        errors.push(FieldError::required(&Path::new("series.lastObservedTime"), ""));
    }
    errors
}

/// Of an event of the newer group only its series goes on.
fn validate_new_update(new: &NewEvent, old: &NewEvent) -> Errors {
    let (new, old) = (as_core(new), as_core(old));
    let mut errors = if new.series == old.series { Errors::new() } else { validate_series(&new) };
    let whole = |event: &Event| json::to_value(event).unwrap_or_default();
    let (now, before) = (whole(&new), whole(&old));
    for (field, name) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        if now[field] != before[field] {
            errors.push(FieldError::invalid(&Path::new(name), &now[field], "field is immutable"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

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

    #[test]
    fn what_an_event_must_say() {
        let texts = |errors: Errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let core = |value: Value| texts(validate(&json::from_value(value).unwrap()));
        let older = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "b"}});
        assert_eq!(core(older), ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]);
        let newer = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingComponent": "c", "reportingInstance": "i", "action": "a"});
        assert_eq!(core(newer), ["reason: Required value"]);
        let event = |reason: &str, series: Value| -> NewEvent {
            json::from_value(json!({"metadata": {"namespace": "a"}, "regarding": {"namespace": "a"}, "reason": reason,
                "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i", "action": "a",
                "type": "Normal", "series": series}))
            .unwrap()
        };
        let good = event("r", Value::Null);
        assert_eq!(texts(validate_new(&good)), [""; 0]);
        assert_eq!(texts(validate_new_create(&good)), [""; 0]);
        let bare: NewEvent = json::from_value(json!({"type": "Odd", "deprecatedCount": 1})).unwrap();
        let expected = [
            "eventTime: Required value",
            "type: Invalid value: \"\": has invalid value: Odd",
            "count: Invalid value: \"\": needs to be unset",
        ];
        assert_eq!(texts(validate_new_create(&bare)), expected);
        let once = json!({"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        let expected = [
            "series.count: Invalid value: \"\": should be at least 2",
            "reason: Invalid value: \"s\": field is immutable",
        ];
        assert_eq!(texts(validate_new_update(&event("s", once), &good)), expected);
    }
}
