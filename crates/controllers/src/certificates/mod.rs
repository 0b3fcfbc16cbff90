//! Certificate signing requests: what the signers of `kubernetes.io` accept, and the conditions of a request.
//!
//! The bytes of a request are parsed by [`CertificateRequest::parse`] alone; the approvers and the signer look at that value.
//! [`approve`] and [`approve_serving`] approve requests, [`sign`] issues certificates, [`clean`] deletes old requests, [`trust_bundle`] publishes an authority. Upstream: pkg/controller/certificates,
//! with the rules of pkg/apis/certificates/helpers.go.

pub mod approve;
pub mod approve_serving;
pub mod clean;
pub mod clean_pod_requests;
pub mod sign;
pub mod trust_bundle;

use api::rules::certificate_request::{CertificateRequest, RequestError};
use clock::Timestamp;
use k8s_openapi::{
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use pki::Usage;

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";

/// The service account that all of them act as.
pub const ACCOUNT: &str = "certificate-controller";

const NODES_GROUP: &str = "system:nodes";
const NODE_USER: &str = "system:node:";
const MASTERS: &str = "system:masters";

const DIGITAL_SIGNATURE: &str = "digital signature";
const KEY_ENCIPHERMENT: &str = "key encipherment";
const CLIENT_AUTH: &str = "client auth";

const NO_EMAILS: &str = "Email subjectAltNames are not allowed";
const NO_URIS: &str = "URI subjectAltNames are not allowed";

/// Parses the request for a certificate.
pub fn wish(csr: &CertificateSigningRequest) -> Result<CertificateRequest, RequestError> {
    CertificateRequest::parse(&csr.spec.request.0)
}

/// The usage of the certificate, or why a signer of `kubernetes.io` refuses the request even when it is approved, in
/// upstream's words where it has some.
pub fn check(signer: &str, wish: &CertificateRequest, usages: &[String]) -> Result<Usage, String> {
    if let Some(what) = wish.unknown.first() {
        return Err(format!("the request asks for what this signer does not know: {what}"));
    }
    match signer {
        KUBELET_CLIENT => check_kubelet_client(wish, usages).map(|()| Usage::Client).map_err(str::to_owned),
        KUBELET_SERVING => check_kubelet_serving(wish, usages).map(|()| Usage::Server).map_err(str::to_owned),
        CLIENT => check_client(wish, usages).map(|()| Usage::Client),
        _ => Err(format!("the signer {signer} is not known")),
    }
}

/// A certificate for somebody who is no kubelet.
fn check_client(wish: &CertificateRequest, usages: &[String]) -> Result<(), String> {
    let allowed = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH];
    if let Some(other) = usages.iter().find(|u| !allowed.contains(&u.as_str())) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    if !usages.iter().any(|u| u == CLIENT_AUTH) {
        return Err(format!("missing required usage for client certificate: {CLIENT_AUTH}"));
    }
    if wish.common_name().is_empty() {
        return Err("the subject has no common name".to_owned());
    }
    // Admission refuses these too, and can be switched off.
    if wish.organizations().any(|o| o == MASTERS) {
        return Err(format!("use of {CLIENT} signer with {MASTERS} group is not allowed"));
    }
    Ok(())
}

/// Upstream's checks in upstream's order: of several faults the first is told.
fn check_kubelet_client(wish: &CertificateRequest, usages: &[String]) -> Result<(), &'static str> {
    check_organization(wish)?;
    if !wish.dns_names.is_empty() {
        return Err("DNS subjectAltNames are not allowed");
    }
    if !wish.emails.is_empty() {
        return Err(NO_EMAILS);
    }
    if !wish.addresses.is_empty() {
        return Err("IP subjectAltNames are not allowed");
    }
    if !wish.uris.is_empty() {
        return Err(NO_URIS);
    }
    check_name(wish)?;
    if !are_usages(usages, CLIENT_AUTH) {
        return Err("usages did not match [client auth digital signature key encipherment]");
    }
    Ok(())
}

fn check_kubelet_serving(wish: &CertificateRequest, usages: &[String]) -> Result<(), &'static str> {
    check_organization(wish)?;
    if wish.dns_names.is_empty() && wish.addresses.is_empty() {
        return Err("DNS or IP subjectAltName is required");
    }
    if !wish.emails.is_empty() {
        return Err(NO_EMAILS);
    }
    if !wish.uris.is_empty() {
        return Err(NO_URIS);
    }
    if !are_usages(usages, "server auth") {
        return Err("usages did not match [digital signature key encipherment server auth]");
    }
    check_name(wish)
}

