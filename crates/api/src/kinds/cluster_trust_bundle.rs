//! ClusterTrustBundle: authorities that a signer's certificates are believed by, for everybody to read.
//! Upstream counterpart: pkg/apis/certificates/validation, pkg/registry/certificates/clustertrustbundle.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json::Value;
use k8s_openapi::api::certificates::{v1alpha1, v1beta1};

use crate::features::Feature;
use crate::kind::cell;
use crate::kind::{Kind, col, label, name};
use crate::kinds::certificate_signing_request::signer_name;
use crate::meta::field_text;
use crate::rules::certificate_request::pem_blocks;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::{self, NameRule};
use crate::validation::object_meta::invalid_at;

/// The longest text of certificates, in bytes.
const BUNDLE_MAX: usize = 1024 * 1024;

macro_rules! kind {
    ($name:ident, $version:ident, $($more:tt)*) => {
        pub const $name: Kind<$version::ClusterTrustBundle> = Kind {
            gate: Some(Feature::ClusterTrustBundle),
            name: NameRule::Own,
            validate: Some(|bundle| {
                let signer = bundle.spec.signer_name.as_deref().unwrap_or_default();
                let names = [("name", &bundle.metadata.name), ("generateName", &bundle.metadata.generate_name)];
                let mut errors = Errors::new();
                for (field, name) in names {
                    let name = name.as_deref().unwrap_or_default();
                    errors.extend(invalid_at(&Path::new("metadata"), field, name, wrong_name(name, signer)));
                }
                errors.extend(signer_name(signer, &Path::new("spec").child("signerName")));
                errors
            }),
            validate_create: Some(|bundle| trust_bundle(&bundle.spec.trust_bundle)),
            // A bundle that stays is not parsed anew: a later version may read certificates in another way.
            validate_update: Some(|new, old, _| {
                let (new, old) = (&new.spec, &old.spec);
                let same = new.trust_bundle == old.trust_bundle;
                let mut errors = if same { Errors::new() } else { trust_bundle(&new.trust_bundle) };
                if new.signer_name != old.signer_name {
                    let path = Path::new("spec").child("signerName");
                    let shown = new.signer_name.as_deref().unwrap_or_default();
                    errors.push(FieldError::invalid(&path, shown, "field is immutable"));
                }
                errors
            }),
            columns: &[
                name(),
                col("SignerName", "Whose certificates these authorities sign.", |bundle, _| {
                    cell::text_or(bundle.spec.signer_name.as_ref(), "<none>")
                }),
            ],
            field_labels: &[label("spec.signerName", |o| field_text(o, &["spec", "signerName"]))],
            $($more)*
            ..Kind::BASE
        };
    };
}

kind!(CLUSTER_TRUST_BUNDLE, v1beta1,);
kind!(
    CLUSTER_TRUST_BUNDLE_V1ALPHA1,
    v1alpha1,
    storage: Some(("certificates.k8s.io", "v1beta1")),
    to_storage: Some(|object| object["apiVersion"] = Value::from("certificates.k8s.io/v1beta1")),
    from_storage: Some(|object| object["apiVersion"] = Value::from("certificates.k8s.io/v1alpha1")),
);

/// The name of a signer's bundle begins with the signer's: who may make the one may not make others.
fn wrong_name(name: &str, signer: &str) -> Vec<String> {
    if name.is_empty() {
        return Vec::new();
    }
    if signer.is_empty() {
        let colon = "ClusterTrustBundle without signer name must not have \":\" in its name";
        return if name.contains(':') {
            vec![colon.to_owned()]
        } else {
            names::dns1123_subdomain(name.trim_end_matches('-'))
        };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::dns1123_subdomain(rest.trim_end_matches('-')),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")],
    }
}

/// The errors of the name of a bundle whose signer, if it has one, is the one that the name tells.
pub(crate) fn wrong_name_of_any(name: &str) -> Vec<String> {
    let signer = name.rsplit_once(':').map_or(String::new(), |(signer, _)| signer.replace(':', "/"));
    wrong_name(name, &signer)
}

