//! One extender over HTTP: a request with JSON, an answer with JSON, within its time and bounds.

use std::{path::Path, sync::Arc};

use client::{
    Body, Client, Config, ConfigError,
    kubeconfig::{Cluster, User},
};
use http_body_util::{BodyExt, Limited};
use json::Value;
use serde::Serialize;

use super::Extender;

/// The longest answer that is read. One that gives whole nodes back holds some thousands of them.
const LONGEST: usize = 64 << 20;

/// An extender with the way to it.
#[derive(Clone)]
pub struct Remote {
    pub spec: Arc<Extender>,
    client: Result<Client, String>,
}

impl Remote {
    pub fn new(spec: &Extender) -> Self {
        Remote { spec: Arc::new(spec.clone()), client: connect(spec).map_err(|error| error.to_string()) }
    }

    /// Sends a request. The error is in the user's words.
    pub async fn send(&self, verb: &str, body: &impl Serialize) -> Result<Value, String> {
        let asked = clock::timeout(self.spec.timeout, self.exchange(verb, body)).await;
        asked.unwrap_or_else(|_| {
            let (url, limit) = (&self.spec.url, self.spec.timeout);
            Err(format!("Post \"{url}/{verb}\": no answer within {limit:?}"))
        })
    }

    async fn exchange(&self, verb: &str, body: &impl Serialize) -> Result<Value, String> {
        let url = &self.spec.url;
        let client = self.client.as_ref().map_err(|error| format!("Post \"{url}/{verb}\": {error}"))?;
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let request = http::Request::post(format!("/{verb}")).header("content-type", "application/json");
        let request = request.body(Body::from(body)).map_err(|error| error.to_string())?;
        let response = client.send(request).await.map_err(|error| format!("Post \"{url}/{verb}\": {error}"))?;
        let code = response.status().as_u16();
        if code != 200 {
            return Err(format!("failed {verb} with extender at URL {url}, code {code}"));
        }
        let bytes = Limited::new(response.into_body(), LONGEST).collect().await;
        let bytes = bytes.map_err(|error| format!("Post \"{url}/{verb}\": {error}"))?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|error| format!("Post \"{url}/{verb}\": {error}"))
    }
}

/// A client with the extender's settings, which are those of a kubeconfig.
fn connect(spec: &Extender) -> Result<Client, ConfigError> {
    let tls = &spec.tls;
    let cluster = Cluster {
        server: Some(spec.url.clone()),
        insecure_skip_tls_verify: Some(tls.insecure),
        certificate_authority: tls.authority.file.clone(),
        certificate_authority_data: tls.authority.data.clone(),
        tls_server_name: tls.server_name.clone(),
        ..Cluster::default()
    };
    let user = User {
        client_certificate: tls.certificate.file.clone(),
        client_certificate_data: tls.certificate.data.clone(),
        client_key: tls.key.file.clone(),
        client_key_data: tls.key.data.clone(),
        ..User::default()
    };
    client::from_config(&Config::of(&cluster, &user, Path::new(""))?)
}
