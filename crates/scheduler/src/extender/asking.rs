//! Asking the extenders, one after another where each decides about what the one before left.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use client::{Caches, Key};
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{About, Answer, Candidate, Candidates, Extender, Question, Refused, remote::Remote, wire};
use crate::{plugin::MAX_SCORE, queue::Waiting};

/// The best score that an extender gives, before its weight.
const BEST: i64 = 10;

/// The extenders of a configuration. Cloning shares them.
#[derive(Clone)]
pub struct Extenders(Arc<[Remote]>);

impl Extenders {
    pub fn new(specs: &[Extender]) -> Self {
        Extenders(specs.iter().map(Remote::new).collect())
    }

    pub async fn answer(&self, question: &Question, caches: &Caches) -> Answer {
        let pod = &question.pod;
        let object = caches.of::<Pod>().get(&pod.key).filter(|object| object.metadata.uid.as_deref() == Some(&pod.uid));
        let Some(object) = object else { return Answer::Failed(format!("pod {} is gone", pod.key)) };
        let asked: Vec<&Remote> = question.extenders.iter().filter_map(|index| self.0.get(*index)).collect();
        let said = match &question.about {
            About::Nodes(nodes) => which_nodes(&asked, &object, nodes, caches).await,
            About::Victims(candidates) => which_victims(&asked, &object, candidates.clone(), caches).await,
        };
        said.unwrap_or_else(Answer::Failed)
    }

    /// Binds the Pod through an extender. `None` when it failed and another may.
    pub async fn bind(&self, index: usize, pod: &Waiting, node: &str) -> Option<Result<(), String>> {
        let remote = self.0.get(index)?;
        let (Key { namespace, name }, uid) = (&pod.key, &pod.uid);
        let args = wire::BindingArgs { name, namespace, uid, node };
        let said = remote.send(&remote.spec.bind, &args).await.and_then(wire::lowered::<wire::Bound>);
        match said.and_then(|bound| if bound.error.is_empty() { Ok(()) } else { Err(bound.error) }) {
            Err(why) if remote.spec.ignorable => {
                tracing::info!(pod = %pod.key, error = why, "skipping an extender that cannot bind");
                None
            }
            done => Some(done),
        }
    }
}

async fn which_nodes(asked: &[&Remote], pod: &Pod, nodes: &[Arc<str>], caches: &Caches) -> Result<Answer, String> {
    let (mut left, mut refused) = (nodes.to_vec(), Refused::new());
    for remote in asked.iter().filter(|remote| !remote.spec.filter.is_empty()) {
        if left.is_empty() {
            break;
        }
        match filter(remote, pod, &left, caches).await {
            Ok((fit, others)) => {
                let fit: HashSet<&str> = fit.iter().map(|name| &**name).collect();
                left.retain(|node| fit.contains(&**node));
                refused.extend(others);
            }
            Err(why) if remote.spec.ignorable => {
                tracing::info!(extender = remote.spec.url, error = why, "skipping an extender that failed");
            }
            Err(why) => return Err(why),
        }
    }
    let kept: HashSet<&str> = left.iter().map(|node| &**node).collect();
    for node in nodes.iter().filter(|node| !kept.contains(&***node)) {
        // One that the extender left out without a word.
        refused.entry(node.to_string()).or_insert_with(|| (String::new(), false));
    }
    let mut scores = HashMap::new();
    // A choice of one needs no comparison.
    if left.len() > 1 {
        for remote in asked.iter().filter(|remote| !remote.spec.prioritize.is_empty()) {
            match prioritize(remote, pod, &left, caches).await {
                Ok(list) => {
                    for wire::Priority { host, score } in list {
                        let score = score.saturating_mul(remote.spec.weight).saturating_mul(MAX_SCORE / BEST);
                        let sum = scores.entry(host).or_insert(0_i64);
                        *sum = sum.saturating_add(score);
                    }
                }
                Err(why) => tracing::info!(extender = remote.spec.url, error = why, "an extender gave no scores"),
            }
        }
    }
    Ok(Answer::Nodes { refused, scores })
}

async fn about_nodes(
    remote: &Remote,
    verb: &str,
    pod: &Pod,
    nodes: &[Arc<str>],
    caches: &Caches,
) -> Result<json::Value, String> {
    let by_name = remote.spec.knows_nodes;
    let objects: Vec<Arc<Node>> = match by_name {
        true => Vec::new(),
        false => nodes.iter().filter_map(|name| caches.of::<Node>().get(&Key::new("", &**name))).collect(),
    };
    let list = || wire::NodeList { metadata: BTreeMap::new(), items: objects.iter().map(|node| &**node).collect() };
    let args = wire::Args {
        pod,
        nodes: (!by_name).then(list),
        node_names: by_name.then(|| nodes.iter().map(|name| &**name).collect()),
    };
    remote.send(verb, &args).await
}

