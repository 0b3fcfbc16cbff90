//! Where the content of volumes comes from: the API server, with tokens kept until they are due for renewal.

pub mod certificates;
pub mod credential;
mod known;
mod pem;
mod trust;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api::{
    features::{Feature, Features},
    rules::{pod::VolumeClaim, volume},
};
use client::{Api, Client};
use clock::Timestamp;
use futures::future::BoxFuture;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{
            ClusterTrustBundleProjection, ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod,
            PodCertificateProjection, Secret, ServiceAccount,
        },
    },
};
use parking_lot::Mutex;

use self::{
    certificates::{Certificates, Place},
    credential::Credential,
    known::LastKnown,
};
use crate::volumes::error::VolumeError;

/// The content of a ConfigMap or a Secret, by key.
pub type Data = BTreeMap<String, Vec<u8>>;

/// The objects and tokens that volumes (and environments) ask for. `None` means that the object does not exist.
pub trait Sources: Send + Sync {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>>;
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>>;
    /// A token of the Pod's service account, bound to the Pod.
    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
        seconds: i64,
    ) -> BoxFuture<'a, Result<Arc<Token>, VolumeError>>;
    /// The certificates of the authorities that a source names, PEM.
    fn trust_anchors<'a>(
        &'a self,
        wanted: &'a ClusterTrustBundleProjection,
    ) -> BoxFuture<'a, Result<String, VolumeError>>;
    /// A key of the Pod's own, and the certificate for it.
    fn credential<'a>(
        &'a self,
        pod: &'a Pod,
        place: &'a Place,
        wanted: &'a PodCertificateProjection,
    ) -> BoxFuture<'a, Result<Credential, VolumeError>>;
    /// The PersistentVolume that a Pod's claim is bound to.
    fn claimed<'a>(
        &'a self,
        pod: &'a Pod,
        used: &'a VolumeClaim,
    ) -> BoxFuture<'a, Result<PersistentVolume, VolumeError>>;
}

/// The API server as the source.
pub struct ApiSources {
    client: Client,
    pub certificates: Certificates,
    features: Features,
    tokens: Mutex<Tokens>,
    /// Tokens for registries, of which no volume has to be told when they are renewed.
    registry_tokens: Mutex<Tokens>,
    maps: LastKnown<ConfigMap>,
    secrets: LastKnown<Secret>,
    accounts: LastKnown<ServiceAccount>,
}

type Tokens = HashMap<TokenKey, Arc<Token>>;

/// How soon a renewal that failed is tried again while the old token is still good.
const RETRY_SECONDS: i64 = 60;

#[derive(Clone, PartialEq, Eq, Hash)]
struct TokenKey {
    pod_uid: String,
    audience: String,
    seconds: i64,
}

#[derive(Clone)]
pub struct Token {
    pub text: String,
    /// When it is asked for anew: after four fifths of its life, and at the latest after a day.
    renew_at: i64,
    /// In seconds since 1970.
    pub expires_at: i64,
}

/// After four fifths of a token's life, and at the latest after a day.
fn renewal(now: i64, expires_at: i64) -> i64 {
    const DAY: i64 = 86_400;
    now + ((expires_at - now) * 4 / 5).min(DAY)
}

fn api_error(error: client::Error) -> VolumeError {
    VolumeError::Api(error.to_string())
}

/// The data of a ConfigMap: text and binary keys together.
fn of_config_map(map: ConfigMap) -> Data {
    let text = map.data.into_iter().flatten().map(|(k, v)| (k, v.into_bytes()));
    text.chain(map.binary_data.into_iter().flatten().map(|(k, ByteString(v))| (k, v))).collect()
}

/// The data of a Secret.
fn of_secret(secret: Secret) -> Data {
    secret.data.into_iter().flatten().map(|(k, ByteString(v))| (k, v)).collect()
}

impl ApiSources {
    /// The keys of a ConfigMap that are text: only they become variables.
    pub async fn texts(&self, pod: &Pod, name: &str) -> Result<Option<Data>, VolumeError> {
        let found = self.maps.find(&self.client, pod, name).await.map_err(api_error)?;
        Ok(found.map(|map| of_config_map(ConfigMap { binary_data: None, ..map })))
    }

