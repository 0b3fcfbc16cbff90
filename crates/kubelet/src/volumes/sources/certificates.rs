//! The certificates of this node's Pods: asks signers for them through PodCertificateRequests, and keeps them, with their keys,
//! in memory alone. A kubelet that starts again asks for new ones.
//! Upstream counterpart: pkg/kubelet/podcertificate.

use std::{collections::HashMap, sync::Arc, time::Duration};

use client::{Api, Cache, Client, Key, reflector::revision_of};
use clock::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec},
        core::v1::{Node, Pod, PodCertificateProjection, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use parking_lot::Mutex;
use pki::ProvenKey;

use crate::volumes::{
    error::VolumeError,
    folder::blocking,
    sources::credential::{Asked, Credential, Life, Seen},
};

/// Renewals are put off by up to this long, each by a time of its own.
const JITTER_SECONDS: u64 = 300;

/// One source of a projected volume of a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub pod_uid: String,
    pub volume: String,
    pub source: usize,
}

/// Records a warning about a Pod, with this reason and message.
pub type Warn = Box<dyn Fn(&Pod, &str, &str) + Send + Sync>;

pub struct Certificates {
    pub client: Client,
    pub warn: Warn,
    pub node_name: String,
    pub node: Arc<Cache<Node>>,
    /// The requests of this node's Pods. `None` where the feature is off.
    pub requests: Option<Arc<Cache<PodCertificateRequest>>>,
    pub lives: Mutex<HashMap<Place, Life>>,
}

impl Certificates {
    /// The credential of a source; asks for it, or for its successor, when it is time to. Only the Pod's worker calls this.
    pub async fn credential(
        &self,
        pod: &Pod,
        place: &Place,
        wanted: &PodCertificateProjection,
    ) -> Result<Credential, VolumeError> {
        let Some(requests) = &self.requests else {
            let off = "podCertificate sources: the feature gate PodCertificateRequest is off";
            return Err(VolumeError::Unsupported(off.to_owned()));
        };
        let mut life = self.lives.lock().get(place).cloned().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        if let Some(asked) = life.asked() {
            let found = requests.get(&Key::new(namespace, &asked.name));
            let seen = match &found {
                Some(request) => Seen::There(request),
                None if requests.revision() >= asked.revision => Seen::Gone,
                None => Seen::NotYet,
            };
            let jitter = Duration::from_secs(clock::random_range(0..JITTER_SECONDS));
            let warning = life.learn(namespace, seen, clock::now(), jitter);
            self.tell(pod, warning);
        }
        self.tell(pod, life.warnings(clock::now()));
        let mut failed = None;
        if life.wants_request(clock::now()) {
            match self.ask(pod, namespace, wanted).await {
                Ok(asked) => life.ask(asked),
                Err(error) if life.put_off(clock::now()) => {
                    tracing::warn!(volume = place.volume, error, "cannot ask for the renewal of a certificate yet");
                }
                Err(error) => {
                    let text = format!("while creating initial PodCertificateRequest: {error}");
                    failed = Some(VolumeError::Certificate(text));
                }
            }
        }
        let outcome = failed.map_or_else(|| life.credential(), Err);
        self.lives.lock().insert(place.clone(), life);
        outcome
    }

    fn tell(&self, pod: &Pod, warnings: impl IntoIterator<Item = (&'static str, String)>) {
        for (reason, message) in warnings {
            (self.warn)(pod, reason, &message);
        }
    }

    async fn ask(&self, pod: &Pod, namespace: &str, wanted: &PodCertificateProjection) -> Result<Asked, String> {
        let account_name = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let account = accounts.get(&account_name).await.map_err(|e| format!("while fetching service account: {e}"))?;
        let node = self.node.get(&Key::new("", &self.node_name)).ok_or("the node's own object is not known yet")?;
        let (kind, uid) = (wanted.key_type.clone(), pod.metadata.uid.clone().unwrap_or_default());
        let (name, proven_uid) = (pod.metadata.name.clone().unwrap_or_default(), uid.clone());
        let made = blocking(move || ProvenKey::make(&kind, proven_uid.as_bytes())).await;
        let key = made.map_err(|e| format!("while generating keypair: {e}"))?;
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.clone(),
            uid: uid.clone(),
            ..OwnerReference::default()
        };
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                generate_name: Some("req-".to_owned()),
                namespace: Some(namespace.to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: wanted.signer_name.clone(),
                pod_name: name,
                pod_uid: uid,
                service_account_name: account_name,
                service_account_uid: account.metadata.uid.unwrap_or_default(),
                node_name: self.node_name.clone(),
                node_uid: node.metadata.uid.clone().unwrap_or_default(),
                max_expiration_seconds: wanted.max_expiration_seconds,
                pkix_public_key: ByteString(key.public),
                proof_of_possession: ByteString(key.proof),
                unverified_user_annotations: wanted.user_annotations.clone(),
            },
            status: None,
        };
        let requests: Api<PodCertificateRequest> = Api::namespaced(self.client.clone(), namespace);
        let made = requests.create(&request).await.map_err(|e| format!("while creating on API: {e}"))?;
        let revision = revision_of(&made.metadata).max(1);
        Ok(Asked { key: key.private, name: made.metadata.name.unwrap_or_default(), revision })
    }

    /// When the first of a Pod's certificates is due for something.
    pub fn due(&self, pod_uid: &str) -> Option<Timestamp> {
        let lives = self.lives.lock();
        lives.iter().filter(|(place, _)| place.pod_uid == pod_uid).filter_map(|(_, life)| life.due()).min()
    }

    /// Drops the keys of a Pod that is over.
    pub fn forget(&self, pod_uid: &str) {
        self.lives.lock().retain(|place, _| place.pod_uid != pod_uid);
    }
}
