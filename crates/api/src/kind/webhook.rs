//! A webhook that converts the objects of a kind between its versions, as the API server sees it: where it is, what it is
//! asked, and what of its answer counts. Asking is the API server's.

use json::Value;
use serde::Deserialize;

use crate::schema::Type;

/// Where a webhook is, at a URL or behind a Service, and whom it is believed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Client {
    pub url: Option<String>,
    pub service: Option<ServiceReference>,
    /// The authorities that its certificate may come from, PEM in base64. Empty: those that the machine knows.
    pub ca_bundle: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub path: String,
    pub port: Option<u16>,
}

/// Errors are whole messages for the client.
pub trait Webhook: Send + Sync {
    /// The name of the definition that names the webhook.
    fn name(&self) -> &str;
    fn client(&self) -> &Client;
    /// The type of the objects of a version; `None` where there is no such version.
    fn ty(&self, api_version: &str) -> Option<Type>;
    /// Brings an object that was stored into the shape of its own version.
    fn shape(&self, object: &mut Value) -> Result<(), String>;
    /// The ConversionReview that asks for these objects in another version.
    fn review(&self, uid: &str, desired: &str, objects: &[Value]) -> Result<Value, String>;
    /// The objects that the webhook has converted. The error of an answer is why there is none.
    fn read(
        &self,
        uid: &str,
        desired: &str,
        objects: &[Value],
        answer: Result<Value, String>,
    ) -> Result<Vec<Value>, String>;
}
