//! A node's certificates: asked for with a certificate signing request, kept in the data folder, renewed while the node
//! runs.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::bail;
use api::rules::certificate_request::{BY_SKIFF, NODE_SERVICES, node_services};
use client::{Api, Client, connect::Replaceable};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use pki::{Credential, Serving, Subject, Usage, Wish, file, inspect, inspect::Facts};

use super::certificate_figures::Figures;
pub use super::certificate_purpose::{Purpose, user};
use crate::control_plane::fresh;

/// Certificates of one node, in one folder.
#[derive(Clone)]
pub struct Holder {
    pub folder: std::path::PathBuf,
    pub node: String,
    /// The node's names and addresses, which the serving certificate carries.
    pub hosts: Vec<String>,
    /// The cluster's authority, PEM.
    pub authority: String,
}

impl Holder {
    fn subject(&self, purpose: Purpose) -> Subject {
        let (user, group) = match purpose {
            Purpose::Client | Purpose::Serving => (user(&self.node), "system:nodes"),
            Purpose::Services => (node_services(&self.node), NODE_SERVICES),
        };
        let serves = purpose == Purpose::Serving;
        Subject {
            common_name: user,
            organization: Some(group.to_owned()),
            hosts: if serves { self.hosts.clone() } else { Vec::new() },
            usage: if serves { Usage::Server } else { Usage::Client },
        }
    }

    /// The files of a certificate and its key.
    pub fn files(&self, purpose: Purpose) -> [std::path::PathBuf; 2] {
        ["crt", "key"].map(|ending| self.folder.join(format!("{}.{ending}", purpose.file())))
    }

    /// The certificate at hand, when it is this node's, of this cluster and still valid; and whether it wants renewal.
    pub fn held(&self, purpose: Purpose) -> anyhow::Result<Option<(Credential, bool)>> {
        let path = |ending: &str| self.folder.join(format!("{}.{ending}", purpose.file()));
        let (Some(certificate), Some(key)) = (file::read(&path("crt"))?, file::read(&path("key"))?) else {
            return Ok(None);
        };
        let credential = Credential { certificate, key };
        let now = clock::now().as_second();
        let facts = self.facts(&credential, purpose).filter(|facts| facts.is_valid(now));
        Ok(facts.map(|facts| (credential, facts.wants_renewal(now))))
    }

    /// The facts in the certificate, when it is this node's, of this cluster and for this key.
    fn facts(&self, credential: &Credential, purpose: Purpose) -> Option<Facts> {
        let certificate = &credential.certificate;
        let facts = inspect::facts(certificate).ok()?;
        let wanted = self.subject(purpose);
        let usable = facts.common_name == wanted.common_name
            && facts.organizations.iter().eq(&wanted.organization)
            && wanted.hosts.iter().all(|h| facts.hosts.contains(h))
            && inspect::signed_by(certificate, &self.authority).unwrap_or(false)
            // A crash between the two writes of a renewal leaves a pair that does not fit.
            && inspect::key_belongs_to(certificate, &credential.key).unwrap_or(false);
        usable.then_some(facts)
    }

    /// Asks for a certificate, waits until it is signed, and keeps it.
    pub async fn ask(&self, client: &Client, purpose: Purpose, patience: Duration) -> anyhow::Result<Credential> {
        let wish = Wish::new(&self.subject(purpose))?;
        let credential = Credential { certificate: request(client, &wish, purpose, patience).await?, key: wish.key };
        if self.facts(&credential, purpose).is_none() {
            bail!("the cluster signed another certificate than this node asked for; look at who signs there");
        }
        let path = |ending: &str| self.folder.join(format!("{}.{ending}", purpose.file()));
        file::write(&path("key"), credential.key.as_bytes())?;
        file::write(&path("crt"), credential.certificate.as_bytes())?;
        Ok(credential)
    }
}

