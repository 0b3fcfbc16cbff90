//! The validation of a signer's answer to a request: once, that it is issued, denied or failed; and of what is issued, a
//! certificate of the requested key with its times. Whether these times are those of today is admission's.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use json::Value;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

use super::{ENDS, LEAST_SECONDS};
use crate::object::Object;
use crate::rules::certificate_request::pem_blocks;
use crate::validation::conditions;
use crate::validation::field::{Errors, FieldError, Path};

/// The longest chain of certificates, in bytes.
const CHAIN_MAX: usize = 100 * 1024;
/// Nothing is refreshed so soon after it began, or so late before it ends.
const MARGIN_SECONDS: i64 = 600;

pub(super) fn validate(new: &Value, old: &Value) -> Errors {
    let path = Path::new("status");
    let read = |object: &Value| PodCertificateRequest::from_value(object).map_err(|why| why.to_string());
    let (new, old) = match (read(new), read(old)) {
        (Ok(new), Ok(old)) => (new, old),
        (Err(why), _) | (_, Err(why)) => return vec![FieldError::invalid_unshown(&path, &why)],
    };
    let (status, before) = (new.status.unwrap_or_default(), old.status.unwrap_or_default());
    let errors = check_conditions(&status, &path.child("conditions"));
    if !errors.is_empty() {
        return errors;
    }
    let unshown = |detail: &str| vec![FieldError::invalid_unshown(&path, detail)];
    if end(&before).is_some() {
        return match status == before {
            true => Errors::new(),
            false => unshown("immutable after PodCertificateRequest is issued, denied, or failed"),
        };
    }
    match end(&status) {
        Some("Issued") => {
            let wrong = Issued { status: &status, key: &old.spec.pkix_public_key.0, path: &path }
                .check(old.spec.max_expiration_seconds.unwrap_or_default());
            wrong.err().unwrap_or_default()
        }
        Some(_) => {
            let only = PodCertificateRequestStatus { conditions: status.conditions.clone(), ..Default::default() };
            match status == only {
                true => Errors::new(),
                false => unshown(
                    "non-condition status fields must be empty when denying or failing the PodCertificateRequest",
                ),
            }
        }
        None if status == before => Errors::new(),
        None => unshown("status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\""),
    }
}

/// How the request ended.
fn end(status: &PodCertificateRequestStatus) -> Option<&str> {
    let ended = |wanted: &&str| {
        status.conditions.iter().flatten().any(|condition| condition.type_ == *wanted && condition.status == "True")
    };
    ["Denied", "Failed", "Issued"].into_iter().find(ended)
}

/// There is one end at most, and it holds.
fn check_conditions(status: &PodCertificateRequestStatus, path: &Path) -> Errors {
    let list = status.conditions.as_deref().unwrap_or_default();
    let (mut errors, mut ends) = (Errors::new(), 0);
    for (i, condition) in list.iter().enumerate() {
        let place = path.index(i);
        if !ENDS.contains(&condition.type_.as_str()) {
            errors.push(FieldError::not_supported(
                &place.child("type"),
                &condition.type_,
                &["Denied", "Failed", "Issued"],
            ));
            continue;
        }
        ends += 1;
        if ends > 1 {
            let detail = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(FieldError::invalid(&place.child("type"), &condition.type_, detail));
        }
        if condition.status != "True" {
            errors.push(FieldError::not_supported(&place.child("status"), &condition.status, &["True"]));
        }
    }
    errors.extend(conditions::validate(list, path));
    errors
}

/// The certificate that a signer says it has issued.
struct Issued<'s> {
    status: &'s PodCertificateRequestStatus,
    /// The key that was asked for, in DER.
    key: &'s [u8],
    path: &'s Path,
}

