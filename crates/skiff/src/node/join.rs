//! How a node becomes a member of a cluster that runs elsewhere, and proves that it is one after a restart.
//!
//! With a token it first makes sure that it speaks to the right cluster: the authority is given, or read from
//! `kube-public/cluster-info` and checked against the signature that only knowing the token makes, and against the hash
//! if one is given. Then it asks for a client certificate of its own; the token is not needed again.
//! Upstream counterpart: cmd/kubeadm/app/discovery and pkg/kubelet/certificate/bootstrap.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail};
use api::rules::bootstrap_token;
use base64::{Engine, engine::general_purpose::STANDARD};
use client::{
    Api, Client, Config, Kubeconfig,
    config::Trust,
    connect::{Replaceable, replaceable},
    rest::{self, Resource, Verb},
};
use json::{Value, json};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use pki::{Credential, file, inspect};

use crate::{
    control_plane::welcome,
    flags::{options::Agent, value},
    layout::Layout,
    node::certificate::{self, Holder, Purpose, user, write_kubeconfig},
    reach::{self, Away, explain},
};

/// How long a server may take to answer, and a request to be signed, before the user hears of it.
const ANSWER: Duration = Duration::from_secs(10);
const SIGNATURE: Duration = Duration::from_secs(60);

/// A node that the cluster knows.
pub struct Member {
    /// The server's URL.
    pub server: String,
    pub client: Client,
    pub holder: Holder,
    /// The parts that renew the client certificate; `None` when it came with the user's kubeconfig.
    pub own: Option<(Replaceable, std::path::PathBuf, String)>,
}

/// Where a cluster is and who vouches for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub server: String,
    /// PEM.
    pub authority: String,
}

impl Info {
    /// The content of `cluster-info`.
    pub fn read(map: &ConfigMap) -> anyhow::Result<Self> {
        let text = map.data.as_ref().and_then(|d| d.get("kubeconfig")).context("cluster-info holds no kubeconfig")?;
        let kubeconfig = Kubeconfig::parse(text).context("the kubeconfig in cluster-info is broken")?;
        let cluster = kubeconfig.first_cluster().context("the kubeconfig in cluster-info names no cluster")?;
        let authority = cluster.certificate_authority_data.as_ref().context("cluster-info names no authority")?;
        let authority = STANDARD.decode(authority).context("the authority in cluster-info is not base64")?;
        Ok(Info {
            server: cluster.server.clone().context("cluster-info names no server")?,
            authority: String::from_utf8(authority).context("the authority in cluster-info is not PEM")?,
        })
    }
}

/// The identity with which the node speaks while it has no certificate of its own.
struct Introduction {
    info: Info,
    config: Config,
}

/// Joins, or goes on as the member that the folder says this node is. A server that is away is waited for.
pub async fn join(options: &Agent, layout: &Layout, node: &str) -> anyhow::Result<Member> {
    reach::insist(|| try_to_join(options, layout, node)).await
}

async fn try_to_join(options: &Agent, layout: &Layout, node: &str) -> anyhow::Result<Member> {
    let holder = |authority: &str| Holder {
        folder: layout.pki(),
        node: node.to_owned(),
        // Its addresses follow when the cluster says of which families they are.
        hosts: vec![node.to_owned()],
        authority: authority.to_owned(),
    };
    let introduction = match (&options.kubeconfig, &options.server, &options.token) {
        (Some(path), ..) => from_kubeconfig(path)?,
        (None, Some(server), Some(token)) => match known(layout, server)? {
            Some(info) if holder(&info.authority).held(Purpose::Client)?.is_some() => with_token(info, token)?,
            _ => discover(options, server, token).await?,
        },
        _ => bail!("say which cluster this node belongs to: --kubeconfig FILE, or --server URL and --token TOKEN"),
    };
    let Introduction { info, config } = introduction;
    let (holder, path) = (holder(&info.authority), layout.agent_kubeconfig());
    if let Some((held, _)) = holder.held(Purpose::Client)? {
        return member(holder, &path, &info.server, &held);
    }
    let client = client::from_config(&config)?;
    let name = whoami(&client, &info.server).await?;
    if name == user(node) {
        return Ok(Member { server: info.server, client, holder, own: None });
    }
    if let Some(other) = name.strip_prefix("system:node:") {
        bail!(
            "the credentials are those of the node {other}, but this node is called {node}; give --node-name {other}"
        );
    }
    free(&Api::all(client.clone()), node, &info.server).await?;
    tracing::info!(server = info.server, user = name, "asking for this node's certificate");
    let asked = holder.ask(&client, Purpose::Client, SIGNATURE).await;
    let credential = asked.map_err(|error| unsigned(&info.server, error, "cannot ask for this node's certificate"))?;
    member(holder, &path, &info.server, &credential)
}

/// Why there is no certificate.
fn unsigned(server: &str, error: anyhow::Error, what: &'static str) -> anyhow::Error {
    match error.downcast::<client::Error>() {
        Ok(error) => explain(server, &error).context(what),
        Err(other) => other,
    }
}

