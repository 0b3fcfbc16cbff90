//! Server-side apply: a manager states the fields it wants, the server merges them into the object, remembers who owns
//! what, removes what a manager no longer states, and refuses to overwrite what others own unless forced.
//!
//! Upstream's counterpart is structured-merge-diff's `merge` package with apimachinery's `managedfields` around it.

use std::collections::BTreeMap;

use json::{Map, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

use crate::{
    codec::{
        bounds::Room,
        decode::{self, Decoded, Format, Gvk, Validation},
    },
    meta,
    schema::Type,
    status::StatusError,
    write::{
        changes::Changes,
        entries::{self as managed, Writer},
        field_set::{self, Set},
        managed_fields,
        patch::go_kind,
        structured_merge::{self, Difference},
        typed,
        versions::{Sight, Versions},
    },
};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manager of all that an object holds when it is first applied to and nobody was tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// An apply request that was read but not applied yet: read once, applied again on every conflict.
#[derive(Debug, Clone)]
pub struct Request {
    config: Value,
    warnings: Vec<String>,
}

/// Reads the body of an apply request (YAML or JSON) and checks it against the schema.
pub fn read(ty: &Type, gvk: Gvk<'_>, bytes: &[u8], validation: Validation) -> Result<Request, StatusError> {
    const STEP: &str = "error converting YAML to JSON";
    let (config, mut duplicates) =
        decode::raw(bytes, Format::Yaml).map_err(|problem| problem.about(&format!("error decoding YAML: {STEP}")))?;
    duplicates.iter_mut().for_each(|fault| fault.insert_str(0, &format!("{STEP}: ")));
    if !(config.is_object() || config.is_null()) {
        let why = "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal";
        let found = go_kind(&config);
        return Err(StatusError::bad_request(format!("{why} {found} into Go value of type map[string]interface {{}}")));
    }
    let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or("");
    let (found, kind, wanted) = (text("apiVersion"), text("kind"), gvk.api_version());
    if (found, kind) != (&*wanted, gvk.kind) {
        let slash = if found.contains('/') { "" } else { "/" };
        return Err(StatusError::bad_request(format!("invalid object type: {slash}{found}, Kind={kind}")));
    }
    if validation == Validation::Strict && !duplicates.is_empty() {
        return Err(StatusError::bad_request(format!("error strict decoding YAML: {}", duplicates.join(", "))));
    }
    let metadata = config.get("metadata");
    if metadata.and_then(|m| m.get("managedFields")).is_some_and(|m| !m.is_null()) {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    let about = describe(gvk, &config);
    if let Some(why) = typed::misfit(ty, &config) {
        return Err(StatusError::new(500, "", format!("failed to create typed patch object ({about}): {why}")));
    }
    // The only part left to refuse is the text of a scalar, a quantity or a time that is none: upstream meets it where
    // it makes its own type of the object.
    let (config, _) = decode::typed(ty, config).map_err(|why| {
        let words = format!(
            "failed to convert new object ({about}) to proper version: unable to convert unstructured object to"
        );
        StatusError::new(500, "", format!("{words} {wanted}, Kind={}: {why}", gvk.kind))
    })?;
    let warnings = if validation == Validation::Ignore { Vec::new() } else { decode::warnings(duplicates) };
    Ok(Request { config, warnings })
}

/// `default/a; apps/v1, Kind=Deployment`.
fn describe(gvk: Gvk<'_>, config: &Value) -> String {
    let (namespace, name) = (meta::namespace(config), meta::name(config));
    let version = gvk.api_version();
    let version = if gvk.group.is_empty() { format!("/{version}") } else { version };
    format!("{namespace}/{name}; {version}, Kind={}", gvk.kind)
}

impl Request {
    /// The object in the request.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The object after the request, run through the schema, with its managers. `live` is `None` when the apply creates
    /// the object.
    pub fn apply(
        &self,
        ty: &Type,
        gvk: Gvk<'_>,
        live: Option<&Value>,
        by: &Writer<'_>,
        force: bool,
    ) -> Result<Decoded, StatusError> {
        let application = Application::new(ty, &self.config, live, by);
        let (mut value, managers) = match application.carry_out(gvk, force) {
            Ok(done) => done,
            Err(Refusal::Status(error)) => return Err(error),
            Err(Refusal::Conflicts(conflicts)) => {
                let remaining = application.without_last_applied(conflicts);
                if !remaining.is_empty() {
                    return Err(conflict_error(remaining));
                }
                application.carry_out(gvk, true).map_err(|refusal| match refusal {
                    Refusal::Status(error) => error,
                    Refusal::Conflicts(conflicts) => conflict_error(conflicts),
                })?
            }
        };
        managed::put(&mut value, managers);
        Ok(Decoded { value, warnings: self.warnings.clone() })
    }
}

/// Why an apply does not go through.
enum Refusal {
    Status(StatusError),
    Conflicts(Vec<Conflict>),
}

/// Fields that another manager owns and the request would change.
struct Conflict {
    /// As messages name the manager: `"kubectl" using apps/v1`.
    manager: String,
    fields: Set,
}

/// One apply to one object.
struct Application<'a> {
    ty: &'a Type,
    config: &'a Value,
    /// Without its managers.
    live: Option<Value>,
    managers: Vec<Value>,
    by: &'a Writer<'a>,
}

impl<'a> Application<'a> {
    fn new(ty: &'a Type, config: &'a Value, live: Option<&Value>, by: &'a Writer<'a>) -> Self {
        let mut live = live.cloned();
        let mut managers = live.as_mut().and_then(managed::take).unwrap_or_default();
        managed_fields::reconcile(ty, &mut managers);
        if let Some(live) = live.as_ref().filter(|_| managers.is_empty()) {
            let mut held = structured_merge::compare(ty, &structured_merge::blank(ty), live).changed;
            managed::strip(&mut held);
            let writer = Writer { manager: BEFORE_FIRST_APPLY, ..*by };
            by.resets.take_from(&mut held);
            if !held.is_empty() {
                managers.push(managed::new_entry("Update", held, &writer));
            }
        }
        Application { ty, config, live, managers, by }
    }

    fn is_mine(&self, entry: &Value) -> bool {
        managed::is_of(entry, "Apply", self.by)
    }

    fn carry_out(&self, gvk: Gvk<'_>, force: bool) -> Result<(Value, Vec<Value>), Refusal> {
        let mut set = structured_merge::fields_of(self.ty, self.config);
        self.by.resets.take_from(&mut set);
        let mut merged = self.merged(&set);
        let blank;
        let before = match &self.live {
            Some(live) => live,
            None => {
                blank = structured_merge::blank(self.ty);
                &blank
            }
        };
        let mut difference = structured_merge::compare(self.ty, before, &merged);
        self.by.resets.take_from_difference(&mut difference);
        let compared = if self.by.versions.is_some() { merged.clone() } else { Value::Null };
        let mut changes = Changes::new(&difference, (self.live.as_ref(), &compared), self.by);
        if !force {
            let conflicts = self.conflicts(&mut changes);
            if !conflicts.is_empty() {
                return Err(Refusal::Conflicts(conflicts));
            }
        }
        managed::strip(&mut set);
        self.update_last_applied(&mut merged);
        let normal = match &self.live {
            Some(live) => decode::normalise_changed(self.ty, merged, live),
            None => decode::normalise(self.ty, merged),
        };
        let (value, _) = normal.map_err(|why| Refusal::Status(gvk.cannot_handle(&why)))?;
        let managers = self.new_managers(set, &difference, &mut changes);
        Ok((value, managers))
    }

    /// The object with the configuration merged in and with what this manager no longer states taken out.
    fn merged(&self, set: &Set) -> Value {
        let live = self.live.clone().unwrap_or_else(|| Value::Object(Map::new()));
        let mut merged = structured_merge::merge(self.ty, live, self.config);
        let mine = self.managers.iter().find(|e| self.is_mine(e)).and_then(managed::fields);
        if let Some(last) = mine.filter(|last| !last.is_empty()) {
            if let Some(versions) = self.by.versions.filter(|_| self.has_other_versions()) {
                return self.pruned(versions, merged, set);
            }
            let mut owned = set.clone();
            for entry in self.managers.iter().filter(|e| !self.is_mine(e)) {
                if let Some(fields) = managed::fields(entry) {
                    field_set::union(&mut owned, fields);
                }
            }
            let mut gone = field_set::with_parents(self.ty, last);
            field_set::subtract(&mut gone, &field_set::with_parents(self.ty, &owned));
            structured_merge::remove(self.ty, &mut merged, &gone);
        }
        merged
    }

    fn has_other_versions(&self) -> bool {
        self.managers.iter().any(|entry| managed::version(entry) != self.by.api_version)
    }

    /// As [`Application::merged`] takes out what this manager no longer states, in the version in which it stated it last,
    /// with what anybody owns in any other version put back.
    fn pruned(&self, versions: &Versions, merged: Value, set: &Set) -> Value {
        let mine = self.managers.iter().find(|e| self.is_mine(e));
        let Some((last, version)) = mine.and_then(|e| Some((managed::fields(e)?, managed::version(e)))) else {
            return merged;
        };
        let Sight::As(ty, whole) = versions.sees(&merged, version) else { return merged };
        let mut pruned = whole.clone();
        structured_merge::remove(&ty, &mut pruned, &field_set::with_parents(&ty, last));
        let mut owned = BTreeMap::from([(self.by.api_version, set.clone())]);
        for entry in self.managers.iter().filter(|e| !self.is_mine(e)) {
            if let Some(fields) = managed::fields(entry) {
                field_set::union(owned.entry(managed::version(entry)).or_default(), fields);
            }
        }
        for (version, owned) in owned {
            let (whole, less) = (versions.sees(&merged, version), versions.sees(&pruned, version));
            let (ty, whole, less) = match (whole, less) {
                (Sight::As(ty, whole), Sight::As(_, less)) => (ty, whole, less),
                (Sight::Gone, _) => continue,
                _ => return merged,
            };
            pruned = kept(&ty, whole, &less, |gone| {
                field_set::subtract(gone, &field_set::with_parents(&ty, &owned));
            });
        }
        // A field that nobody owns stays, unless this manager owned it.
        let Sight::As(_, less) = versions.sees(&pruned, version) else { return merged };
        let last = field_set::with_parents(&ty, last);
        let pruned = kept(&ty, whole, &less, |gone| *gone = field_set::intersection(gone, &last));
        match versions.sees(&pruned, self.by.api_version) {
            Sight::As(_, pruned) => pruned,
            _ => merged,
        }
    }

    fn conflicts(&self, changes: &mut Changes<'_>) -> Vec<Conflict> {
        let others = self.managers.iter().filter(|e| !self.is_mine(e));
        let found = others.filter_map(|entry| {
            let fields = field_set::intersection(managed::fields(entry)?, &changes.of(entry)?.changed);
            (!fields.is_empty()).then(|| Conflict { manager: show_manager(entry), fields })
        });
        let mut conflicts: Vec<Conflict> = found.collect();
        conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
        conflicts
    }

    fn new_managers(&self, set: Set, difference: &Difference, changes: &mut Changes<'_>) -> Vec<Value> {
        let mut managers = Vec::with_capacity(self.managers.len() + 1);
        let mut time = None;
        for entry in &self.managers {
            if self.is_mine(entry) {
                if difference.is_empty() && managed::fields(entry) == Some(&set) {
                    time = entry.get("time").cloned();
                }
                continue;
            }
            let mut entry = entry.clone();
            if changes.of(&entry).is_some_and(|change| managed::give_up(&mut entry, change)) {
                managers.push(entry);
            }
        }
        if !set.is_empty() {
            let mut mine = managed::new_entry("Apply", set, self.by);
            if let Some(time) = time {
                mine["time"] = time;
            }
            managers.push(mine);
        }
        managed_fields::sort(&mut managers);
        managers
    }

    fn last_applied(&self) -> Option<Value> {
        let annotations = self.live.as_ref()?.get("metadata")?.get("annotations")?;
        serde_json::from_str(annotations.get(LAST_APPLIED)?.as_str()?).ok()
    }

    /// `kubectl` may take over what it applied from the client side before; the conflicts that remain are returned.
    fn without_last_applied(&self, conflicts: Vec<Conflict>) -> Vec<Conflict> {
        let last = if self.by.manager == "kubectl" { self.last_applied() } else { None };
        let Some(last) = last.and_then(|value| decode::typed(self.ty, value).ok()) else { return conflicts };
        let mut allowed = structured_merge::fields_of(self.ty, &last.0);
        // A field that has another value by now is somebody else's.
        if let Some(live) = &self.live {
            let others = structured_merge::compare(self.ty, &last.0, live);
            field_set::subtract(&mut allowed, &others.changed);
            field_set::subtract(&mut allowed, &others.removed);
        }
        let rest = conflicts.into_iter().map(|mut conflict| {
            field_set::subtract(&mut conflict.fields, &allowed);
            conflict
        });
        rest.filter(|conflict| !conflict.fields.is_empty()).collect()
    }

    /// Where `kubectl` left its annotation on the client side, an apply keeps it up to date.
    fn update_last_applied(&self, merged: &mut Value) {
        if self.by.manager != "kubectl" || !self.by.subresource.is_empty() || self.last_applied().is_none() {
            return;
        }
        let mut config = self.config.clone();
        let annotations = config.get_mut("metadata").and_then(|m| m.get_mut("annotations"));
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
        let kept = merged.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut);
        if let Some(kept) = kept {
            kept.insert(LAST_APPLIED, format!("{config}\n").into());
        }
    }
}

