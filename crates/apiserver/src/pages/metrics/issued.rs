//! Certificates that signers issue: whether they live as long as was asked for is counted.
//! Upstream counterpart: pkg/registry/certificates/certificates/storage, its `metrics.go`.

use api::{
    Value,
    kind::{Definition, Target},
    meta::{at, field_text},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use meter::{Metric, Metrics};

static REQUESTED: Metric = Metric::counter(
    "apiserver_certificates_registry_csr_requested_duration_total",
    "[ALPHA] Total number of issued CSRs with a requested duration, sliced by signer (only kubernetes.io signer names are specifically \
     identified)",
);
static HONORED: Metric = Metric::counter(
    "apiserver_certificates_registry_csr_honored_duration_total",
    "[ALPHA] Total number of issued CSRs with a requested duration that was honored, sliced by signer (only kubernetes.io signer names \
     are specifically identified)",
);

/// A certificate for a request that says how long it shall live.
#[derive(Debug, PartialEq, Eq)]
pub struct Issued {
    signer: String,
    honored: bool,
}

impl Issued {
    /// The certificate that a write of the status issues, where the request had none before.
    pub fn by(definition: &Definition, target: Target, old: &Value, new: &Value) -> Option<Self> {
        let is_request = definition.plural == "certificatesigningrequests" && definition.group == "certificates.k8s.io";
        (is_request && target == Target::Status).then(|| Self::between(old, new)).flatten()
    }

    fn between(old: &Value, new: &Value) -> Option<Self> {
        let wanted = at(old, "/spec/expirationSeconds")?.as_i64()?;
        let certificate = |request| field_text(request, &["status", "certificate"]);
        let issued = Some(certificate(new)).filter(|new| !new.is_empty() && certificate(old).is_empty())?;
        let signer = Some(field_text(old, &["spec", "signerName"])).filter(|name| name.starts_with("kubernetes.io/"));
        let honored = lifetime(&issued).is_some_and(|got| honors(wanted, got));
        Some(Issued { signer: signer.unwrap_or_else(|| "other".to_owned()), honored })
    }

    pub fn count(&self, metrics: &Metrics) {
        let labels = [("signerName", self.signer.as_str())];
        metrics.count(&REQUESTED, &labels);
        if self.honored {
            metrics.count(&HONORED, &labels);
        }
    }
}

/// How many seconds the first certificate of a chain (base64 of PEM) is valid.
fn lifetime(certificate: &str) -> Option<i64> {
    let pem = String::from_utf8(STANDARD.decode(certificate).ok()?).ok()?;
    let facts = pki::inspect::facts(&pem).ok()?;
    Some(facts.not_after - facts.not_before)
}

/// Whether a time is the one that was asked for, give or take its twentieth part and the five minutes by which short-lived
/// certificates begin earlier.
fn honors(wanted: i64, got: i64) -> bool {
    (wanted - got).abs() * 20 < 5 * 60 * 20 + wanted
}

#[cfg(test)]
mod tests {
    use json::json;
    use pki::{Authority, Grant, Usage, Wish};

    use super::*;

    #[test]
    fn a_twentieth_and_five_minutes_are_let_be() {
        for (wanted, got, expected) in [
            (3600, 3600, true),
            (3600, 3600 - 360, true),
            (3600, 3600 + 360, true),
            (1000, 651, true),
            (1000, 650, false),
            (1000, 1349, true),
            (1000, 1350, false),
        ] {
            assert_eq!(honors(wanted, got), expected, "{wanted} {got}");
        }
    }

    /// A certificate as it stands in a status.
    fn certificate(seconds: i64) -> String {
        let wish = Wish::with_subject(&[(3, "panda")], &[]).unwrap();
        let request = api::rules::certificate_request::CertificateRequest::parse(wish.request.as_bytes()).unwrap();
        let grant = Grant {
            subject: &[(3, "panda".to_owned())],
            dns_names: &[],
            addresses: &[],
            emails: &[],
            uris: &[],
            public_key: &request.public_key,
            digital_signature: true,
            key_encipherment: false,
            usage: Usage::Client,
            seconds,
        };
        STANDARD.encode(Authority::create("ca").unwrap().grant(&grant).unwrap())
    }

    #[test]
    fn a_certificate_counts_once_and_where_a_time_was_asked_for() {
        let request = |signer: &str, seconds: Value, certificate: &str| json!({"spec": {"signerName": signer, "expirationSeconds": seconds}, "status": {"certificate": certificate}});
        let hour = certificate(3600);
        let check = |signer: &str, wanted: Value, (before, after): (&str, &str), expected: Option<(&str, bool)>| {
            let found = Issued::between(&request(signer, wanted.clone(), before), &request(signer, wanted, after));
            let expected = expected.map(|(signer, honored)| Issued { signer: signer.to_owned(), honored });
            assert_eq!(found, expected, "{signer} {before:?}");
        };
        let junk = STANDARD.encode("junk");
        check("fancy", json!(77), ("", &junk), Some(("other", false)));
        check(
            "kubernetes.io/educate-dolphins",
            json!(3600),
            ("", &hour),
            Some(("kubernetes.io/educate-dolphins", true)),
        );
        check("pandas.io/a", json!(3600), ("", &hour), Some(("other", true)));
        check("pandas.io/a", json!(7200), ("", &hour), Some(("other", false)));
        check("pandas.io/a", json!(3600), (&junk, &hour), None);
        check("pandas.io/a", Value::Null, ("", &hour), None);
        check("pandas.io/a", json!(3600), ("", ""), None);
    }
}