fn member(holder: Holder, path: &Path, server: &str, credential: &Credential) -> anyhow::Result<Member> {
    write_kubeconfig(path, server, &holder, credential)?;
    let (client, way) = replaceable(client::from_kubeconfig(path)?);
    let server = server.to_owned();
    Ok(Member { server: server.clone(), client, holder, own: Some((way, path.to_owned(), server)) })
}

/// The way of the parts that serve the node's Pods, with a certificate of their own.
pub async fn services(server: &str, client: &Client, holder: &Holder) -> anyhow::Result<(Client, Replaceable)> {
    let credential = match holder.held(Purpose::Services)? {
        Some((held, _)) => held,
        None => {
            let what = "cannot ask for the certificate of this node's proxy, DNS and network";
            reach::insist(async || {
                let asked = holder.ask(client, Purpose::Services, SIGNATURE).await;
                asked.map_err(|error| unsigned(server, error, what))
            })
            .await?
        }
    };
    Ok(replaceable(certificate::services(server, holder, &credential)?))
}

/// The facts about that server that this folder holds from an earlier start.
fn known(layout: &Layout, server: &str) -> anyhow::Result<Option<Info>> {
    let path = layout.agent_kubeconfig();
    if file::read(&path)?.is_none() {
        return Ok(None);
    }
    let earlier = from_kubeconfig(&path)?.info;
    Ok((earlier.server.trim_end_matches('/') == server.trim_end_matches('/')).then_some(earlier))
}

fn from_kubeconfig(path: &Path) -> anyhow::Result<Introduction> {
    let config = Kubeconfig::current_of(path)?;
    let Trust::Authorities(authority) = &config.trust else {
        bail!("the kubeconfig {} names no certificate authority; a node needs one to know its cluster", path.display());
    };
    let roots = inspect::chain(authority).with_context(|| format!("cannot use the kubeconfig {}", path.display()))?;
    let authority = inspect::to_pem(&roots.into_iter().map(|root| root.to_vec()).collect::<Vec<_>>());
    let server = config.server.to_string().trim_end_matches('/').to_owned();
    Ok(Introduction { info: Info { server, authority }, config })
}

fn with_token(info: Info, token: &str) -> anyhow::Result<Introduction> {
    let mut config = config_of(&info.server)?;
    config.trust = Trust::Authorities(info.authority.clone());
    config.token = Some(token.to_owned());
    Ok(Introduction { info, config })
}

fn config_of(server: &str) -> anyhow::Result<Config> {
    let wrong = |why: String| anyhow::anyhow!("--server {server:?} cannot be used: {why}");
    let server = value::server(server).map_err(wrong)?;
    Ok(Config { patience: Some(ANSWER), ..Config::new(&server)? })
}

/// Finds out who vouches for the server, and that it is the cluster that the token belongs to.
async fn discover(options: &Agent, server: &str, token: &str) -> anyhow::Result<Introduction> {
    let mut config = config_of(server)?;
    if let Some(path) = &options.certificate_authority {
        let text = file::authorities(path)?;
        let info = Info { server: server.to_owned(), authority: text };
        return with_token(pinned(options.discovery_token_ca_cert_hash.as_deref(), info)?, token);
    }
    let Some((id, secret)) = bootstrap_token::split(token) else {
        bail!(
            "--token is not of the form abcdef.0123456789abcdef; take one from `skiff token create` on the server, or, \
             for a token of another sort, name the cluster's authority with --certificate-authority"
        );
    };
    // Nothing that comes over this connection is believed before its signature is checked.
    config.trust = Trust::Anybody;
    let api: Api<ConfigMap> = Api::namespaced(client::from_config(&config)?, welcome::INFO_NAMESPACE);
    let asked = clock::timeout(ANSWER, api.get(welcome::INFO)).await;
    let map = match asked {
        Ok(Ok(map)) => map,
        // A control plane that begins says it within a moment.
        Ok(Err(client::Error::Api(status))) if matches!(status.code, 401 | 403 | 404) => {
            let why = format!(
                "{server} does not say who vouches for it (no readable kube-public/cluster-info); if it is not just \
                 starting, give the cluster's authority with --certificate-authority"
            );
            return Err(Away(why).into());
        }
        Ok(Err(error)) => return Err(explain(server, &error)),
        Err(_) => return Err(reach::silent(server)),
    };
    let data = map.data.as_ref();
    let signature = data.and_then(|d| d.get(&format!("jws-kubeconfig-{id}")));
    let content = data.and_then(|d| d.get("kubeconfig")).map(String::as_str).unwrap_or_default();
    if !signature.is_some_and(|s| pki::jws::is_valid(s, content, id, secret)) {
        bail!(
            "{server} does not know the token {id}: it is wrong, has ended, or is of another cluster; make one with `skiff token create` there"
        );
    }
    // The server's own address of itself may be one that this machine cannot reach; the user's is known to work.
    let info = Info { server: server.to_owned(), ..Info::read(&map)? };
    with_token(pinned(options.discovery_token_ca_cert_hash.as_deref(), info)?, token)
}

