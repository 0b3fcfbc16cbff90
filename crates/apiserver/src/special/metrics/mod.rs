//! NodeMetrics and PodMetrics (`metrics.k8s.io`): what nodes and Pods use, from their kubelets.
//! Upstream counterpart: kubernetes-sigs/metrics-server, which is an add-on there.

mod samples;
pub mod scrape;

use api::{
    Value,
    kinds::metrics::{GROUP, duration_text},
    meta,
    rules::quantity::{self, Format, Quantity},
    status::StatusError,
};
use json::{Map, json};

use self::{
    samples::{Samples, Usage},
    scrape::Scraper,
};
use crate::{
    call::Call,
    special::{
        self,
        reader::{Read, Reader},
        table::Specials,
    },
    storage::{filter::Filter, object},
};

/// Adds both kinds to the table.
pub fn add(specials: &mut Specials, scraper: &Scraper) {
    specials.add((GROUP, "nodes", ""), Read::by(Nodes(scraper.clone())));
    specials.add((GROUP, "pods", ""), Read::by(Pods(scraper.clone())));
}

struct Nodes(Scraper);

impl Reader for Nodes {
    async fn list(&self, call: &Call, _: &Filter) -> Result<Vec<Value>, StatusError> {
        let objects = &call.state.objects;
        let samples = self.0.samples(objects).await?;
        let nodes = objects.list(&*objects.definition("", "nodes")?, "").await?;
        Ok(nodes.iter().filter_map(|node| of_node(node, &samples)).collect())
    }

    async fn get(&self, call: &Call) -> Result<Value, StatusError> {
        let (objects, name) = (&call.state.objects, &call.info.name);
        let node = objects.get(&*objects.definition("", "nodes")?, "", name).await?;
        let samples = self.0.samples(objects).await?;
        of_node(&node, &samples).ok_or_else(|| StatusError::not_found(GROUP, "nodemetrics", name))
    }
}

struct Pods(Scraper);

impl Reader for Pods {
    async fn list(&self, call: &Call, filter: &Filter) -> Result<Vec<Value>, StatusError> {
        let objects = &call.state.objects;
        let samples = self.0.samples(objects).await?;
        let pods = objects.definition("", "pods")?;
        let entries = objects.entries(&pods, &call.info.namespace).await?;
        // The fields that are selected by are the Pod's: most others are left out without reading them.
        let selected = entries.iter().filter(|entry| filter.may_match(&entry.value));
        Ok(selected.filter_map(|entry| of_pod(&object::of_entry(&pods, entry), &samples)).collect())
    }

    async fn get(&self, call: &Call) -> Result<Value, StatusError> {
        let (objects, namespace, name) = (&call.state.objects, &call.info.namespace, &call.info.name);
        let pod = objects.get(&*objects.definition("", "pods")?, namespace, name).await?;
        let samples = self.0.samples(objects).await?;
        of_pod(&pod, &samples)
            .ok_or_else(|| StatusError::not_found(GROUP, "podmetrics", &format!("{namespace}/{name}")))
    }
}

/// The metadata of what is measured now, with the labels of the object that it is about.
fn metadata(about: &Value) -> Map {
    let mut metadata = Map::from_iter([
        ("name".to_owned(), json!(meta::name(about))),
        ("creationTimestamp".to_owned(), json!(clock::now_seconds())),
    ]);
    let taken = ["namespace", "labels"].map(|field| (field, about["metadata"].get(field).cloned()));
    metadata.extend(taken.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))));
    metadata
}

fn amounts(usage: &Usage) -> Value {
    let memory = Quantity::new(i64::try_from(usage.memory).unwrap_or(i64::MAX), Format::BinarySi);
    let cpu = quantity::canonical(&format!("{}n", usage.cpu_nanos));
    json!({"cpu": cpu, "memory": memory.to_string()})
}

/// The end of the interval in whole seconds, as all times of the API, and its length.
fn interval(usage: &Usage) -> (Value, String) {
    let end = clock::Timestamp::from_second(usage.end_millis.div_euclid(1000)).unwrap_or_default();
    (json!(end), duration_text(usage.window))
}

fn of_node(node: &Value, samples: &Samples) -> Option<Value> {
    let usage = samples.of_node(meta::name(node))?;
    let (timestamp, window) = interval(&usage);
    Some(json!({
        "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": metadata(node),
        "timestamp": timestamp, "window": window, "usage": amounts(&usage),
    }))
}