    /// The keys of a Secret that variables come from.
    pub async fn secret_texts(&self, pod: &Pod, name: &str) -> Result<Option<Data>, VolumeError> {
        Ok(self.pull_secret(pod, name).await?.map(of_secret))
    }

    /// A Secret with its type, of which credentials of a registry are a sort.
    pub async fn pull_secret(&self, pod: &Pod, name: &str) -> Result<Option<Secret>, VolumeError> {
        self.secrets.find(&self.client, pod, name).await.map_err(api_error)
    }

    pub async fn service_account(&self, pod: &Pod, name: &str) -> Result<Option<ServiceAccount>, VolumeError> {
        self.accounts.find(&self.client, pod, name).await.map_err(api_error)
    }

    /// A token of the Pod's service account for a registry, which lasts an hour.
    pub async fn registry_token(&self, pod: &Pod, audience: &str) -> Result<Arc<Token>, VolumeError> {
        self.kept(&self.registry_tokens, pod, audience, 3600).await
    }

    pub fn new(client: Client, certificates: Certificates, features: Features) -> Self {
        ApiSources {
            client,
            certificates,
            features,
            tokens: Mutex::default(),
            registry_tokens: Mutex::default(),
            maps: LastKnown::default(),
            secrets: LastKnown::default(),
            accounts: LastKnown::default(),
        }
    }

