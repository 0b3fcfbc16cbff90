//! The extenders of the configuration.
//! Upstream counterpart: pkg/scheduler/apis/config/types.go (Extender), validation (validateExtenders).

use std::{collections::BTreeSet, time::Duration};

use api::validation::field::{FieldError, Path};
use serde::Deserialize;

use super::Errors;
use crate::extender::{Extender, Pem, Tls};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderSpec {
    url_prefix: String,
    filter_verb: String,
    preempt_verb: String,
    prioritize_verb: String,
    weight: i64,
    bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    enable_https: bool,
    tls_config: Option<TlsSpec>,
    #[serde(rename = "httpTimeout")]
    http_timeout: Option<String>,
    node_cache_capable: bool,
    managed_resources: Vec<Managed>,
    ignorable: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TlsSpec {
    insecure: bool,
    server_name: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    ca_file: Option<String>,
    cert_data: Option<String>,
    key_data: Option<String>,
    ca_data: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Managed {
    name: String,
    ignored_by_scheduler: bool,
}

/// How long an extender may take when the configuration does not say.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn duration(text: &str) -> Option<Duration> {
    let parsed: jiff::SignedDuration = text.parse().ok()?;
    Duration::try_from(parsed).ok()
}

/// Checks the extenders. Answers with them, and with the resources that nodes need not have because an extender minds them.
pub fn read(specs: Vec<ExtenderSpec>, errors: &mut Errors) -> (Vec<Extender>, Vec<String>) {
    let path = Path::new("extenders");
    let (mut managed, mut ignored) = (BTreeSet::new(), Vec::new());
    let binders = specs.iter().filter(|spec| !spec.bind_verb.is_empty()).count();
    let mut extenders = Vec::new();
    for (index, spec) in specs.into_iter().enumerate() {
        let path = path.index(index);
        for (index, resource) in spec.managed_resources.iter().enumerate() {
            let path = path.child("managedResources").index(index).child("name");
            if !is_extended(&resource.name) {
                errors.add(FieldError::invalid(&path, &*resource.name, "is an invalid extended resource name"));
            }
            if !managed.insert(resource.name.clone()) {
                errors.add(FieldError::invalid(&path, &*resource.name, "duplicate extender managed resource name"));
            }
            if resource.ignored_by_scheduler {
                ignored.push(resource.name.clone());
            }
        }
        if !spec.prioritize_verb.is_empty() && spec.weight <= 0 {
            let detail = "must have a positive weight applied to it";
            errors.add(FieldError::invalid(&path.child("weight"), spec.weight, detail));
        }
        extenders.push(spec.read(&path, errors));
    }
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        errors.add(FieldError::invalid(&path, found, "only one extender can implement bind"));
    }
    (extenders, ignored)
}

/// Whether the name is that of a resource which Kubernetes itself does not know.
fn is_extended(name: &str) -> bool {
    let Some((group, rest)) = name.split_once('/') else { return false };
    !group.is_empty() && !rest.is_empty() && group != "kubernetes.io" && !group.ends_with(".kubernetes.io")
}

impl ExtenderSpec {
    fn read(self, path: &Path, errors: &mut Errors) -> Extender {
        let url = self.url_prefix.trim_end_matches('/');
        let secure = url.starts_with("https://");
        let parsed = url.parse::<http::Uri>().ok().filter(|uri| uri.host().is_some());
        if parsed.is_none() || !(secure || url.starts_with("http://")) {
            let detail = "must be an http or https URL";
            errors.add(FieldError::invalid(&path.child("urlPrefix"), &*self.url_prefix, detail));
        }
        let timeout = self.http_timeout.as_deref().map_or(Some(TIMEOUT), duration);
        if timeout.is_none() {
            let given = self.http_timeout.clone().unwrap_or_default();
            errors.add(FieldError::invalid(&path.child("httpTimeout"), given, "must be a duration"));
        }
        let tls = self.tls_config.unwrap_or_default();
        let pem = |file: Option<String>, data: Option<String>| Pem { file, data };
        let authority = pem(tls.ca_file, tls.ca_data);
        Extender {
            url: url.to_owned(),
            filter: self.filter_verb,
            preempt: self.preempt_verb,
            prioritize: self.prioritize_verb,
            bind: self.bind_verb,
            weight: self.weight,
            tls: Tls {
                // As upstream has it: who turns TLS on and names no authority trusts whoever answers.
                insecure: tls.insecure || (self.enable_https && !authority.is_given()),
                server_name: tls.server_name,
                authority,
                certificate: pem(tls.cert_file, tls.cert_data),
                key: pem(tls.key_file, tls.key_data),
            },
            timeout: timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(TIMEOUT),
            knows_nodes: self.node_cache_capable,
            managed: self.managed_resources.into_iter().map(|managed| managed.name).collect(),
            ignorable: self.ignorable,
        }
    }
}
