//! Two nodes over TLS, each with a content store of the test's own.

use std::{collections::HashMap, path::Path, sync::Arc};

use bytes::Bytes;
use client::Caches;
use futures::stream;
use http::{Method, Request, Response, request::Parts};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use json::json;
use listener::{Bounds, Listener, Peer};
use runtime::{
    grpc,
    services::content::{INFO, Info, InfoRequest, InfoResponse, READ, ReadContentRequest, ReadContentResponse},
};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    server::{self, access::Guard},
    tests::{api::Api, world::Gate},
};

const MANIFEST: &[u8] = br#"{"mediaType": "application/vnd.oci.image.manifest.v1+json"}"#;
const LAYER: &[u8] = b"the content of a layer";

fn digest(text: &[u8]) -> String {
    format!("sha256:{}", base16ct::lower::encode_string(&Sha256::digest(text)))
}

/// A containerd that has a manifest and a layer of `r.example.com/team/app`, and says of the digest of `lie` that it is that layer.
fn engine(socket: &Path) {
    let held = || HashMap::from([(digest(MANIFEST), MANIFEST), (digest(LAYER), LAYER), (digest(b"a lie"), LAYER)]);
    let labels = HashMap::from([("containerd.io/distribution.source.r.example.com".to_owned(), "team/app".to_owned())]);
    let server = grpc::Server::default()
        .unary(INFO, move |asked: InfoRequest| {
            let info = held().get(&asked.digest).map(|text| Info { size: text.len() as i64, labels: labels.clone() });
            let found = info.map(|info| InfoResponse { info: Some(info) });
            async move { found.ok_or_else(|| grpc::Status::not_found("not found")) }
        })
        .streaming(READ, move |asked: ReadContentRequest| {
            let text = held().remove(&asked.digest).unwrap_or_default();
            let (first, second) = text.split_at(text.len() / 2);
            let part = |data: &'static [u8]| Ok(ReadContentResponse { offset: 0, data: Bytes::from_static(data) });
            stream::iter([part(first), part(second)])
        });
    tokio::spawn(server.serve(grpc::listen(socket).unwrap()));
}

struct Cluster {
    folder: tempfile::TempDir,
    authority: pki::Authority,
    api: Api,
}

impl Cluster {
    fn new() -> Cluster {
        let api = Api::new(Gate::default());
        let (folder, authority) = (tempfile::tempdir().unwrap(), pki::Authority::create("ca").unwrap());
        Cluster { folder, authority, api }
    }

    /// The part of a node in it. Its containerd has nothing unless `engine` makes it have something.
    async fn sharing(&self, name: &str) -> Sharing {
        let path = |ending: &str| self.folder.path().join(format!("{name}.{ending}"));
        let subject = pki::Subject::client(&format!("system:node:{name}"), Some("system:nodes"));
        let own = self.authority.issue(&subject).unwrap();
        std::fs::write(path("crt"), own.certificate).unwrap();
        std::fs::write(path("key"), own.key).unwrap();
        let config = Config {
            // Its own ones, which nobody else holds.
            caches: Caches::new(self.api.client()),
            socket: path("sock"),
            certificate: path("crt"),
            key: path("key"),
            authority: self.authority.certificate().to_owned(),
        };
        Sharing::new(&config, name)
    }

    /// Lets a node answer others, and show an image.
    async fn serves(&self, name: &'static str) {
        engine(&self.folder.path().join(format!("{name}.sock")));
        let sharing = Arc::new(self.sharing(name).await);
        let guard = Arc::new(Guard::new(self.api.client(), self.authority.certificate(), name).unwrap());
        let shown = self.authority.issue(&pki::Subject::server(name, vec!["127.0.0.1".to_owned()])).unwrap();
        let shown = pki::Serving::new(&shown).unwrap();
        let tls = pki::server_config(shown, Some(self.authority.certificate()), &["http/1.1"]).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = tcp.local_addr().unwrap().port();
        let answer = move |peer: Peer| {
            let (sharing, guard) = (sharing.clone(), guard.clone());
            move |request: Request<Incoming>| {
                let (sharing, guard, peer) = (sharing.clone(), guard.clone(), peer.clone());
                async move { server::share(&sharing, &guard, &peer, &request.into_parts().0).await }
            }
        };
        let listener = Listener::new(tcp, "kubelet", Bounds::of_process(8), Arc::default());
        let tls = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        tokio::spawn(async move { listener.serve(tls, CancellationToken::new(), answer).await });
        self.node(name, port);
    }