/// The certificates of authorities, at least one, each once.
fn trust_bundle(text: &str) -> Errors {
    let path = Path::new("spec").child("trustBundle");
    if text.len() > BUNDLE_MAX {
        return vec![FieldError::too_long(&path, BUNDLE_MAX)];
    }
    let wrong = |detail: String| FieldError::invalid(&path, "<value omitted>", &detail);
    let (mut errors, mut anchors) = (Errors::new(), Vec::new());
    // A text that is not a whole block stands between blocks.
    for (i, (label, body)) in pem_blocks(text).filter_map(Result::ok).enumerate() {
        match anchor(label, body) {
            Ok(anchor) => anchors.push((anchor, i)),
            Err(why) => errors.push(wrong(format!("entry {i} {why}"))),
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    if anchors.is_empty() {
        errors.push(wrong("at least one trust anchor must be provided".to_owned()));
    }
    anchors.sort();
    for same in anchors.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
        let places: Vec<String> = same.iter().map(|(_, i)| i.to_string()).collect();
        errors.push(wrong(format!("duplicate trust anchor (indices [{}])", places.join(" "))));
    }
    errors
}

/// The content of a block that is an authority's certificate, or what is wrong with it.
fn anchor(label: &str, body: &str) -> Result<Vec<u8>, String> {
    if label != "CERTIFICATE" {
        return Err(format!("has bad block type: {label}"));
    }
    if body.contains(':') {
        return Err("has PEM block headers".to_owned());
    }
    let unreadable = || "does not parse as X.509".to_owned();
    let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let der = STANDARD.decode(body).map_err(|_| unreadable())?;
    let (rest, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|_| unreadable())?;
    let constraints = certificate.basic_constraints().map_err(|_| unreadable())?;
    if !rest.is_empty() {
        return Err(unreadable());
    }
    match constraints.is_some_and(|constraints| constraints.value.ca) {
        true => Ok(der),
        false => Err("does not have the CA bit set".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_its_signer() {
        let check = |name: &str, signer: &str, expected: &str| {
            assert_eq!(wrong_name(name, signer).join(" "), expected, "{name} {signer}");
        };
        check("roots", "", "");
        check("a.b", "", "");
        check("a:b", "", "ClusterTrustBundle without signer name must not have \":\" in its name");
        check("example.com:signer:roots", "example.com/signer", "");
        check("example.com:signer:roots-", "example.com/signer", "");
        let prefix =
            "ClusterTrustBundle for signerName example.com/signer must be named with prefix example.com:signer:";
        check("roots", "example.com/signer", prefix);
        check("example.com:other:roots", "example.com/signer", prefix);
        assert!(wrong_name("example.com:signer:A", "example.com/signer")[0].contains("RFC 1123"));
    }

    #[test]
    fn a_bundle_has_authorities_only() {
        let check = |text: &str, expected: &[&str]| {
            let said: Vec<String> = trust_bundle(text).iter().map(ToString::to_string).collect();
            let expected: Vec<String> = expected
                .iter()
                .map(|why| format!("spec.trustBundle: Invalid value: \"<value omitted>\": {why}"))
                .collect();
            assert_eq!(said, expected);
        };
        let authority = |name: &str| pki::Authority::create(name).expect("an authority");
        let (one, two) = (authority("one"), authority("two"));
        let leaf = one.issue(&pki::Subject::client("jane", None)).expect("a certificate").certificate;
        let (a, b) = (one.certificate(), two.certificate());
        check(a, &[]);
        check(&format!("about it\n{a}\nmore\n{b}"), &[]);
        check("", &["at least one trust anchor must be provided"]);
        check("no PEM", &["at least one trust anchor must be provided"]);
        check(&format!("{a}{b}{a}"), &["duplicate trust anchor (indices [0 2])"]);
        check(
            &format!("{a}{}", leaf.split_inclusive("-----END CERTIFICATE-----").next().unwrap()),
            &["entry 1 does not have the CA bit set"],
        );
        check(&a.replace("CERTIFICATE", "KEY"), &["entry 0 has bad block type: KEY"]);
        check(
            "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\na: b\n\nYQ==\n-----END CERTIFICATE-----\n",
            &["entry 0 does not parse as X.509", "entry 1 has PEM block headers"],
        );
        let long = "x".repeat(BUNDLE_MAX + 1);
        assert!(trust_bundle(&long)[0].to_string().contains("Too long"));
    }
}
