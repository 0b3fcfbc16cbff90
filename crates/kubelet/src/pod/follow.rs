//! Follows the objects that a Pod's volumes show.

use std::sync::Arc;

use client::{
    Changes,
    rest::{Collection, Form, Resource},
};
use k8s_openapi::api::{
    certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest},
    core::v1::{ConfigMap, Secret},
};
use tokio::{
    sync::{Notify, broadcast::error::RecvError},
    task::JoinSet,
};

use crate::{
    followed::Watch,
    kubelet::Kubelet,
    pod::desired::DesiredPod,
    volumes::{self, plugin::Followed},
};

/// Dropping it ends its share in the watches.
#[derive(Default)]
pub struct Follower {
    watches: Vec<Arc<Watch>>,
    certificates: JoinSet<()>,
    changed: Arc<Notify>,
    followed: Vec<Followed>,
}

impl Follower {
    /// A second call follows what has been added since.
    pub fn begin(&mut self, kubelet: &Kubelet, desired: &DesiredPod) {
        for object in volumes::followed(&desired.pod) {
            if self.followed.contains(&object) {
                continue;
            }
            self.followed.push(object.clone());
            let source = match object {
                Followed::ConfigMap(name) => Collection::one(Resource::of::<ConfigMap>(), desired.namespace(), &name),
                Followed::Secret(name) => Collection::one(Resource::of::<Secret>(), desired.namespace(), &name),
                Followed::TrustBundle(name) => Collection::one(Resource::of::<ClusterTrustBundle>(), "", &name),
                Followed::TrustBundlesOf(signer) => {
                    let all = Collection::all(Resource::of::<ClusterTrustBundle>(), Form::Whole);
                    Collection { fields: format!("spec.signerName={signer}"), ..all }
                }
                Followed::Certificates => {
                    if let Some(requests) = &kubelet.sources.certificates.requests {
                        let (changes, uid) = (requests.subscribe(), desired.uid().to_owned());
                        self.certificates.spawn(follow_requests(changes, uid, self.changed.clone()));
                    }
                    continue;
                }
            };
            self.watches.push(kubelet.followed.follow(&kubelet.config.client, source, &self.changed));
        }
    }

    pub fn end(&mut self) {
        *self = Follower::default();
    }

    /// Volumes may show something that is no longer so.
    pub fn note_change(&self) {
        self.changed.notify_one();
    }

    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Tells of every change of the Pod's requests for certificates.
async fn follow_requests(mut changes: Changes<PodCertificateRequest>, pod_uid: String, changed: Arc<Notify>) {
    loop {
        let is_ours = match changes.recv().await {
            Ok(change) => {
                change.new.as_ref().or(change.old.as_ref()).is_some_and(|request| request.spec.pod_uid == pod_uid)
            }
            Err(RecvError::Lagged(_)) => true,
            Err(RecvError::Closed) => return,
        };
        if is_ours {
            changed.notify_one();
        }
    }
}