    async fn request(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Token, VolumeError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()).unwrap_or("default");
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let audiences = if audience.is_empty() { Vec::new() } else { vec![audience.to_owned()] };
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        };
        let spec = TokenRequestSpec { audiences, bound_object_ref: Some(bound), expiration_seconds: Some(seconds) };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts.create_below(account, "token", &request).await.map_err(api_error)?;
        let status =
            answer.status.ok_or_else(|| VolumeError::Api("the token request came back without a token".to_owned()))?;
        let (now, expires_at) = (clock::now().as_second(), status.expiration_timestamp.0.as_second());
        Ok(Token { text: status.token, renew_at: renewal(now, expires_at), expires_at })
    }

    /// The token that is kept, or a new one when that is due for renewal.
    async fn kept(
        &self,
        held_tokens: &Mutex<Tokens>,
        pod: &Pod,
        audience: &str,
        seconds: i64,
    ) -> Result<Arc<Token>, VolumeError> {
        let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
        let key = TokenKey { pod_uid, audience: audience.to_owned(), seconds };
        let held = held_tokens.lock().get(&key).cloned();
        let now = clock::now().as_second();
        if let Some(token) = held.as_ref().filter(|t| now < t.renew_at) {
            return Ok(token.clone());
        }
        match (self.request(pod, audience, seconds).await, held) {
            (Ok(token), _) => {
                let token = Arc::new(token);
                let mut tokens = held_tokens.lock();
                // Tokens of Pods that are gone expire; dropping those bounds the map by the Pods of a day.
                tokens.retain(|_, t| now < t.expires_at);
                tokens.insert(key, token.clone());
                Ok(token)
            }
            // Renewal failed, but the old one is still good.
            (Err(error), Some(token)) if now < token.expires_at => {
                tracing::warn!(%error, "cannot renew a service account token yet");
                let again = Token { renew_at: now + RETRY_SECONDS, ..(*token).clone() };
                held_tokens.lock().insert(key, Arc::new(again));
                Ok(token)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// When the first of a Pod's tokens and certificates is due for renewal.
    pub fn renewal(&self, pod_uid: &str) -> Option<Timestamp> {
        let tokens = self.tokens.lock();
        let due = tokens.iter().filter(|(key, _)| key.pod_uid == pod_uid).map(|(_, token)| token.renew_at).min();
        let due = due.and_then(|due| Timestamp::from_second(due).ok());
        due.into_iter().chain(self.certificates.due(pod_uid)).min()
    }

    /// Drops what is kept for a Pod that is over.
    pub fn forget(&self, pod_uid: &str) {
        for tokens in [&self.tokens, &self.registry_tokens] {
            tokens.lock().retain(|key, _| key.pod_uid != pod_uid);
        }
        self.maps.forget(pod_uid);
        self.secrets.forget(pod_uid);
        self.accounts.forget(pod_uid);
        self.certificates.forget(pod_uid);
    }
}

/// Why a Pod cannot use its claim, in upstream's words.
fn unusable(pod: &Pod, used: &VolumeClaim, claim: &PersistentVolumeClaim) -> Option<String> {
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    match () {
        () if !used.is(claim, pod) => {
            let (namespace, name) = (claim.metadata.namespace.as_deref().unwrap_or(""), &used.name);
            let owner = pod.metadata.name.as_deref().unwrap_or("");
            Some(format!("PVC {namespace}/{name} was not created for pod {namespace}/{owner} (pod is not owner)"))
        }
        // Whoever deletes it waits for the Pods that use it to end.
        () if claim.metadata.deletion_timestamp.is_some() => Some("PVC is being deleted".to_owned()),
        () if phase != Some("Bound") => Some("PVC is not bound".to_owned()),
        () if volume::volume_of(claim).is_empty() => Some("PVC has empty pvc.Spec.VolumeName".to_owned()),
        () => None,
    }
}

/// Why a volume is not the claim's, though the claim names it.
fn not_bound(claim: &PersistentVolumeClaim, persistent: &PersistentVolume) -> Option<String> {
    let (name, uid) = (volume::volume_of(claim), claim.metadata.uid.as_deref().unwrap_or(""));
    match persistent.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
        None => Some(format!(
            "found PV object {name} with nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        )),
        Some(held) if held.uid.as_deref() != Some(uid) => {
            let held = held.uid.as_deref().unwrap_or("");
            Some(format!(
                "found PV object {name} with a pv.Spec.ClaimRef.UID {held} that does not point to the claim {uid}"
            ))
        }
        Some(_) => None,
    }
}

impl ApiSources {
    async fn persistent(&self, pod: &Pod, used: &VolumeClaim) -> Result<PersistentVolume, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let fetched = claims.find(&used.name).await.map_err(|e| format!("failed to fetch PVC from API server: {e}"))?;
        let claim = fetched.ok_or_else(|| {
            let name = &used.name;
            format!("failed to fetch PVC from API server: persistentvolumeclaims {name:?} not found")
        })?;
        if let Some(why) = unusable(pod, used, &claim) {
            return Err(why);
        }
        let (volumes, name): (Api<PersistentVolume>, _) = (Api::all(self.client.clone()), volume::volume_of(&claim));
        let failed = |why: String| format!("failed to fetch PV {name} from API server: {why}");
        let fetched = volumes.find(name).await.map_err(|e| failed(e.to_string()))?;
        let persistent = fetched.ok_or_else(|| failed(format!("persistentvolumes {name:?} not found")))?;
        not_bound(&claim, &persistent).map_or(Ok(persistent), Err)
    }
}

impl Sources for ApiSources {
    fn claimed<'a>(
        &'a self,
        pod: &'a Pod,
        used: &'a VolumeClaim,
    ) -> BoxFuture<'a, Result<PersistentVolume, VolumeError>> {
        Box::pin(async move {
            let claim = format!("{}/{}", pod.metadata.namespace.as_deref().unwrap_or("default"), used.name);
            self.persistent(pod, used).await.map_err(|why| VolumeError::Claim { claim, why })
        })
    }

    fn trust_anchors<'a>(
        &'a self,
        wanted: &'a ClusterTrustBundleProjection,
    ) -> BoxFuture<'a, Result<String, VolumeError>> {
        Box::pin(async move {
            if !self.features.enabled(Feature::ClusterTrustBundleProjection) {
                let off = "clusterTrustBundle sources: the feature gate ClusterTrustBundleProjection is off";
                return Err(VolumeError::Unsupported(off.to_owned()));
            }
            trust::anchors(&self.client, wanted).await
        })
    }

    fn credential<'a>(
        &'a self,
        pod: &'a Pod,
        place: &'a Place,
        wanted: &'a PodCertificateProjection,
    ) -> BoxFuture<'a, Result<Credential, VolumeError>> {
        Box::pin(self.certificates.credential(pod, place, wanted))
    }

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>> {
        Box::pin(async move {
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            Ok(maps.find(name).await.map_err(api_error)?.map(of_config_map))
        })
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>> {
        Box::pin(async move {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
            Ok(secrets.find(name).await.map_err(api_error)?.map(of_secret))
        })
    }

    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
        seconds: i64,
    ) -> BoxFuture<'a, Result<Arc<Token>, VolumeError>> {
        Box::pin(self.kept(&self.tokens, pod, audience, seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[test]
    fn a_pod_uses_a_claim_that_is_bound_on_both_sides() {
        use json::{Value, json};
        let pod = crate::pod::fixture::pod(r#"{"containers": []}"#).pod;
        let check = |phase: &str, deleted: Option<&str>, held: Value, expected: &str| {
            let claim = json!({"metadata": {"name": "c", "uid": "u", "deletionTimestamp": deleted},
                "spec": {"volumeName": "v"}, "status": {"phase": phase}});
            let claim = json::from_value(claim).unwrap();
            let persistent = json!({"metadata": {"name": "v"}, "spec": {"claimRef": held}});
            let persistent = json::from_value(persistent).unwrap();
            let used = VolumeClaim { name: "c".into(), volume: "x".into(), is_own: false, read_only: false };
            let why = unusable(&pod, &used, &claim).or_else(|| not_bound(&claim, &persistent));
            assert_eq!(why.unwrap_or_default(), expected);
        };
        let ours = || json!({"uid": "u"});
        check("Bound", None, ours(), "");
        check("Bound", Some("2026-01-01T00:00:00Z"), ours(), "PVC is being deleted");
        check("Pending", None, ours(), "PVC is not bound");
        let unbound = "found PV object v with nil pv.Spec.ClaimRef indicating it is not yet bound to the claim";
        check("Bound", None, Value::Null, unbound);
        let others = "found PV object v with a pv.Spec.ClaimRef.UID w that does not point to the claim u";
        check("Bound", None, json!({"uid": "w"}), others);
    }

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life_or_a_day() {
        for (life, expected) in [(600, 480), (3607, 2885), (86_400, 69_120), (1_000_000, 86_400)] {
            assert_eq!(renewal(50, 50 + life), 50 + expected, "{life}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_asked_for_once_until_it_is_due_and_a_failed_renewal_is_tried_again() {
        let start = Timestamp::from_second(1_700_000_000).unwrap();
        clock::simulate(start, 1);
        let asked = Arc::new(AtomicI64::new(0));
        let counted = asked.clone();
        // The server answers all but the second request.
        let client = client::in_process(tower::service_fn(move |request: http::Request<client::Body>| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(request.uri().path().ends_with("/serviceaccounts/default/token"));
                let (code, body) = if number == 1 {
                    (500, json::json!({"kind": "Status", "apiVersion": "v1", "code": 500}))
                } else {
                    let end = clock::now().checked_add(std::time::Duration::from_secs(1000)).unwrap().to_string();
                    let status = json::json!({"token": format!("t{number}"), "expirationTimestamp": end});
                    (201, json::json!({"kind": "TokenRequest", "spec": {"audiences": []}, "status": status}))
                };
                let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        }));
        let certificates = Certificates {
            client: client.clone(),
            warn: Box::new(|_, _, _| ()),
            node_name: "n1".to_owned(),
            node: Arc::default(),
            requests: None,
            lives: Mutex::default(),
        };
        let sources = ApiSources::new(client, certificates, Features::default());
        let pod = crate::pod::fixture::pod(r#"{"containers": []}"#).pod;
        let seconds = |at: Option<Timestamp>| at.map(|at| at.as_second() - start.as_second());
        let mut seen = Vec::new();
        for wait in [0, 790, 20, 30, 40] {
            clock::sleep(std::time::Duration::from_secs(wait)).await;
            let text = sources.token(&pod, "", 1000).await.unwrap().text.clone();
            seen.push((text, seconds(sources.renewal("u")).unwrap()));
        }
        let expected = [("t0", 800), ("t0", 800), ("t0", 870), ("t0", 870), ("t2", 1680)];
        assert_eq!(seen, expected.map(|(text, at)| (text.to_owned(), at)));
        assert_eq!(sources.renewal("another"), None);
    }
}