impl Issued<'_> {
    fn chain(&self) -> &str {
        self.status.certificate_chain.as_deref().unwrap_or_default()
    }

    fn wrong(&self, detail: &str) -> Errors {
        vec![FieldError::invalid(&self.path.child("certificateChain"), self.chain(), detail)]
    }

    fn check(&self, most_seconds: i32) -> Result<(), Errors> {
        if self.chain().len() > CHAIN_MAX {
            return Err(vec![FieldError::too_long(&self.path.child("certificateChain"), CHAIN_MAX)]);
        }
        let mut certificates = self.certificates()?.into_iter();
        let none = "issued certificate chain must contain at least one certificate";
        let leaf = certificates.next().ok_or_else(|| self.wrong(none))?;
        let leaf = readable(&leaf).ok_or_else(|| self.wrong("leaf certificate does not parse as valid X.509"))?;
        let errors = self.names(&leaf);
        if !errors.is_empty() {
            return Err(errors);
        }
        if leaf.public_key().raw != self.key {
            return Err(self.wrong("leaf certificate was not issued to the requested public key"));
        }
        self.times(&leaf, most_seconds)?;
        if certificates.any(|der| readable(&der).is_none()) {
            return Err(self.wrong("intermediate certificate does not parse as valid X.509"));
        }
        Ok(())
    }

    /// The contents of the blocks, all of which are certificates. A text that is not a whole block stands between
    /// blocks.
    fn certificates(&self) -> Result<Vec<Vec<u8>>, Errors> {
        let other = "issued certificate chain must consist entirely of CERTIFICATE PEM blocks";
        let one = |(label, body): (&str, &str)| {
            let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
            (label == "CERTIFICATE").then(|| STANDARD.decode(body).unwrap_or_default()).ok_or_else(|| self.wrong(other))
        };
        pem_blocks(self.chain()).filter_map(Result::ok).map(one).collect()
    }

    /// The purpose of a certificate is the signer's to say, but it must be something.
    fn names(&self, leaf: &X509Certificate<'_>) -> Errors {
        let place = self.path.child("certificateChain");
        let Ok(names) = leaf.subject_alternative_name() else {
            return self.wrong("leaf certificate does not parse as valid X.509");
        };
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let wrong = |name: &&str, detail: &str| FieldError::invalid(&place, *name, detail);
        let mut errors = Errors::new();
        for name in names {
            match name {
                GeneralName::DNSName(name) => errors.extend(
                    [
                        (name.is_empty(), "leaf certificate should not contain empty DNSName"),
                        (name.contains(".."), "leaf certificate's DNSName should not contain '..'"),
                        (
                            name.starts_with('.') || name.ends_with('.'),
                            "leaf certificate's DNSName should not start or end with '.'",
                        ),
                    ]
                    .into_iter()
                    .filter(|(is_wrong, _)| *is_wrong)
                    .map(|(_, detail)| wrong(name, detail)),
                ),
                GeneralName::RFC822Name(name) if !is_mail(name) => {
                    errors.push(wrong(name, "leaf certificate should not contain invalid EmailAddress"));
                }
                _ => {}
            }
        }
        errors
    }

    /// The times in the status are the certificate's, and leave time to refresh it.
    fn times(&self, leaf: &X509Certificate<'_>, most_seconds: i32) -> Result<(), Errors> {
        let place = |field: &str| self.path.child(field);
        let status = self.status;
        let consistent = "must be present and consistent with the issued certificate";
        let refresh = "must be present and in the range [notbefore+10min, notafter-10min]";
        let missing: Errors = [
            ("notBefore", &status.not_before, consistent),
            ("notAfter", &status.not_after, consistent),
            ("beginRefreshAt", &status.begin_refresh_at, refresh),
        ]
        .into_iter()
        .filter(|(_, time, _)| time.is_none())
        .map(|(field, _, detail)| FieldError::required(&place(field), detail))
        .collect();
        let (Some(Time(begin)), Some(Time(end)), Some(Time(refresh))) =
            (&status.not_before, &status.not_after, &status.begin_refresh_at)
        else {
            return Err(missing);
        };
        let wrong = |field: &str, time: &Timestamp, detail: &str| {
            Err(vec![FieldError::invalid(&place(field), time.to_string(), detail)])
        };
        let validity = leaf.validity();
        let (first, last) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        if begin.as_second() != first {
            return wrong("notBefore", begin, "must be set to the NotBefore time encoded in the leaf certificate");
        }
        if end.as_second() != last {
            return wrong("notAfter", end, "must be set to the NotAfter time encoded in the leaf certificate");
        }
        let life = last.saturating_sub(first);
        let place_of_chain = place("certificateChain");
        if life < i64::from(LEAST_SECONDS) {
            let detail = "leaf certificate lifetime must be >= 1 hour";
            return Err(vec![FieldError::invalid(&place_of_chain, format!("{life}s"), detail)]);
        }
        if life > i64::from(most_seconds) {
            let detail = format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most_seconds})");
            return Err(vec![FieldError::invalid(&place_of_chain, format!("{life}s"), &detail)]);
        }
        if refresh.as_second() < first + MARGIN_SECONDS {
            return wrong("beginRefreshAt", refresh, "must be at least 10 minutes after status.notBefore");
        }
        if refresh.as_second() > last - MARGIN_SECONDS {
            return wrong("beginRefreshAt", refresh, "must be at least 10 minutes before status.notAfter");
        }
        Ok(())
    }
}

