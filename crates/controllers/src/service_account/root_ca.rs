//! Root CA publisher: every namespace that lives has the ConfigMap `kube-root-ca.crt`, by which Pods know the API server.
//! Reads: Namespace, ConfigMap. Writes: ConfigMap (create, update).
//! Upstream counterpart: pkg/controller/certificates/rootcacertpublisher.

use std::{collections::BTreeMap, sync::Arc};

use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write, metrics::Attempts};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::namespace::is_active;

static ATTEMPTS: Attempts = Attempts::new(
    ("root_ca_cert_publisher_sync_total", SYNCS),
    ("root_ca_cert_publisher_sync_duration_seconds", SYNCS),
);
const SYNCS: &str = "[ALPHA] Number of namespace syncs happened in root ca cert publisher.";

pub struct RootCa {
    /// The cluster's CA certificate in PEM.
    pub certificate: String,
}

const NAME: &str = "kube-root-ca.crt";
/// Only these ConfigMaps are watched and kept.
const FIELDS: &str = "metadata.name=kube-root-ca.crt";
const DATA: &str = "ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

impl Controller for RootCa {
    const NAME: &'static str = "root-ca-certificate-publisher-controller";
    const ATTEMPTS: Option<&'static Attempts> = Some(&ATTEMPTS);
    type Object = Namespace;
    type Observed = Option<Arc<ConfigMap>>;

    fn watches(&self, watches: &mut Watches<Namespace>) {
        let ours = watches.caches().selected::<ConfigMap>(FIELDS);
        watches.changed_in(ours, |change, _| vec![Key::new("", &change.key.namespace)]);
    }

    fn observe(&self, namespace: &Namespace, listers: &Listers) -> Self::Observed {
        let name = namespace.metadata.name.as_deref().unwrap_or("");
        listers.caches.selected::<ConfigMap>(FIELDS).get(&Key::new(name, NAME))
    }

    fn plan(&self, namespace: &Namespace, held: &Self::Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if !is_active(namespace) {
            return plan;
        }
        let data = BTreeMap::from([(DATA.to_owned(), self.certificate.clone())]);
        let described = |annotations: &Option<BTreeMap<String, String>>| {
            annotations.as_ref().and_then(|a| a.get(DESCRIPTION.0)).is_some_and(|text| !text.is_empty())
        };
        match held.as_deref() {
            None => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(NAME.to_owned()),
                        namespace: namespace.metadata.name.clone(),
                        annotations: Some([DESCRIPTION].map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
                        ..Default::default()
                    },
                    data: Some(data),
                    ..Default::default()
                };
                plan.step(Write::create(&map).tolerate(&["AlreadyExists"]));
            }
            Some(map) if map.data.as_ref() != Some(&data) || !described(&map.metadata.annotations) => {
                let mut map = map.clone();
                map.data = Some(data);
                let annotations = map.metadata.annotations.get_or_insert_default();
                annotations.insert(DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned());
                plan.step(Write::update(&map));
            }
            Some(_) => {}
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishes_and_repairs() {
        let publisher = RootCa { certificate: "PEM".into() };
        let namespace = |phase: &str| -> Namespace {
            json::from_value(json::json!({"metadata": {"name": "a"}, "status": {"phase": phase}})).unwrap()
        };
        let plan = |phase: &str, held| publisher.plan(&namespace(phase), &held, Timestamp::UNIX_EPOCH);
        let created = plan("Active", None);
        assert_eq!(created.to_string(), "create configmaps kube-root-ca.crt");
        let mut map: ConfigMap = json::from_value(created.writes().next().unwrap().body().clone()).unwrap();
        assert!(plan("Active", Some(Arc::new(map.clone()))).is_empty());
        map.data = Some([("ca.crt".to_owned(), "other".to_owned())].into());
        assert_eq!(plan("Active", Some(Arc::new(map.clone()))).to_string(), "update configmaps kube-root-ca.crt");
        assert!(plan("Terminating", Some(Arc::new(map))).is_empty());
    }
}
