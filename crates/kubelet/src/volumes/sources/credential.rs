//! The life of one certificate of a Pod: asked for, issued, renewed before it ends. Pure; asking is `certificates`'s.
//! Upstream counterpart: the states in pkg/kubelet/podcertificate.

use clock::{Duration, Timestamp};
use k8s_openapi::{api::certificates::v1beta1::PodCertificateRequest, apimachinery::pkg::apis::meta::v1::Time};

use crate::volumes::{error::VolumeError, sources::pem};

const ISSUED: &str = "Issued";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";

/// A key and the certificates for it, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    pub key: String,
    pub chain: String,
}

/// A request that was made, for this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub key: String,
    pub name: String,
    /// Whoever has seen the cluster as it was then has seen the request.
    pub revision: u64,
}

/// A certificate that was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    credential: Credential,
    renew_at: Timestamp,
    /// An attempt to renew that failed is not repeated before.
    retry_at: Option<Timestamp>,
    ends_at: Timestamp,
    told_overdue: bool,
    told_expired: bool,
}

/// A signer has refused a request, or could not answer it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// `Denied` or `Failed`.
    pub kind: String,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Unasked,
    Waits(Asked),
    Fresh(Issued),
    Renews(Issued, Asked),
    /// The Pod never gets another one.
    Refused(Refused),
}

/// A warning about the Pod, as reason and message.
pub type Warning = (&'static str, String);

/// The cluster's statement about a request.
#[derive(Debug, Clone, Copy)]
pub enum Seen<'a> {
    /// Nothing that is as new as the request.
    NotYet,
    /// It was there and is gone.
    Gone,
    There(&'a PodCertificateRequest),
}

/// A certificate whose renewal has not succeeded this long after it was due is worth a warning.
const OVERDUE: Duration = Duration::from_secs(600);
/// How soon a renewal that failed is tried again.
const RETRY: Duration = Duration::from_secs(60);

fn after(at: Timestamp, pause: Duration) -> Timestamp {
    at.checked_add(pause).unwrap_or(at)
}

impl Issued {
    /// The warnings about a certificate that ought to have been renewed, each once.
    fn warnings(&mut self, now: Timestamp) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if now > after(self.renew_at, OVERDUE) && !std::mem::replace(&mut self.told_overdue, true) {
            warnings.push(("CertificateOverdueForRefresh", "PodCertificate refresh overdue".to_owned()));
        }
        if now > self.ends_at && !std::mem::replace(&mut self.told_expired, true) {
            warnings.push(("CertificateExpired", "PodCertificate expired".to_owned()));
        }
        warnings
    }

    /// When the next of the warnings is due.
    fn next_warning(&self) -> Option<Timestamp> {
        let overdue = (!self.told_overdue).then(|| after(self.renew_at, OVERDUE));
        overdue.into_iter().chain((!self.told_expired).then_some(self.ends_at)).min()
    }
}

impl Refused {
    fn warning(&self, namespace: &str, request: &str) -> Warning {
        let (reason, verb) = if self.kind == DENIED { (DENIED, "was denied") } else { (FAILED, "failed") };
        let (why, message) = (&self.reason, &self.message);
        let text = format!("PodCertificateRequest {namespace}/{request} {verb}, reason={why:?}, message={message:?}");
        (reason, text)
    }
}

impl Life {
    /// The request whose outcome decides what comes next.
    pub fn asked(&self) -> Option<&Asked> {
        match self {
            Life::Waits(asked) | Life::Renews(_, asked) => Some(asked),
            Life::Unasked | Life::Fresh(_) | Life::Refused(_) => None,
        }
    }