/// Only the node that a Pod is bound to is heard about it: no other kubelet can say what it uses.
fn of_pod(pod: &Value, samples: &Samples) -> Option<Value> {
    let containers =
        samples.of_pod(special::object::text(pod, "/spec/nodeName"), meta::namespace(pod), meta::name(pod))?;
    let earliest = containers.iter().map(|(_, usage)| usage).min_by_key(|usage| usage.end_millis)?;
    let (timestamp, window) = interval(earliest);
    let container = |(name, usage): &(&str, Usage)| json!({"name": name, "usage": amounts(usage)});
    Some(json!({
        "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": metadata(pod),
        "timestamp": timestamp, "window": window, "containers": containers.iter().map(container).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::{conversation::Conversation, objects};

    /// Each node uses half a processor. Node `a` tells of its own Pod `mine` and, wrongly, of `other` on node `b`.
    async fn conversation() -> Conversation {
        let scraper = Scraper::new(Some(Arc::new(|node| {
            Box::pin(async move {
                let millis = clock::now().as_millisecond();
                let at = |share: f64| millis as f64 / 1e3 * share;
                let pod = |name: &str, share: f64| {
                    let labels = format!("{{container=\"c\",namespace=\"n\",pod=\"{name}\"}}");
                    format!(
                        "container_cpu_usage_seconds_total{labels} {} {millis}\n\
                         container_memory_working_set_bytes{labels} 1048576 {millis}\n\
                         container_start_time_seconds{labels} 1\n",
                        at(share)
                    )
                };
                let pods =
                    if meta::name(&node) == "a" { pod("mine", 0.25) + &pod("other", 9.0) } else { pod("other", 0.125) };
                let node = format!(
                    "node_cpu_usage_seconds_total {} {millis}\nnode_memory_working_set_bytes 4096 {millis}\n",
                    at(0.5)
                );
                Ok((node + &pods).into())
            })
        })));
        let mut specials = Specials::default();
        add(&mut specials, &scraper);
        let talk = Conversation::with(specials).await;
        for (plural, namespace, name, object) in [
            ("nodes", "", "a", json!({"metadata": {"labels": {"zone": "z"}}})),
            ("nodes", "", "b", json!({"metadata": {}})),
            ("pods", "n", "mine", json!({"metadata": {"labels": {"app": "x"}}, "spec": {"nodeName": "a"}})),
            ("pods", "n", "other", json!({"metadata": {"labels": {"app": "y"}}, "spec": {"nodeName": "b"}})),
            ("pods", "n", "waiting", json!({"metadata": {"labels": {"app": "x"}}, "spec": {}})),
        ] {
            objects::put(talk.server.objects(), plural, (namespace, name), Some(object)).await;
        }
        talk
    }

    const BASE: &str = "GET /apis/metrics.k8s.io/v1beta1";

    #[tokio::test(start_paused = true)]
    async fn nodes_and_pods_are_read_like_other_objects() {
        let talk = conversation().await;
        let node = talk.say(&format!("{BASE}/nodes/a"), "").await.json();
        assert_eq!((&node["kind"], &node["metadata"]["labels"]["zone"]), (&json!("NodeMetrics"), &json!("z")));
        assert_eq!((&node["usage"], &node["window"]), (&json!({"cpu": "500m", "memory": "4Ki"}), &json!("2s")));
        let pod = talk.say(&format!("{BASE}/namespaces/n/pods/mine"), "").await.json();
        assert_eq!(pod["containers"], json!([{"name": "c", "usage": {"cpu": "250m", "memory": "1Mi"}}]));
        assert_eq!((&pod["kind"], &pod["metadata"]["namespace"]), (&json!("PodMetrics"), &json!("n")));
        // The node that a Pod is bound to is believed, no other one.
        let other = talk.say(&format!("{BASE}/namespaces/n/pods/other"), "").await;
        assert_eq!(other.at("/containers/0/usage/cpu"), "125m");
        let names = async |query: &str| {
            let list = talk.say(&format!("{BASE}/{query}"), "").await.json();
            let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
            list["items"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names("pods").await, ["mine", "other"]);
        assert_eq!(names("namespaces/m/pods").await, [""; 0]);
        assert_eq!(names("namespaces/n/pods?labelSelector=app%3Dx").await, ["mine"]);
        assert_eq!(names("pods?fieldSelector=metadata.name%3Dother").await, ["other"]);
        assert_eq!(names("nodes?labelSelector=zone").await, ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_there_and_tables() {
        let talk = conversation().await;
        let message = async |path: &str| talk.say(&format!("{BASE}/{path}"), "").await.message();
        assert_eq!(message("nodes/x").await, "nodes \"x\" not found");
        assert_eq!(message("namespaces/n/pods/x").await, "pods \"x\" not found");
        assert_eq!(message("namespaces/n/pods/waiting").await, "podmetrics.metrics.k8s.io \"n/waiting\" not found");
        assert_eq!(talk.say("DELETE /apis/metrics.k8s.io/v1beta1/nodes/a", "").await.code, 405);
        let table = "accept: application/json;as=Table;v=v1;g=meta.k8s.io";
        let table = talk.say(&format!("{BASE}/nodes\n{table}"), "").await.json();
        assert_eq!(table["rows"][0]["cells"], json!(["a", "500m", "4Ki", "2s"]));
        let resources = talk.say(BASE, "").await.json();
        let name = |r: &Value| format!("{} {} {}", r["name"], r["kind"], r["verbs"]);
        let found: Vec<String> = resources["resources"].as_array().unwrap().iter().map(name).collect();
        let expected = [r#""nodes" "NodeMetrics" ["get","list"]"#, r#""pods" "PodMetrics" ["get","list"]"#];
        assert_eq!(found, expected);
    }
}
