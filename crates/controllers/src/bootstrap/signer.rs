//! Bootstrap signer: signs the kubeconfig in `kube-public/cluster-info` with every bootstrap token in force, so that new
//! nodes that know a token can tell the cluster from an impostor.
//! Reads: Namespace, ConfigMap `cluster-info`, Secrets of bootstrap tokens. Writes: ConfigMap `cluster-info`.
//! Upstream counterpart: pkg/controller/bootstrap/bootstrapsigner.go.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::bootstrap_token::{self, BootstrapToken};
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};

use crate::bootstrap::token_cleaner::{TOKENS, wait_for};

pub struct BootstrapSigner;

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
const FIELDS: &str = "metadata.name=cluster-info";
const KUBECONFIG: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

pub struct Observed {
    info: Option<Arc<ConfigMap>>,
    tokens: Vec<BootstrapToken>,
}

/// The data that the ConfigMap must hold: the signatures beside the entries that others put there.
fn data(held: &BTreeMap<String, String>, tokens: &[BootstrapToken], now: Timestamp) -> BTreeMap<String, String> {
    let mut data = held.clone();
    data.retain(|key, _| !key.starts_with(SIGNATURE));
    if let Some(content) = held.get(KUBECONFIG) {
        for token in tokens.iter().filter(|t| t.signs && !t.end.is_past(now)) {
            data.insert(format!("{SIGNATURE}{}", token.id), pki::jws::sign(content, &token.id, &token.secret));
        }
    }
    data
}

impl Controller for BootstrapSigner {
    const NAME: &'static str = "bootstrap-signer-controller";
    /// The one namespace stands for its one ConfigMap, so that not all ConfigMaps have to be kept.
    type Object = Namespace;
    type Observed = Observed;

    fn concerns(change: &Change<Namespace>) -> bool {
        change.key.name == NAMESPACE && change.old.is_none()
    }

    fn watches(&self, watches: &mut Watches<Namespace>) {
        let (maps, tokens) =
            (watches.caches().selected::<ConfigMap>(FIELDS), watches.caches().selected::<Secret>(TOKENS));
        watches.changed_in(maps, |change, _| {
            (change.key.namespace == NAMESPACE).then(|| Key::new("", NAMESPACE)).into_iter().collect()
        });
        watches.changed_in(tokens, |_, _| vec![Key::new("", NAMESPACE)]);
    }

    fn observe(&self, namespace: &Namespace, listers: &Listers) -> Observed {
        let ours = namespace.metadata.name.as_deref() == Some(NAMESPACE);
        let secrets = listers.caches.selected::<Secret>(TOKENS).list_in(bootstrap_token::NAMESPACE);
        Observed {
            info: listers.caches.selected::<ConfigMap>(FIELDS).get(&Key::new(NAMESPACE, NAME)).filter(|_| ours),
            tokens: secrets.iter().filter_map(|s| bootstrap_token::read(s)).collect(),
        }
    }

    fn plan(&self, _: &Namespace, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(info) = &observed.info else { return plan };
        let held = info.data.clone().unwrap_or_default();
        let wanted = data(&held, &observed.tokens, now);
        if wanted != held {
            plan.step(Write::update(&ConfigMap { data: Some(wanted), ..(**info).clone() }));
        }
        for token in &observed.tokens {
            wait_for(&mut plan, token.end, now);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use api::rules::bootstrap_token::End;

    use super::*;

    #[test]
    fn every_token_in_force_signs() {
        let now = Timestamp::from_second(1000).unwrap();
        let token = |id: &str, signs: bool, end: End| BootstrapToken {
            id: id.to_owned(),
            secret: "0123456789abcdef".to_owned(),
            end,
            authenticates: true,
            signs,
            groups: Vec::new(),
        };
        let map = |entries: &[(&str, &str)]| {
            entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let tokens = [
            token("aaaaaa", true, End::Never),
            token("bbbbbb", false, End::Never),
            token("cccccc", true, End::At(now)),
            token("dddddd", true, End::At(Timestamp::from_second(1060).unwrap())),
        ];
        let held = map(&[("kubeconfig", "x"), ("jws-kubeconfig-gone", "y"), ("other", "z")]);
        let signed = data(&held, &tokens, now);
        let keys: Vec<&str> = signed.keys().map(String::as_str).collect();
        assert_eq!(keys, ["jws-kubeconfig-aaaaaa", "jws-kubeconfig-dddddd", "kubeconfig", "other"]);
        assert!(pki::jws::is_valid(&signed["jws-kubeconfig-aaaaaa"], "x", "aaaaaa", "0123456789abcdef"));

        let info = Arc::new(ConfigMap { data: Some(held), ..ConfigMap::default() });
        let observed = Observed { info: Some(info), tokens: tokens.to_vec() };
        let plan = BootstrapSigner.plan(&Namespace::default(), &observed, now);
        assert_eq!(plan.to_string(), "update configmaps ");
        assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(60)), "a signature ends with its token");
        let observed =
            Observed { info: Some(Arc::new(ConfigMap { data: Some(signed), ..ConfigMap::default() })), ..observed };
        assert!(BootstrapSigner.plan(&Namespace::default(), &observed, now).is_empty());
    }
}
