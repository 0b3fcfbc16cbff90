//! Client certificates: the common name is the user, the organizations are the user's groups; the subject may say a UID.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use clock::{Duration, Instant};
use meter::{Metric, Metrics, Series};
use parking_lot::Mutex;
use pki::ClientCertificates;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use super::token::Rejected;
use crate::auth::User;

/// The key of a user's `extra` that names the credential that was shown.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The name by which API servers go to kubelets, where it opens everything. A node says itself where its kubelet listens: one that
/// names an API server would have whoever may ask that node's kubelet something ask the API server, with an administrator's
/// rights. So it is nobody's name here.
const KUBELETS_CLIENT: &str = "kube-apiserver-kubelet-client";

/// How long a checked certificate is believed, and how many are remembered. A connection sends thousands of requests
/// with the same one.
const REMEMBERED: Duration = Duration::from_secs(60);
const REMEMBERED_CERTIFICATES: usize = 4096;

static LIFE: Metric = Metric::histogram(
    "apiserver_client_certificate_expiration_seconds",
    "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
    &[
        0.0,
        1800.0,
        3600.0,
        7200.0,
        21_600.0,
        43_200.0,
        86_400.0,
        172_800.0,
        345_600.0,
        604_800.0,
        2_592_000.0,
        7_776_000.0,
        15_552_000.0,
        31_104_000.0,
    ],
);

/// A certificate that was checked.
struct Known {
    until: Instant,
    /// When it ends, in seconds.
    not_after: i64,
    user: Arc<User>,
}

/// Checks against the client authorities.
pub struct Certificates {
    authorities: ClientCertificates,
    /// Whether the UID of a subject is the user's.
    uids: bool,
    remembered: Mutex<Remembered>,
    metrics: Metrics,
    life: Arc<Series>,
}

/// Certificates that were verified since the authorities changed last.
#[derive(Default)]
struct Remembered {
    changes: u64,
    users: HashMap<CertificateDer<'static>, Known>,
}

impl Remembered {
    fn of(&mut self, changes: u64) -> &mut HashMap<CertificateDer<'static>, Known> {
        if self.changes != changes {
            self.changes = changes;
            self.users.clear();
        }
        &mut self.users
    }
}

impl Certificates {
    pub fn new(authorities: ClientCertificates, uids: bool) -> Self {
        let metrics = Metrics::new();
        let life = metrics.series(&LIFE, &[]);
        Certificates { authorities, uids, remembered: Mutex::default(), metrics, life }
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.metrics.render()
    }

    pub fn check(&self, chain: &[CertificateDer<'static>]) -> Result<Option<Arc<User>>, Rejected> {
        let Some(leaf) = chain.first() else { return Ok(None) };
        let (now, changes) = (Instant::now(), self.authorities.changes());
        if let Some(known) = self.remembered.lock().of(changes).get(leaf).filter(|known| known.until > now) {
            self.life.observe((known.not_after - clock::now().as_second()) as f64);
            return Ok(Some(known.user.clone()));
        }
        let facts = self.authorities.verify(chain).map_err(|why| format!("x509: {why}"))?;
        if facts.common_name.is_empty() {
            return Ok(None);
        }
        if facts.common_name == KUBELETS_CLIENT {
            return Err(format!("x509: a certificate of {KUBELETS_CLIENT} is for kubelets alone"));
        }
        let digest = base16ct::lower::encode_string(&Sha256::digest(leaf));
        let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])]);
        let uid = if self.uids { uid(&facts.uids)? } else { String::new() };
        let user = User { uid, extra, ..User::new(facts.common_name, facts.organizations) };
        let user = Arc::new(user.authenticated());
        let left = facts.not_after - clock::now().as_second();
        self.life.observe(left as f64);
        let life = Duration::from_secs(left.max(0).unsigned_abs());
        // A user who was verified under other authorities counts for this request alone.
        if self.authorities.changes() != changes {
            return Ok(Some(user));
        }
        let mut remembered = self.remembered.lock();
        let remembered = remembered.of(changes);
        if remembered.len() >= REMEMBERED_CERTIFICATES {
            remembered.retain(|_, known| known.until > now);
        }
        if remembered.len() < REMEMBERED_CERTIFICATES {
            let (until, not_after) = (now + REMEMBERED.min(life), facts.not_after);
            remembered.insert(leaf.clone(), Known { until, not_after, user: user.clone() });
        }
        Ok(Some(user))
    }
}

