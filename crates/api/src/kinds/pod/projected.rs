//! Projected volumes: files from several sources in one folder, their defaults and validation.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, PodCertificateProjection, ProjectedVolumeSource, ServiceAccountTokenProjection,
    VolumeProjection,
};

use crate::kinds::certificate_signing_request::signer_name;
use crate::kinds::cluster_trust_bundle;
use crate::kinds::pod::volume_files::{default_file, downward_file, items, mode, non_reserved_path};
use crate::kinds::pod_certificate_request::{self, LEAST_SECONDS, USUAL_SECONDS, most_seconds};
use crate::kinds::rollout::validate_selector;
use crate::validation::field::{Errors, FieldError, Path};

/// The keys that a kubelet makes for a Pod.
const KEY_TYPES: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

pub(super) fn default(source: &mut VolumeProjection) {
    if let Some(token) = &mut source.service_account_token {
        token.expiration_seconds.get_or_insert(3600);
    }
    if let Some(certificate) = &mut source.pod_certificate {
        certificate.max_expiration_seconds.get_or_insert(USUAL_SECONDS);
    }
    source.downward_api.iter_mut().flat_map(|d| d.items.iter_mut().flatten()).for_each(default_file);
}

pub(super) fn validate(volume: &ProjectedVolumeSource, path: &Path) -> Errors {
    let mut errors: Errors = mode(volume.default_mode, path, "defaultMode").into_iter().collect();
    let mut taken = BTreeSet::new();
    for (i, source) in volume.sources.iter().flatten().enumerate() {
        let place = path.child("sources").index(i);
        errors.extend(projection(source, &place, path));
        for (file, shown) in files(source) {
            if !file.is_empty() && !taken.insert(file) {
                errors.push(FieldError::invalid(path, shown, "conflicting duplicate paths"));
            }
        }
        let given = [
            source.secret.is_some(),
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            errors.push(FieldError::forbidden(&place, "may not specify more than 1 volume type per source"));
        }
    }
    errors
}

/// The files that a source makes and must not make twice, each with what a message names it by.
fn files(source: &VolumeProjection) -> Vec<(&str, &str)> {
    let mut list = Vec::new();
    if let Some(secret) = &source.secret {
        list.extend(secret.items.iter().flatten().map(|item| (item.path.as_str(), secret.name.as_str())));
    }
    if let Some(map) = &source.config_map {
        list.extend(map.items.iter().flatten().map(|item| (item.path.as_str(), map.name.as_str())));
    }
    if let Some(files) = &source.downward_api {
        list.extend(files.items.iter().flatten().map(|file| (file.path.as_str(), file.path.as_str())));
    }
    list.extend(source.cluster_trust_bundle.iter().map(|bundle| (bundle.path.as_str(), bundle.path.as_str())));
    list.extend(source.pod_certificate.iter().flat_map(certificate_files).map(|(_, path)| (path, path)));
    list
}

/// The fields of a certificate's source that name files, with the files.
fn certificate_files(source: &PodCertificateProjection) -> impl Iterator<Item = (&'static str, &str)> {
    let all = [
        ("credentialBundlePath", &source.credential_bundle_path),
        ("keyPath", &source.key_path),
        ("certificateChainPath", &source.certificate_chain_path),
    ];
    all.into_iter().filter_map(|(field, path)| Some((field, path.as_deref().filter(|path| !path.is_empty())?)))
}

fn projection(source: &VolumeProjection, path: &Path, volume: &Path) -> Errors {
    let mut errors = Errors::new();
    let named = [
        ("secret", source.secret.as_ref().map(|s| (&s.name, &s.items))),
        ("configMap", source.config_map.as_ref().map(|m| (&m.name, &m.items))),
    ];
    for (field, given) in named {
        let Some((name, list)) = given else { continue };
        let path = path.child(field);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        errors.extend(items(list.as_deref(), &path));
    }
    if let Some(files) = &source.downward_api {
        let path = path.child("downwardAPI");
        errors.extend(files.items.iter().flatten().flat_map(|file| downward_file(file, &path)));
    }
    if let Some(token) = &source.service_account_token {
        errors.extend(service_account_token(token, &path.child("serviceAccountToken"), volume));
    }
    if let Some(bundle) = &source.cluster_trust_bundle {
        errors.extend(trust_bundle(bundle, &path.child("clusterTrustBundle")));
    }
    if let Some(certificate) = &source.pod_certificate {
        errors.extend(pod_certificate(certificate, &path.child("podCertificate")));
    }
    errors
}