fn check_organization(wish: &CertificateRequest) -> Result<(), &'static str> {
    if wish.organizations().eq([NODES_GROUP]) { Ok(()) } else { Err("subject organization is not system:nodes") }
}

fn check_name(wish: &CertificateRequest) -> Result<(), &'static str> {
    if wish.common_name().strip_prefix(NODE_USER).is_none_or(str::is_empty) {
        return Err("subject common name does not begin with system:node:");
    }
    // Upstream lets the rest of a subject through.
    if wish.is_plain_subject() { Ok(()) } else { Err("subject has more than an organization and a common name") }
}

/// Key encipherment is for RSA keys and so may be left out.
fn are_usages(usages: &[String], purpose: &str) -> bool {
    let all = |allowed: &[&str]| usages.len() == allowed.len() && allowed.iter().all(|a| usages.iter().any(|u| u == a));
    all(&[KEY_ENCIPHERMENT, DIGITAL_SIGNATURE, purpose]) || all(&[DIGITAL_SIGNATURE, purpose])
}

fn conditions(csr: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    csr.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

fn condition<'a>(csr: &'a CertificateSigningRequest, kind: &str) -> Option<&'a CertificateSigningRequestCondition> {
    conditions(csr).iter().find(|c| c.type_ == kind)
}

fn certificate(csr: &CertificateSigningRequest) -> Option<&[u8]> {
    csr.status.as_ref()?.certificate.as_ref().map(|c| c.0.as_slice()).filter(|c| !c.is_empty())
}

/// Nobody has said yes or no yet.
fn is_undecided(csr: &CertificateSigningRequest) -> bool {
    condition(csr, "Approved").is_none() && condition(csr, "Denied").is_none() && certificate(csr).is_none()
}