fn readable(der: &[u8]) -> Option<X509Certificate<'_>> {
    x509_parser::parse_x509_certificate(der)
        .ok()
        .filter(|(rest, _)| rest.is_empty())
        .map(|(_, certificate)| certificate)
}

/// Somebody at some domain.
fn is_mail(text: &str) -> bool {
    let parts = text.split_once('@');
    parts.is_some_and(|(who, domain)| !who.is_empty() && !domain.is_empty() && !domain.contains('@'))
        && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use json::json;
    use pki::{Authority, Grant, Usage};

    use super::*;

    /// The key of a request; nobody here needs the private half.
    fn key() -> Vec<u8> {
        let made = include_str!("possession.txt");
        let line = made.lines().find(|line| line.starts_with("p256")).expect("a key");
        STANDARD.decode(line.split(' ').nth(1).expect("a key")).expect("base64")
    }

    fn chain(authority: &Authority, key: &[u8], dns: &[&str], emails: &[&str], seconds: i64) -> String {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let grant = Grant {
            subject: &[],
            dns_names: &owned(dns),
            addresses: &[],
            emails: &owned(emails),
            uris: &[],
            public_key: key,
            digital_signature: true,
            key_encipherment: false,
            usage: Usage::Client,
            seconds,
        };
        authority.grant(&grant).expect("a certificate")
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2025-01-01T00:00:00Z"})
    }

    fn request(status: &Value) -> Value {
        json!({"metadata": {"name": "r"}, "status": status, "spec": {
            "signerName": "foo.com/abc", "podName": "p", "podUID": "u", "serviceAccountName": "s", "serviceAccountUID": "su",
            "nodeName": "n", "nodeUID": "nu", "maxExpirationSeconds": 86400, "pkixPublicKey": STANDARD.encode(key()),
            "proofOfPossession": "",
        }})
    }

    fn check(old: &Value, new: &Value, expected: &[&str]) {
        let said: Vec<String> = validate(&request(new), &request(old)).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), expected.len(), "{new}: {said:?}");
        assert!(said.iter().zip(expected).all(|(s, e)| s.contains(e)), "{new}: {said:?}");
    }

    #[test]
    fn a_request_ends_once() {
        let (none, denied) = (json!({}), json!({"conditions": [condition("Denied", "True")]}));
        check(&none, &none, &[]);
        check(&none, &denied, &[]);
        check(&none, &json!({"conditions": [condition("Failed", "True")]}), &[]);
        check(&denied, &denied, &[]);
        check(
            &denied,
            &none,
            &["status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed"],
        );
        check(&denied, &json!({"conditions": [condition("Issued", "True")]}), &["immutable after"]);
        check(
            &none,
            &json!({"conditions": [condition("Denied", "False")]}),
            &["status.conditions[0].status: Unsupported value: \"False\""],
        );
        check(
            &none,
            &json!({"conditions": [condition("Foo", "True")]}),
            &["status.conditions[0].type: Unsupported value: \"Foo\""],
        );
        let two = json!({"conditions": [condition("Denied", "True"), condition("Failed", "True")]});
        check(&none, &two, &["status.conditions[1].type: Invalid value: \"Failed\": There may be at most one"]);
        check(
            &none,
            &json!({"conditions": [condition("Denied", "True")], "certificateChain": "x"}),
            &["non-condition status fields must be empty"],
        );
        check(&none, &json!({"certificateChain": "x"}), &["status is immutable unless transitioning"]);
    }

    #[test]
    fn what_is_issued_is_for_the_key_and_says_its_times() {
        let authority = Authority::create("test").expect("an authority");
        let issued = |chain: &str| -> Value {
            let blocks: Vec<_> = pem_blocks(chain).collect();
            let times = blocks.first().and_then(|block| {
                let body: String = block.as_ref().ok()?.1.chars().filter(|c| !c.is_whitespace()).collect();
                let der = STANDARD.decode(body).ok()?;
                let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
                let validity = certificate.validity();
                Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
            });
            let (first, last) = times.unwrap_or((1_000_000, 1_010_000));
            let time = |second: i64| Timestamp::from_second(second).unwrap().to_string();
            json!({"conditions": [condition("Issued", "True")], "certificateChain": chain, "notBefore": time(first),
                "notAfter": time(last), "beginRefreshAt": time((first + last) / 2)})
        };
        let with = |field: &str, value: Value| {
            let mut status = issued(&chain(&authority, &key(), &[], &[], 7200));
            status[field] = value;
            status
        };
        let none = json!({});
        let good = chain(&authority, &key(), &["pod.example"], &["pod@example.com"], 7200);
        check(&none, &issued(&good), &[]);
        check(&none, &issued(&format!("{good}{}", authority.certificate())), &[]);
        check(&issued(&good), &issued(&good), &[]);
        check(&none, &issued(""), &["issued certificate chain must contain at least one certificate"]);
        check(
            &none,
            &issued(&good.replace("CERTIFICATE", "KEY")),
            &["must consist entirely of CERTIFICATE PEM blocks"],
        );
        check(&none, &issued(&good.replace("MII", "AAA")), &["leaf certificate does not parse as valid X.509"]);
        check(
            &none,
            &issued(&format!("{good}{}", good.replace("MII", "AAA"))),
            &["intermediate certificate does not parse"],
        );
        check(&none, &issued(authority.certificate()), &["was not issued to the requested public key"]);
        check(
            &none,
            &with("certificateChain", "x".repeat(CHAIN_MAX + 1).into()),
            &["status.certificateChain: Too long"],
        );
        check(
            &none,
            &issued(&chain(&authority, &key(), &["a..b", ".c"], &[], 7200)),
            &["should not contain '..'", "should not start or end"],
        );
        check(&none, &issued(&chain(&authority, &key(), &[], &["nobody"], 7200)), &["invalid EmailAddress"]);
        check(&none, &issued(&chain(&authority, &key(), &[], &[], 600)), &["lifetime must be >= 1 hour"]);
        check(
            &none,
            &issued(&chain(&authority, &key(), &[], &[], 90_000)),
            &["must be <= spec.maxExpirationSeconds (86400)"],
        );
        check(&none, &with("notBefore", Value::Null), &["status.notBefore: Required value: must be present"]);
        check(
            &none,
            &with("beginRefreshAt", Value::Null),
            &["status.beginRefreshAt: Required value: must be present and in the range"],
        );
        let odd = json!("2001-01-01T00:00:00Z");
        check(&none, &with("notBefore", odd.clone()), &["must be set to the NotBefore time encoded"]);
        check(&none, &with("notAfter", odd.clone()), &["must be set to the NotAfter time encoded"]);
        check(&none, &with("beginRefreshAt", odd), &["must be at least 10 minutes after status.notBefore"]);
        check(
            &none,
            &with("beginRefreshAt", json!("2101-01-01T00:00:00Z")),
            &["must be at least 10 minutes before status.notAfter"],
        );
    }
}