fn service_account_token(token: &ServiceAccountTokenProjection, path: &Path, volume: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("expirationSeconds");
    let seconds = token.expiration_seconds.unwrap_or(0);
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid(&place, seconds, detail));
    }
    if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        errors.push(FieldError::invalid(&place, seconds, detail));
    }
    if token.path.is_empty() {
        errors.push(FieldError::required(&volume.child("path"), ""));
    } else {
        errors.extend(non_reserved_path(&token.path, &volume.child("path")));
    }
    errors
}

fn trust_bundle(bundle: &ClusterTrustBundleProjection, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match (&bundle.name, &bundle.signer_name) {
        (Some(_), Some(_)) => {
            errors.push(FieldError::invalid_unshown(path, "only one of name and signerName may be used"));
        }
        (Some(name), None) => {
            let place = path.child("name");
            if name.is_empty() {
                errors.push(FieldError::required(&place, "must be a valid object name"));
            }
            let wrong = cluster_trust_bundle::wrong_name_of_any(name).into_iter();
            let detail = wrong.map(|why| format!("not a valid clustertrustbundlename: {why}"));
            errors.extend(detail.map(|detail| FieldError::invalid(&place, name, &detail)));
            if bundle.label_selector.is_some() {
                let detail = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid_unshown(&path.child("labelSelector"), detail));
            }
        }
        (None, Some(signer)) => {
            let place = path.child("signerName");
            if signer.is_empty() {
                errors.push(FieldError::required(&place, "must be a valid signer name"));
            }
            errors.extend(signer_name(signer, &place));
            let selector = bundle.label_selector.iter();
            errors.extend(selector.flat_map(|s| validate_selector(s, &path.child("labelSelector"))));
        }
        (None, None) => errors.push(FieldError::required(path, "either name or signerName must be specified")),
    }
    if bundle.path.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    errors.extend(non_reserved_path(&bundle.path, &path.child("path")));
    errors
}

