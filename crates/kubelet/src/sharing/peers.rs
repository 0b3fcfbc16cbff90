//! Gets content from other nodes: from those that show an image of the same repository, a few of them one after the other.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use clock::{Duration, Instant};
use dialer::{Dialer, Endpoint};
use futures::{StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame, Incoming};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{Config, MANIFEST_BYTES, wanted::Wanted};
use crate::{
    server::answer::{Answer, reply},
    volumes::folder::blocking,
};

/// As many nodes are asked for one thing.
const ASKED: usize = 3;
/// Connecting takes no longer, and neither does an answer's beginning: the registry is waiting.
const PATIENCE: Duration = Duration::from_secs(2);
const BEGINNING: Duration = Duration::from_secs(5);
/// A node that says nothing for this long has gone.
const SILENCE: Duration = Duration::from_secs(20);
/// The bytes that a node sends in a second at the least, beside that time.
const SLOWEST: u64 = 256 << 10;
/// A node on whose account a pull failed is left alone for this long: the next tries do without it.
const SHUNNED: Duration = Duration::from_secs(300);
/// A node that refused, or did not answer, has cost a moment. It may only have begun anew, or may not know yet whoever asked.
const SPARED: Duration = Duration::from_secs(10);

pub struct Peers {
    config: Config,
    shunned: Shunned,
}

/// Until when nodes are not asked. There are no more entries than nodes.
#[derive(Clone, Default)]
struct Shunned(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Shunned {
    fn add(&self, name: &str, fault: &Fault) {
        self.0.lock().insert(name.to_owned(), Instant::now() + fault.time());
    }

    /// Those of this moment.
    fn names(&self) -> Vec<String> {
        let (mut shunned, now) = (self.0.lock(), Instant::now());
        shunned.retain(|_, until| *until > now);
        shunned.keys().cloned().collect()
    }
}

/// Why a node did not give what it was asked for.
#[derive(Debug, PartialEq, thiserror::Error)]
enum Fault {
    /// Nothing of its answer was passed on.
    #[error("{0}")]
    Ailing(String),
    #[error("it broke off")]
    BrokeOff,
    #[error("it sent other content than it was asked for")]
    Lie,
}

impl Fault {
    fn time(&self) -> Duration {
        match self {
            Fault::Ailing(_) => SPARED,
            Fault::BrokeOff | Fault::Lie => SHUNNED,
        }
    }
}

fn ailing(why: impl ToString) -> Fault {
    Fault::Ailing(why.to_string())
}

/// A node that may have something.
#[derive(Debug, Clone, PartialEq)]
struct Peer {
    name: String,
    at: Endpoint,
}

/// Where a node's kubelet listens, if it shows an image of that repository.
fn peer(node: &Node, wanted: &Wanted) -> Option<Peer> {
    let status = node.status.as_ref()?;
    let repository = format!("{}/{}", wanted.registry, wanted.repository);
    let is_of = |name: &String| name.strip_prefix(&repository).is_some_and(|rest| rest.starts_with(['@', ':']));
    let mut names = status.images.iter().flatten().flat_map(|image| image.names.iter().flatten());
    names.find(|name| is_of(name))?;
    let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP")?;
    let address: std::net::IpAddr = address.address.parse().ok()?;
    let port = status.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port;
    let at = Endpoint::new(address.to_string(), u16::try_from(port).ok().filter(|port| *port > 0)?);
    Some(Peer { name: node.metadata.name.clone()?, at })
}

/// The nodes to ask, in their order: different ones come first for different content.
fn candidates(nodes: &[Arc<Node>], own: &str, wanted: &Wanted, is_shunned: impl Fn(&str) -> bool) -> Vec<Peer> {
    let mut all: Vec<Peer> = nodes.iter().filter_map(|node| peer(node, wanted)).collect();
    all.retain(|peer| peer.name != own && !is_shunned(&peer.name));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    let seed: usize = wanted.digest.bytes().map(usize::from).sum();
    let first = seed % all.len().max(1);
    all.rotate_left(first);
    all.truncate(ASKED);
    all
}

impl Peers {
    pub fn new(config: Config) -> Self {
        Peers { config, shunned: Shunned::default() }
    }

    pub async fn find(&self, nodes: &[Arc<Node>], own: &str, wanted: &Wanted) -> Option<Answer> {
        let shunned = self.shunned.names();
        let peers = candidates(nodes, own, wanted, |name| shunned.iter().any(|one| one == name));
        if peers.is_empty() {
            return None;
        }
        let dialer = match self.dialer().await {
            Ok(dialer) => dialer,
            Err(error) => {
                tracing::warn!(%error, "this node cannot show its certificate to others");
                return None;
            }
        };
        for peer in peers {
            match self.ask(&dialer, &peer, wanted).await {
                Ok(Some(answer)) => return Some(answer),
                Ok(None) => {}
                Err(fault) => {
                    let (name, digest) = (&peer.name, &wanted.digest);
                    tracing::debug!(%fault, peer = name, digest, "a node does not give an image's content");
                    self.shunned.add(name, &fault);
                }
            }
        }
        None
    }

    /// With the certificate as it is now: it is renewed while the node runs.
    async fn dialer(&self) -> pki::Result<Dialer<Empty<Bytes>>> {
        let config = self.config.clone();
        let tls = blocking(move || {
            let own = pki::file::credential(&config.certificate, &config.key)?;
            pki::tls::client_config(&config.authority, Some(&own), &["http/1.1"])
        });
        Ok(Dialer::tls(Arc::new(tls.await?)).patient(PATIENCE))
    }

    /// The answer of a node, `None` where it has nothing for us.
    async fn ask(&self, dialer: &Dialer<Empty<Bytes>>, peer: &Peer, wanted: &Wanted) -> Result<Option<Answer>, Fault> {
        let request = Request::get(wanted.path()).header(header::HOST, peer.at.authority()).body(Empty::new());
        let request = request.map_err(ailing)?;
        let asked = clock::timeout(BEGINNING, dialer.open(&peer.at, request)).await;
        let response = asked.map_err(|_| ailing("it does not answer"))?.map_err(ailing)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS => return Ok(None),
            other => return Err(ailing(format!("it answers {other}"))),
        }
        let size = length(&response).ok_or_else(|| ailing("it does not say how much there is"))?;
        match wanted.is_manifest {
            _ if size == 0 => Ok(None),
            true => manifest(response, size, &wanted.digest).await.map(Some),
            false => Ok(Some(self.blob(response, size, &peer.name, &wanted.digest))),
        }
    }

    /// A blob on its way through. The node that breaks off, or sends another one, is asked nothing for a while.
    fn blob(&self, response: Response<Incoming>, size: u64, peer: &str, digest: &str) -> Answer {
        let (shunned, peer) = (self.shunned.clone(), peer.to_owned());
        let blame = move |fault: Fault| {
            tracing::warn!(%fault, peer, "a node has not given an image's content to its end");
            shunned.add(&peer, &fault);
        };
        let body = checked(response.into_body(), size, digest.to_owned(), Box::new(blame));
        let mut answer = reply(StatusCode::OK, "application/octet-stream", Vec::new());
        answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
        *answer.body_mut() = body;
        answer
    }
}