    /// Takes in what has become of the request. `jitter` keeps certificates that were issued together from being renewed
    /// together.
    pub fn learn(&mut self, namespace: &str, seen: Seen<'_>, now: Timestamp, jitter: Duration) -> Option<Warning> {
        let (held, asked) = match self {
            Life::Waits(asked) => (None, asked.clone()),
            Life::Renews(held, asked) => (Some(held.clone()), asked.clone()),
            Life::Unasked | Life::Fresh(_) | Life::Refused(_) => return None,
        };
        let request = match seen {
            Seen::NotYet => return None,
            Seen::Gone => {
                *self = held.map_or(Life::Unasked, Life::Fresh);
                return None;
            }
            Seen::There(request) => request,
        };
        let status = request.status.as_ref()?;
        let end = status.conditions.iter().flatten().find(|c| [ISSUED, DENIED, FAILED].contains(&c.type_.as_str()))?;
        if end.type_ == ISSUED {
            let moment = |time: &Option<Time>| time.as_ref().map_or(now, |time| time.0);
            let chain = pem::clean(status.certificate_chain.as_deref().unwrap_or_default());
            *self = Life::Fresh(Issued {
                credential: Credential { key: asked.key, chain },
                renew_at: after(moment(&status.begin_refresh_at), jitter),
                retry_at: None,
                ends_at: moment(&status.not_after),
                told_overdue: false,
                told_expired: false,
            });
            return None;
        }
        let refused = Refused { kind: end.type_.clone(), reason: end.reason.clone(), message: end.message.clone() };
        let warning = refused.warning(namespace, &asked.name);
        *self = Life::Refused(refused);
        Some(warning)
    }

    /// Whether it is time to ask for a certificate.
    pub fn wants_request(&self, now: Timestamp) -> bool {
        match self {
            Life::Unasked => true,
            Life::Fresh(held) => now >= held.retry_at.unwrap_or(held.renew_at),
            Life::Waits(_) | Life::Renews(..) | Life::Refused(_) => false,
        }
    }

    /// A request was made.
    pub fn ask(&mut self, asked: Asked) {
        *self = match std::mem::take(self) {
            Life::Fresh(held) | Life::Renews(held, _) => Life::Renews(held, asked),
            Life::Unasked | Life::Waits(_) | Life::Refused(_) => Life::Waits(asked),
        };
    }

    /// No request could be made. Whether that has time, because there still is a certificate.
    pub fn put_off(&mut self, now: Timestamp) -> bool {
        if let Life::Fresh(held) = self {
            held.retry_at = Some(after(now, RETRY));
        }
        matches!(self, Life::Fresh(_))
    }

    pub fn warnings(&mut self, now: Timestamp) -> Vec<Warning> {
        match self {
            Life::Fresh(held) | Life::Renews(held, _) => held.warnings(now),
            Life::Unasked | Life::Waits(_) | Life::Refused(_) => Vec::new(),
        }
    }

    /// When there is something to do again, without any news.
    pub fn due(&self) -> Option<Timestamp> {
        match self {
            Life::Fresh(held) => Some(held.retry_at.unwrap_or(held.renew_at)),
            Life::Renews(held, _) => held.next_warning(),
            Life::Unasked | Life::Waits(_) | Life::Refused(_) => None,
        }
    }