async fn request(client: &Client, wish: &Wish, purpose: Purpose, patience: Duration) -> anyhow::Result<String> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let mut wanted = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(wish.request.clone().into_bytes()),
            signer_name: purpose.signer().to_owned(),
            usages: Some(purpose.usages()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    wanted.metadata.generate_name = Some("csr-".to_owned());
    wanted.metadata.annotations = Some([(BY_SKIFF.to_owned(), String::new())].into());
    let made = api.create(&wanted).await?;
    let name = made.metadata.name.unwrap_or_default();
    let decided = |csr: Option<&CertificateSigningRequest>| csr.is_none_or(|csr| outcome(csr).is_some());
    match clock::timeout(patience, api.wait(&name, decided)).await {
        Ok(Some(csr)) => outcome(&csr)
            .unwrap_or(Err("nothing was decided".to_owned()))
            .map_err(|why| anyhow::anyhow!("the certificate request {name} of this node was refused: {why}")),
        Ok(None) => bail!("the certificate request {name} of this node was deleted before it was signed"),
        Err(_) => bail!(
            "the certificate request {name} of this node was not signed within {} s; approve it with \
             `kubectl certificate approve {name}`, then start the agent again",
            patience.as_secs()
        ),
    }
}

/// The certificate (PEM), or why there will be none; `None` while nothing is decided.
fn outcome(csr: &CertificateSigningRequest) -> Option<Result<String, String>> {
    let status = csr.status.as_ref()?;
    let refused = status.conditions.iter().flatten().find(|c| c.type_ == "Denied" || c.type_ == "Failed");
    if let Some(condition) = refused {
        return Some(Err(condition.message.clone().unwrap_or_else(|| condition.type_.clone())));
    }
    let pem = status.certificate.as_ref().filter(|c| !c.0.is_empty())?;
    Some(String::from_utf8(pem.0.clone()).map_err(|_| "the certificate is not PEM".to_owned()))
}

/// The way of the parts that serve the node's Pods to the API server, with their own certificate.
pub fn services(server: &str, holder: &Holder, credential: &Credential) -> anyhow::Result<Client> {
    let text = pki::kubeconfig(server, &holder.authority, &node_services(&holder.node), credential);
    Ok(client::from_config(&client::Kubeconfig::parse(&text)?.current()?)?)
}

/// How a running node keeps its certificates fresh.
pub struct Renewal {
    pub holder: Holder,
    pub client: Client,
    /// The certificate that the kubelet shows.
    pub serving: Arc<Serving>,
    /// The node's own client and the kubeconfig that it comes from; absent when somebody else looks after them.
    pub own: Option<(Replaceable, std::path::PathBuf, String)>,
    /// The way of the parts that serve the Pods, and the server that it leads to, where these have a certificate of their own.
    pub services: Option<(Replaceable, String)>,
    pub figures: Arc<Figures>,
}

impl Renewal {
    /// Gets the certificates that are missing and renews those that are due, until cancelled.
    pub async fn run(self) {
        /// As long as upstream's kubelet waits for a signature before it asks again.
        const PATIENCE: Duration = Duration::from_secs(15 * 60);
        let mut wait = Duration::from_secs(1);
        loop {
            let done = async {
                self.counted(Purpose::Serving, self.serving(PATIENCE).await)?;
                self.counted(Purpose::Client, self.client(PATIENCE).await)?;
                self.services(PATIENCE).await
            };
            let done = done.await;
            let pause = match done {
                Ok(()) => {
                    wait = Duration::from_secs(1);
                    fresh::LOOK
                }
                Err(error) => {
                    tracing::warn!("cannot renew this node's certificates: {error:#}");
                    wait = (wait * 2).min(Duration::from_secs(300));
                    wait
                }
            };
            clock::sleep(pause).await;
        }
    }

    fn counted(&self, purpose: Purpose, done: anyhow::Result<()>) -> anyhow::Result<()> {
        done.inspect_err(|_| self.figures.failed(purpose))
    }

    async fn serving(&self, patience: Duration) -> anyhow::Result<()> {
        if let Some((_, false)) = self.holder.held(Purpose::Serving)? {
            return Ok(());
        }
        let fresh = self.holder.ask(&self.client, Purpose::Serving, patience).await?;
        self.serving.replace(&fresh)?;
        self.figures.look();
        tracing::info!("the kubelet shows a certificate that the cluster signed");
        Ok(())
    }

    async fn client(&self, patience: Duration) -> anyhow::Result<()> {
        let Some((client, kubeconfig, server)) = &self.own else { return Ok(()) };
        if let Some((_, false)) = self.holder.held(Purpose::Client)? {
            return Ok(());
        }
        let fresh = self.holder.ask(&self.client, Purpose::Client, patience).await?;
        write_kubeconfig(kubeconfig, server, &self.holder, &fresh)?;
        client.replace(client::from_kubeconfig(kubeconfig)?);
        tracing::info!("the node has a new certificate towards the API server");
        Ok(())
    }

