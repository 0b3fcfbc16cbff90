//! A cluster's folder of keys and certificates, with kubeadm's file names.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{
    Authority, Credential, PkiError, Result, SigningKey, Subject, Usage, VerifyingKey, access, file, inspect,
    kubeconfig,
};

/// The names and addresses of the API server.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// `cluster.local`
    pub cluster_domain: String,
    /// The first address of each service range.
    pub service_addresses: Vec<IpAddr>,
    /// Host names and addresses of this machine, and whatever else clients use.
    pub hosts: Vec<String>,
}

impl Names {
    /// Every name that the serving certificate carries.
    pub fn all(&self) -> Vec<String> {
        let fixed = ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut all: BTreeSet<String> = fixed.iter().map(|s| (*s).to_owned()).collect();
        if !self.cluster_domain.is_empty() {
            all.insert(format!("kubernetes.default.svc.{}", self.cluster_domain));
        }
        all.extend(self.service_addresses.iter().map(IpAddr::to_string));
        all.extend(self.hosts.iter().cloned());
        all.into_iter().collect()
    }
}

/// The keys and certificates of a cluster.
pub struct Pki {
    folder: PathBuf,
    pub authority: Arc<Authority>,
    /// Issues the certificate with which the API server speaks for users to aggregated servers.
    pub front_proxy: Authority,
    pub service_account: SigningKey,
}

impl Pki {
    /// Opens the folder, makes the authorities and the signing key that are missing, and renews authorities of ours.
    pub fn open(folder: &Path) -> Result<Self> {
        file::make_folder(folder)?;
        access::close(folder)?;
        Ok(Pki {
            authority: Arc::new(authority(folder, "ca", "kubernetes")?),
            front_proxy: authority(folder, "front-proxy-ca", "front-proxy-ca")?,
            service_account: signing_key(folder)?,
            folder: folder.to_owned(),
        })
    }

    /// The certificate that the API server shows to its clients.
    pub fn server(&self, names: &Names) -> Result<Credential> {
        self.credential("apiserver", &self.authority, &Subject::server("kube-apiserver", names.all()))
    }

    /// The certificate that the API server shows to kubelets.
    pub fn kubelet_client(&self) -> Result<Credential> {
        let subject = Subject::client("kube-apiserver-kubelet-client", Some("kubeadm:cluster-admins"));
        self.credential("apiserver-kubelet-client", &self.authority, &subject)
    }

    /// The certificate that the API server shows to aggregated servers.
    pub fn front_proxy_client(&self) -> Result<Credential> {
        self.credential("front-proxy-client", &self.front_proxy, &Subject::client("front-proxy-client", None))
    }

    /// The administrator, as a member of `system:masters`.
    pub fn admin(&self) -> Result<Credential> {
        let subject = Subject::client("kubernetes-admin", Some("system:masters"));
        self.credential("admin", &self.authority, &subject)
    }

    /// A component such as `system:kube-scheduler`.
    pub fn component(&self, user: &str) -> Result<Credential> {
        let file = user.strip_prefix("system:").unwrap_or(user);
        self.credential(file, &self.authority, &Subject::client(user, None))
    }

    /// A kubelet's certificate towards the API server.
    pub fn node_client(&self, node: &str) -> Result<Credential> {
        let subject = Subject::client(&format!("system:node:{node}"), Some("system:nodes"));
        self.credential(&node_client(node), &self.authority, &subject)
    }

    /// The files of that certificate and its key.
    pub fn node_client_files(&self, node: &str) -> [PathBuf; 2] {
        self.files(&node_client(node))
    }

    /// A kubelet's certificate towards its clients. `hosts` are the node's names and addresses.
    pub fn node_server(&self, node: &str, hosts: &[String]) -> Result<Credential> {
        let subject = Subject {
            common_name: format!("system:node:{node}"),
            organization: Some("system:nodes".to_owned()),
            hosts: hosts.to_vec(),
            usage: Usage::Server,
        };
        self.credential(&format!("kubelet-server-{node}"), &self.authority, &subject)
    }

    /// A kubeconfig that trusts this cluster.
    pub fn kubeconfig(&self, server: &str, user: &str, credential: &Credential) -> String {
        kubeconfig(server, self.authority.certificate(), user, credential)
    }

    /// `NAME.crt` and `NAME.key`: kept while they are for this subject, from this authority and not old; made again
    /// otherwise. Calling it again later is the renewal.
    pub fn credential(&self, name: &str, authority: &Authority, subject: &Subject) -> Result<Credential> {
        let [certificate_path, key_path] = self.files(name);
        if let (Some(certificate), Some(key)) = (file::read(&certificate_path)?, file::read(&key_path)?)
            && still_right(&certificate, authority, subject)
            && keys_match(&certificate, &key)
        {
            return Ok(Credential { certificate, key });
        }
        let credential = authority.issue(subject)?;
        let written = file::write(&key_path, credential.key.as_bytes())
            .and_then(|()| file::write(&certificate_path, credential.certificate.as_bytes()));
        unless_it_cannot_be_kept(written);
        Ok(credential)
    }