/// An object without those of its fields that `less` has not; `spare` says which of them stay.
fn kept(ty: &Type, mut whole: Value, less: &Value, spare: impl FnOnce(&mut Set)) -> Value {
    let fields = |object: &Value| field_set::with_parents(ty, &structured_merge::fields_of(ty, object));
    let mut gone = fields(&whole);
    field_set::subtract(&mut gone, &fields(less));
    spare(&mut gone);
    structured_merge::remove(ty, &mut whole, &gone);
    whole
}

/// `"kubectl" with subresource "scale" using apps/v1 at …`.
fn show_manager(entry: &Value) -> String {
    let text = |name| entry.get(name).and_then(Value::as_str).unwrap_or("");
    let mut shown = format!("{:?}", text("manager"));
    if !text("subresource").is_empty() {
        shown.push_str(&format!(" with subresource {:?}", text("subresource")));
    }
    if text("operation") == "Update" {
        shown.push_str(&format!(" using {}", text("apiVersion")));
    }
    shown
}

fn conflict_error(conflicts: Vec<Conflict>) -> StatusError {
    let count: usize = conflicts.iter().map(|c| field_set::count(&c.fields)).sum();
    let mut room = Room::new();
    let all: Vec<(String, Vec<String>)> =
        conflicts.into_iter().map(|c| (c.manager, field_set::paths(&c.fields, &mut room))).collect();
    let causes = all.iter().flat_map(|(manager, paths)| {
        paths.iter().map(move |path| StatusCause {
            reason: Some("FieldManagerConflict".to_owned()),
            message: Some(format!("conflict with {manager}")),
            field: Some(path.clone()),
        })
    });
    let causes: Vec<StatusCause> = causes.collect();
    let text = match all.as_slice() {
        [(manager, paths)] if paths.len() == 1 => format!("conflict with {manager}: {}", paths[0]),
        many => {
            let blocks = many.iter().map(|(manager, paths)| {
                let lines: String = paths.iter().map(|path| format!("\n- {path}")).collect();
                format!("conflicts with {manager}:{lines}")
            });
            let more =
                if causes.len() < count { format!("\nand {} more", count - causes.len()) } else { String::new() };
            blocks.collect::<Vec<_>>().join("\n") + &more
        }
    };
    let plural = if count == 1 { "" } else { "s" };
    let details = StatusDetails { causes: Some(causes), ..Default::default() };
    StatusError {
        details: Some(Box::new(details)),
        ..StatusError::new(409, "Conflict", format!("Apply failed with {count} conflict{plural}: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use json::json;

    use super::*;
    use crate::{schema, write::resets::Resets};

    const GVK: Gvk<'static> = Gvk { group: "apps", version: "v1", kind: "Deployment" };

    fn ty() -> &'static Type {
        schema::of("io.k8s.api.apps.v1.Deployment").expect("known")
    }

    fn writer(manager: &str) -> Writer<'_> {
        let now = Timestamp::UNIX_EPOCH;
        Writer { manager, api_version: "apps/v1", subresource: "", now, resets: Resets::STATUS, versions: None }
    }

    fn body(spec: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec})
    }

    fn apply(live: Option<&Value>, manager: &str, config: Value, force: bool) -> Result<Value, StatusError> {
        let request = read(ty(), GVK, config.to_string().as_bytes(), Validation::Strict)?;
        request.apply(ty(), GVK, live, &writer(manager), force).map(|d| d.value)
    }

    fn container(name: &str, image: &str) -> Value {
        json!({"template": {"spec": {"containers": [{"name": name, "image": image}]}}})
    }

    #[test]
    fn keys_that_stand_twice_are_told_by_their_lines() {
        let text =
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  paused: true\n  paused: false\n";
        let fault =
            "error converting YAML to JSON: yaml: unmarshal errors:\n  line 6: key \"paused\" already set in map";
        let refused = read(ty(), GVK, text.as_bytes(), Validation::Strict).expect_err("refused");
        assert_eq!((refused.code, refused.message), (400, format!("error strict decoding YAML: {fault}")));
        for (other, found) in [("[]", "array"), ("- a", "array"), ("text", "string"), ("1", "number")] {
            let told = read(ty(), GVK, other.as_bytes(), Validation::Ignore).expect_err("refused").message;
            let why = format!("cannot unmarshal {found} into Go value of type map[string]interface {{}}");
            let step = "error unmarshaling JSON: while decoding JSON";
            assert_eq!(told, format!("error decoding YAML: {step}: json: {why}"));
        }
        let broken = read(ty(), GVK, b"a: b\nc: d: e\n", Validation::Ignore).expect_err("refused").message;
        let why = "yaml: line 2: mapping values are not allowed in this context";
        assert_eq!(broken, format!("error decoding YAML: error converting YAML to JSON: {why}"));
        let read = |validation| read(ty(), GVK, text.as_bytes(), validation).expect("an object");
        assert_eq!(read(Validation::Warn).warnings, ["line 6: key \"paused\" already set in map"]);
        let taken = read(Validation::Ignore);
        assert!(taken.warnings.is_empty() && taken.config["spec"]["paused"] == false, "{taken:?}");
    }

    /// Lists of this length are merged, compared and told apart by lookup, or this takes hours. Of the conflicts an answer
    /// names as many as it has room for.
    #[test]
    fn long_lists_are_applied_by_lookup() {
        const MANY: usize = 20_000;
        let ports = |protocol: &str, add: usize| {
            let port = |i: usize| json!({"containerPort": i + add, "protocol": protocol});
            let ports: Vec<Value> = (1..=MANY).map(port).collect();
            body(json!({"template": {"spec": {"containers": [{"name": "c", "ports": ports}]}}}))
        };
        let first = apply(None, "one", ports("TCP", 0), false).expect("creates");
        let second = apply(Some(&first), "two", ports("UDP", 0), false).expect("adds");
        let list = |object: &Value| {
            object["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().map_or(0, Vec::len)
        };
        assert_eq!((list(&first), list(&second)), (MANY, 2 * MANY));
        let moved = apply(Some(&second), "one", ports("TCP", MANY / 2), false).expect("gives up half");
        assert_eq!(list(&moved), 2 * MANY);
        let data = |value: &str| {
            let labels: Map = (0..MANY).map(|i| (format!("l{i}"), value.into())).collect();
            let mut object = body(json!({}));
            object["metadata"]["labels"] = labels.into();
            object
        };
        let live = apply(None, "one", data("a"), false).expect("creates");
        let conflict = apply(Some(&live), "two", data("b"), false).expect_err("conflicts");
        assert!(
            conflict.message.starts_with("Apply failed with 20000 conflicts: conflicts with \"one\":\n- .metadata")
        );
        assert!(conflict.message.ends_with("\nand 19000 more"), "{}", conflict.message.len());
        assert_eq!(conflict.details.and_then(|d| d.causes).map(|c| c.len()), Some(1000));
    }

    #[test]
    fn an_item_twice_is_found_whatever_stands_around_it() {
        let path = "n".repeat(1000);
        let ports = json!([{"containerPort": 80}, {"containerPort": 81}, {"containerPort": 80, "protocol": "TCP"}]);
        let config = body(json!({"template": {"spec": {"containers": [{"name": path, "ports": ports}]}}}));
        let error = apply(None, "one", config, false).expect_err("twice");
        let words = "ports: duplicate entries for key [containerPort=80,protocol=\"TCP\"]";
        assert!(error.message.ends_with(words), "{error}");
    }

    #[test]
    fn appliers_own_what_they_state_and_lose_what_they_leave_out() {
        let one = body(json!({"replicas": 1, "paused": true, "minReadySeconds": 5}));
        let first = apply(None, "one", one, false).expect("creates");
        let managed = &first["metadata"]["managedFields"][0];
        assert_eq!(managed["operation"], "Apply");
        assert_eq!(managed["fieldsV1"], json!({"f:spec": {"f:minReadySeconds": {}, "f:paused": {}, "f:replicas": {}}}));
        let second = apply(Some(&first), "two", body(json!({"paused": true})), false).expect("shares");
        let third = apply(Some(&second), "one", body(json!({"replicas": 2})), false).expect("drops two fields");
        assert_eq!(third["spec"]["replicas"], 2);
        assert_eq!(third["spec"]["paused"], true, "the other applier wants it still");
        assert_eq!(third["spec"]["minReadySeconds"], Value::Null, "nobody wants it any more");
    }

    #[test]
    fn conflicts_are_refused_unless_forced() {
        let live = apply(None, "one", body(json!({"replicas": 1, "paused": true})), false).expect("creates");
        let error = apply(Some(&live), "two", body(json!({"replicas": 2})), false).expect_err("conflict");
        assert_eq!((error.code, &*error.reason), (409, "Conflict"));
        assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
        let cause = &error.details.expect("details").causes.expect("causes")[0];
        assert_eq!(cause.reason.as_deref(), Some("FieldManagerConflict"));
        assert_eq!(cause.message.as_deref(), Some("conflict with \"one\""));
        assert_eq!(cause.field.as_deref(), Some(".spec.replicas"));

        let mut updated = live.clone();
        updated["spec"]["replicas"] = 7.into();
        managed_fields::update(ty(), Some(&live), &mut updated, &writer("edit"));
        let error = apply(Some(&updated), "two", body(json!({"replicas": 2, "minReadySeconds": 1})), false);
        let message = error.expect_err("conflict").message;
        assert_eq!(message, "Apply failed with 1 conflict: conflict with \"edit\" using apps/v1: .spec.replicas");

        let forced = apply(Some(&live), "two", body(json!({"replicas": 2})), true).expect("forced");
        assert_eq!(forced["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(forced["spec"]["replicas"], 2);
        let several = body(json!({"replicas": 2, "paused": false}));
        let message = apply(Some(&live), "two", several, false).expect_err("conflicts").message;
        assert_eq!(message, "Apply failed with 2 conflicts: conflicts with \"one\":\n- .spec.paused\n- .spec.replicas");
    }

    #[test]
    fn keyed_lists_are_shared_item_by_item() {
        let first = apply(None, "one", body(container("a", "1")), false).expect("creates");
        let second = apply(Some(&first), "two", body(container("b", "2")), false).expect("adds");
        let names = |v: &Value| -> Vec<String> {
            let list = v["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
            list.iter().map(|c| c["name"].as_str().unwrap_or("").to_owned()).collect()
        };
        assert_eq!(names(&second), ["a", "b"]);
        let third = apply(Some(&second), "one", body(json!({})), false).expect("leaves");
        assert_eq!(names(&third), ["b"]);
        assert_eq!(third["metadata"]["name"], "a");
    }

    /// They are one leaf for whoever owns them, and an apply puts one item in their place.
    #[test]
    fn items_that_stand_twice_are_owned_together() {
        let variables = |list: &[(&str, &str)]| {
            let list: Vec<Value> = list.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            body(json!({"template": {"spec": {"containers": [{"name": "c", "env": list}]}}}))
        };
        let owned = |object: &Value, at: usize| {
            let containers = "/f:spec/f:template/f:spec/f:containers/k:{\"name\":\"c\"}/f:env";
            object["metadata"]["managedFields"][at]["fieldsV1"].pointer(containers).cloned().unwrap_or_default()
        };
        let values = |object: &Value| -> Vec<String> {
            let list =
                object["spec"]["template"]["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
            list.iter().map(|v| format!("{}={}", v["name"].as_str().unwrap(), v["value"].as_str().unwrap())).collect()
        };
        let leaf = json!({".": {}, "f:name": {}, "f:value": {}});
        let mut live = variables(&[("A", "1"), ("P", "x"), ("P", "y")]);
        managed_fields::update(ty(), None, &mut live, &writer("create"));
        assert_eq!(owned(&live, 0), json!({".": {}, "k:{\"name\":\"A\"}": leaf, "k:{\"name\":\"P\"}": {}}));
        live["metadata"]["uid"] = "u".into();
        let applied = apply(Some(&live), "one", variables(&[("H", "h")]), false).expect("applied");
        assert_eq!(values(&applied), ["A=1", "P=x", "P=y", "H=h"]);
        assert_eq!(owned(&applied, 1), owned(&live, 0));
        let conflict = apply(Some(&live), "one", variables(&[("P", "x")]), false).expect_err("conflicts").message;
        assert!(
            conflict.ends_with("using apps/v1: .spec.template.spec.containers[name=\"c\"].env[name=\"P\"]"),
            "{conflict}"
        );
        let taken = apply(Some(&live), "one", variables(&[("P", "z")]), true).expect("forced");
        assert_eq!(values(&taken), ["A=1", "P=z"]);
        assert_eq!(owned(&taken, 0), json!({"k:{\"name\":\"P\"}": leaf}));
        let mut changed = variables(&[("A", "1"), ("P", "x"), ("P", "z")]);
        changed["metadata"]["uid"] = "u".into();
        managed_fields::update(ty(), Some(&live), &mut changed, &writer("update"));
        assert_eq!(owned(&changed, 0), json!({".": {}, "k:{\"name\":\"A\"}": leaf}));
        assert_eq!(owned(&changed, 1), json!({"k:{\"name\":\"P\"}": {}}));
    }

    #[test]
    fn applied_order_wins() {
        let ids = |list: &[&str]| -> Value {
            let containers: Vec<Value> = list.iter().map(|n| json!({"name": n})).collect();
            body(json!({"template": {"spec": {"containers": containers}}}))
        };
        let check = |live: &[&str], config: &[&str], expected: &[&str]| {
            let merged = structured_merge::merge(ty(), ids(live), &ids(config));
            assert_eq!(merged, ids(expected), "{live:?} + {config:?}");
        };
        check(&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]);
        check(&["a", "b", "c"], &["a", "c"], &["a", "b", "c"]);
        check(&["a"], &["x", "a", "y"], &["x", "a", "y"]);
        check(&["z"], &["a", "b"], &["z", "a", "b"]);
        check(&["a", "b", "c", "d"], &["d", "b"], &["a", "c", "d", "b"]);
    }

    #[test]
    fn kubectl_takes_over_what_it_applied_from_the_client() {
        let mut live = body(json!({"replicas": 1, "strategy": {}, "template": {}}));
        let last = body(json!({"replicas": 1}));
        live["metadata"]["annotations"] = json!({LAST_APPLIED: last.to_string()});
        managed_fields::update(ty(), None, &mut live, &writer("kubectl-client-side-apply"));
        let applied = apply(Some(&live), "kubectl", body(json!({"replicas": 3})), false).expect("no conflict");
        assert_eq!(applied["spec"]["replicas"], 3);
        let annotation = applied["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or("");
        assert!(annotation.contains("\"replicas\":3"), "{annotation}");
        assert!(apply(Some(&live), "other", body(json!({"replicas": 3})), false).is_err());
        let mut scaled = live.clone();
        scaled["spec"]["replicas"] = 7.into();
        managed_fields::update(ty(), Some(&live), &mut scaled, &writer("scaler"));
        let conflict = apply(Some(&scaled), "kubectl", body(json!({"replicas": 3})), false).expect_err("conflicts");
        assert!(conflict.message.ends_with("conflict with \"scaler\" using apps/v1: .spec.replicas"), "{conflict}");
    }

    #[test]
    fn an_untracked_object_gets_a_manager_first() {
        let mut live = body(json!({"replicas": 1}));
        live["metadata"]["uid"] = "u".into();
        let error = apply(Some(&live), "one", body(json!({"replicas": 2})), false).expect_err("conflict");
        let words = "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas";
        assert_eq!(error.message, words);
    }

    /// As upstream's server answers: it states nothing about what is below.
    #[test]
    fn a_null_takes_nothing_away_that_others_have() {
        let live = apply(None, "one", body(container("a", "i")), false).expect("applied");
        let applied = apply(Some(&live), "two", body(Value::Null), true).expect("applied");
        assert_eq!(applied["spec"], live["spec"]);
        let config = body(json!({"template": {"spec": {"containers": null}}}));
        let applied = apply(Some(&live), "two", config, true).expect("applied");
        assert_eq!(applied["spec"]["template"]["spec"]["containers"], live["spec"]["template"]["spec"]["containers"]);
    }

    #[test]
    fn requests_that_do_not_fit_the_schema_are_refused() {
        let check = |config: Value, expected: &str| {
            assert_eq!(apply(None, "one", config, false).expect_err("refused").message, expected);
        };
        let words = "failed to create typed patch object (/a; apps/v1, Kind=Deployment): ";
        check(body(json!({"foo": 1})), &format!("{words}.spec.foo: field not declared in schema"));
        check(
            body(json!({"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}})),
            &format!("{words}.spec.template.spec.containers: duplicate entries for key [name=\"a\"]"),
        );
        let without = "associative list with keys has an element that omits all key fields";
        let why = "(and doesn't have default values for any key fields)";
        check(
            body(json!({"template": {"spec": {"containers": [{"name": "a"}, {"image": "i"}]}}})),
            &format!("{words}.spec.template.spec.containers: element 1: {without} [\"name\"] {why}"),
        );
        check(
            body(json!({"template": {"spec": {"containers": [
                {"name": "a", "resources": {"limits": {"cpu": "lots"}}}]}}})),
            "failed to convert new object (/a; apps/v1, Kind=Deployment) to proper version: unable to convert unstructured object to apps/v1, \
             Kind=Deployment: quantities must match the regular expression \
             '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        );
        check(json!({"apiVersion": "v1"}), "invalid object type: /v1, Kind=");
        check(json!({"apiVersion": "apps/v1", "kind": "DaemonSet"}), "invalid object type: apps/v1, Kind=DaemonSet");
    }
}