/// The one UID that a subject says, where it says any.
fn uid(all: &[Option<String>]) -> Result<String, Rejected> {
    let all = all.iter().map(Option::as_deref).collect::<Option<Vec<&str>>>();
    match all.ok_or("unable to parse UID into a string")?.as_slice() {
        [] => Ok(String::new()),
        [""] => Err("UID cannot be an empty string".to_owned()),
        [one] => Ok((*one).to_owned()),
        many => Err(format!("expected 1 UID, but found multiple: [{}]", many.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_says_one_uid_or_none() {
        let check = |uids: &[Option<&str>], expected: Result<&str, &str>| {
            let uids: Vec<Option<String>> = uids.iter().map(|uid| uid.map(str::to_owned)).collect();
            assert_eq!(uid(&uids).as_deref().map_err(String::as_str), expected, "{uids:?}");
        };
        check(&[], Ok(""));
        check(&[Some("u-1")], Ok("u-1"));
        check(&[Some("")], Err("UID cannot be an empty string"));
        check(&[None], Err("unable to parse UID into a string"));
        check(&[Some("a"), Some("b")], Err("expected 1 UID, but found multiple: [a b]"));
        check(&[Some("a"), None], Err("unable to parse UID into a string"));
    }

    /// As `openssl` makes it with the attribute 1.3.6.1.4.1.57683.2.
    const WITH_UID: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBXjCCAQMCFC9XPc1iNkgaBzPe0OUBzF8M+qVLMAoGCCqGSM49BAMCMDExDDAK\n\
BgNVBAoMA2RldjENMAsGA1UEAwwEamFuZTESMBAGCSsGAQQBg8JTAgwDdS0xMB4X\n\
DTI2MTEyNzAxMDg1N1oXDTI2MTEyODAxMDg1N1owMTEMMAoGA1UECgwDZGV2MQ0w\n\
CwYDVQQDDARqYW5lMRIwEAYJKwYBBAGDwlMCDAN1LTEwWTATBgcqhkjOPQIBBggq\n\
hkjOPQMBBwNCAAS7YEPkgOuuroQWuNojPrOSIrDUGMElMM936XK1ebYLgBwc3WdL\n\
9D2M8UPdEVjKTIEyNUnZF6wP/lAQ1odqm3tsMAoGCCqGSM49BAMCA0kAMEYCIQCc\n\
xDPh7STtRcEqQPS4VvOS+/Y+x2DN00MhLHVo0jxn9gIhAIDyqvrXHhQNBtBOl9qK\n\
Wqn1iGZmn84rNQ81vwOQnB10\n\
-----END CERTIFICATE-----\n";

    #[test]
    fn the_uid_is_an_attribute_of_the_subject() {
        let facts = pki::inspect::facts(WITH_UID).unwrap();
        assert_eq!((facts.common_name.as_str(), facts.organizations.len()), ("jane", 1));
        assert_eq!(facts.uids, [Some("u-1".to_owned())]);
    }

    #[test]
    fn the_certificate_names_user_and_group() {
        let authority = pki::Authority::create("ca").unwrap();
        let subject = pki::Subject::client("system:node:n1", Some("system:nodes"));
        let chain = pki::inspect::chain(&authority.issue(&subject).unwrap().certificate).unwrap();
        let check = Certificates::new(ClientCertificates::new(authority.certificate()).unwrap(), true);
        for _ in 0..2 {
            let user = check.check(&chain).unwrap().unwrap();
            assert_eq!(user.node_name(), Some("n1"));
            assert_eq!(user.groups, ["system:nodes", "system:authenticated"]);
            assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        }
        // Both requests, with the certificate's whole life before it.
        let counted = "apiserver_client_certificate_expiration_seconds_count 2\n";
        assert!(check.render().contains(counted), "{}", check.render());
        assert!(check.render().contains("expiration_seconds_bucket{le=\"1800\"} 0\n"));
        let other = pki::Authority::create("ca").unwrap();
        let stranger = pki::inspect::chain(&other.issue(&subject).unwrap().certificate).unwrap();
        assert!(check.check(&stranger).is_err());
        // Authorities change while the server runs, and nobody of the ones before is known any more.
        check.authorities.replace(other.certificate()).unwrap();
        assert_eq!(check.check(&stranger).unwrap().unwrap().node_name(), Some("n1"));
        assert!(check.check(&chain).is_err());
        assert!(check.authorities.replace("nothing").is_err());
        assert!(check.check(&stranger).is_ok());
    }
}