    fn files(&self, name: &str) -> [PathBuf; 2] {
        ["crt", "key"].map(|ending| self.folder.join(format!("{name}.{ending}")))
    }
}

fn node_client(node: &str) -> String {
    format!("kubelet-client-{node}")
}

/// A credential that is made anew at every start works without being kept, as on a full disk; a warning says so.
pub fn unless_it_cannot_be_kept(written: Result<()>) {
    if let Err(error) = written {
        tracing::warn!(
            "{}; what should stand there is used without being kept: make room, or let it be written",
            error.sentence()
        );
    }
}

/// A certificate that can't be read is as good as none: it is made again.
fn still_right(certificate: &str, authority: &Authority, subject: &Subject) -> bool {
    let Ok(facts) = inspect::facts(certificate) else { return false };
    facts.common_name == subject.common_name
        && facts.organizations.first() == subject.organization.as_ref()
        && subject.hosts.iter().all(|h| facts.hosts.contains(h))
        && !facts.wants_renewal(clock::now().as_second())
        && inspect::signed_by(certificate, authority.certificate()).unwrap_or(false)
}

/// A crash between the two writes of a renewal leaves a pair that doesn't fit.
fn keys_match(certificate: &str, key: &str) -> bool {
    inspect::key_belongs_to(certificate, key).unwrap_or(false)
}

fn authority(folder: &Path, name: &str, common_name: &str) -> Result<Authority> {
    let (certificate_path, key_path) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    match (file::read(&certificate_path)?, file::read(&key_path)?) {
        (Some(certificate), Some(key)) => {
            let authority = loaded((&certificate_path, &certificate), (&key_path, &key))?;
            valid_now(authority, &certificate_path, common_name)
        }
        (Some(_), None) => {
            let why = format!(
                "its key {} is missing; put it back, or remove both to make a new authority",
                key_path.display()
            );
            Err(PkiError::broken(certificate_path.display().to_string(), why))
        }
        // Without a certificate the key was never used: a start was cut short.
        (None, _) => {
            let made = Authority::create(common_name)?;
            file::write(&key_path, made.key().as_bytes())?;
            file::write(&certificate_path, made.certificate().as_bytes())?;
            Ok(made)
        }
    }
}

/// An authority from its two files; each error names the file that is wrong.
fn loaded((certificate_path, certificate): (&Path, &str), (key_path, key): (&Path, &str)) -> Result<Authority> {
    if !inspect::is_authority(certificate).map_err(|e| e.in_file(certificate_path))? {
        let why = "it is no authority's certificate (CA:TRUE is missing)";
        return Err(PkiError::broken(certificate_path.display().to_string(), why));
    }
    SigningKey::check(key).map_err(|e| e.in_file(key_path))?;
    if !inspect::key_belongs_to(certificate, key)? {
        let why = format!("it is not the key of {}", certificate_path.display());
        return Err(PkiError::broken(key_path.display().to_string(), why));
    }
    Authority::load(certificate, key).map_err(|e| e.in_file(certificate_path))
}

/// Renews an authority that we made when its certificate is old or not valid yet. One that somebody else made is theirs
/// to renew; that it is not valid is said.
fn valid_now(authority: Authority, path: &Path, common_name: &str) -> Result<Authority> {
    let (facts, now) = (inspect::facts(authority.certificate())?, clock::now().as_second());
    if !facts.wants_renewal(now) {
        return Ok(authority);
    }
    let place = path.display();
    match authority.renewed(common_name)? {
        Some(renewed) => {
            tracing::warn!(
                "{place} was not valid at this time, or soon would not be: it begins anew, with the same key"
            );
            unless_it_cannot_be_kept(file::write(path, renewed.certificate().as_bytes()));
            Ok(renewed)
        }
        None if facts.is_valid(now) => Ok(authority),
        None => {
            tracing::warn!(
                "{place} is not valid at this time, and clients will refuse it; whoever made it must renew it"
            );
            Ok(authority)
        }
    }
}

