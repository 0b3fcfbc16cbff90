//! Signs approved certificate requests with the cluster's authority.
//! Reads: CertificateSigningRequest. Writes: CertificateSigningRequest/status.
//! Upstream counterpart: pkg/controller/certificates/signer.

use std::sync::Arc;

use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches};
use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use pki::{Authority, Grant, PkiError, authority::CERTIFICATE_SECONDS};

use super::{
    CLIENT, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, KUBELET_CLIENT, KUBELET_SERVING, certificate, check, condition, wish,
    with_condition,
};

pub struct Signer {
    pub authority: Arc<Authority>,
}

/// The outcome of a request. Only the authority can say it, so it is observed.
pub enum Outcome {
    NotDue,
    /// The certificate in PEM.
    Issued(String),
    /// The request asks for what its signer does not give.
    Refused(String),
    /// The authority failed.
    Failed,
}

/// Whether the request is ours to sign now.
fn is_due(csr: &CertificateSigningRequest) -> bool {
    let is = |kind: &str| condition(csr, kind).is_some_and(|c| c.status == "True");
    let ours = [CLIENT, KUBELET_CLIENT, KUBELET_SERVING].contains(&csr.spec.signer_name.as_str());
    ours && is("Approved") && !is("Denied") && !is("Failed") && certificate(csr).is_none()
}

/// The certificate is made of what was checked: the bytes of the request are not looked at again.
fn issue(csr: &CertificateSigningRequest, authority: &Authority) -> Result<Outcome, PkiError> {
    let wish = match wish(csr) {
        Ok(wish) => wish,
        Err(why) => return Ok(Outcome::Refused(why.to_string())),
    };
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let usage = match check(&csr.spec.signer_name, &wish, usages) {
        Ok(usage) => usage,
        Err(why) => return Ok(Outcome::Refused(why)),
    };
    let has = |usage: &str| usages.iter().any(|u| u == usage);
    let pem = authority.grant(&Grant {
        subject: &wish.subject,
        dns_names: &wish.dns_names,
        addresses: &wish.addresses,
        emails: &wish.emails,
        uris: &wish.uris,
        public_key: &wish.public_key,
        digital_signature: has(DIGITAL_SIGNATURE),
        key_encipherment: has(KEY_ENCIPHERMENT),
        usage,
        seconds: csr.spec.expiration_seconds.map_or(CERTIFICATE_SECONDS, i64::from),
    })?;
    Ok(Outcome::Issued(pem))
}

impl Controller for Signer {
    const NAME: &'static str = "certificatesigningrequest-signing-controller";
    const CONCURRENCY: usize = 2;
    type Object = CertificateSigningRequest;
    type Observed = Outcome;

    fn watches(&self, _: &mut Watches<CertificateSigningRequest>) {}

    fn observe(&self, csr: &CertificateSigningRequest, _: &Listers) -> Outcome {
        if !is_due(csr) {
            return Outcome::NotDue;
        }
        issue(csr, &self.authority).unwrap_or_else(|error| {
            tracing::warn!(csr = csr.metadata.name, %error, "a certificate could not be signed");
            Outcome::Failed
        })
    }

