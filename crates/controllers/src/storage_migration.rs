//! Storage version migration: writes all objects of a resource anew, so that each is stored as it would be today.
//! Reads: StorageVersionMigration, discovery, the objects' metadata page by page. Writes: the objects (a patch that changes
//! nothing), StorageVersionMigration/status.
//! Upstream counterpart: pkg/controller/storageversionmigrator.
//!
//! A migration first notes the revision of the resource. Objects that changed later are stored anew already, and are left
//! alone. How far a migration has come is remembered here only: another process begins at the first object again.

use std::{collections::HashMap, time::Duration};

use api::kinds::storage_version_migration::{FAILED, RUNNING, SUCCEEDED, holds, resource};
use client::{
    Client, Key,
    object::{MetadataOnly, Object as _},
    rest::{self, Form, Resource, Verb},
};
use clock::Timestamp;
use controller::{Controller, Failure, Listers, Plan, Step, Watches, Write};
use json::json;
use k8s_openapi::{
    api::storagemigration::v1beta1::{StorageVersionMigration, StorageVersionMigrationStatus},
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use parking_lot::Mutex;

use crate::discovery::discover;

/// Objects that are written in one go.
const PAGE: &str = "500";
/// A new resource may not be known everywhere yet.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct StorageMigrations {
    /// By the migration's name.
    places: Mutex<HashMap<String, Place>>,
}

/// Where a migration is among the objects: the page that is being written, and the one behind it.
#[derive(Default, Clone)]
struct Place {
    /// The migration's: a namesake begins at the beginning.
    uid: String,
    page: String,
    next: Option<String>,
}

#[derive(Default)]
pub struct Observed {
    resource: Lookup,
    /// The resource's revision, where the migration has none yet.
    revision: String,
    /// The objects to write next; `None` when all are written.
    objects: Option<Vec<ObjectMeta>>,
    /// Why the last attempt failed.
    failure: Option<Failure>,
}

#[derive(Default)]
enum Lookup {
    /// Nobody asked.
    #[default]
    Open,
    Unknown,
    Found(Resource),
}

fn has_ended(migration: &StorageVersionMigration) -> bool {
    holds(migration, SUCCEEDED) || holds(migration, FAILED)
}

fn revision(migration: &StorageVersionMigration) -> &str {
    migration.status.as_ref().and_then(|status| status.resource_version.as_deref()).unwrap_or_default()
}

/// Whether the server may answer otherwise when it is asked again.
fn may_pass(failure: &Failure) -> bool {
    let passing = ["", "ServerTimeout", "TooManyRequests", "ServiceUnavailable", "InternalError", "Timeout"];
    passing.contains(&failure.reason.as_str())
}

impl StorageMigrations {
    /// The page that is to be written: the one behind the last, when that was written without failure.
    fn turn(&self, (name, uid): (&str, &str), failed: bool) -> Option<String> {
        let mut places = self.places.lock();
        let place = places.entry(name.to_owned()).or_default();
        if place.uid != uid {
            *place = Place { uid: uid.to_owned(), ..Place::default() };
        }
        if let Some(next) = place.next.take().filter(|_| !failed) {
            if next.is_empty() {
                return None;
            }
            place.page = next;
        }
        Some(place.page.clone())
    }

    fn has_read(&self, name: &str, next: String) {
        self.places.lock().entry(name.to_owned()).or_default().next = Some(next);
    }

    async fn read_page(&self, name: &str, resource: &Resource, page: &str, client: &Client) -> Read {
        let mut query = vec![("limit", PAGE)];
        query.extend((!page.is_empty()).then_some(("continue", page)));
        let path = rest::with_query(resource.path("", "", ""), &query);
        let answer = rest::read(client, &path, Form::Metadata).await;
        // A place that the server no longer knows is found again from the beginning.
        if answer.as_ref().is_err_and(|error| rest::reason(error) == "Expired") {
            self.places.lock().remove(name);
        }
        let answer = answer?;
        let page = rest::page(&answer)?;
        let object =
            |item: &&serde_json::value::RawValue| MetadataOnly::from_json(item.get()).map(|object| object.metadata);
        let objects: Result<Vec<_>, _> = page.items.iter().map(object).collect();
        self.has_read(name, page.metadata.continue_.unwrap_or_default());
        objects.map_err(client::Error::Decode)
    }
}

type Read = Result<Vec<ObjectMeta>, client::Error>;

/// The revision of a resource as it is now.
async fn latest(resource: &Resource, client: &Client) -> Result<String, client::Error> {
    let path = rest::with_query(resource.path("", "", ""), &[("limit", "1")]);
    let answer = rest::read(client, &path, Form::Metadata).await?;
    Ok(rest::page(&answer)?.metadata.resource_version.unwrap_or_default())
}

impl Controller for StorageMigrations {
    const NAME: &'static str = "storage-version-migrator-controller";
    type Object = StorageVersionMigration;
    type Observed = Observed;

    fn watches(&self, _: &mut Watches<StorageVersionMigration>) {}

    fn observe(&self, _: &StorageVersionMigration, listers: &Listers) -> Observed {
        Observed { failure: listers.failure.filter(|failure| failure.verb == "patch").cloned(), ..Observed::default() }
    }