    async fn services(&self, patience: Duration) -> anyhow::Result<()> {
        let Some((way, server)) = &self.services else { return Ok(()) };
        if let Some((_, false)) = self.holder.held(Purpose::Services)? {
            return Ok(());
        }
        let fresh = self.holder.ask(&self.client, Purpose::Services, patience).await?;
        way.replace(services(server, &self.holder, &fresh)?);
        Ok(())
    }
}

/// The node's own kubeconfig.
pub fn write_kubeconfig(path: &Path, server: &str, holder: &Holder, credential: &Credential) -> anyhow::Result<()> {
    let text = pki::kubeconfig(server, &holder.authority, &user(&holder.node), credential);
    Ok(file::keep(path, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use api::rules::certificate_request::CertificateRequest;
    use json::{Value, json};
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus;

    use super::*;

    /// A clock that was ahead when the certificate was signed.
    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_is_not_valid_yet_is_none() {
        let at = |second: i64| clock::simulate(clock::Timestamp::from_second(second).unwrap(), 1);
        let folder = tempfile::tempdir().unwrap();
        at(1_750_000_000);
        let authority = pki::Authority::create("test").unwrap();
        let holder = Holder {
            folder: folder.path().to_owned(),
            node: "a".to_owned(),
            hosts: vec!["a".to_owned()],
            authority: authority.certificate().to_owned(),
        };
        let issued = authority.issue(&holder.subject(Purpose::Serving)).unwrap();
        file::write(&folder.path().join("node-server.crt"), issued.certificate.as_bytes()).unwrap();
        file::write(&folder.path().join("node-server.key"), issued.key.as_bytes()).unwrap();
        assert!(holder.held(Purpose::Serving).unwrap().is_some());
        at(1_700_000_000);
        assert!(holder.held(Purpose::Serving).unwrap().is_none());
    }

    #[test]
    fn a_certificate_is_kept_while_it_is_this_nodes_and_this_clusters() {
        let folder = tempfile::tempdir().unwrap();
        let authority = pki::Authority::create("test").unwrap();
        let holder = |node: &str, hosts: &[&str], authority: &pki::Authority| Holder {
            folder: folder.path().to_owned(),
            node: node.to_owned(),
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            authority: authority.certificate().to_owned(),
        };
        let a = holder("a", &["a", "10.0.0.1"], &authority);
        assert!(a.held(Purpose::Serving).unwrap().is_none());
        let issued = authority.issue(&a.subject(Purpose::Serving)).unwrap();
        file::write(&folder.path().join("node-server.crt"), issued.certificate.as_bytes()).unwrap();
        file::write(&folder.path().join("node-server.key"), issued.key.as_bytes()).unwrap();
        assert!(matches!(a.held(Purpose::Serving).unwrap(), Some((_, false))));
        assert!(holder("b", &[], &authority).held(Purpose::Serving).unwrap().is_none());
        assert!(holder("a", &["10.0.0.2"], &authority).held(Purpose::Serving).unwrap().is_none());
        let other = pki::Authority::create("test").unwrap();
        assert!(holder("a", &["a"], &other).held(Purpose::Serving).unwrap().is_none());
        file::write(&folder.path().join("node-server.key"), other.key().as_bytes()).unwrap();
        assert!(a.held(Purpose::Serving).unwrap().is_none(), "a key that does not fit");
    }

    /// The life of the certificates that the cluster of the tests signs, and the moment at which a third of it is left: they
    /// begin five minutes before they are signed.
    const LIFE: i64 = 3600;
    const DUE: i64 = LIFE - (LIFE + 300) / 3;

    /// A cluster that signs what it is asked for, or leaves it lying.
    #[derive(Clone)]
    struct Cluster {
        authority: Arc<pki::Authority>,
        asked: Arc<parking_lot::Mutex<Vec<Value>>>,
        sleeps: Arc<std::sync::atomic::AtomicBool>,
    }

    impl Cluster {
        fn new() -> Cluster {
            let authority = Arc::new(pki::Authority::create("test").unwrap());
            Cluster { authority, asked: Arc::default(), sleeps: Arc::default() }
        }

        fn sleeps(&self, sleeps: bool) {
            self.sleeps.store(sleeps, std::sync::atomic::Ordering::Relaxed);
        }

        fn asked(&self) -> usize {
            self.asked.lock().len()
        }

        fn sign(&self, asked: &CertificateSigningRequest) -> String {
            let wish = CertificateRequest::parse(&asked.spec.request.0).unwrap();
            let serves = asked.spec.signer_name == Purpose::Serving.signer();
            let grant = pki::Grant {
                subject: &wish.subject,
                dns_names: &wish.dns_names,
                addresses: &wish.addresses,
                emails: &wish.emails,
                uris: &wish.uris,
                public_key: &wish.public_key,
                digital_signature: true,
                key_encipherment: false,
                usage: if serves { Usage::Server } else { Usage::Client },
                seconds: LIFE,
            };
            self.authority.grant(&grant).unwrap()
        }

        async fn answer(self, request: http::Request<client::Body>) -> Value {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            if is_watch {
                // Nothing changes any more: what is decided is decided when it is made.
                std::future::pending::<()>().await;
            }
            if request.method() == http::Method::GET {
                let name =
                    |held: &&Value| request.uri().to_string().contains(held["metadata"]["name"].as_str().unwrap());
                let items: Vec<Value> = self.asked.lock().iter().filter(name).cloned().collect();
                return json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
            }
            let body = request.into_body().collect_bytes().await.unwrap();
            let mut asked: CertificateSigningRequest =
                json::from_value(serde_json::from_slice(&body).unwrap()).unwrap();
            asked.metadata.name = Some(format!("csr-{}-end", self.asked()));
            if !self.sleeps.load(std::sync::atomic::Ordering::Relaxed) {
                let certificate = Some(ByteString(self.sign(&asked).into_bytes()));
                asked.status = Some(CertificateSigningRequestStatus { certificate, ..Default::default() });
            }
            let asked: Value = serde_json::from_str(&serde_json::to_string(&asked).unwrap()).unwrap();
            self.asked.lock().push(asked.clone());
            asked
        }

        fn client(&self) -> Client {
            let cluster = self.clone();
            client::in_process(tower::service_fn(move |request| {
                let answer = cluster.clone().answer(request);
                async move {
                    let body = bytes::Bytes::from(answer.await.to_string());
                    Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::new(body)))
                }
            }))
        }
    }

    /// The certificate that a client of this server sees.
    async fn shown(serving: &Arc<Serving>) -> Facts {
        let (near, far) = tokio::io::duplex(1 << 16);
        let server =
            tokio_rustls::TlsAcceptor::from(Arc::new(pki::tls::server_config(serving.clone(), None, &[]).unwrap()));
        let ours = pki::tls::client_config_believing_all(None, &[]).unwrap();
        let name = rustls_pki_types::ServerName::try_from("a").unwrap();
        let (accepted, connected) =
            tokio::join!(server.accept(near), tokio_rustls::TlsConnector::from(Arc::new(ours)).connect(name, far));
        accepted.unwrap();
        let connected = connected.unwrap();
        inspect::facts_der(&connected.get_ref().1.peer_certificates().unwrap()[0]).unwrap()
    }

    /// A node whose own way to its server is replaced together with its certificate.
    struct Renewed {
        cluster: Cluster,
        holder: Holder,
        serving: Arc<Serving>,
        kubeconfig: std::path::PathBuf,
        /// The client that the node's parts have all the time.
        own: Client,
        task: tokio::task::JoinHandle<()>,
        folder: tempfile::TempDir,
    }

    impl Renewed {
        fn begin() -> Renewed {
            let (folder, cluster) = (tempfile::tempdir().unwrap(), Cluster::new());
            let holder = Holder {
                folder: folder.path().to_owned(),
                node: "a".to_owned(),
                hosts: vec!["a".to_owned(), "10.0.0.1".to_owned()],
                authority: cluster.authority.certificate().to_owned(),
            };
            let first = pki::Authority::create("a").unwrap().issue(&holder.subject(Purpose::Serving)).unwrap();
            let serving = Serving::new(&first).unwrap();
            let kubeconfig = folder.path().join("kubeconfig");
            // Nobody listens there: a client that goes this way was replaced.
            let server = "https://127.0.0.1:1".to_owned();
            let (own, way) = client::connect::replaceable(cluster.client());
            let (_, of_services) = client::connect::replaceable(cluster.client());
            let renewal = Renewal {
                holder: holder.clone(),
                client: cluster.client(),
                serving: serving.clone(),
                own: Some((way, kubeconfig.clone(), server.clone())),
                services: Some((of_services, server)),
                figures: Figures::new("a", serving.clone(), None),
            };
            let task = tokio::spawn(renewal.run());
            Renewed { cluster, holder, serving, kubeconfig, own, task, folder }
        }

        fn ends(&self) -> [i64; 3] {
            [Purpose::Serving, Purpose::Client, Purpose::Services].map(|purpose| {
                let (held, _) = self.holder.held(purpose).unwrap().expect("a valid certificate");
                inspect::facts(&held.certificate).unwrap().not_after
            })
        }

        /// Waits that long, and looks every minute whether what is shown and held is valid, and the same.
        async fn wait(&self, seconds: i64) {
            for _ in 0..seconds / 60 {
                clock::sleep(Duration::from_secs(60)).await;
                let (shown, now) = (shown(&self.serving).await, clock::now().as_second());
                assert!(shown.is_valid(now), "{} s after its end", now - shown.not_after);
                assert_eq!(shown.not_after, self.ends()[0]);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_runs_gets_new_certificates_before_its_own_end() {
        clock::simulate(clock::Timestamp::from_second(1_750_000_000).unwrap(), 1);
        let node = Renewed::begin();
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(node.own.clone());
        assert!(nodes.list(&[]).await.is_ok(), "the way that it begins with leads to the cluster");
        clock::sleep(Duration::from_secs(1)).await;
        let first = node.ends();
        assert_eq!(
            (node.cluster.asked(), shown(&node.serving).await.not_after),
            (3, first[0]),
            "those that are missing"
        );
        assert!(nodes.list(&[]).await.is_err(), "the node goes the way of its kubeconfig from now on");
        let config = std::fs::read_to_string(&node.kubeconfig).unwrap();
        node.wait(DUE - 120).await;
        assert_eq!((node.cluster.asked(), node.ends()), (3, first), "none is due yet");
        node.wait(240).await;
        let second = node.ends();
        assert_eq!(node.cluster.asked(), 6, "each is asked for once");
        assert!(first.iter().zip(second).all(|(first, second)| second > first + DUE - 120), "{first:?} {second:?}");
        assert_ne!(std::fs::read_to_string(&node.kubeconfig).unwrap(), config);
        // Each has a key of its own, and the request was made with it.
        let keys = [Purpose::Serving, Purpose::Client, Purpose::Services].map(|purpose| {
            let [certificate, key] = node.holder.files(purpose).map(|path| std::fs::read_to_string(path).unwrap());
            assert!(inspect::key_belongs_to(&certificate, &key).unwrap());
            key
        });
        assert!(keys[0] != keys[1] && keys[1] != keys[2]);
        assert!(!node.task.is_finished());
        node.task.abort();
        drop(node.folder);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_sign_for_a_while_costs_no_certificate() {
        clock::simulate(clock::Timestamp::from_second(1_750_000_000).unwrap(), 1);
        let node = Renewed::begin();
        clock::sleep(Duration::from_secs(1)).await;
        let first = node.ends();
        node.cluster.sleeps(true);
        node.wait(DUE + 300).await;
        assert_eq!((node.cluster.asked(), node.ends()), (4, first), "it waits for the first of the three");
        node.cluster.sleeps(false);
        // A quarter of an hour after it has asked, it asks anew.
        node.wait(720).await;
        assert_eq!(node.cluster.asked(), 4 + 3);
        assert!(first.iter().zip(node.ends()).all(|(first, second)| second > first + DUE));
        node.task.abort();
        drop(node.folder);
    }

    #[test]
    fn what_became_of_a_request() {
        let csr = |status: Value| -> CertificateSigningRequest {
            json::from_value(json!({
                "metadata": {}, "spec": {"request": "", "signerName": "s"}, "status": status,
            }))
            .unwrap()
        };
        let condition = |kind: &str| json!([{"type": kind, "status": "True", "message": "because"}]);
        assert_eq!(outcome(&csr(json!({}))), None);
        assert_eq!(outcome(&csr(json!({"conditions": condition("Approved")}))), None);
        assert_eq!(outcome(&csr(json!({"conditions": condition("Denied")}))), Some(Err("because".into())));
        let issued = json!({"conditions": condition("Approved"), "certificate": "UEVN"});
        assert_eq!(outcome(&csr(issued)), Some(Ok("PEM".into())));
    }
}