fn length(response: &Response<Incoming>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_right(hash: Sha256, digest: &str) -> bool {
    digest.strip_prefix("sha256:") == Some(&base16ct::lower::encode_string(&hash.finalize()))
}

/// The type of a manifest, which says of itself what it is.
fn media_type(manifest: &[u8]) -> &'static str {
    const TYPES: [&str; 4] = [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ];
    let said: json::Value = serde_json::from_slice(manifest).unwrap_or_default();
    let said = said["mediaType"].as_str();
    TYPES.into_iter().find(|known| said == Some(*known)).unwrap_or("application/octet-stream")
}

/// A whole manifest, checked before anything of it is passed on.
async fn manifest(response: Response<Incoming>, size: u64, digest: &str) -> Result<Answer, Fault> {
    if size > MANIFEST_BYTES {
        return Err(ailing(format!("a manifest of {size} bytes is too long")));
    }
    let limit = usize::try_from(MANIFEST_BYTES).unwrap_or_default();
    let body = Limited::new(response.into_body(), limit).collect();
    let body = clock::timeout(SILENCE, body).await.map_err(|_| ailing(Fault::BrokeOff))?;
    let bytes = body.map_err(ailing)?.to_bytes();
    if !is_right(Sha256::new_with_prefix(&bytes), digest) {
        return Err(Fault::Lie);
    }
    Ok(reply(StatusCode::OK, media_type(&bytes), bytes.to_vec()))
}

/// The consequences for a node that did not send what it was asked for.
type Blame = Box<dyn Fn(Fault) + Send>;

/// A body that ends before its last bytes unless they make the digest right; then, and when it breaks off, somebody is to blame.
fn checked<B>(body: B, size: u64, digest: String, blame: Blame) -> UnsyncBoxBody<Bytes, hyper::Error>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let until = Instant::now() + SILENCE + Duration::from_secs(size / SLOWEST);
    let passing = Passing { body, hash: Sha256::new(), left: size, until, digest, blame };
    let frames = stream::unfold(Some(passing), |passing| async move { passing?.next().await });
    StreamBody::new(frames.map(|bytes| Ok(Frame::data(bytes)))).boxed_unsync()
}