    async fn ask(
        &self,
        migration: &StorageVersionMigration,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        let text = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        let (name, uid) = (text(&migration.metadata.name), text(&migration.metadata.uid));
        if has_ended(migration) {
            self.places.lock().remove(&name);
            return Ok(());
        }
        let wanted = resource(migration);
        let (offered, _) = discover(client).await?;
        let named = |r: &Resource| r.group == wanted.group && r.plural == wanted.resource;
        let found = offered.into_iter().find(|o| named(&o.resource) && o.can(&["list", "patch"]));
        let Some(found) = found.map(|found| found.resource) else {
            observed.resource = Lookup::Unknown;
            return Ok(());
        };
        if revision(migration).is_empty() {
            observed.revision = latest(&found, client).await?;
        } else if holds(migration, RUNNING)
            && let Some(page) = self.turn((&name, &uid), observed.failure.is_some())
        {
            observed.objects = Some(self.read_page(&name, &found, &page, client).await?);
        }
        observed.resource = Lookup::Found(found);
        Ok(())
    }

    fn plan(&self, migration: &StorageVersionMigration, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if has_ended(migration) {
            return plan;
        }
        if let Some(failure) = observed.failure.as_ref().filter(|failure| !may_pass(failure)) {
            note(&mut plan, migration, FAILED, &failure.message, now);
            return plan;
        }
        let resource = match &observed.resource {
            Lookup::Found(resource) => resource,
            Lookup::Open => return plan,
            Lookup::Unknown => {
                let since = migration.metadata.creation_timestamp.as_ref().map_or(now, |created| created.0);
                if now.duration_since(since).unsigned_abs() < PATIENCE {
                    plan.retry();
                } else {
                    note(&mut plan, migration, FAILED, "unable to obtain GVR from discovery", now);
                }
                return plan;
            }
        };
        if revision(migration).is_empty() {
            let mut new = migration.clone();
            new.status.get_or_insert_default().resource_version = Some(observed.revision.clone());
            plan.set_status(migration, &new);
        } else if !holds(migration, RUNNING) {
            note(&mut plan, migration, RUNNING, "", now);
        } else if let Some(objects) = &observed.objects {
            let writes: Vec<Write> = objects.iter().filter_map(|object| rewrite(migration, resource, object)).collect();
            if !writes.is_empty() {
                plan.steps.push(Step::All(writes));
            }
            plan.again_after(Duration::ZERO);
        } else {
            note(&mut plan, migration, SUCCEEDED, "", now);
        }
        plan
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.places.lock().remove(&key.name);
        Plan::default()
    }
}

/// The write of an object that has not changed since the migration began. One that changes or goes meanwhile needs none.
fn rewrite(migration: &StorageVersionMigration, resource: &Resource, object: &ObjectMeta) -> Option<Write> {
    let version = object.resource_version.as_deref()?;
    let number = |text: &str| text.parse::<u64>().ok();
    if number(version)? > number(revision(migration))? {
        return None;
    }
    let (namespace, name) = (object.namespace.as_deref().unwrap_or_default(), object.name.as_deref()?);
    let patch = json!({"metadata": {"resourceVersion": version}});
    let write = Write::dynamic(resource, namespace, name, Verb::MergePatch(patch));
    Some(write.tolerate(&["Conflict", "NotFound"]))
}

/// Notes that a condition holds from now on.
fn note(plan: &mut Plan, migration: &StorageVersionMigration, condition: &str, why: &str, now: Timestamp) {
    let mut new = migration.clone();
    set(new.status.get_or_insert_default(), condition, why, now);
    plan.set_status(migration, &new);
}

fn set(status: &mut StorageVersionMigrationStatus, condition: &str, why: &str, now: Timestamp) {
    let reason = match condition {
        RUNNING => "StorageVersionMigrationInProgress",
        SUCCEEDED => "StorageVersionMigrationSucceeded",
        _ => "StorageVersionMigrationFailed",
    };
    let message = match why {
        "" => String::new(),
        why => format!("migration encountered unhandled error: {why}"),
    };
    let conditions = status.conditions.get_or_insert_default();
    if condition != RUNNING {
        for running in conditions.iter_mut().filter(|c| c.type_ == RUNNING) {
            running.status = "False".to_owned();
            running.last_transition_time = Time(now);
        }
    }
    conditions.retain(|c| c.type_ != condition);
    conditions.push(Condition {
        type_: condition.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: Time(now),
        observed_generation: None,
    });
}

#[cfg(test)]
mod tests {
    use json::Value;

    use super::*;

    fn now() -> Timestamp {
        "2025-01-01T00:10:00Z".parse().unwrap()
    }

    /// A migration of Secrets, with a revision and the conditions that hold.
    fn migration(revision: &str, conditions: &[&str]) -> StorageVersionMigration {
        let mut migration: StorageVersionMigration = json::from_value(json!({
            "metadata": {"name": "m", "uid": "u", "creationTimestamp": "2025-01-01T00:00:00Z"},
            "spec": {"resource": {"group": "", "resource": "secrets"}},
            "status": {"resourceVersion": revision},
        }))
        .unwrap();
        for condition in conditions {
            set(migration.status.get_or_insert_default(), condition, "", now());
        }
        migration
    }

