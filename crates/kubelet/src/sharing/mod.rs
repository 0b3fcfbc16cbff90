//! Images shared between the nodes of a cluster: content that one node has pulled is given to the others, so that a registry sends it once.
//!
//! Paths are those of the OCI distribution API, below `/v2/` of the kubelet's server, to be read alone. Everything is asked for by its
//! digest: which digest a tag means only a registry says. There are no lists of what is there.
//!
//! *Askers.* Nodes of this cluster, by their client certificates; nobody with a token, no user through the API server, no Pod.
//! A node's own containerd, which shows the node's own certificate, is answered with what other nodes have ([`peers`]), and another node
//! with what this one has ([`serve`]).
//!
//! *Rights.* Pull secrets keep their meaning. containerd asks with `HEAD` before a pull, which is never answered here: it goes to the
//! registry, with the Pod's credentials, and where the registry refuses nothing is pulled, however well known the digest is. What is
//! read afterwards is given only if the other node has pulled it from the very repository that has let this one in: a manifest of a
//! stranger's, in a registry of his own, names the layers of a private image in vain. containerd notes the repositories of a blob by the
//! registry's name without its port, so registries that are named with a port are not shared; nor are names that mean another
//! machine on each node ([`wanted`]). Whoever has a node's key can read what other nodes have pulled, if he knows its digest.
//!
//! *Trust.* Nothing from another node is believed: its digest is computed, and the end of a blob is held back until it is right.

mod peers;
mod serve;
#[cfg(test)]
mod tests;
mod wanted;

use std::{path::PathBuf, sync::Arc};

use client::{Cache, Caches};
use clock::Duration;
use http::{Method, StatusCode, request::Parts};
use k8s_openapi::api::core::v1::Node;
use listener::Places;
use runtime::services::content::Content;

use self::{peers::Peers, wanted::Wanted};
use crate::server::answer::{Answer, reply, text};

/// As many answers are under way at once, in all and to one node.
const ANSWERS: (usize, usize) = (16, 8);
/// Longer manifests are not shared. It is containerd's own limit.
pub const MANIFEST_BYTES: u64 = 8 << 20;
/// The first list of all nodes is waited for no longer.
const ACQUAINTANCE: Duration = Duration::from_secs(2);

/// How a node takes part.
#[derive(Clone)]
pub struct Config {
    /// Of a client that may see all nodes, which a kubelet may not.
    pub caches: Caches,
    /// The socket of the containerd whose content is shared.
    pub socket: PathBuf,
    /// The files of the certificate, and its key, that this node shows to others.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// PEM of the authority that signs the certificates of nodes.
    pub authority: String,
}

pub struct Sharing {
    node_name: String,
    nodes: Arc<Cache<Node>>,
    /// They keep `nodes` current for as long as they are held.
    _caches: Caches,
    content: Content,
    peers: Peers,
    places: Arc<Places>,
}

/// There is nothing for whoever asks. The engine goes on to the registry.
fn none() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

impl Sharing {
    pub fn new(config: &Config, node_name: &str) -> Self {
        Sharing {
            node_name: node_name.to_owned(),
            nodes: config.caches.of(),
            _caches: config.caches.clone(),
            content: Content::new(&config.socket),
            peers: Peers::new(config.clone()),
            places: Places::new(ANSWERS.0, ANSWERS.1),
        }
    }

    /// Answers a node that has proven by its certificate to be the one of that name.
    pub async fn answer(&self, node: &str, request: &Parts) -> Answer {
        let is_own = node == self.node_name;
        // A node that has just begun does not know the others. It finds out in a moment, or the registry is asked.
        let _ = clock::timeout(ACQUAINTANCE, self.nodes.synced()).await;
        if !is_own && self.nodes.get(&client::Key::new("", node)).is_none() {
            let why = format!("Forbidden (user=system:node:{node}): it is no node of this cluster\n");
            return text(StatusCode::FORBIDDEN, why);
        }
        let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
        if matches!(path, "/v2" | "/v2/") {
            return reply(StatusCode::OK, "application/json", b"{}".to_vec());
        }
        let Some(wanted) = Wanted::parse(path, query) else { return none() };
        let Ok(place) = self.places.take(node) else {
            // The engine takes nothing but a 404 for a reason to go on.
            let code = if is_own { StatusCode::NOT_FOUND } else { StatusCode::TOO_MANY_REQUESTS };
            return text(code, "Too many requests, please try again later.".to_owned());
        };
        let found = match (is_own, &request.method) {
            (true, &Method::GET) => self.peers.find(&self.nodes.list(), &self.node_name, &wanted).await,
            // The registry is to be asked.
            (true, _) => None,
            (false, method) => serve::find(&self.content, &wanted, method == Method::HEAD).await,
        };
        if let (Some(answering), Some(_)) = (request.extensions.get::<listener::Answering>(), &found) {
            answering.is_patient();
            answering.hold(place);
        }
        found.unwrap_or_else(none)
    }
}