    fn plan(&self, csr: &CertificateSigningRequest, outcome: &Outcome, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match outcome {
            Outcome::NotDue => &mut plan,
            Outcome::Failed => plan.retry(),
            Outcome::Refused(why) => {
                plan.set_status(csr, &with_condition(csr, "Failed", "SignerValidationFailure", why, now))
            }
            Outcome::Issued(pem) => {
                let mut signed = csr.clone();
                signed.status.get_or_insert_default().certificate = Some(ByteString(pem.as_bytes().to_vec()));
                plan.set_status(csr, &signed)
            }
        };
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::tests::csr;

    /// The request as its plan leaves it.
    fn signed(csr: &CertificateSigningRequest, authority: &Arc<Authority>) -> CertificateSigningRequest {
        let outcome = issue(csr, authority).unwrap();
        let plan = Signer { authority: authority.clone() }.plan(csr, &outcome, Timestamp::UNIX_EPOCH);
        assert_eq!(plan.to_string(), "update certificatesigningrequests/status csr-1");
        json::from_value(plan.status.unwrap().body().clone()).unwrap()
    }

    #[test]
    fn the_certificate_says_what_was_granted() {
        let authority = Arc::new(Authority::create("test").unwrap());
        let mut csr = csr(CLIENT, "u", "jane", &[]);
        let subject = [(6, "DE"), (10, "dev"), (10, "ops"), (3, "jané")];
        let wish = pki::Wish::with_subject(&subject, &["a.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        csr.spec.request.0 = wish.request.clone().into_bytes();
        let signed = signed(&csr, &authority);
        let pem = String::from_utf8(certificate(&signed).unwrap().to_vec()).unwrap();
        let facts = pki::inspect::facts(&pem).unwrap();
        assert_eq!(
            (facts.common_name.as_str(), facts.organizations),
            ("jané", vec!["dev".to_owned(), "ops".to_owned()])
        );
        assert_eq!(facts.hosts.into_iter().collect::<Vec<_>>(), ["10.0.0.1", "a.example"]);
        assert!(pki::inspect::key_belongs_to(&pem, &wish.key).unwrap());
        // It is one that TLS accepts, for clients.
        let check = pki::ClientCertificates::new(authority.certificate()).unwrap();
        assert_eq!(check.verify(&pki::inspect::chain(&pem).unwrap()).unwrap().common_name, "jané");
    }

    #[test]
    fn approved_requests_are_signed_and_wrong_ones_fail() {
        let authority = Arc::new(Authority::create("test").unwrap());
        let approve = |csr: &CertificateSigningRequest| with_condition(csr, "Approved", "r", "", Timestamp::UNIX_EPOCH);
        let wanted = csr(KUBELET_CLIENT, "u", "system:node:a", &[]);
        assert!(!is_due(&wanted));
        let approved = approve(&wanted);
        assert!(is_due(&approved));
        assert!(!is_due(&with_condition(&approved, "Denied", "r", "", Timestamp::UNIX_EPOCH)));
        let issued = signed(&approved, &authority);
        assert!(!is_due(&issued));
        let pem = String::from_utf8(certificate(&issued).unwrap().to_vec()).unwrap();
        let facts = pki::inspect::facts(&pem).unwrap();
        assert_eq!(
            (facts.common_name.as_str(), facts.organizations.join(",")),
            ("system:node:a", "system:nodes".into())
        );
        assert!(pki::inspect::signed_by(&pem, authority.certificate()).unwrap());

        let short = CertificateSigningRequest {
            spec: k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec {
                expiration_seconds: Some(600),
                ..approved.spec.clone()
            },
            ..approved.clone()
        };
        let pem = certificate(&signed(&short, &authority)).unwrap().to_vec();
        let facts = pki::inspect::facts(std::str::from_utf8(&pem).unwrap()).unwrap();
        assert!(facts.not_after - clock::now().as_second() <= 600);

        let wrong = approve(&csr(KUBELET_CLIENT, "u", "system:node:a", &["kubernetes"]));
        let failed = signed(&wrong, &authority);
        assert_eq!(condition(&failed, "Failed").unwrap().reason.as_deref(), Some("SignerValidationFailure"));
        assert!(!is_due(&failed) && certificate(&failed).is_none());
        let mut two = approved.clone();
        let evil = pki::Wish::new(&pki::Subject::client("root", Some("system:masters"))).unwrap().request;
        two.spec.request.0.extend_from_slice(evil.as_bytes());
        let failed = signed(&two, &authority);
        assert!(condition(&failed, "Failed").is_some() && certificate(&failed).is_none());
        assert!(!is_due(&approve(&csr("example.com/other", "u", "system:node:a", &[]))));
    }
}