/// The request with one more condition.
fn with_condition(
    csr: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> CertificateSigningRequest {
    let mut csr = csr.clone();
    let status = csr.status.get_or_insert_with(CertificateSigningRequestStatus::default);
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
    csr
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::ByteString;
    use pki::{Subject, Wish};

    use super::*;

    /// A request by `user` for the common name `name` with these further names, and the usages of `signer`.
    pub fn csr(signer: &str, user: &str, name: &str, hosts: &[&str]) -> CertificateSigningRequest {
        let subject = Subject {
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            ..Subject::client(name, Some(NODES_GROUP))
        };
        let purpose = if signer == KUBELET_SERVING { "server auth" } else { "client auth" };
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.name = Some("csr-1".to_owned());
        csr.spec.signer_name = signer.to_owned();
        csr.spec.username = Some(user.to_owned());
        csr.spec.groups = Some(vec![NODES_GROUP.to_owned(), "system:authenticated".to_owned()]);
        csr.spec.usages = Some(vec!["digital signature".to_owned(), purpose.to_owned()]);
        csr.spec.request = ByteString(Wish::new(&subject).unwrap().request.into_bytes());
        csr
    }

    /// A request with this subject and these names.
    fn wish_of(subject: &[(u8, &str)], hosts: &[&str]) -> CertificateRequest {
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        CertificateRequest::parse(Wish::with_subject(subject, &hosts).unwrap().request.as_bytes()).unwrap()
    }

    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(|u| (*u).to_owned()).collect()
    }

    #[test]
    fn kubelets_get_what_is_theirs_alone() {
        let node = |name: &str, hosts: &[&str]| wish_of(&[(10, NODES_GROUP), (3, name)], hosts);
        let good = usages(&[DIGITAL_SIGNATURE, CLIENT_AUTH]);
        let client = |wish: &CertificateRequest, usages: &[String]| check(KUBELET_CLIENT, wish, usages);
        let a = || node("system:node:a", &[]);
        assert_eq!(client(&a(), &good), Ok(Usage::Client));
        assert_eq!(client(&a(), &usages(&[KEY_ENCIPHERMENT, DIGITAL_SIGNATURE, CLIENT_AUTH])), Ok(Usage::Client));
        let (organization, name) =
            ("subject organization is not system:nodes", "subject common name does not begin with system:node:");
        for (wish, why) in [
            (node("admin", &[]), name),
            (node("system:node:", &[]), name),
            (node("system:node:a", &["a"]), "DNS subjectAltNames are not allowed"),
            (node("system:node:a", &["10.0.0.1"]), "IP subjectAltNames are not allowed"),
            (wish_of(&[(10, "system:masters"), (3, "system:node:a")], &[]), organization),
            (wish_of(&[(10, NODES_GROUP), (10, "system:masters"), (3, "system:node:a")], &[]), organization),
            (wish_of(&[(3, "system:node:a")], &["a"]), organization),
            (
                wish_of(&[(10, NODES_GROUP), (11, "unit"), (3, "system:node:a")], &[]),
                "subject has more than an organization and a common name",
            ),
            (CertificateRequest { emails: vec!["a@b".into()], ..a() }, NO_EMAILS),
            (CertificateRequest { uris: vec!["spiffe://a".into()], ..a() }, NO_URIS),
            (
                CertificateRequest { unknown: vec!["to be a certificate authority".into()], ..a() },
                "the request asks for what this signer does not know: to be a certificate authority",
            ),
        ] {
            assert_eq!(client(&wish, &good), Err(why.to_owned()), "{wish:?}");
        }
        let wrong = "usages did not match [client auth digital signature key encipherment]";
        for usages in [usages(&[DIGITAL_SIGNATURE, CLIENT_AUTH, "server auth"]), usages(&[DIGITAL_SIGNATURE])] {
            assert_eq!(client(&a(), &usages), Err(wrong.to_owned()), "{usages:?}");
        }
        let serving = usages(&[DIGITAL_SIGNATURE, "server auth"]);
        let server = |wish: &CertificateRequest, usages: &[String]| check(KUBELET_SERVING, wish, usages);
        let b = || node("system:node:a", &["a", "10.0.0.1"]);
        assert_eq!(server(&b(), &serving), Ok(Usage::Server));
        let rsa = usages(&[DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, "server auth"]);
        assert_eq!(server(&b(), &rsa), Ok(Usage::Server));
        let wrong = "usages did not match [digital signature key encipherment server auth]";
        for (wish, usages, why) in [
            (a(), &serving, "DNS or IP subjectAltName is required"),
            (b(), &good, wrong),
            (b(), &usages(&["server auth"]), wrong),
            (b(), &usages(&[DIGITAL_SIGNATURE, CLIENT_AUTH, "server auth"]), wrong),
            (CertificateRequest { emails: vec!["a@b".into()], ..b() }, &serving, NO_EMAILS),
            (CertificateRequest { uris: vec!["spiffe://a".into()], ..b() }, &serving, NO_URIS),
            (node("b", &["a"]), &serving, name),
            (node("b", &["a"]), &good, wrong),
            (wish_of(&[(10, "other"), (3, "system:node:a")], &["a"]), &serving, organization),
        ] {
            assert_eq!(server(&wish, usages), Err(why.to_owned()), "{wish:?} {usages:?}");
        }
        // The signer of old is not known: no version of the API that is served lets a request name it.
        assert!(check("kubernetes.io/legacy-unknown", &a(), &good).is_err());
    }

    #[test]
    fn users_get_groups_but_not_the_masters() {
        let jane = wish_of(&[(6, "DE"), (10, "dev"), (10, "ops"), (3, "jane")], &[]);
        let good = usages(&[CLIENT_AUTH]);
        assert_eq!(check(CLIENT, &jane, &good), Ok(Usage::Client));
        for (wish, usages, why) in [
            (jane.clone(), usages(&["server auth", CLIENT_AUTH]), "invalid usage for client certificate: server auth"),
            (jane.clone(), usages(&[DIGITAL_SIGNATURE]), "missing required usage"),
            (wish_of(&[(10, "dev")], &[]), good.clone(), "no common name"),
            (wish_of(&[(10, "dev"), (10, MASTERS), (3, "eve")], &[]), good.clone(), "system:masters"),
            (CertificateRequest { unknown: vec!["x".into()], ..jane.clone() }, good.clone(), "does not know: x"),
        ] {
            let said = check(CLIENT, &wish, &usages).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert!(check("example.com/other", &jane, &good).is_err());
    }
}
