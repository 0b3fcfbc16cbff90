//! Client certificates: the common name is the user, the organizations are the user's groups.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use clock::{Duration, Instant};
use parking_lot::Mutex;
use pki::ClientCertificates;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use super::token::Rejected;
use crate::auth::User;

/// The key of a user's `extra` that names the credential that was shown.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// How long a checked certificate is believed, and how many are remembered. A connection sends thousands of requests
/// with the same one.
const REMEMBERED: Duration = Duration::from_secs(60);
const REMEMBERED_CERTIFICATES: usize = 4096;

/// Checks against the client authorities.
pub struct Certificates {
    authorities: ClientCertificates,
    remembered: Mutex<Remembered>,
}

/// Certificates that were verified since the authorities changed last, with the end of the trust in them.
#[derive(Default)]
struct Remembered {
    changes: u64,
    users: HashMap<CertificateDer<'static>, (Instant, Arc<User>)>,
}

impl Remembered {
    fn of(&mut self, changes: u64) -> &mut HashMap<CertificateDer<'static>, (Instant, Arc<User>)> {
        if self.changes != changes {
            self.changes = changes;
            self.users.clear();
        }
        &mut self.users
    }
}

impl Certificates {
    pub fn new(authorities: ClientCertificates) -> Self {
        Certificates { authorities, remembered: Mutex::default() }
    }

    pub fn check(&self, chain: &[CertificateDer<'static>]) -> Result<Option<Arc<User>>, Rejected> {
        let Some(leaf) = chain.first() else { return Ok(None) };
        let (now, changes) = (Instant::now(), self.authorities.changes());
        if let Some((until, user)) = self.remembered.lock().of(changes).get(leaf)
            && *until > now
        {
            return Ok(Some(user.clone()));
        }
        let facts = self.authorities.verify(chain).map_err(|why| format!("x509: {why}"))?;
        if facts.common_name.is_empty() {
            return Ok(None);
        }
        let digest: String = Sha256::digest(leaf).iter().map(|b| format!("{b:02x}")).collect();
        let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])]);
        let user = User { extra, ..User::new(facts.common_name, facts.organizations) };
        let user = Arc::new(user.authenticated());
        let life = Duration::from_secs((facts.not_after - clock::now().as_second()).max(0).unsigned_abs());
        // What was verified under other authorities counts for this request alone.
        if self.authorities.changes() != changes {
            return Ok(Some(user));
        }
        let mut remembered = self.remembered.lock();
        let remembered = remembered.of(changes);
        if remembered.len() >= REMEMBERED_CERTIFICATES {
            remembered.retain(|_, (until, _)| *until > now);
        }
        if remembered.len() < REMEMBERED_CERTIFICATES {
            remembered.insert(leaf.clone(), (now + REMEMBERED.min(life), user.clone()));
        }
        Ok(Some(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_names_user_and_group() {
        let authority = pki::Authority::create("ca").unwrap();
        let subject = pki::Subject::client("system:node:n1", Some("system:nodes"));
        let chain = pki::inspect::chain(&authority.issue(&subject).unwrap().certificate).unwrap();
        let check = Certificates::new(ClientCertificates::new(authority.certificate()).unwrap());
        for _ in 0..2 {
            let user = check.check(&chain).unwrap().unwrap();
            assert_eq!(user.node_name(), Some("n1"));
            assert_eq!(user.groups, ["system:nodes", "system:authenticated"]);
            assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        }
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
