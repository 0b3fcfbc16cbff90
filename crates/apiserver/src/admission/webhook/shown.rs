//! The credentials that admission webhooks are shown: upstream's WebhookAdmissionConfiguration, which names a
//! kubeconfig file.

use std::path::Path;

use api::validation::{field::quote, section::Section};

use crate::outbound::{credentials::Credentials, kubeconfig::sentence};

/// The credentials for the webhooks of each sort.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shown {
    pub mutating: Credentials,
    pub validating: Credentials,
}

const KIND: &str = "WebhookAdmissionConfiguration";
const VERSION: &str = "apiserver.config.k8s.io/v1";
const OLD_KIND: &str = "WebhookAdmission";
const OLD_VERSION: &str = "apiserver.config.k8s.io/v1alpha1";
const FILE: &str = "kubeConfigFile";

/// Reads the settings of one of the two plugins.
pub fn parse(section: &Section<'_>) -> Result<Credentials, String> {
    match section.text("apiVersion")? {
        Some(OLD_VERSION) => section.is(OLD_KIND, &[OLD_VERSION])?,
        _ => section.is(KIND, &[VERSION, OLD_VERSION])?,
    }
    section.has_only(&["apiVersion", "kind", FILE])?;
    let file = section.text(FILE)?.unwrap_or_default();
    if !Path::new(file).is_absolute() {
        return Err(section.wrong(FILE, &format!("Invalid value: {}: must be an absolute file path", quote(file))));
    }
    Credentials::of_file(Path::new(file)).map_err(|error| section.wrong(FILE, &sentence(&error)))
}