    fn secrets() -> Lookup {
        let [version, kind, plural] = ["v1", "Secret", "secrets"].map(str::to_owned);
        Lookup::Found(Resource { group: String::new(), version, kind, plural })
    }

    fn objects(list: &str) -> Option<Vec<ObjectMeta>> {
        let object = |text: &str| {
            let (name, version) = text.split_once('@').unwrap();
            json::from_value(json!({"namespace": "n", "name": name, "resourceVersion": version})).unwrap()
        };
        Some(list.split_whitespace().map(object).collect())
    }

    /// The writes, and then the conditions of the status that is written.
    #[track_caller]
    fn check(migration: &StorageVersionMigration, observed: Observed, expected: &str) -> Plan {
        let plan = StorageMigrations::default().plan(migration, &observed, now());
        let holds = |status: &Write| {
            let conditions = status.body().pointer("/status/conditions").and_then(Value::as_array).cloned();
            let shown = conditions.into_iter().flatten().map(|c| format!(" {}={}", c["type"], c["status"]));
            let version = status.body().pointer("/status/resourceVersion").cloned().unwrap_or_default();
            format!(" @{version}{}", shown.collect::<String>()).replace('"', "")
        };
        let said = plan.steps.iter().flat_map(|step| match step {
            Step::All(writes) => writes.clone(),
            _ => Vec::new(),
        });
        let said: Vec<String> = said.map(|write| write.to_string()).collect();
        let said = format!("{}{}", said.join(", "), plan.status.as_ref().map(holds).unwrap_or_default());
        assert_eq!(said.trim(), expected);
        plan
    }

    #[test]
    fn a_migration_runs_through_its_states() {
        let found = || Observed { resource: secrets(), revision: "7".to_owned(), ..Observed::default() };
        check(&migration("", &[]), found(), "@7");
        check(&migration("7", &[]), found(), "@7 Running=True");
        check(&migration("7", &[RUNNING]), found(), "@7 Running=False Succeeded=True");
        check(&migration("7", &[RUNNING, SUCCEEDED]), found(), "");
        check(&migration("7", &[RUNNING, FAILED]), found(), "");
    }

    #[test]
    fn objects_that_changed_later_are_left_alone() {
        let page = |list: &str| Observed { resource: secrets(), objects: objects(list), ..Observed::default() };
        let plan = check(&migration("7", &[RUNNING]), page("a@3 b@7 c@8"), "patch secrets a, patch secrets b");
        assert_eq!(plan.requeue_after, Some(Duration::ZERO));
        let Step::All(writes) = &plan.steps[0] else { panic!("writes") };
        assert_eq!(writes[0].body(), &json!({"metadata": {"resourceVersion": "3"}}));
        assert_eq!(writes[0].tolerated, ["Conflict", "NotFound"]);
        let plan = check(&migration("7", &[RUNNING]), page("c@8"), "");
        assert_eq!(plan.requeue_after, Some(Duration::ZERO), "another page may have more");
    }

    #[test]
    fn what_cannot_be_migrated_fails_with_its_reason() {
        let failed = |reason: &str| Observed {
            resource: secrets(),
            objects: objects("a@3"),
            failure: Some(Failure {
                verb: "patch",
                plural: "secrets".into(),
                code: 0,
                reason: reason.into(),
                message: "no".into(),
            }),
            ..Observed::default()
        };
        check(&migration("7", &[RUNNING]), failed("TooManyRequests"), "patch secrets a");
        let plan = check(&migration("7", &[RUNNING]), failed("Forbidden"), "@7 Running=False Failed=True");
        let conditions = plan.status.unwrap().body()["status"]["conditions"].clone();
        assert_eq!(conditions[1]["message"], "migration encountered unhandled error: no");
        assert_eq!(conditions[1]["reason"], "StorageVersionMigrationFailed");
        let unknown = || Observed { resource: Lookup::Unknown, ..Observed::default() };
        check(&migration("7", &[]), unknown(), "@7 Failed=True");
        let mut young = migration("7", &[]);
        young.metadata.creation_timestamp = Some(Time(now() - Duration::from_secs(59)));
        assert!(check(&young, unknown(), "").retry);
    }

    #[test]
    fn pages_are_turned_when_they_are_written() {
        let controller = StorageMigrations::default();
        assert_eq!(controller.turn(("m", "u"), false).as_deref(), Some(""));
        controller.has_read("m", "second".to_owned());
        assert_eq!(controller.turn(("m", "u"), true).as_deref(), Some(""), "it was not written");
        controller.has_read("m", "second".to_owned());
        assert_eq!(controller.turn(("m", "u"), false).as_deref(), Some("second"));
        controller.has_read("m", String::new());
        assert_eq!(controller.turn(("m", "u"), false), None);
        controller.has_read("m", "third".to_owned());
        assert_eq!(controller.turn(("m", "other"), false).as_deref(), Some(""), "a namesake begins at the beginning");
    }
}
