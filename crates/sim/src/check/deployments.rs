//! The checkers of Deployments and their ReplicaSets: never more Pods than allowed, never fewer than promised, as far as a
//! controller could know.

use std::collections::BTreeMap;

use clock::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet},
        core::v1::Pod,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    check::news::{Counts, is_news},
    objects::{owner, serves, set},
};

#[derive(Default)]
pub struct Deployments {
    deployments: BTreeMap<String, Deployment>,
    replica_sets: BTreeMap<String, ReplicaSet>,
    counts: Counts,
    /// How many Pods ReplicaSets asked for.
    set_counts: Counts,
}

/// A number or a percentage of `total`, rounded up or down.
fn share(value: Option<&IntOrString>, total: i32, up: bool) -> i32 {
    match value {
        None => share(Some(&IntOrString::String("25%".to_owned())), total, up),
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent: i32 = text.trim_end_matches('%').parse().unwrap_or(0);
            (percent * total + if up { 99 } else { 0 }) / 100
        }
    }
}

fn wanted(replica_set: &ReplicaSet) -> i32 {
    replica_set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// The fewest and the most Pods that a rolling update may have when it asks for this number of replicas.
fn bounds(deployment: &Deployment, replicas: i32) -> (i32, i32) {
    let strategy = deployment.spec.as_ref().and_then(|s| s.strategy.as_ref());
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let surge = share(rolling.and_then(|r| r.max_surge.as_ref()), replicas, true);
    let unavailable = share(rolling.and_then(|r| r.max_unavailable.as_ref()), replicas, false);
    // Both 0 would never move.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (replicas - unavailable, replicas + surge)
}

impl Deployments {
    pub fn get(&self, key: &str) -> Option<&Deployment> {
        self.deployments.get(key)
    }

    pub fn all(&self) -> impl Iterator<Item = &Deployment> + Clone {
        self.deployments.values()
    }

    pub fn replica_sets(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.replica_sets.values()
    }

    pub fn deployment(&mut self, key: String, new: Option<Deployment>, now: Timestamp) {
        if let Some(before) = self.deployments.get(&key) {
            self.counts.changed(&key, replicas(before), now);
        }
        set(&mut self.deployments, key, new);
    }

    /// The bounds of every count that somebody may still believe in.
    fn bounds(&self, key: &str, deployment: &Deployment, now: Timestamp) -> impl Iterator<Item = (i32, i32)> {
        self.counts.believed(key, replicas(deployment), now).map(|count| bounds(deployment, count))
    }

    /// The key and the Deployment behind a ReplicaSet's UID.
    fn of(&self, replica_set_uid: &str) -> Option<(&str, &Deployment)> {
        let set = self.replica_sets.values().find(|r| r.metadata.uid.as_deref() == Some(replica_set_uid))?;
        self.owner(owner(&set.metadata)?)
    }

    fn owner(&self, uid: &str) -> Option<(&str, &Deployment)> {
        let found = self.deployments.iter().find(|(_, d)| d.metadata.uid.as_deref() == Some(uid));
        found.map(|(key, deployment)| (key.as_str(), deployment))
    }

    /// A Pod of a Deployment that served since then was taken away: enough others must still serve. `pods` are those that
    /// are left.
    pub fn still_serves(
        &self,
        (gone, since): (&Pod, Timestamp),
        pods: &BTreeMap<String, Pod>,
        now: Timestamp,
    ) -> Option<String> {
        let (key, deployment) = self.of(owner(&gone.metadata)?)?;
        // The youngest go first, so a Pod that goes because it is believed not to be ready yet was not ready a moment ago.
        if deployment.metadata.deletion_timestamp.is_some() || is_news(since, now) {
            return None;
        }
        let promised = self.bounds(key, deployment, now).map(|(fewest, _)| fewest).min()?;
        let of_it = |p: &&Pod| owner(&p.metadata).and_then(|u| self.of(u)).is_some_and(|(found, _)| found == key);
        let left = pods.values().filter(|p| serves(p)).filter(of_it).count() as i32;
        (left < promised).then(|| format!("{left} Pods serve, {promised} are promised"))
    }

    /// A ReplicaSet has no more Pods than it asks for. `pods` are all with the new one.
    pub fn made(&self, new: &Pod, pods: &BTreeMap<String, Pod>, now: Timestamp) -> Option<String> {
        let uid = owner(&new.metadata)?;
        let (key, of) = self.replica_sets.iter().find(|(_, r)| r.metadata.uid.as_deref() == Some(uid))?;
        let most = self.set_counts.believed(key, wanted(of), now).max()?;
        let is_of_it = |p: &&Pod| owner(&p.metadata) == Some(uid) && api::rules::pod::is_active(p);
        let active = pods.values().filter(is_of_it).count() as i32;
        (active > most).then(|| format!("its ReplicaSet has {active} Pods and wants {most}"))
    }

    /// A ReplicaSet that grows must not lift its Deployment over the surge.
    pub fn replica_set(&mut self, key: String, new: Option<ReplicaSet>, now: Timestamp) -> Option<String> {
        let replicas = wanted;
        let before = self.replica_sets.get(&key).map_or(0, replicas);
        self.set_counts.changed(&key, before, now);
        set(&mut self.replica_sets, key, new.clone());
        let new = new.filter(|n| replicas(n) > before)?;
        let uid = owner(&new.metadata)?;
        let (key, deployment) = self.owner(uid)?;
        let most = self.bounds(key, deployment, now).map(|(_, most)| most).max()?;
        let sum: i32 = self.replica_sets.values().filter(|r| owner(&r.metadata) == Some(uid)).map(replicas).sum();
        (sum > most).then(|| format!("{sum} replicas, at most {most} are allowed"))
    }

    /// Whether all of them are rolled out: the newest template everywhere, as many as wanted, all ready, nothing else left.
    pub fn rolled_out(&self, pods: &BTreeMap<String, Pod>) -> bool {
        self.deployments.values().all(|deployment| {
            let uid = deployment.metadata.uid.as_deref();
            let sets = self.replica_sets.values().filter(|r| owner(&r.metadata) == uid);
            let set_uids: Vec<Option<&str>> = sets.map(|r| r.metadata.uid.as_deref()).collect();
            let pods: Vec<&Pod> = pods.values().filter(|p| set_uids.contains(&owner(&p.metadata))).collect();
            let Some(spec) = &deployment.spec else { return false };
            let image =
                |s: Option<&k8s_openapi::api::core::v1::PodSpec>| s.and_then(|s| s.containers.first()?.image.clone());
            let wanted = image(spec.template.spec.as_ref());
            pods.len() as i32 == replicas(deployment)
                && pods.iter().all(|p| serves(p) && image(p.spec.as_ref()) == wanted)
        })
    }

    /// How many Pods each ReplicaSet wants, for a failure.
    pub fn summary(&self) -> String {
        let sets =
            self.replica_sets.values().map(|r| format!("{}={}", r.metadata.name.as_deref().unwrap_or(""), wanted(r)));
        sets.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use json::{Value, json};
    use serde::de::DeserializeOwned;

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn read<T: DeserializeOwned>(value: Value) -> T {
        json::from_value(value).expect("an object")
    }

    fn deployment(replicas: i32) -> Option<Deployment> {
        let rolling = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        let template = json!({"spec": {"containers": []}});
        let spec = json!({"replicas": replicas, "strategy": rolling, "selector": {}, "template": template});
        read(json!({"metadata": {"uid": "x"}, "spec": spec}))
    }

    fn owned(kind: &str, by: &str, mut object: Value) -> Value {
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": kind, "name": by, "uid": by, "controller": true}]);
        object
    }

    fn replica_set(uid: &str, replicas: i32) -> Option<ReplicaSet> {
        let set = json!({"metadata": {"uid": uid}, "spec": {"replicas": replicas, "selector": {}}});
        Some(read(owned("Deployment", "x", set)))
    }

    fn pod() -> Pod {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        read(owned("ReplicaSet", "r", json!({"metadata": {}, "status": {"conditions": ready}})))
    }

    /// A Deployment that goes through these counts, the last change this number of seconds ago.
    fn model(counts: &[i32], seconds: i64) -> Deployments {
        let mut model = Deployments::default();
        let at = Timestamp::from_second(now().as_second() - seconds).expect("a time");
        for count in counts {
            model.deployment("d".to_owned(), deployment(*count), at);
            assert_eq!(model.replica_set("r".to_owned(), replica_set("r", counts[0]), at), None);
        }
        model
    }

    fn now() -> Timestamp {
        NOW.parse().expect("a time")
    }

    #[test]
    fn a_rollout_has_no_more_replicas_than_the_surge() {
        let check = |mut model: Deployments, more: i32, expected: Option<&str>| {
            let wrong = model.replica_set("s".to_owned(), replica_set("s", more), now());
            assert_eq!(wrong.as_deref(), expected);
        };
        check(model(&[1], 0), 1, None);
        check(model(&[1], 0), 2, Some("3 replicas, at most 2 are allowed"));
        // Lowered a moment ago, and long ago.
        check(model(&[3, 2, 1], 20), 1, None);
        check(model(&[3, 2, 1], 20), 2, Some("5 replicas, at most 4 are allowed"));
        check(model(&[3, 2, 1], 40), 1, Some("4 replicas, at most 2 are allowed"));
    }

    #[test]
    fn a_replica_set_has_no_more_pods_than_it_wants() {
        let check = |seconds: i64, counts: &[i32], pods: usize, expected: Option<&str>| {
            let mut model = Deployments::default();
            let at = Timestamp::from_second(now().as_second() - seconds).expect("a time");
            for count in counts {
                model.replica_set("r".to_owned(), replica_set("r", *count), at);
            }
            let pods = (0..pods).map(|i| (i.to_string(), pod())).collect();
            assert_eq!(model.made(&pod(), &pods, now()).as_deref(), expected);
        };
        check(0, &[2], 2, None);
        check(0, &[2], 3, Some("its ReplicaSet has 3 Pods and wants 2"));
        check(20, &[3, 2], 3, None);
        check(40, &[3, 2], 3, Some("its ReplicaSet has 3 Pods and wants 2"));
    }

    #[test]
    fn what_is_promised_serves_except_for_news() {
        const LONG: &str = "2026-01-01T00:00:00Z";
        let check = |model: Deployments, left: usize, gone: &str, expected: Option<&str>| {
            let left = (0..left).map(|i| (i.to_string(), pod())).collect();
            let gone = (&pod(), gone.parse().expect("a time"));
            assert_eq!(model.still_serves(gone, &left, now()).as_deref(), expected);
        };
        check(model(&[2], 0), 2, LONG, None);
        check(model(&[2], 0), 1, LONG, Some("1 Pods serve, 2 are promised"));
        // Ready for a moment only.
        check(model(&[2], 0), 1, "2026-01-01T00:59:40Z", None);
        check(model(&[2], 0), 1, "2026-01-01T00:59:20Z", Some("1 Pods serve, 2 are promised"));
        // Raised a moment ago, in two steps; and long ago.
        check(model(&[1, 2, 4], 20), 1, LONG, None);
        check(model(&[1, 2, 4], 20), 0, LONG, Some("0 Pods serve, 1 are promised"));
        check(model(&[1, 2, 4], 40), 3, LONG, Some("3 Pods serve, 4 are promised"));
    }
}