    /// The credential that the Pod gets.
    pub fn credential(&self) -> Result<Credential, VolumeError> {
        match self {
            Life::Fresh(held) | Life::Renews(held, _) => Ok(held.credential.clone()),
            Life::Unasked | Life::Waits(_) => {
                Err(VolumeError::Certificate("credential bundle is not issued yet".to_owned()))
            }
            Life::Refused(Refused { kind, reason, message }) => {
                let verb = kind.to_lowercase();
                let why =
                    format!("PodCertificateRequest was permanently {verb}: reason={reason:?} message={message:?}");
                Err(VolumeError::Certificate(why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now};
    use json::{Value, json};

    const CHAIN: &str = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";

    fn asked(name: &str) -> Asked {
        Asked { key: format!("key of {name}"), name: name.to_owned(), revision: 1 }
    }

    /// A request that ended like this; its certificate is to be renewed after an hour and ends after two.
    fn request(end: &str) -> PodCertificateRequest {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Why", "message": "so", "lastTransitionTime": now()});
        let conditions: Vec<Value> = (!end.is_empty()).then(|| condition(end)).into_iter().collect();
        json::from_value(json!({"metadata": {}, "spec": {}, "status": {
            "conditions": conditions, "certificateChain": format!("issued by us\n{CHAIN}"),
            "notBefore": now(), "beginRefreshAt": at(3600), "notAfter": at(7200),
        }}))
        .unwrap()
    }

    fn learn(life: &mut Life, end: &str) -> Option<Warning> {
        life.learn("d", Seen::There(&request(end)), now(), Duration::from_secs(30))
    }

    #[test]
    fn a_certificate_is_asked_for_waited_for_and_renewed_in_time() {
        let mut life = Life::default();
        assert!(life.wants_request(now()));
        life.ask(asked("r1"));
        assert!(!life.wants_request(at(99_999)), "one request at a time");
        for seen in [Seen::NotYet, Seen::There(&request(""))] {
            assert_eq!(life.learn("d", seen, now(), Duration::ZERO), None);
            assert_eq!(life.credential().unwrap_err().to_string(), "credential bundle is not issued yet");
            assert_eq!(life.due(), None, "only news change anything");
        }
        assert_eq!(learn(&mut life, "Issued"), None);
        let first = Credential { key: "key of r1".into(), chain: CHAIN.into() };
        assert_eq!(life.credential().unwrap(), first);
        assert_eq!(life.due(), Some(at(3630)), "the moment that the signer named, and the jitter");
        assert!(!life.wants_request(at(3629)) && life.wants_request(at(3630)));
        // A renewal that fails leaves what is there.
        assert!(life.put_off(at(3630)));
        assert!(!life.wants_request(at(3689)) && life.wants_request(at(3690)));
        life.ask(asked("r2"));
        assert_eq!(life.credential().unwrap(), first);
        assert_eq!(learn(&mut life, "Issued"), None);
        assert_eq!(life.credential().unwrap().key, "key of r2");
    }

    #[test]
    fn a_request_that_is_gone_is_made_anew() {
        let gone = |life: &mut Life| life.learn("d", Seen::Gone, now(), Duration::ZERO);
        let mut life = Life::default();
        life.ask(asked("r1"));
        assert_eq!(gone(&mut life), None);
        assert!(life.wants_request(now()));
        assert!(!life.put_off(now()), "there is no certificate yet");
        life.ask(asked("r2"));
        learn(&mut life, "Issued");
        life.ask(asked("r3"));
        gone(&mut life);
        assert!(life.wants_request(at(3630)));
        assert_eq!(life.credential().unwrap().key, "key of r2");
    }

    #[test]
    fn what_a_signer_refuses_stays_refused_and_is_told_once() {
        for (end, verb, word) in [("Denied", "was denied", "denied"), ("Failed", "failed", "failed")] {
            for has_one in [false, true] {
                let mut life = Life::default();
                life.ask(asked("r1"));
                if has_one {
                    learn(&mut life, "Issued");
                    life.ask(asked("r1"));
                }
                let text = format!("PodCertificateRequest d/r1 {verb}, reason=\"Why\", message=\"so\"");
                assert_eq!(learn(&mut life, end), Some((end, text)));
                assert_eq!(learn(&mut life, end), None);
                assert!(!life.wants_request(at(99_999)));
                let why = format!("PodCertificateRequest was permanently {word}: reason=\"Why\" message=\"so\"");
                assert_eq!(life.credential().unwrap_err().to_string(), why);
            }
        }
    }

    #[test]
    fn a_certificate_that_is_not_renewed_in_time_is_told_of_once_each() {
        let mut life = Life::default();
        life.ask(asked("r1"));
        learn(&mut life, "Issued");
        life.ask(asked("r2"));
        let reasons = |life: &mut Life, seconds: i64| -> Vec<&str> {
            life.warnings(at(seconds)).into_iter().map(|(reason, _)| reason).collect()
        };
        assert_eq!(life.due(), Some(at(4230)));
        assert!(reasons(&mut life, 4230).is_empty());
        assert_eq!(reasons(&mut life, 4231), ["CertificateOverdueForRefresh"]);
        assert_eq!(life.due(), Some(at(7200)));
        assert!(reasons(&mut life, 7200).is_empty());
        assert_eq!(reasons(&mut life, 7201), ["CertificateExpired"]);
        assert_eq!((reasons(&mut life, 9999).len(), life.due()), (0, None));
    }
}
