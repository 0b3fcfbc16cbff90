//! Trust bundle publisher: the authority of the API server's certificate stands in a ClusterTrustBundle, under a name that
//! changes with it.
//! Reads: ClusterTrustBundle, Namespace. Writes: ClusterTrustBundle (create, update, delete).
//! Upstream counterpart: pkg/controller/certificates/clustertrustbundlepublisher.

use std::sync::Arc;

use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write, metrics::Attempts};
use k8s_openapi::{
    api::{
        certificates::v1beta1::{ClusterTrustBundle, ClusterTrustBundleSpec},
        core::v1::Namespace,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest, Sha256};

static ATTEMPTS: Attempts = Attempts::new(
    (
        "clustertrustbundle_publisher_sync_total",
        "[ALPHA] Number of syncs that occurred in cluster trust bundle publisher.",
    ),
    ("clustertrustbundle_publisher_sync_duration_seconds", "[ALPHA] The time it took to sync a cluster trust bundle."),
);

pub struct TrustBundle {
    /// The certificate of the authority that signs the API server's, in PEM.
    pub certificate: String,
}

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
/// Only this signer's bundles are watched and kept.
const FIELDS: &str = "spec.signerName=kubernetes.io/kube-apiserver-serving";
/// There is one thing to do in the whole cluster, and it is done for the namespace that every cluster has.
const NAMESPACE: &str = "kube-system";

impl TrustBundle {
    /// The signer's name, and a part of the content's hash: who reads an older bundle can go on reading it until it is gone.
    fn name(&self) -> String {
        let hash = Sha256::digest(&self.certificate);
        let hash = base16ct::lower::encode_string(&hash[..12]);
        format!("{}:{hash}", SIGNER.replace('/', ":"))
    }

    fn wanted(&self) -> ClusterTrustBundle {
        let spec =
            ClusterTrustBundleSpec { signer_name: Some(SIGNER.to_owned()), trust_bundle: self.certificate.clone() };
        ClusterTrustBundle { metadata: ObjectMeta { name: Some(self.name()), ..ObjectMeta::default() }, spec }
    }
}

impl Controller for TrustBundle {
    const NAME: &'static str = "kube-apiserver-serving-clustertrustbundle-publisher-controller";
    const ATTEMPTS: Option<&'static Attempts> = Some(&ATTEMPTS);
    type Object = Namespace;
    type Observed = Vec<Arc<ClusterTrustBundle>>;

    fn concerns(change: &Change<Namespace>) -> bool {
        change.key.name == NAMESPACE
    }

    fn watches(&self, watches: &mut Watches<Namespace>) {
        let ours = watches.caches().selected::<ClusterTrustBundle>(FIELDS);
        watches.changed_in(ours, |_, _| vec![Key::new("", NAMESPACE)]);
    }

    fn observe(&self, _: &Namespace, listers: &Listers) -> Self::Observed {
        listers.caches.selected::<ClusterTrustBundle>(FIELDS).list()
    }

    fn plan(&self, namespace: &Namespace, bundles: &Self::Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if namespace.metadata.name.as_deref() != Some(NAMESPACE) {
            return plan;
        }
        let wanted = self.wanted();
        let named = |bundle: &ClusterTrustBundle| bundle.metadata.name == wanted.metadata.name;
        match bundles.iter().find(|bundle| named(bundle)) {
            None => _ = plan.step(Write::create(&wanted).tolerate(&["AlreadyExists"])),
            Some(held) if held.spec.trust_bundle != wanted.spec.trust_bundle => {
                let mut changed = ClusterTrustBundle::clone(held);
                changed.spec = wanted.spec.clone();
                plan.step(Write::update(&changed));
            }
            Some(_) => {}
        }
        for older in bundles.iter().filter(|bundle| !named(bundle)) {
            plan.step(Write::delete(&**older));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bundle_has_the_authority_that_is() {
        let publisher = TrustBundle { certificate: "PEM".into() };
        let namespace =
            |name: &str| -> Namespace { json::from_value(json::json!({"metadata": {"name": name}})).unwrap() };
        let bundle = |name: &str, text: &str| {
            let mut bundle = publisher.wanted();
            bundle.metadata.name = Some(name.to_owned());
            bundle.spec.trust_bundle = text.to_owned();
            Arc::new(bundle)
        };
        let check = |bundles: &[Arc<ClusterTrustBundle>], expected: &str| {
            let plan = publisher.plan(&namespace(NAMESPACE), &bundles.to_vec(), Timestamp::UNIX_EPOCH);
            assert_eq!(plan.to_string(), expected);
        };
        let name = publisher.name();
        assert!(name.starts_with("kubernetes.io:kube-apiserver-serving:") && name.len() == 37 + 24, "{name}");
        check(&[], &format!("create clustertrustbundles {name}"));
        check(&[bundle(&name, "PEM")], "");
        check(&[bundle(&name, "other")], &format!("update clustertrustbundles {name}"));
        check(&[bundle("old", "PEM"), bundle(&name, "PEM")], "delete clustertrustbundles old");
        check(&[bundle("old", "PEM")], &format!("create clustertrustbundles {name}, delete clustertrustbundles old"));
        assert!(publisher.plan(&namespace("default"), &Vec::new(), Timestamp::UNIX_EPOCH).is_empty());
    }
}