/// The authorities that vouch for the server, cut down to those whose key is pinned: a bundle may hold others besides.
fn pinned(wanted: Option<&str>, info: Info) -> anyhow::Result<Info> {
    let Some(wanted) = wanted else { return Ok(info) };
    let (mut kept, mut others) = (Vec::new(), Vec::new());
    for certificate in inspect::chain(&info.authority)? {
        let pin = inspect::key_pin_der(&certificate)?;
        if wanted.eq_ignore_ascii_case(&pin) {
            kept.push(certificate.to_vec());
        } else {
            others.push(pin);
        }
    }
    if kept.is_empty() {
        bail!(
            "the authority of {} is {}, not {wanted}: this is another cluster, or the hash is mistyped",
            info.server,
            others.join(", ")
        );
    }
    Ok(Info { authority: inspect::to_pem(&kept), ..info })
}

/// Makes sure that no machine of this name is at work: a newcomer would take its Pods over, and both would write the same Node.
/// One that is not ready may be this very machine, which lost its files. Where nobody may look, nobody looks.
async fn free(nodes: &Api<Node>, name: &str, server: &str) -> anyhow::Result<()> {
    let asked = clock::timeout(ANSWER, nodes.find(name)).await.map_err(|_| reach::silent(server))?;
    match asked {
        Ok(node) if node.as_ref().is_some_and(is_ready) => bail!(
            "a Node with name {name:?} and status \"Ready\" already exists in the cluster. You must delete the existing \
             Node or change the name of this new joining Node: `kubectl delete node {name}`, or another --node-name"
        ),
        Err(client::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(explain(server, &error)),
        Ok(_) => Ok(()),
    }
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The user that the server takes this client for.
async fn whoami(client: &Client, server: &str) -> anyhow::Result<String> {
    let text = |text: &str| text.to_owned();
    let (group, version) = (text("authentication.k8s.io"), text("v1"));
    let reviews = Resource { group, version, kind: text("SelfSubjectReview"), plural: text("selfsubjectreviews") };
    let review = Verb::Create(json!({"apiVersion": reviews.api_version(), "kind": reviews.kind}));
    let answered = clock::timeout(ANSWER, rest::send(client, &reviews, "", "", "", &review)).await;
    match answered {
        Ok(Ok(answer)) => {
            let answer: Value = serde_json::from_slice(&answer)?;
            Ok(answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned())
        }
        Ok(Err(error)) => Err(explain(server, &error)),
        Err(_) => Err(reach::silent(server)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_authority_is_believed() {
        let (ours, theirs) = (pki::Authority::create("a").unwrap(), pki::Authority::create("b").unwrap());
        let pin = |a: &pki::Authority| inspect::key_pin(a.certificate()).unwrap();
        let both = || Info {
            server: "https://s".to_owned(),
            authority: format!("{}{}", ours.certificate(), theirs.certificate()),
        };
        let info = pinned(Some(&pin(&ours).to_uppercase()), both()).unwrap();
        assert_eq!(inspect::chain(&info.authority).unwrap(), inspect::chain(ours.certificate()).unwrap());
        let other = pki::Authority::create("c").unwrap();
        assert!(pinned(Some(&pin(&other)), both()).unwrap_err().to_string().contains("this is another cluster"));
        assert_eq!(pinned(None, both()).unwrap(), both());
    }

    #[tokio::test]
    async fn the_name_of_a_node_at_work_is_taken() {
        use http::Response;
        use http_body_util::Full;
        let check = async |code: u16, ready: &str, taken: Option<&str>| {
            let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
            let body = if code == 200 { node } else { status }.to_string();
            let client = client::connect::in_process(tower::service_fn(move |_: http::Request<client::Body>| {
                let answer = Response::builder().status(code).body(Full::new(bytes::Bytes::from(body.clone())));
                std::future::ready(answer)
            }));
            let said = free(&Api::all(client), "a", "https://s").await.err().map(|error| error.to_string());
            let fits = taken.map_or(said.is_none(), |words| said.as_ref().is_some_and(|said| said.contains(words)));
            assert!(fits, "{code} {ready}: {said:?}");
        };
        check(200, "True", Some("a Node with name \"a\" and status \"Ready\" already exists in the cluster")).await;
        check(200, "False", None).await;
        check(200, "Unknown", None).await;
        check(404, "", None).await;
        check(403, "", None).await;
        check(500, "", Some("https://s refuses")).await;
    }

    #[test]
    fn only_urls_are_urls() {
        assert!(config_of("https://10.0.0.1:6443").is_ok());
        for wrong in ["10.0.0.1:6443", "http://10.0.0.1:6443", "https://", "nonsense", ""] {
            assert!(config_of(wrong).err().unwrap().to_string().contains("is not a URL"), "{wrong}");
        }
    }
}
