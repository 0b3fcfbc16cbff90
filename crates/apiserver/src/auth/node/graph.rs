//! Which node needs what: nodes reach objects through the Pods on them, and volumes through the claims of those Pods.

use std::collections::{BTreeSet, HashMap};

use api::meta::{annotation, at};
use json::Value;

/// The kinds of object that a node can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    Pod,
    Secret,
    ConfigMap,
    ServiceAccount,
    Claim,
    ResourceClaim,
    Volume,
    Attachment,
    Slice,
    CertificateRequest,
}

type Key = (Target, String, String);

/// A Pod as the graph remembers it.
#[derive(Debug)]
struct Known {
    uid: String,
    node: String,
    refs: BTreeSet<Key>,
}

/// The facts about one PersistentVolume.
#[derive(Debug, Default)]
struct Volume {
    /// Namespace and name of the claim.
    claim: Option<(String, String)>,
    secrets: BTreeSet<Key>,
}

/// The relations. Counts say how many Pods of a node name an object.
#[derive(Debug, Default)]
pub struct Graph {
    pods: HashMap<String, Known>,
    reach: HashMap<Key, HashMap<String, u32>>,
    volumes: HashMap<String, Volume>,
    /// The volumes whose drivers need a Secret.
    by_secret: HashMap<Key, BTreeSet<String>>,
    attachments: HashMap<String, String>,
    slices: HashMap<String, String>,
    /// By namespace and name.
    certificate_requests: HashMap<String, String>,
}

/// The kinds whose objects tie nodes to others.
pub const FOLLOWED: &[(&str, &str)] = &[
    ("", "pods"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "resourceslices"),
    ("certificates.k8s.io", "podcertificaterequests"),
];

/// Whether changes of a resource change the graph.
pub fn matters(group: &str, plural: &str) -> bool {
    FOLLOWED.contains(&(group, plural))
}

/// Upstream's name of what a change does to the graph.
pub fn action(plural: &str, there: bool) -> &'static str {
    match (plural, there) {
        ("pods", true) => "AddPod",
        ("pods", false) => "DeletePod",
        ("persistentvolumes", true) => "AddPV",
        ("persistentvolumes", false) => "DeletePV",
        ("volumeattachments", true) => "AddVolumeAttachment",
        ("volumeattachments", false) => "DeleteVolumeAttachment",
        ("resourceslices", true) => "AddResourceSlice",
        ("resourceslices", false) => "DeleteResourceSlice",
        (_, true) => "AddPodCertificateRequest",
        (_, false) => "DeletePodCertificateRequest",
    }
}

impl Graph {
    /// Takes in that an object became `object`, or is gone. Whether the graph is another one since.
    pub fn changed(&mut self, plural: &str, namespace: &str, name: &str, object: Option<&Value>) -> bool {
        match plural {
            "pods" => self.pod(namespace, name, object),
            "persistentvolumes" => self.volume(name, object),
            "volumeattachments" => of_node(&mut self.attachments, name, object),
            "resourceslices" => of_node(&mut self.slices, name, object),
            "podcertificaterequests" => of_node(&mut self.certificate_requests, &format!("{namespace}/{name}"), object),
            _ => false,
        }
    }

    pub fn reaches(&self, node: &str, target: Target, namespace: &str, name: &str) -> bool {
        match target {
            Target::Attachment => self.attachments.get(name).is_some_and(|n| n == node),
            Target::Slice => self.slices.get(name).is_some_and(|n| n == node),
            Target::CertificateRequest => {
                self.certificate_requests.get(&format!("{namespace}/{name}")).is_some_and(|n| n == node)
            }
            Target::Volume => self.reaches_volume(node, name),
            Target::Secret => {
                let key = (target, namespace.to_owned(), name.to_owned());
                self.reaches_key(node, &key)
                    || self.by_secret.get(&key).is_some_and(|v| v.iter().any(|pv| self.reaches_volume(node, pv)))
            }
            _ => self.reaches_key(node, &(target, namespace.to_owned(), name.to_owned())),
        }
    }

