//! Storage versions: for each resource that is stored, each API server says as which version it writes objects, and which it
//! reads and serves. Of custom resources nothing is said, as upstream, where that was proposed and never merged.
//! Reads: StorageVersion, Lease (its own). Writes: StorageVersion (create), StorageVersion/status.
//! Upstream counterpart: k8s.io/apiserver/pkg/storageversion.

use std::{collections::BTreeMap, time::Duration};

use api::{
    features::{Feature, Features, RuntimeConfig},
    kind::Definition,
    kinds::{metrics, storage_version},
};
use client::{Api, Client, rest};
use clock::Timestamp;
use json::json;
use k8s_openapi::{
    api::{
        apiserverinternal::v1alpha1::{
            ServerStorageVersion, StorageVersion, StorageVersionCondition, StorageVersionStatus,
        },
        coordination::v1::Lease,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::identity;

/// The group, version and plural of the kind.
pub const KIND: (&str, &str, &str) = ("internal.apiserver.k8s.io", "v1alpha1", "storageversions");

/// How often everything is said again, should somebody have changed or deleted it.
const AGAIN: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(1);
/// How often a write is tried that fails, conflicts not counted.
const ATTEMPTS: u32 = 3;

/// Whether storage versions are told.
pub fn is_on(features: &Features, served: &RuntimeConfig) -> bool {
    let on = features.enabled(Feature::StorageVersionAPI);
    let is_served = served.serves(KIND.0, KIND.1, KIND.2, false);
    if on && !is_served {
        tracing::warn!(
            "storage versions are not told: {}/{} is not served; --runtime-config switches it on",
            KIND.0,
            KIND.1
        );
    }
    on && is_served
}

/// The storage versions of a server with these settings, by `<group>.<resource>`. Resources that are the same objects under
/// two groups are one, under the group that comes first.
pub fn of(features: &Features, served: &RuntimeConfig) -> BTreeMap<String, ServerStorageVersion> {
    let every = RuntimeConfig::parse(&["api/all=true".to_owned()]).expect("a constant");
    let (known, _) = api::kinds::table(*features, &every);
    let (served, _) = api::kinds::table(*features, served);
    let is_stored = |d: &&std::sync::Arc<Definition>| {
        d.group != metrics::GROUP && ["create", "watch"].iter().all(|verb| d.verbs.iter().any(|has| has == verb))
    };
    let mut resources: BTreeMap<(&str, &str), Vec<&Definition>> = BTreeMap::new();
    for definition in known.all().iter().filter(is_stored) {
        let (group, _) = &definition.storage;
        resources.entry((group, &definition.plural)).or_default().push(definition);
    }
    let said = resources.values().map(|versions| {
        let first = versions.iter().map(|d| d.group.as_str()).min().unwrap_or_default();
        let (group, version) = &versions[0].storage;
        let encoding = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        let is_served = |d: &&&Definition| served.find(&d.group, &d.version, &d.plural).is_some();
        let mut readable: Vec<String> = versions.iter().map(|d| d.api_version()).collect();
        if !readable.contains(&encoding) {
            readable.insert(0, encoding.clone());
        }
        let name = format!("{}.{}", if first.is_empty() { "core" } else { first }, versions[0].plural);
        let served: Vec<String> = versions.iter().filter(is_served).map(|d| d.api_version()).collect();
        let server = ServerStorageVersion {
            encoding_version: Some(encoding),
            decodable_versions: Some(readable),
            served_versions: (!served.is_empty()).then_some(served),
            ..ServerStorageVersion::default()
        };
        (name, server)
    });
    said.filter(|(_, server)| server.served_versions.is_some()).collect()
}

/// Says what there is to say, and again from time to time. Never returns.
pub async fn keep(client: &Client, id: &str, versions: BTreeMap<String, ServerStorageVersion>) {
    // A version of a server that has no Lease is taken for that of one that is gone.
    let leases: Api<Lease> = Api::namespaced(client.clone(), identity::NAMESPACE);
    while !matches!(leases.find(id).await, Ok(Some(_))) {
        clock::sleep(RETRY).await;
    }
    let api: Api<StorageVersion> = Api::all(client.clone());
    loop {
        for (name, version) in &versions {
            let version = ServerStorageVersion { api_server_id: Some(id.to_owned()), ..version.clone() };
            let mut failures = 0;
            while let Err(error) = tell(&api, name, &version).await {
                failures += u32::from(!["AlreadyExists", "Conflict"].contains(&rest::reason(&error)));
                if failures >= ATTEMPTS {
                    tracing::warn!(name, %error, "cannot say as which version objects are stored");
                    break;
                }
                clock::sleep(RETRY).await;
            }
        }
        clock::sleep(AGAIN).await;
    }
}

async fn tell(api: &Api<StorageVersion>, name: &str, version: &ServerStorageVersion) -> Result<(), client::Error> {
    let found = match api.find(name).await? {
        Some(found) => found,
        None => {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let mut new = StorageVersion { metadata, ..StorageVersion::default() };
            new.spec.0 = json!({}).into();
            api.create(&new).await?
        }
    };
    let status = with_server(&found, version, clock::now_seconds());
    if status != found.status {
        api.replace(name, "status", &StorageVersion { status, ..found }).await?;
    }
    Ok(())
}

/// The status with what a server says, in the place of what it said before.
fn with_server(found: &StorageVersion, version: &ServerStorageVersion, now: Timestamp) -> StorageVersionStatus {
    let mut servers = found.status.storage_versions.clone().unwrap_or_default();
    match servers.iter_mut().find(|server| server.api_server_id == version.api_server_id) {
        Some(before) => *before = version.clone(),
        None => servers.push(version.clone()),
    }
    agreed(found, servers, now)
}

/// The status of what these servers say: the version that they agree on, and a condition about it.
pub fn agreed(found: &StorageVersion, servers: Vec<ServerStorageVersion>, now: Timestamp) -> StorageVersionStatus {
    let common = storage_version::common(&servers).map(str::to_owned);
    let (status, reason, message) = match &common {
        Some(_) => ("True", "CommonEncodingVersionSet", "Common encoding version set"),
        None => ("False", "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    let before = &found.status;
    // Another version is a transition too.
    let moved =
        common.is_some() && before.common_encoding_version.is_some() && common != before.common_encoding_version;
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let place = conditions.iter().position(|condition| condition.type_ == storage_version::ALL_EQUAL);
    let since = place.map(|place| &conditions[place]).filter(|held| held.status == status && !moved);
    let condition = StorageVersionCondition {
        type_: storage_version::ALL_EQUAL.to_owned(),
        status: status.to_owned(),
        observed_generation: found.metadata.generation,
        last_transition_time: since.map_or(Some(Time(now)), |held| held.last_transition_time.clone()),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match place {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
    StorageVersionStatus {
        common_encoding_version: common,
        conditions: Some(conditions),
        storage_versions: (!servers.is_empty()).then_some(servers),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn server(id: &str, writes: &str) -> ServerStorageVersion {
        ServerStorageVersion {
            api_server_id: Some(id.to_owned()),
            encoding_version: Some(writes.to_owned()),
            decodable_versions: Some(vec![writes.to_owned()]),
            served_versions: Some(vec![writes.to_owned()]),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn every_stored_resource_is_told_of_once() {
        let told = of(&Features::default(), &RuntimeConfig::default());
        let check = |name: &str, writes: &str, reads: &[&str], serves: &[&str]| {
            let said = told.get(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(said.encoding_version.as_deref(), Some(writes), "{name}");
            assert_eq!(said.decodable_versions.as_deref().unwrap_or_default(), reads, "{name}");
            assert_eq!(said.served_versions.as_deref().unwrap_or_default(), serves, "{name}");
        };
        check("core.pods", "v1", &["v1"], &["v1"]);
        check("apps.deployments", "apps/v1", &["apps/v1"], &["apps/v1"]);
        check("core.events", "v1", &["v1", "events.k8s.io/v1"], &["v1", "events.k8s.io/v1"]);
        assert!(
            told.keys().all(|name| !name.contains("review") && !name.contains("metrics") && !name.contains("binding")
                || name.contains("rolebinding")
                || name.contains("policybinding")),
            "{told:?}"
        );
        assert!(!told.contains_key("events.k8s.io.events") && !told.contains_key("core.componentstatuses"));
        // A resource that is not served has no storage.
        assert!(!told.contains_key("coordination.k8s.io.leasecandidates"));
    }

    #[test]
    fn servers_agree_or_do_not() {
        let mut found = StorageVersion::default();
        let mut tell = |version: &ServerStorageVersion, now: i64, expected: (Option<&str>, &str, i64, usize)| {
            found.status = with_server(&found, version, at(now));
            let condition = &found.status.conditions.as_ref().unwrap()[0];
            assert_eq!(condition.type_, "AllEncodingVersionsEqual");
            let since = condition.last_transition_time.as_ref().unwrap().0.as_second();
            let servers = found.status.storage_versions.as_ref().unwrap().len();
            let common = found.status.common_encoding_version.as_deref();
            assert_eq!((common, condition.status.as_str(), since, servers), expected);
        };
        tell(&server("a", "v1"), 1, (Some("v1"), "True", 1, 1));
        tell(&server("a", "v1"), 2, (Some("v1"), "True", 1, 1));
        tell(&server("b", "v1"), 3, (Some("v1"), "True", 1, 2));
        tell(&server("b", "v2"), 4, (None, "False", 4, 2));
        tell(&server("a", "v2"), 5, (Some("v2"), "True", 5, 2));
        let mut alone = StorageVersion {
            status: agreed(&StorageVersion::default(), vec![server("a", "v1")], at(1)),
            ..Default::default()
        };
        // The version changes at once, and that is a transition.
        alone.status = with_server(&alone, &server("a", "v2"), at(9));
        assert_eq!(alone.status.conditions.unwrap()[0].last_transition_time, Some(Time(at(9))));
    }
}