fn pod_certificate(source: &PodCertificateProjection, path: &Path) -> Errors {
    let mut errors = signer_name(&source.signer_name, &path.child("signerName"));
    if source.signer_name.is_empty() {
        errors.push(FieldError::required(&path.child("signerName"), ""));
    }
    if !KEY_TYPES.contains(&source.key_type.as_str()) {
        errors.push(FieldError::not_supported(&path.child("keyType"), &source.key_type, KEY_TYPES));
    }
    if let Some(seconds) = source.max_expiration_seconds {
        let most = most_seconds(&source.signer_name);
        let place = path.child("maxExpirationSeconds");
        let mut wrong = |bound: String| {
            let detail = format!("if provided, maxExpirationSeconds must be {bound}");
            errors.push(FieldError::invalid(&place, seconds, &detail));
        };
        if seconds < LEAST_SECONDS {
            wrong(format!(">= {LEAST_SECONDS}"));
        }
        if seconds > most {
            wrong(format!("<= {most}"));
        }
    }
    errors.extend(pod_certificate_request::user_annotations(
        source.user_annotations.as_ref(),
        &path.child("userAnnotations"),
    ));
    for (field, file) in certificate_files(source) {
        errors.extend(non_reserved_path(file, &path.child(field)));
    }
    if certificate_files(source).next().is_none() {
        let detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(path, detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    /// A volume with this source after another one that makes the file `taken`.
    fn check(source: Value, expected: &[&str]) {
        let first = json!({"configMap": {"name": "m", "items": [{"key": "k", "path": "taken"}]}});
        let mut volume: ProjectedVolumeSource = json::from_value(json!({"sources": [first, source]})).unwrap();
        volume.sources.iter_mut().flatten().for_each(default);
        let said: Vec<String> = validate(&volume, &Path::new("p")).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), expected.len(), "{source}: {said:?}");
        assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{source}: {said:?}");
    }

    #[test]
    fn a_trust_bundle_is_named_or_selected() {
        let bundle = |more: Value| {
            let mut bundle = json!({"path": "ca.pem"});
            for (field, value) in more.as_object().unwrap() {
                bundle[field] = value.clone();
            }
            json!({ "clusterTrustBundle": bundle })
        };
        check(bundle(json!({"name": "plain"})), &[]);
        check(bundle(json!({"name": "example.com:signer:v1"})), &[]);
        check(bundle(json!({"signerName": "example.com/signer"})), &[]);
        check(bundle(json!({"signerName": "example.com/signer", "labelSelector": {"matchLabels": {"a": "b"}}})), &[]);
        check(
            bundle(json!({})),
            &["p.sources[1].clusterTrustBundle: Required value: either name or signerName must be specified"],
        );
        check(
            bundle(json!({"name": "n", "signerName": "example.com/signer"})),
            &["only one of name and signerName may be used"],
        );
        check(bundle(json!({"name": ""})), &["name: Required value: must be a valid object name"]);
        check(bundle(json!({"name": "No"})), &["name: Invalid value: \"No\": not a valid clustertrustbundlename: "]);
        check(bundle(json!({"name": "example.com:signer:No"})), &["not a valid clustertrustbundlename: "]);
        check(
            bundle(json!({"name": "n", "labelSelector": {}})),
            &["labelSelector: Invalid value: labelSelector must be unset if name is specified"],
        );
        check(bundle(json!({"signerName": ""})), &["signerName: Required value: must be a valid signer name"]);
        check(bundle(json!({"signerName": "signer"})), &["must be a fully qualified domain"]);
        check(
            bundle(json!({"signerName": "a.b/c", "labelSelector": {"matchLabels": {"a": "-"}}})),
            &["labelSelector.matchLabels"],
        );
        check(bundle(json!({"name": "n", "path": ""})), &["path: Required value"]);
        check(bundle(json!({"name": "n", "path": "../x"})), &["must not contain '..'"]);
        check(bundle(json!({"name": "n", "path": "taken"})), &["p: Invalid value: \"taken\": conflicting"]);
    }

    #[test]
    fn a_certificate_has_a_signer_a_key_and_a_place() {
        let certificate = |more: Value| {
            let mut source = json!({"signerName": "a.b/c", "keyType": "ED25519", "credentialBundlePath": "all.pem"});
            for (field, value) in more.as_object().unwrap() {
                source[field] = value.clone();
            }
            json!({ "podCertificate": source })
        };
        check(certificate(json!({})), &[]);
        for kind in KEY_TYPES {
            check(certificate(json!({"keyType": *kind})), &[]);
        }
        check(
            certificate(json!({"keyType": "RSA2048"})),
            &["keyType: Unsupported value: \"RSA2048\": supported values: \"RSA3072\""],
        );
        check(certificate(json!({"signerName": "c"})), &["must be a fully qualified domain"]);
        let seconds =
            |signer: &str, seconds: i32| certificate(json!({"signerName": signer, "maxExpirationSeconds": seconds}));
        check(seconds("a.b/c", 3599), &["Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600"]);
        check(seconds("a.b/c", 7_862_400), &[]);
        check(seconds("a.b/c", 7_862_401), &["maxExpirationSeconds must be <= 7862400"]);
        check(seconds("kubernetes.io/c", 86_401), &["maxExpirationSeconds must be <= 86400"]);
        check(
            certificate(json!({"credentialBundlePath": ""})),
            &["specify at least one of credentialBundlePath, keyPath, and certificateChainPath"],
        );
        check(certificate(json!({"keyPath": "key.pem", "certificateChainPath": "chain.pem"})), &[]);
        check(certificate(json!({"keyPath": "all.pem"})), &["conflicting duplicate paths"]);
        check(certificate(json!({"certificateChainPath": "taken"})), &["conflicting duplicate paths"]);
        check(certificate(json!({"keyPath": "/k"})), &["keyPath: Invalid value: \"/k\": must be a relative path"]);
        check(certificate(json!({"userAnnotations": {"a.b/c": "d"}})), &[]);
        check(certificate(json!({"userAnnotations": {"c": "d"}})), &["must be a domain-prefixed key"]);
        let mut plain: VolumeProjection = json::from_value(certificate(json!({}))).unwrap();
        default(&mut plain);
        assert_eq!(plain.pod_certificate.unwrap().max_expiration_seconds, Some(86_400));
    }
}
