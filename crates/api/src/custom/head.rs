//! A CustomResourceDefinition without its schemas: they are nearly all of its bytes, and nothing but its objects needs
//! them.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionStatus,
    CustomResourceSubresources, SelectableField,
};
use serde::Deserialize;

use crate::kind::webhook::Client;

#[derive(Debug, Clone, Deserialize)]
pub struct Head {
    pub metadata: Metadata,
    pub spec: Spec,
    #[serde(default)]
    pub status: CustomResourceDefinitionStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub annotations: BTreeMap<String, String>,
    pub deletion_timestamp: Option<String>,
    pub finalizers: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Spec {
    pub group: String,
    pub names: CustomResourceDefinitionNames,
    pub scope: String,
    pub versions: Vec<Version>,
    #[serde(default)]
    pub conversion: Option<Conversion>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Conversion {
    pub strategy: String,
    pub webhook: Option<ConversionWebhook>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversionWebhook {
    pub client_config: Option<Client>,
    #[serde(default)]
    pub conversion_review_versions: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub deprecation_warning: Option<String>,
    pub subresources: CustomResourceSubresources,
    pub additional_printer_columns: Vec<CustomResourceColumnDefinition>,
    pub selectable_fields: Vec<SelectableField>,
}

impl Head {
    /// Reads the object as it is stored.
    pub fn read(bytes: &[u8]) -> Result<Head, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Whether a condition is `True`.
    pub fn has(&self, condition: &str) -> bool {
        self.status.conditions.iter().flatten().any(|c| c.type_ == condition && c.status == "True")
    }

    /// Its objects can be asked for as soon as its names are accepted, and then until it is gone.
    pub fn is_served(&self) -> bool {
        self.has("Established") || self.has("NamesAccepted")
    }
}