/// The nodes that an extender takes, and those that it does not.
async fn filter(
    remote: &Remote,
    pod: &Pod,
    nodes: &[Arc<str>],
    caches: &Caches,
) -> Result<(Vec<String>, Refused), String> {
    let said = about_nodes(remote, &remote.spec.filter, pod, nodes, caches).await?;
    let said: wire::Filtered = wire::lowered(said)?;
    if !said.error.is_empty() {
        return Err(said.error);
    }
    let of_list = |names: wire::Names| names.items.unwrap_or_default().into_iter().map(|node| node.metadata.name);
    let fit = match (said.node_names, said.nodes) {
        (Some(names), _) if remote.spec.knows_nodes => names,
        (_, Some(list)) => of_list(list).collect(),
        (Some(names), None) => names,
        (None, None) => Vec::new(),
    };
    let asked: HashSet<&str> = nodes.iter().map(|node| &**node).collect();
    if let Some(unknown) = fit.iter().find(|name| !asked.contains(name.as_str())) {
        let url = &remote.spec.url;
        return Err(format!(
            "extender {url:?} claims a filtered node {unknown:?} which is not found in the input node list"
        ));
    }
    let refused = |map: Option<BTreeMap<String, String>>, unresolvable| {
        map.unwrap_or_default().into_iter().map(move |(node, why)| (node, (why, unresolvable)))
    };
    Ok((fit, refused(said.failed, false).chain(refused(said.unresolvable, true)).collect()))
}

async fn prioritize(
    remote: &Remote,
    pod: &Pod,
    nodes: &[Arc<str>],
    caches: &Caches,
) -> Result<Vec<wire::Priority>, String> {
    let said = about_nodes(remote, &remote.spec.prioritize, pod, nodes, caches).await?;
    let json::Value::Array(list) = said else { return Err("no list of scores".to_owned()) };
    list.into_iter().map(wire::lowered).collect()
}

async fn which_victims(
    asked: &[&Remote],
    pod: &Pod,
    mut candidates: Candidates,
    caches: &Caches,
) -> Result<Answer, String> {
    for remote in asked.iter().filter(|remote| !remote.spec.preempt.is_empty()) {
        if candidates.is_empty() {
            break;
        }
        match victims(remote, pod, &candidates, caches).await {
            Ok(left) => candidates = left,
            Err(why) if remote.spec.ignorable => {
                tracing::info!(extender = remote.spec.url, error = why, "skipping an extender that failed");
            }
            Err(why) => return Err(why),
        }
    }
    Ok(Answer::Victims(candidates))
}

/// The candidates that an extender leaves, with the victims that it chose among them.
async fn victims(remote: &Remote, pod: &Pod, candidates: &Candidates, caches: &Caches) -> Result<Candidates, String> {
    let pods = caches.of::<Pod>();
    let mut objects: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
    for (node, candidate) in candidates {
        objects.insert(node, candidate.pods.iter().filter_map(|key| pods.get(key)).collect());
    }
    let guarded = |node: &str| candidates.get(node).map_or(0, |candidate| candidate.guarded);
    let mut args = wire::PreemptionArgs { pod, node_name_to_victims: None, node_name_to_meta_victims: None };
    if remote.spec.knows_nodes {
        let uid = |pod: &Arc<Pod>| wire::MetaPod { uid: pod.metadata.uid.clone().unwrap_or_default() };
        let mut victims = BTreeMap::new();
        for (node, pods) in &objects {
            victims.insert(*node, wire::MetaVictims { pods: pods.iter().map(uid).collect(), guarded: guarded(node) });
        }
        args.node_name_to_meta_victims = Some(victims);
    } else {
        let mut victims = BTreeMap::new();
        for (node, pods) in &objects {
            let pods = pods.iter().map(|pod| &**pod).collect();
            victims.insert(*node, wire::Victims { pods, guarded: guarded(node) });
        }
        args.node_name_to_victims = Some(victims);
    }
    let said = remote.send(&remote.spec.preempt, &args).await?;
    let said: wire::Preempted = wire::lowered(said)?;
    let mut left = Candidates::new();
    for (node, victims) in said.nodes.unwrap_or_default() {
        let victims: wire::Going = wire::lowered(victims)?;
        let there = candidates.get_key_value(node.as_str()).zip(objects.get(node.as_str()));
        let Some(((name, _), there)) = there else {
            return Err(format!("extender {:?} chose node {node:?}, which was no candidate", remote.spec.url));
        };
        let pods = chosen(victims.pods.unwrap_or_default(), there)
            .ok_or_else(|| format!("extender {:?} chose a victim that is not on node {node:?}", remote.spec.url))?;
        if pods.is_empty() {
            if remote.spec.ignorable {
                continue;
            }
            return Err(format!("expected at least one victim pod on node {node:?}"));
        }
        let guarded = usize::try_from(victims.guarded).unwrap_or(0);
        left.insert(name.clone(), Candidate { pods, guarded });
    }
    Ok(left)
}

/// The Pods of these UIDs.
fn chosen(victims: Vec<json::Value>, there: &[Arc<Pod>]) -> Option<Vec<Key>> {
    let one = |victim| {
        let gone: wire::Gone = wire::lowered(victim).ok()?;
        let pod = there.iter().find(|pod| pod.metadata.uid.as_deref() == Some(gone.uid.as_str()))?;
        Some(Key::of(&**pod))
    };
    victims.into_iter().map(one).collect()
}
