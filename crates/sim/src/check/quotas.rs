//! The checker of quotas: nothing is made beyond them, whoever writes at the same time.

use std::collections::{BTreeMap, BTreeSet};

use api::rules::{
    pod::{is_terminal, requests},
    quantity,
};
use k8s_openapi::{
    api::core::v1::{Pod, ResourceQuota},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::objects::set;

#[derive(Default)]
pub struct Quotas {
    quotas: BTreeMap<String, ResourceQuota>,
    config_maps: BTreeSet<String>,
    /// How many objects were made in namespaces that have a quota.
    pub counted: usize,
}

fn namespace(key: &str) -> &str {
    key.split('/').nth(1).unwrap_or_default()
}

fn amount(list: Option<&BTreeMap<String, Quantity>>, of: &str) -> i64 {
    list.and_then(|list| list.get(of)).map_or(0, |amount| quantity::parse(amount).milli_value())
}

/// The resources that the Pods of a namespace use, and its ConfigMaps, in thousandths.
fn used(quotas: &Quotas, pods: &BTreeMap<String, Pod>, inside: &str) -> BTreeMap<&'static str, i64> {
    // A Pod that should be gone by now costs nothing any more, in upstream too.
    let now = clock::now();
    let overdue = |pod: &Pod| pod.metadata.deletion_timestamp.as_ref().is_some_and(|at| at.0 <= now);
    let inside_it = |pod: &&Pod| pod.metadata.namespace.as_deref() == Some(inside);
    let living = || pods.values().filter(inside_it).filter(|pod| !is_terminal(pod) && !overdue(pod));
    let cpu = |pod: &Pod| {
        let asked = pod.spec.as_ref().map(requests).unwrap_or_default();
        asked.get("cpu").map_or(0, |amount| amount.milli_value())
    };
    let maps = quotas.config_maps.iter().filter(|key| namespace(key) == inside).count() as i64;
    BTreeMap::from([
        ("pods", living().count() as i64 * 1000),
        ("count/configmaps", maps * 1000),
        ("requests.cpu", living().map(cpu).sum()),
    ])
}

impl Quotas {
    pub fn quota(&mut self, key: String, new: Option<ResourceQuota>) {
        set(&mut self.quotas, key, new);
    }

    /// Notes a ConfigMap; says by how much there are too many.
    pub fn config_map(&mut self, key: String, there: bool, pods: &BTreeMap<String, Pod>) -> Option<String> {
        if !there {
            self.config_maps.remove(&key);
            return None;
        }
        let new = self.config_maps.insert(key.clone());
        new.then(|| self.made(namespace(&key), &["count/configmaps"], pods)).flatten()
    }

    /// Notes a new Pod in a namespace; says what there is too much of.
    pub fn pod(&mut self, inside: &str, pods: &BTreeMap<String, Pod>) -> Option<String> {
        self.made(inside, &["pods", "requests.cpu"], pods)
    }

    /// Whether all quotas say what they limit. An object that was made before that is not charged to them.
    pub fn known(&self) -> bool {
        self.quotas.values().all(|quota| quota.status.as_ref().is_some_and(|s| s.hard.is_some()))
    }

    fn made(&mut self, inside: &str, charged: &[&str], pods: &BTreeMap<String, Pod>) -> Option<String> {
        let quota = self.quotas.iter().find(|(key, _)| namespace(key) == inside)?.1;
        let hard = quota.status.as_ref().and_then(|s| s.hard.as_ref())?;
        let over: Vec<String> = used(self, pods, inside)
            .into_iter()
            .filter(|(of, used)| charged.contains(of) && hard.contains_key(*of) && *used > amount(Some(hard), of))
            .map(|(of, used)| format!("{of}: {used}m"))
            .collect();
        self.counted += 1;
        (!over.is_empty()).then(|| format!("beyond the quota: {}", over.join(", ")))
    }

    /// Whether each quota says what is used.
    pub fn settled(&self, pods: &BTreeMap<String, Pod>) -> bool {
        self.quotas.iter().all(|(key, quota)| {
            let status = quota.status.as_ref();
            let (hard, says) = (status.and_then(|s| s.hard.as_ref()), status.and_then(|s| s.used.as_ref()));
            let used = used(self, pods, namespace(key));
            used.iter().all(|(of, used)| !hard.is_some_and(|h| h.contains_key(*of)) || amount(says, of) == *used)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn what_is_beyond_a_quota_is_seen() {
        let mut quotas = Quotas::default();
        let mut pods = BTreeMap::new();
        let quota = json!({"metadata": {}, "status": {"hard": {"pods": "1", "count/configmaps": "1", "requests.cpu": "1"},
            "used": {"pods": "1", "count/configmaps": "1", "requests.cpu": "600m"}}});
        quotas.quota("resourcequotas/d/q".into(), json::from_value(quota).unwrap());
        let pod = |phase: &str| -> Pod {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": "600m"}}});
            json::from_value(json!({"metadata": {"namespace": "d"}, "spec": {"containers": [container]},
                "status": {"phase": phase}}))
            .unwrap()
        };
        assert_eq!(quotas.config_map("configmaps/d/a".into(), true, &pods), None);
        assert_eq!(quotas.config_map("configmaps/d/a".into(), true, &pods), None, "an update");
        assert_eq!(quotas.config_map("configmaps/e/b".into(), true, &pods), None, "another namespace");
        let beyond = Some("beyond the quota: count/configmaps: 2000m".to_owned());
        assert_eq!(quotas.config_map("configmaps/d/b".into(), true, &pods), beyond);
        assert_eq!(quotas.config_map("configmaps/d/b".into(), false, &pods), None);
        pods.insert("pods/d/p".to_owned(), pod("Running"));
        assert_eq!(quotas.pod("d", &pods), None);
        assert!(quotas.settled(&pods));
        pods.insert("pods/d/q".to_owned(), pod("Succeeded"));
        assert_eq!(quotas.pod("d", &pods), None);
        pods.insert("pods/d/r".to_owned(), pod("Pending"));
        let beyond = Some("beyond the quota: pods: 2000m, requests.cpu: 1200m".to_owned());
        assert_eq!(quotas.pod("d", &pods), beyond);
        assert!(!quotas.settled(&pods));
    }
}