/// A body on its way.
struct Passing<B> {
    body: B,
    hash: Sha256,
    left: u64,
    /// When the whole of it has to be here.
    until: Instant,
    digest: String,
    blame: Blame,
}

impl<B: Body<Data = Bytes> + Unpin> Passing<B> {
    fn patience(&self) -> Duration {
        SILENCE.min(self.until.saturating_duration_since(Instant::now()))
    }

    /// The next bytes, and the rest after them.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        while let Ok(Some(Ok(frame))) = clock::timeout(self.patience(), self.body.frame()).await {
            let Ok(bytes) = frame.into_data() else { continue };
            let Some(left) = self.left.checked_sub(bytes.len() as u64) else { return self.end(Fault::Lie) };
            self.hash.update(&bytes);
            self.left = left;
            if left > 0 {
                return Some((bytes, Some(self)));
            }
            if is_right(std::mem::take(&mut self.hash), &self.digest) {
                return Some((bytes, None));
            }
            return self.end(Fault::Lie);
        }
        self.end(Fault::BrokeOff)
    }

    /// Nothing comes any more.
    fn end(self, fault: Fault) -> Option<(Bytes, Option<Self>)> {
        (self.blame)(fault);
        None
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use json::json;

    use super::*;

    fn wanted(text: &[u8]) -> Wanted {
        Wanted {
            registry: "r.example.com".to_owned(),
            repository: "team/app".to_owned(),
            digest: format!("sha256:{}", base16ct::lower::encode_string(&Sha256::digest(text))),
            is_manifest: false,
        }
    }

    #[test]
    fn nodes_that_show_the_repository_are_asked_and_only_a_few() {
        let node = |name: &str, image: &str, port: i32| -> Arc<Node> {
            let status = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "images": [{"names": [image]}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
            Arc::new(json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap())
        };
        let mut nodes: Vec<_> =
            (1..=5).map(|n| node(&format!("n{n}"), "r.example.com/team/app@sha256:1", 10250)).collect();
        nodes.push(node("other", "r.example.com/team/application:1", 10250));
        nodes.push(node("longer", "xr.example.com/team/app:1", 10250));
        nodes.push(node("closed", "r.example.com/team/app:1", 0));
        let names = |wanted: &Wanted| -> Vec<String> {
            candidates(&nodes, "n1", wanted, |name| name == "n3").into_iter().map(|peer| peer.name).collect()
        };
        let one = names(&wanted(b"a"));
        assert_eq!(one.len(), ASKED);
        assert!(one.iter().all(|name| ["n2", "n4", "n5"].contains(&name.as_str())), "{one:?}");
        let firsts: std::collections::BTreeSet<String> =
            (0..20_u8).map(|text| names(&wanted(&[text]))[0].clone()).collect();
        assert!(firsts.len() > 1, "{firsts:?}");
        assert!(names(&Wanted { repository: "team".to_owned(), ..wanted(b"a") }).is_empty());
    }

    #[tokio::test]
    async fn a_blob_that_is_not_the_right_one_does_not_end() {
        let check = async |text: &'static [u8], expected: &[u8], faults: &[Fault]| {
            let blamed: Arc<Mutex<Vec<Fault>>> = Arc::default();
            let told = blamed.clone();
            let blame = Box::new(move |fault| told.lock().push(fault));
            let body = checked(Full::new(Bytes::from_static(text)), 5, wanted(b"right").digest, blame);
            assert_eq!(body.collect().await.unwrap().to_bytes(), expected);
            assert_eq!(*blamed.lock(), faults);
        };
        check(b"right", b"right", &[]).await;
        check(b"wrong", b"", &[Fault::Lie]).await;
        check(b"right and more", b"", &[Fault::Lie]).await;
        // The bytes before the end may be passed on: the engine computes the digest, too.
        check(b"rig", b"rig", &[Fault::BrokeOff]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_left_alone_for_long_only_if_a_pull_failed_for_it() {
        let shunned = Shunned::default();
        shunned.add("ill", &ailing("it answers 403 Forbidden"));
        shunned.add("liar", &Fault::Lie);
        shunned.add("slow", &Fault::BrokeOff);
        assert_eq!(shunned.names(), ["ill", "liar", "slow"]);
        clock::sleep(SPARED).await;
        assert_eq!(shunned.names(), ["liar", "slow"]);
        clock::sleep(SHUNNED).await;
        assert!(shunned.names().is_empty());
    }

    #[test]
    fn a_manifest_says_what_it_is() {
        let index = br#"{"mediaType": "application/vnd.oci.image.index.v1+json"}"#;
        assert_eq!(media_type(index), "application/vnd.oci.image.index.v1+json");
        for other in [&b"{}"[..], b"x", br#"{"mediaType": "text/html"}"#] {
            assert_eq!(media_type(other), "application/octet-stream");
        }
    }
}
