//! Signs approved certificate requests with the cluster's authority.
//! Reads: CertificateSigningRequest. Writes: CertificateSigningRequest/status.
//! Upstream counterpart: pkg/controller/certificates/signer.

use std::sync::Arc;

use client::{Api, Key, rest};
use clock::Timestamp;
use controller::{Done, Queue, Reconcile, Setup, drive};
use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use pki::{Authority, Grant, PkiError, authority::CERTIFICATE_SECONDS};

use super::{
    CLIENT, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, KUBELET_CLIENT, KUBELET_SERVING, certificate, check, condition, wish,
    with_condition,
};

pub const NAME: &str = "certificatesigningrequest-signing-controller";

struct Signer {
    setup: Setup,
    authority: Arc<Authority>,
}

/// Runs until cancelled. Without an authority nothing is signed: somebody else does.
pub async fn run(setup: Setup, authority: Option<Arc<Authority>>) {
    let Some(authority) = authority else { return };
    let queue = Arc::new(Queue::default());
    let feed = super::feed(setup.caches.of::<CertificateSigningRequest>(), queue.clone());
    tokio::join!(feed, drive(NAME, queue, Arc::new(Signer { setup, authority }), 2));
}

/// Whether the request is ours to sign now.
fn is_due(csr: &CertificateSigningRequest) -> bool {
    let is = |kind: &str| condition(csr, kind).is_some_and(|c| c.status == "True");
    let ours = [CLIENT, KUBELET_CLIENT, KUBELET_SERVING].contains(&csr.spec.signer_name.as_str());
    ours && is("Approved") && !is("Denied") && !is("Failed") && certificate(csr).is_none()
}

/// The request with its certificate, or with the reason why there will be none. The certificate is made of what was
/// checked: the bytes of the request are not looked at again.
fn signed(
    csr: &CertificateSigningRequest,
    authority: &Authority,
    now: Timestamp,
) -> Result<CertificateSigningRequest, PkiError> {
    let failed = |why: &str| Ok(with_condition(csr, "Failed", "SignerValidationFailure", why, now));
    let wish = match wish(csr) {
        Ok(wish) => wish,
        Err(why) => return failed(&why.to_string()),
    };
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let usage = match check(&csr.spec.signer_name, &wish, usages) {
        Ok(usage) => usage,
        Err(why) => return failed(&why),
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
    let mut signed = csr.clone();
    signed.status.get_or_insert_default().certificate = Some(ByteString(pem.into_bytes()));
    Ok(signed)
}

impl Reconcile for Signer {
    async fn reconcile(&self, key: &Key) -> Done {
        waypoint::controller::reconcile(&key.name);
        let found = self.setup.caches.of::<CertificateSigningRequest>().get(key);
        let Some(csr) = found.filter(|csr| is_due(csr)) else { return Done::default() };
        let outcome = match signed(&csr, &self.authority, clock::now_seconds()) {
            Ok(signed) => {
                let api: Api<CertificateSigningRequest> = Api::all(self.setup.client.clone());
                let written = api.replace(&key.name, "status", &signed).await;
                written.map(drop).map_err(|e| rest::message(&e))
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(message) = &outcome {
            tracing::info!(controller = NAME, %key, message, "trying again later");
        }
        Done { failed: outcome.is_err(), ..Done::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::tests::csr;

    #[test]
    fn the_certificate_says_what_was_granted() {
        let authority = Authority::create("test").unwrap();
        let mut csr = csr(CLIENT, "u", "jane", &[]);
        let subject = [(6, "DE"), (10, "dev"), (10, "ops"), (3, "jané")];
        let wish = pki::Wish::with_subject(&subject, &["a.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        csr.spec.request.0 = wish.request.clone().into_bytes();
        let signed = signed(&csr, &authority, Timestamp::UNIX_EPOCH).unwrap();
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
        let authority = Authority::create("test").unwrap();
        let approve = |csr: &CertificateSigningRequest| with_condition(csr, "Approved", "r", "", Timestamp::UNIX_EPOCH);
        let wanted = csr(KUBELET_CLIENT, "u", "system:node:a", &[]);
        assert!(!is_due(&wanted));
        let approved = approve(&wanted);
        assert!(is_due(&approved));
        assert!(!is_due(&with_condition(&approved, "Denied", "r", "", Timestamp::UNIX_EPOCH)));
        let issued = signed(&approved, &authority, Timestamp::UNIX_EPOCH).unwrap();
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
        let pem = certificate(&signed(&short, &authority, Timestamp::UNIX_EPOCH).unwrap()).unwrap().to_vec();
        let facts = pki::inspect::facts(std::str::from_utf8(&pem).unwrap()).unwrap();
        assert!(facts.not_after - clock::now().as_second() <= 600);

        let wrong = approve(&csr(KUBELET_CLIENT, "u", "system:node:a", &["kubernetes"]));
        let failed = signed(&wrong, &authority, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(condition(&failed, "Failed").unwrap().reason.as_deref(), Some("SignerValidationFailure"));
        assert!(!is_due(&failed) && certificate(&failed).is_none());
        let mut two = approved.clone();
        let evil = pki::Wish::new(&pki::Subject::client("root", Some("system:masters"))).unwrap().request;
        two.spec.request.0.extend_from_slice(evil.as_bytes());
        let failed = signed(&two, &authority, Timestamp::UNIX_EPOCH).unwrap();
        assert!(condition(&failed, "Failed").is_some() && certificate(&failed).is_none());
        assert!(!is_due(&approve(&csr("example.com/other", "u", "system:node:a", &[]))));
    }
}
