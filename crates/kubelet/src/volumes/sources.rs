//! Where the content of volumes comes from: the API server, with tokens kept until they are due for renewal.

use std::{collections::HashMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, Pod, Secret, ServiceAccount},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;

use crate::volumes::{
    VolumeError,
    content::{self, Data},
};

/// What volumes (and environments) ask for. `None` means that the object does not exist.
pub trait Sources: Send + Sync {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>>;
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>>;
    /// A token of the Pod's service account, bound to the Pod.
    fn token<'a>(&'a self, pod: &'a Pod, audience: &'a str, seconds: i64)
    -> BoxFuture<'a, Result<String, VolumeError>>;
}

/// The API server as the source.
pub struct ApiSources {
    client: Client,
    tokens: Mutex<HashMap<TokenKey, Arc<Token>>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct TokenKey {
    pod_uid: String,
    audience: String,
    seconds: i64,
}

struct Token {
    text: String,
    /// When it is asked for anew: after four fifths of its life, and at the latest after a day.
    renew_at: i64,
    expires_at: i64,
}

fn api_error(error: kube::Error) -> VolumeError {
    VolumeError::Api(error.to_string())
}

impl ApiSources {
    pub fn new(client: Client) -> Self {
        ApiSources { client, tokens: Mutex::default() }
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
        let answer =
            accounts.create_token_request(account, &PostParams::default(), &request).await.map_err(api_error)?;
        let status =
            answer.status.ok_or_else(|| VolumeError::Api("the token request came back without a token".to_owned()))?;
        let (now, expires_at) = (clock::now().as_second(), status.expiration_timestamp.0.as_second());
        const DAY: i64 = 86_400;
        let renew_at = now + ((expires_at - now) * 4 / 5).min(DAY);
        Ok(Token { text: status.token, renew_at, expires_at })
    }
}

impl Sources for ApiSources {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>> {
        Box::pin(async move {
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            Ok(maps.get_opt(name).await.map_err(api_error)?.map(content::of_config_map))
        })
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Data>, VolumeError>> {
        Box::pin(async move {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
            Ok(secrets.get_opt(name).await.map_err(api_error)?.map(content::of_secret))
        })
    }

    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
        seconds: i64,
    ) -> BoxFuture<'a, Result<String, VolumeError>> {
        Box::pin(async move {
            let pod_uid = pod.metadata.uid.clone().unwrap_or_default();
            let key = TokenKey { pod_uid, audience: audience.to_owned(), seconds };
            let held = self.tokens.lock().get(&key).cloned();
            let now = clock::now().as_second();
            if let Some(token) = held.as_ref().filter(|t| now < t.renew_at) {
                return Ok(token.text.clone());
            }
            match (self.request(pod, audience, seconds).await, held) {
                (Ok(token), _) => {
                    let token = Arc::new(token);
                    let mut tokens = self.tokens.lock();
                    // Tokens of Pods that are gone expire; dropping those bounds the map by the Pods of a day.
                    tokens.retain(|_, t| now < t.expires_at);
                    tokens.insert(key, token.clone());
                    Ok(token.text.clone())
                }
                // Renewal failed, but the old one is still good.
                (Err(error), Some(token)) if now < token.expires_at => {
                    tracing::warn!(%error, "cannot renew a service account token yet");
                    Ok(token.text.clone())
                }
                (Err(error), _) => Err(error),
            }
        })
    }
}