    fn reaches_key(&self, node: &str, key: &Key) -> bool {
        self.reach.get(key).is_some_and(|nodes| nodes.contains_key(node))
    }

    fn reaches_volume(&self, node: &str, name: &str) -> bool {
        let claim = self.volumes.get(name).and_then(|v| v.claim.as_ref());
        claim.is_some_and(|(ns, name)| self.reaches_key(node, &(Target::Claim, ns.clone(), name.clone())))
    }

    fn pod(&mut self, namespace: &str, name: &str, object: Option<&Value>) -> bool {
        let id = format!("{namespace}/{name}");
        let node = object.and_then(|o| at(o, "/spec/nodeName")).and_then(Value::as_str).unwrap_or("");
        let uid = object.map_or("", api::meta::uid);
        // The objects that a Pod names are fixed once it is bound, so most updates end here. (Claims made for it can change.)
        let claims = object.is_some_and(|o| at(o, "/spec/resourceClaims").is_some());
        if !claims && self.pods.get(&id).is_some_and(|known| known.uid == uid && known.node == node) {
            return false;
        }
        let old = self.pods.remove(&id);
        for key in old.iter().flat_map(|old| &old.refs) {
            self.drop_one(key, old.as_ref().map_or("", |old| &old.node));
        }
        let Some(object) = object.filter(|_| !node.is_empty()) else { return old.is_some() };
        let mut refs = BTreeSet::from([(Target::Pod, namespace.to_owned(), name.to_owned())]);
        // A mirror Pod comes from the node itself: it must not open anything.
        if annotation(object, api::rules::pod::MIRROR_ANNOTATION).is_none() {
            collect(object, namespace, name, &mut refs);
        }
        for key in &refs {
            *self.reach.entry(key.clone()).or_default().entry(node.to_owned()).or_default() += 1;
        }
        self.pods.insert(id, Known { uid: uid.to_owned(), node: node.to_owned(), refs });
        true
    }

    fn drop_one(&mut self, key: &Key, node: &str) {
        let Some(nodes) = self.reach.get_mut(key) else { return };
        if let Some(count) = nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.reach.remove(key);
        }
    }

    fn volume(&mut self, name: &str, object: Option<&Value>) -> bool {
        let old = self.volumes.remove(name);
        for secret in old.iter().flat_map(|old| &old.secrets) {
            if let Some(volumes) = self.by_secret.get_mut(secret) {
                volumes.remove(name);
                if volumes.is_empty() {
                    self.by_secret.remove(secret);
                }
            }
        }
        let Some(spec) = object.and_then(|o| o.get("spec")) else { return old.is_some() };
        let text = |v: &Value, field: &str| v.get(field).and_then(Value::as_str).map(str::to_owned);
        let claim = spec.get("claimRef").and_then(|c| Some((text(c, "namespace")?, text(c, "name")?)));
        let default = claim.as_ref().map_or("", |(namespace, _)| namespace);
        let secrets: BTreeSet<Key> = secrets_for_nodes(spec, default).collect();
        for secret in &secrets {
            self.by_secret.entry(secret.clone()).or_default().insert(name.to_owned());
        }
        self.volumes.insert(name.to_owned(), Volume { claim, secrets });
        true
    }
}

/// The references to Secrets that a kubelet needs to bring a volume into a Pod. Those for the controllers of a CSI driver are
/// not among them.
const SECRETS_OF_VOLUMES: &[(&str, &[&str])] = &[
    ("csi", &["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"]),
    ("cephfs", &["secretRef"]),
    ("cinder", &["secretRef"]),
    ("flexVolume", &["secretRef"]),
    ("iscsi", &["secretRef"]),
    ("rbd", &["secretRef"]),
    ("scaleIO", &["secretRef"]),
    ("storageos", &["secretRef"]),
];