fn signing_key(folder: &Path) -> Result<SigningKey> {
    let (path, public) = (folder.join("sa.key"), folder.join("sa.pub"));
    let key = match file::read(&path)? {
        Some(pem) => SigningKey::load(&pem).map_err(|e| e.in_file(&path))?,
        None if file::read(&public)?.is_some() => {
            let why = format!(
                "it is missing; put it back, or remove {}, too: a new key is made then, and no token of a service account holds any more",
                public.display()
            );
            return Err(PkiError::broken(path.display().to_string(), why));
        }
        None => {
            let key = SigningKey::create()?;
            file::write(&path, key.private.as_bytes())?;
            key
        }
    };
    match file::read(&public)? {
        None => unless_it_cannot_be_kept(file::write(&public, key.public.pem.as_bytes())),
        Some(pem) => {
            if !VerifyingKey::load_all(&pem).map_err(|e| e.in_file(&public))?.contains(&key.public) {
                let why =
                    format!("it does not hold the public half of {}; remove it to have it made again", path.display());
                return Err(PkiError::broken(public.display().to_string(), why));
            }
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ClientCertificates;

    fn names(host: &str) -> Names {
        Names {
            cluster_domain: "cluster.local".into(),
            service_addresses: vec!["10.96.0.1".parse().unwrap()],
            hosts: vec![host.into()],
        }
    }

    #[test]
    fn opening_twice_keeps_everything_and_a_new_name_renews() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pki");
        let first = Pki::open(&path).unwrap();
        let server = first.server(&names("a")).unwrap();
        let second = Pki::open(&path).unwrap();
        assert_eq!(first.authority.certificate(), second.authority.certificate());
        assert_eq!(first.service_account.private, second.service_account.private);
        assert!(second.server(&names("a")).unwrap() == server);
        let renewed = second.server(&names("b")).unwrap();
        assert!(renewed != server);
        let facts = inspect::facts(&renewed.certificate).unwrap();
        for host in ["localhost", "::1", "10.96.0.1", "b", "kubernetes.default.svc.cluster.local"] {
            assert!(facts.hosts.contains(host), "{host} missing in {:?}", facts.hosts);
        }
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{:?}", entry.path());
        }
        // A pair that doesn't fit is made again.
        file::write(&path.join("apiserver.key"), server.key.as_bytes()).unwrap();
        assert!(second.server(&names("b")).unwrap() != renewed);
    }

    #[test]
    fn only_our_authority_vouches_for_clients() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ours, theirs) = (Pki::open(a.path()).unwrap(), Pki::open(b.path()).unwrap());
        let check = ClientCertificates::new(ours.authority.certificate()).unwrap();
        let chain = inspect::chain(&ours.node_client("n1").unwrap().certificate).unwrap();
        let facts = check.verify(&chain).unwrap();
        assert_eq!(
            (facts.common_name.as_str(), facts.organizations),
            ("system:node:n1", vec!["system:nodes".to_owned()])
        );
        let stranger = inspect::chain(&theirs.admin().unwrap().certificate).unwrap();
        assert!(check.verify(&stranger).is_err());
        let not_a_client = inspect::chain(&ours.server(&names("a")).unwrap().certificate).unwrap();
        assert!(check.verify(&not_a_client).is_err());
    }

    #[test]
    fn an_authority_without_its_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        Pki::open(folder.path()).unwrap();
        std::fs::remove_file(folder.path().join("ca.key")).unwrap();
        let error = Pki::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("ca.crt") && error.contains("ca.key") && error.contains("missing"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn certificates_renew_in_the_last_third_of_their_life() {
        let folder = tempfile::tempdir().unwrap();
        let start = 1_700_000_000;
        let at = |second: i64| clock::simulate(clock::Timestamp::from_second(second).unwrap(), second.unsigned_abs());
        at(start);
        let pki = Pki::open(folder.path()).unwrap();
        let first = pki.admin().unwrap();
        at(start + crate::authority::CERTIFICATE_SECONDS / 2);
        assert!(pki.admin().unwrap() == first);
        at(start + crate::authority::CERTIFICATE_SECONDS * 3 / 4);
        assert!(pki.admin().unwrap() != first);
    }

    /// Starts while the clock is ahead or behind, then with the right one: everything that skiff issues is valid again.
    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_wrong_leaves_nothing_behind() {
        let right = 1_700_000_000;
        let at = |second: i64| clock::simulate(clock::Timestamp::from_second(second).unwrap(), second.unsigned_abs());
        let issue = |pki: &Pki| {
            let hosts = ["n1".to_owned()];
            let issued = [
                pki.server(&names("a")),
                pki.kubelet_client(),
                pki.admin(),
                pki.node_client("n1"),
                pki.node_server("n1", &hosts),
                pki.component("system:kube-scheduler"),
            ];
            let mut all: Vec<Credential> = issued.into_iter().map(Result::unwrap).collect();
            all.push(pki.front_proxy_client().unwrap());
            all
        };
        let day = 24 * 3600;
        for wrong in [right + 400 * day, right + 4000 * day, right - 400 * day, 0] {
            let folder = tempfile::tempdir().unwrap();
            at(wrong);
            let before = Pki::open(folder.path()).unwrap();
            let old = issue(&before);
            at(right);
            let pki = Pki::open(folder.path()).unwrap();
            let new = issue(&pki);
            let mut valid = vec![pki.authority.certificate().to_owned(), pki.front_proxy.certificate().to_owned()];
            valid.extend(new.iter().map(|c| c.certificate.clone()));
            for pem in &valid {
                let facts = inspect::facts(pem).unwrap();
                assert!(facts.is_valid(right) && facts.is_valid(right - 240), "{wrong}: {facts:?}");
            }
            // The authority keeps its key, so clients that pinned or trust the old certificate are served on.
            let pin = |pki: &Pki| inspect::key_pin(pki.authority.certificate()).unwrap();
            assert_eq!(pin(&before), pin(&pki));
            for trusted in [&before, &pki] {
                let check = ClientCertificates::new(trusted.authority.certificate()).unwrap();
                check.verify(&inspect::chain(&new[2].certificate).unwrap()).unwrap();
                assert!(check.verify(&inspect::chain(&old[2].certificate).unwrap()).is_err(), "{wrong}: the old one");
            }
            // Nothing changes at the next start.
            assert!(issue(&Pki::open(folder.path()).unwrap()) == new, "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_authority_that_somebody_else_made_is_theirs_to_renew() {
        let at = |second: i64| clock::simulate(clock::Timestamp::from_second(second).unwrap(), 1);
        at(1_700_000_000);
        let theirs = Authority::create("kubernetes of somebody").unwrap();
        let folder = tempfile::tempdir().unwrap();
        file::write(&folder.path().join("ca.crt"), theirs.certificate().as_bytes()).unwrap();
        file::write(&folder.path().join("ca.key"), theirs.key().as_bytes()).unwrap();
        at(1_600_000_000);
        assert_eq!(Pki::open(folder.path()).unwrap().authority.certificate(), theirs.certificate());
    }

    #[test]
    fn each_file_that_is_wrong_is_named() {
        let other = Authority::create("other").unwrap();
        let leaf = other.issue(&Subject::client("a", None)).unwrap();
        let stranger = SigningKey::create().unwrap();
        let check = |name: &str, content: &str, expected: &str| {
            let folder = tempfile::tempdir().unwrap();
            Pki::open(folder.path()).unwrap();
            let path = folder.path().join(name);
            file::write(&path, content.as_bytes()).unwrap();
            let said = Pki::open(folder.path()).err().map(|e| e.to_string()).unwrap_or_default();
            let begin = format!("{} is broken: ", path.display());
            assert!(said.starts_with(&begin) && said.contains(expected), "{name}: {said}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content, "it is left as it was");
        };
        let pem = |content: &str| format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n");
        for ca in ["ca", "front-proxy-ca"] {
            let (certificate, key) = (format!("{ca}.crt"), format!("{ca}.key"));
            check(&certificate, "", "it holds no certificate");
            check(&certificate, "rubbish", "it holds no certificate");
            check(&certificate, &pem("AAAA"), "");
            check(&certificate, &leaf.certificate, "no authority's certificate");
            check(&key, "", "openssl pkcs8");
            check(&key, "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n", "openssl pkcs8");
            check(&key, other.key(), "it is not the key of");
        }
        check("sa.key", "", "openssl pkcs8");
        check("sa.key", "rubbish", "openssl pkcs8");
        check("sa.pub", "", "it holds no key");
        check("sa.pub", "rubbish", "it holds no key");
        check("sa.pub", &stranger.public.pem, "it does not hold the public half of");
    }

    #[test]
    fn a_signing_key_that_is_gone_is_not_made_again_beside_its_public_half() {
        let folder = tempfile::tempdir().unwrap();
        let first = Pki::open(folder.path()).unwrap();
        let (key, public) = (folder.path().join("sa.key"), folder.path().join("sa.pub"));
        std::fs::remove_file(&key).unwrap();
        let said = Pki::open(folder.path()).err().map(|e| e.to_string()).unwrap_or_default();
        let begin = format!("{} is broken: it is missing; put it back, or remove {}", key.display(), public.display());
        assert!(said.starts_with(&begin), "{said}");
        assert!(!key.exists());
        std::fs::remove_file(&public).unwrap();
        assert_ne!(Pki::open(folder.path()).unwrap().service_account.private, first.service_account.private);
    }

    #[test]
    fn a_certificate_that_cannot_be_kept_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(folder.path()).unwrap();
        // A file of this name can be looked for, but the longer one that it is first written to cannot be made.
        let (name, subject) = ("n".repeat(245), Subject::client("a", None));
        let issued = pki.credential(&name, &pki.authority, &subject).unwrap();
        assert_eq!(inspect::facts(&issued.certificate).unwrap().common_name, "a");
        assert!(!folder.path().join(format!("{name}.key")).exists());
    }
}