    fn node(&self, name: &str, port: u16) {
        let status = json!({"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "images": [{"names": ["r.example.com/team/app@sha256:1"]}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "status": status});
        self.api.put(&format!("/api/v1/nodes/{name}"), node);
    }
}

fn request(method: Method, path: &str) -> Parts {
    Request::builder().method(method).uri(path).body(()).unwrap().into_parts().0
}

/// The code of an answer, and its body as far as it comes.
async fn read(answer: Answer) -> (u16, Vec<u8>) {
    let (head, mut body) = Response::into_parts(answer);
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend_from_slice(frame.data_ref().unwrap());
    }
    (head.status.as_u16(), bytes)
}

fn path(sort: &str, text: &[u8]) -> String {
    format!("/v2/team/app/{sort}/{}?ns=r.example.com", digest(text))
}

/// Until a node is seen by those who follow the nodes.
async fn seen(sharing: &Sharing, name: &str) {
    let (key, mut changes) = (client::Key::new("", name), sharing.nodes.subscribe());
    while sharing.nodes.get(&key).is_none() {
        let _ = changes.recv().await;
    }
}

#[tokio::test]
async fn an_engine_gets_of_other_nodes_what_the_registry_let_it_have() {
    let cluster = Cluster::new();
    cluster.serves("n1").await;
    let own = cluster.sharing("n2").await;
    cluster.node("n2", 1);
    seen(&own, "n1").await;
    let ask = async |method, path: &str| read(own.answer("n2", &request(method, path)).await).await;
    assert_eq!(ask(Method::GET, "/v2/").await.0, 200);
    assert_eq!(ask(Method::GET, &path("manifests", MANIFEST)).await, (200, MANIFEST.to_vec()));
    assert_eq!(ask(Method::GET, &path("blobs", LAYER)).await, (200, LAYER.to_vec()));
    // Whether a Pod may have an image is asked with HEAD: the registry says it.
    for (sort, text) in [("manifests", MANIFEST), ("blobs", MANIFEST), ("blobs", LAYER)] {
        assert_eq!(ask(Method::HEAD, &path(sort, text)).await.0, 404);
    }
    // A stranger's repository, or registry, gives no right to what comes from another one.
    let strange = [("team/app", "evil.example.com"), ("evil/app", "r.example.com"), ("team/app", "r.example.com:5000")];
    for (repository, registry) in strange {
        let path = format!("/v2/{repository}/blobs/{}?ns={registry}", digest(LAYER));
        assert_eq!(ask(Method::GET, &path).await.0, 404, "{path}");
    }
    assert_eq!(ask(Method::GET, &path("blobs", b"nobody has this")).await.0, 404);
    // A node that sends something else does not bring it to its end, and is asked no more.
    let (code, text) = ask(Method::GET, &path("blobs", b"a lie")).await;
    assert!(code == 200 && text.len() < LAYER.len(), "{code} {text:?}");
    assert_eq!(ask(Method::GET, &path("blobs", LAYER)).await.0, 404);
}

#[tokio::test]
async fn a_node_gives_to_nodes_of_its_cluster_alone() {
    let cluster = Cluster::new();
    engine(&cluster.folder.path().join("n1.sock"));
    let own = cluster.sharing("n1").await;
    let ask = async |node: &str, method, path: &str| read(own.answer(node, &request(method, path)).await).await;
    assert_eq!(ask("n2", Method::GET, &path("blobs", LAYER)).await.0, 403, "it is no node of the cluster, or no more");
    cluster.node("n2", 1);
    seen(&own, "n2").await;
    assert_eq!(ask("n2", Method::GET, &path("blobs", LAYER)).await, (200, LAYER.to_vec()));
    assert_eq!(ask("n2", Method::HEAD, &path("blobs", LAYER)).await, (200, Vec::new()));
    let other = path("blobs", LAYER).replace("team/app", "team");
    assert_eq!(ask("n2", Method::GET, &other).await.0, 404);
    for listed in ["/v2/_catalog", "/v2/team/app/tags/list", "/v2/team/app/manifests/latest?ns=r.example.com"] {
        assert_eq!(ask("n2", Method::GET, listed).await.0, 404, "{listed}");
    }
    // Its own engine is not sent in a circle.
    assert_eq!(ask("n1", Method::GET, &path("blobs", LAYER)).await.0, 404);
}

#[tokio::test]
async fn somebody_without_a_nodes_certificate_gets_nothing() {
    let cluster = Cluster::new();
    cluster.serves("n1").await;
    let own = cluster.sharing("n2").await;
    seen(&own, "n1").await;
    let port = own.nodes.get(&client::Key::new("", "n1")).unwrap().status.clone().unwrap().daemon_endpoints.unwrap();
    let at = dialer::Endpoint::new("127.0.0.1", u16::try_from(port.kubelet_endpoint.unwrap().port).unwrap());
    let ask = async |credential: Option<&pki::Credential>| {
        let tls = pki::tls::client_config(cluster.authority.certificate(), credential, &["http/1.1"]).unwrap();
        let dialer = dialer::Dialer::<http_body_util::Empty<Bytes>>::tls(Arc::new(tls));
        let request = Request::get(path("blobs", LAYER)).header("host", at.authority());
        dialer.open(&at, request.body(Default::default()).unwrap()).await.unwrap().status().as_u16()
    };
    assert_eq!(ask(None).await, 401);
    let user = cluster.authority.issue(&pki::Subject::client("jane", Some("system:masters"))).unwrap();
    assert_eq!(ask(Some(&user)).await, 403);
    let node = cluster.authority.issue(&pki::Subject::client("system:node:n9", Some("system:nodes"))).unwrap();
    assert_eq!(ask(Some(&node)).await, 403, "a node that was deleted");
}
