//! The owners of credentials that an image was pulled with, as the record of the image names them. Pure.
//! Upstream counterpart: pkg/kubelet/images/pullmanager, and the types in kubelet.config.k8s.io/v1beta1.

use serde::{Deserialize, Serialize};

use super::keyring::{Coordinates, Source, Tracked};

/// An image has as many owners of credentials in its record. Others have to pull it again.
pub const OWNERS: usize = 1000;
/// Beyond this, credentials that turn out to be good are not written down for that alone.
pub const OWNERS_BY_MATCH: usize = 100;

/// The credentials of a Secret that an image was pulled with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PullSecret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

/// The service account with whose token an image was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PullAccount {
    uid: String,
    namespace: String,
    name: String,
}

/// The credentials that an image was pulled with under one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullCredentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<PullSecret>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<PullAccount>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl PullCredentials {
    /// The record of a pull that succeeded with these; without any everybody may use the image.
    pub fn of(used: Option<&Tracked>) -> Self {
        let mut made = PullCredentials::default();
        match used.map(|used| (&used.source, used)) {
            None | Some((Source::Node, _)) => made.node_pods_accessible = true,
            Some((Source::Secret(of), used)) => made.kubernetes_secrets.push(secret(of, used)),
            Some((Source::ServiceAccount(of), _)) => made.kubernetes_service_accounts.push(account(of)),
        }
        made
    }

    /// Takes in further credentials, as long as there are no more than that; whether anything is new.
    pub fn add(&mut self, more: PullCredentials, most: usize) -> bool {
        let before = self.clone();
        if self.node_pods_accessible || more.node_pods_accessible {
            *self = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
            return *self != before;
        }
        for new in more.kubernetes_secrets {
            match self.kubernetes_secrets.iter().position(|held| held.is_of(&new)) {
                Some(at) => self.kubernetes_secrets[at] = new,
                None if self.kubernetes_secrets.len() < most => self.kubernetes_secrets.push(new),
                None => {}
            }
        }
        for new in more.kubernetes_service_accounts {
            let is_full = self.kubernetes_service_accounts.len() >= most;
            if !is_full && !self.kubernetes_service_accounts.contains(&new) {
                self.kubernetes_service_accounts.push(new);
            }
        }
        self.kubernetes_secrets.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        let accounts = &mut self.kubernetes_service_accounts;
        accounts.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        *self != before
    }

    /// Everybody on the node may use the image.
    pub fn is_for_all(&self) -> bool {
        self.node_pods_accessible
    }

    /// No credentials open the image to anybody.
    pub fn is_for_nobody(&self) -> bool {
        *self == PullCredentials::default()
    }

    /// Whether one of the given credentials is among these, by its owner or by its digest; with what is new about it. A Secret is
    /// trusted with what it holds now.
    pub fn find(&self, given: &[Tracked]) -> Option<Option<PullCredentials>> {
        given.iter().find_map(|tracked| match &tracked.source {
            Source::Secret(of) => {
                let new = secret(of, tracked);
                let is_it = |held: &&PullSecret| held.is_of(&new) || held.credential_hash == new.credential_hash;
                let held = self.kubernetes_secrets.iter().find(is_it)?;
                let is_new = *held != new;
                Some(is_new.then(|| PullCredentials { kubernetes_secrets: vec![new], ..PullCredentials::default() }))
            }
            Source::ServiceAccount(of) => self.kubernetes_service_accounts.contains(&account(of)).then_some(None),
            Source::Node => None,
        })
    }
}

impl PullSecret {
    fn is_of(&self, other: &PullSecret) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

fn secret(of: &Coordinates, used: &Tracked) -> PullSecret {
    let Coordinates { namespace, name, uid } = of.clone();
    PullSecret { uid, namespace, name, credential_hash: used.hash() }
}

fn account(of: &Coordinates) -> PullAccount {
    let Coordinates { namespace, name, uid } = of.clone();
    PullAccount { uid, namespace, name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::keyring::Entry;

    fn tracked(source: Source, password: &str) -> Tracked {
        Tracked { entry: Entry { password: password.into(), ..Entry::default() }, source }
    }

    fn named(name: &str) -> Coordinates {
        Coordinates { namespace: "d".into(), name: name.into(), uid: name.into() }
    }

    #[test]
    fn a_record_has_a_bound_and_one_open_pull_opens_it_to_all() {
        let by = |name: &str, password: &str| tracked(Source::Secret(named(name)), password);
        let mut record = PullCredentials::of(Some(&by("b", "1")));
        assert!(record.add(PullCredentials::of(Some(&by("a", "2"))), 2));
        assert!(!record.add(PullCredentials::of(Some(&by("c", "3"))), 2), "it is full");
        assert!(!record.add(PullCredentials::of(Some(&by("a", "2"))), 2), "nothing is new");
        assert!(record.add(PullCredentials::of(Some(&by("a", "4"))), 2), "a Secret was changed");
        assert!(record.find(&[by("c", "3")]).is_none() && record.find(&[by("a", "4")]) == Some(None));
        let new = record.find(&[by("c", "4")]).unwrap().unwrap();
        assert_eq!(new, PullCredentials::of(Some(&by("c", "4"))));
        assert!(record.add(PullCredentials::of(Some(&tracked(Source::Node, "5"))), 2) && record.is_for_all());
        assert!(!record.add(PullCredentials::of(Some(&by("d", "6"))), 9), "nobody is left out any more");
    }

    #[test]
    fn a_service_account_is_known_by_all_that_names_it() {
        let by = |of: Coordinates| tracked(Source::ServiceAccount(of), "");
        let record = PullCredentials::of(Some(&by(named("a"))));
        assert_eq!(record.find(&[by(named("a"))]), Some(None));
        assert_eq!(record.find(&[by(Coordinates { uid: "new".into(), ..named("a") })]), None);
        assert!(PullCredentials::default().is_for_nobody() && !record.is_for_nobody());
    }
}