/// The Secrets that the node of a volume needs. Where no namespace is said, they are in that of the claim.
fn secrets_for_nodes<'a>(spec: &'a Value, default: &'a str) -> impl Iterator<Item = Key> + 'a {
    let text = |of: &'a Value, field: &str| of.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let key = move |name: &str, namespace: Option<&str>| {
        (Target::Secret, namespace.unwrap_or(default).to_owned(), name.to_owned())
    };
    let named = SECRETS_OF_VOLUMES.iter().flat_map(move |(source, fields)| {
        let source = spec.get(*source);
        fields.iter().filter_map(move |field| {
            let reference = source?.get(*field)?;
            Some(key(text(reference, "name")?, text(reference, "namespace")))
        })
    });
    let azure = spec
        .get("azureFile")
        .and_then(move |source| Some(key(text(source, "secretName")?, text(source, "secretNamespace"))));
    named.chain(azure)
}

/// Keeps which node an object is for.
fn of_node(all: &mut HashMap<String, String>, name: &str, object: Option<&Value>) -> bool {
    let node = object.and_then(|o| at(o, "/spec/nodeName")).and_then(Value::as_str);
    let old = match node {
        Some(node) => all.insert(name.to_owned(), node.to_owned()),
        None => all.remove(name),
    };
    old.as_deref() != node
}

fn items<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Everything that a Pod names in its own namespace.
fn collect(pod: &Value, namespace: &str, pod_name: &str, refs: &mut BTreeSet<Key>) {
    let Some(spec) = pod.get("spec") else { return };
    let mut add = |target: Target, name: Option<&Value>| {
        if let Some(name) = name.and_then(Value::as_str).filter(|n| !n.is_empty()) {
            refs.insert((target, namespace.to_owned(), name.to_owned()));
        }
    };
    add(Target::ServiceAccount, spec.get("serviceAccountName"));
    for secret in items(spec, "imagePullSecrets") {
        add(Target::Secret, secret.get("name"));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            for env in items(container, "env") {
                add(Target::Secret, at(env, "/valueFrom/secretKeyRef/name"));
                add(Target::ConfigMap, at(env, "/valueFrom/configMapKeyRef/name"));
            }
            for env in items(container, "envFrom") {
                add(Target::Secret, at(env, "/secretRef/name"));
                add(Target::ConfigMap, at(env, "/configMapRef/name"));
            }
        }
    }
    for volume in items(spec, "volumes") {
        add(Target::Secret, at(volume, "/secret/secretName"));
        add(Target::ConfigMap, at(volume, "/configMap/name"));
        add(Target::Claim, at(volume, "/persistentVolumeClaim/claimName"));
        add(Target::Secret, at(volume, "/azureFile/secretName"));
        add(Target::Secret, at(volume, "/csi/nodePublishSecretRef/name"));
        for kind in ["cephfs", "cinder", "rbd", "flexVolume", "iscsi", "scaleIO", "storageos"] {
            add(Target::Secret, volume.get(kind).and_then(|v| at(v, "/secretRef/name")));
        }
        for source in volume.get("projected").into_iter().flat_map(|p| items(p, "sources")) {
            add(Target::Secret, at(source, "/secret/name"));
            add(Target::ConfigMap, at(source, "/configMap/name"));
        }
        if let (Some(_), Some(name)) = (volume.get("ephemeral"), volume.get("name").and_then(Value::as_str)) {
            add(Target::Claim, Some(&Value::String(format!("{pod_name}-{name}"))));
        }
    }
    for claim in items(spec, "resourceClaims") {
        add(Target::ResourceClaim, claim.get("resourceClaimName"));
    }
    for claim in pod.get("status").into_iter().flat_map(|s| items(s, "resourceClaimStatuses")) {
        add(Target::ResourceClaim, claim.get("resourceClaimName"));
    }
    add(Target::ResourceClaim, at(pod, "/status/extendedResourceClaimStatus/resourceClaimName"));
}
