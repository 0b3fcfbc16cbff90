//! The statements of drivers about the node, in the API: its CSINode object, and an annotation and labels of its Node.
//! Upstream counterpart: pkg/volume/csi/nodeinfomanager.

use std::{collections::BTreeMap, time::Duration};

use client::{Api, Client};
use json::{Value, json};
use k8s_openapi::{
    api::{
        core::v1::Node,
        storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use tokio::sync::Mutex;

use crate::csi::messages::NodeInfo as Said;

/// The annotation of a Node with the ids that drivers have for it.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// How often a write is tried, and the pause after the first time. Each further pause is five times as long.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);

pub struct NodeInfo {
    client: Client,
    node_name: String,
    /// Drivers that come at once write one after another.
    turn: Mutex<()>,
}

/// The ids in a Node's annotation. None of them is lost because one cannot be read.
fn ids(node: &Node) -> Result<BTreeMap<String, String>, String> {
    let text = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_IDS)).filter(|text| !text.is_empty());
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text)
        .map_err(|error| format!("failed to parse node's {NODE_IDS:?} annotation value ({text:?}) err={error}"))
}

/// The change of a Node that a driver's words ask for, or its end; `None` where there is nothing to change.
fn node_change(node: &Node, driver: &str, said: Option<&Said>) -> Result<Option<Value>, String> {
    let mut ids = ids(node)?;
    let Some(said) = said else {
        // The labels stay: other drivers, and Pods, may go by them.
        return Ok(ids.remove(driver).map(|_| json!({"annotations": {NODE_IDS: annotation(&ids)}})));
    };
    let is_known = ids.insert(driver.to_owned(), said.node_id.clone()).as_ref() == Some(&said.node_id);
    let mut labels = BTreeMap::new();
    for (key, value) in topology(said) {
        match node.metadata.labels.as_ref().and_then(|labels| labels.get(key)) {
            Some(held) if held != value => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                     {key:?}:{held:?}"
                ));
            }
            Some(_) => {}
            None => _ = labels.insert(key, value),
        }
    }
    let changed = !is_known || !labels.is_empty();
    Ok(changed.then(|| json!({"annotations": {NODE_IDS: annotation(&ids)}, "labels": labels})))
}

fn annotation(ids: &BTreeMap<String, String>) -> Value {
    if ids.is_empty() { Value::Null } else { json!(json!(ids).to_string()) }
}

fn topology(said: &Said) -> impl Iterator<Item = (&String, &String)> {
    said.accessible_topology.iter().flat_map(|topology| &topology.segments)
}

fn entry(driver: &str, said: &Said) -> CSINodeDriver {
    let most = said.max_volumes_per_node;
    if most < 0 {
        tracing::warn!(driver, most, "a driver takes a number of volumes that is none");
    }
    let count = (most > 0).then(|| i32::try_from(most).unwrap_or(i32::MAX));
    let keys: Vec<String> = topology(said).map(|(key, _)| key.clone()).collect();
    CSINodeDriver {
        name: driver.to_owned(),
        node_id: said.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    }
}

fn words(error: client::Error) -> String {
    error.to_string()
}

impl NodeInfo {
    pub fn new(client: Client, node_name: &str) -> NodeInfo {
        NodeInfo { client, node_name: node_name.to_owned(), turn: Mutex::default() }
    }

