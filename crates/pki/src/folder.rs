//! A cluster's folder of keys and certificates, with kubeadm's file names.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Authority, Credential, PkiError, Result, SigningKey, Subject, Usage, file, inspect, kubeconfig};

/// What the API server is called.
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
    /// Opens the folder and makes the authorities and the signing key that are missing.
    pub fn open(folder: &Path) -> Result<Self> {
        file::make_folder(folder)?;
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
        self.credential(&format!("kubelet-client-{node}"), &self.authority, &subject)
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
        let certificate_path = self.folder.join(format!("{name}.crt"));
        let key_path = self.folder.join(format!("{name}.key"));
        if let (Some(certificate), Some(key)) = (file::read(&certificate_path)?, file::read(&key_path)?)
            && still_right(&certificate, authority, subject)
            && keys_match(&certificate, &key)
        {
            return Ok(Credential { certificate, key });
        }
        let credential = authority.issue(subject)?;
        file::write(&key_path, credential.key.as_bytes())?;
        file::write(&certificate_path, credential.certificate.as_bytes())?;
        Ok(credential)
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
        (Some(certificate), Some(key)) => Authority::load(&certificate, &key),
        (Some(_), None) => {
            let why = format!("its key {} is missing", key_path.display());
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

fn signing_key(folder: &Path) -> Result<SigningKey> {
    let path = folder.join("sa.key");
    let key = match file::read(&path)? {
        Some(pem) => SigningKey::load(&pem)?,
        None => {
            let key = SigningKey::create()?;
            file::write(&path, key.private.as_bytes())?;
            key
        }
    };
    let public = folder.join("sa.pub");
    if file::read(&public)?.as_deref() != Some(&key.public.pem) {
        file::write(&public, key.public.pem.as_bytes())?;
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

    #[test]
    fn a_signed_request_keeps_its_subject() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(folder.path()).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "dev");
        let request = params.serialize_request(&key).unwrap().pem().unwrap();
        let signed = pki.authority.sign_request(&request, &["client auth".to_owned()], 3600).unwrap();
        let check = ClientCertificates::new(pki.authority.certificate()).unwrap();
        let facts = check.verify(&inspect::chain(&signed).unwrap()).unwrap();
        assert_eq!((facts.common_name.as_str(), facts.organizations), ("jane", vec!["dev".to_owned()]));
        assert!(pki.authority.sign_request("rubbish", &[], 3600).is_err());
    }
}