    /// Writes down what a driver says. A label of the Node with another value than the driver's stays, and the driver is
    /// refused.
    pub async fn install(&self, driver: &str, said: &Said) -> Result<(), String> {
        if said.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
        }
        let _turn = self.turn.lock().await;
        self.change_node(driver, Some(said)).await.map_err(|why| {
            format!("error updating Node object with CSI driver node info: error updating node: {why}")
        })?;
        self.change_csi_node(driver, Some(&entry(driver, said))).await.map_err(|why| {
            format!("error updating CSINode object with CSI driver node info: error updating CSINode: {why}")
        })
    }

    /// Writes down what a driver says when it is asked again: how many volumes the node takes.
    pub async fn update(&self, driver: &str, said: &Said) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let changed = self.change_csi_node(driver, Some(&entry(driver, said))).await;
        changed.map_err(|why| format!("error updating CSINode object with CSI driver node info: {why}"))
    }

    /// Takes back what a driver has said.
    pub async fn uninstall(&self, driver: &str) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let changed = self.change_csi_node(driver, None).await;
        changed.map_err(|why| format!("error uninstalling CSI driver from CSINode object {why}"))?;
        let changed = self.change_node(driver, None).await;
        changed.map_err(|why| format!("error removing CSI driver node info from Node object {why}"))
    }

    async fn change_node(&self, driver: &str, said: Option<&Said>) -> Result<(), String> {
        let mut tries = Tries::default();
        loop {
            match self.try_change_node(driver, said).await {
                Err(_) if tries.again().await => {}
                outcome => return outcome,
            }
        }
    }

    /// Changes the metadata of the Node, if nobody else does meanwhile.
    async fn try_change_node(&self, driver: &str, said: Option<&Said>) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node_name).await.map_err(words)?;
        let Some(mut metadata) = node_change(&node, driver, said)? else { return Ok(()) };
        metadata["resourceVersion"] = json!(node.metadata.resource_version);
        nodes.merge_patch(&self.node_name, "", json!({"metadata": metadata})).await.map(drop).map_err(words)
    }

    async fn change_csi_node(&self, driver: &str, wanted: Option<&CSINodeDriver>) -> Result<(), String> {
        let mut tries = Tries::default();
        loop {
            match self.try_change_csi_node(driver, wanted).await {
                Err(_) if tries.again().await => {}
                outcome => return outcome,
            }
        }
    }

    /// Puts a driver's entry into the node's CSINode, or takes it out. The object is made where it is missing.
    async fn try_change_csi_node(&self, driver: &str, wanted: Option<&CSINodeDriver>) -> Result<(), String> {
        let all: Api<CSINode> = Api::all(self.client.clone());
        let Some(held) = all.find(&self.node_name).await.map_err(words)? else {
            return match wanted {
                Some(wanted) => self.make_csi_node(&all, wanted).await,
                None => Ok(()),
            };
        };
        if held.spec.drivers.iter().find(|d| d.name == driver) == wanted {
            return Ok(());
        }
        let others = held.spec.drivers.iter().filter(|d| d.name != driver).cloned();
        let drivers: Vec<CSINodeDriver> = others.chain(wanted.cloned()).collect();
        let version = json!(held.metadata.resource_version);
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"drivers": drivers}});
        all.merge_patch(&self.node_name, "", patch).await.map(drop).map_err(words)
    }

    async fn make_csi_node(&self, all: &Api<CSINode>, wanted: &CSINodeDriver) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node_name).await.map_err(words)?;
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node_name.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            name: Some(self.node_name.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        let spec = CSINodeSpec { drivers: vec![wanted.clone()] };
        all.create(&CSINode { metadata, spec }).await.map(drop).map_err(words)
    }
}

/// A write is tried a few times: somebody else may have written the object, or the server may be on its way.
struct Tries {
    left: u32,
    pause: Duration,
}

impl Default for Tries {
    fn default() -> Self {
        Tries { left: TRIES - 1, pause: PAUSE }
    }
}

impl Tries {
    /// Pauses; false when it was tried often enough.
    async fn again(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        clock::sleep(self.pause).await;
        self.pause *= 5;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(node_id: &str, most: i64, topology: &[(&str, &str)]) -> Said {
        let segments = topology.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let accessible_topology = Some(crate::csi::messages::Topology { segments });
        Said { node_id: node_id.to_owned(), max_volumes_per_node: most, accessible_topology }
    }

    #[test]
    fn a_node_gets_ids_and_labels_and_keeps_those_that_it_has() {
        let check = |ids: &str, label: &str, expected: Result<Option<Value>, &str>| {
            let node = json!({"metadata": {"annotations": {NODE_IDS: ids}, "labels": {"t/zone": label}}});
            let change = node_change(&json::from_value(node).unwrap(), "d", Some(&said("n", 0, &[("t/zone", "z")])));
            assert_eq!(change, expected.map_err(str::to_owned), "{ids} {label}");
        };
        let both = json!({"annotations": {NODE_IDS: r#"{"d":"n","e":"m"}"#}, "labels": {}});
        check(r#"{"e":"m"}"#, "z", Ok(Some(both)));
        check(r#"{"d":"n"}"#, "z", Ok(None));
        let other =
            r#"detected topology value collision: driver reported "t/zone":"z" but existing label is "t/zone":"y""#;
        check("", "y", Err(other));
        let torn = node_change(
            &json::from_value(json!({"metadata": {"annotations": {NODE_IDS: "{"}}})).unwrap(),
            "d",
            Some(&said("n", 0, &[])),
        );
        assert!(torn.unwrap_err().starts_with("failed to parse node's \"csi.volume.kubernetes.io/nodeid\" annotation"));
    }

    #[test]
    fn a_limit_of_volumes_is_one_that_the_api_can_hold() {
        for (most, expected) in [(0, None), (-1, None), (7, Some(7)), (i64::MAX, Some(i32::MAX))] {
            let entry = entry("d", &said("n", most, &[]));
            assert_eq!(entry.allocatable.and_then(|a| a.count), expected, "{most}");
        }
    }
}
