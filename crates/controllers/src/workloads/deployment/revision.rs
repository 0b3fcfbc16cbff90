//! Which ReplicaSet has the current template, and which revision each one is.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use super::{Observed, Rollout, sizes};
use crate::workloads::template_hash::template_hash;
use controller::{Note, Write, owner_reference};

pub const HASH_LABEL: &str = "pod-template-hash";
pub const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// Annotations of a Deployment that its ReplicaSets do not inherit.
const NOT_COPIED: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];
/// How long the list of former revisions of one ReplicaSet may become, in characters.
const HISTORY_LENGTH: usize = 2000;

fn hash(deployment: &Deployment) -> String {
    let collisions = deployment.status.as_ref().and_then(|s| s.collision_count);
    let template: PodTemplateSpec = deployment.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let text = serde_json::to_vec(&template).expect("API types are plain data");
    template_hash(&text, collisions)
}

/// The name of the ReplicaSet for the current template, if it has to be made.
pub fn set_name(deployment: &Deployment) -> String {
    format!("{}-{}", deployment.metadata.name.as_deref().unwrap_or(""), hash(deployment))
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let meta = template.metadata.get_or_insert_default();
    if let Some(labels) = &mut meta.labels {
        labels.remove(HASH_LABEL);
        if labels.is_empty() {
            meta.labels = None;
        }
    }
    template
}

fn same_template(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let (Some(deployment), Some(set)) = (&deployment.spec, &set.spec) else { return false };
    set.template.as_ref().is_some_and(|t| without_hash(t) == without_hash(&deployment.template))
}

/// The oldest ReplicaSet with the current template.
pub fn current(deployment: &Deployment, sets: &[ReplicaSet]) -> Option<usize> {
    sets.iter().position(|set| same_template(deployment, set))
}

pub fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

pub fn revision(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Sets an annotation; whether it was different.
pub fn annotate(meta: &mut ObjectMeta, name: &str, value: &str) -> bool {
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(name.to_owned(), value.to_owned()).as_deref() != Some(value)
}

impl Rollout<'_> {
    /// Records on a ReplicaSet what size its Deployment wanted, for proportional scaling. Whether that changed.
    pub fn annotate_sizes(&self, meta: &mut ObjectMeta) -> bool {
        let wanted = sizes::wanted(self.spec);
        let desired = annotate(meta, DESIRED, &wanted.to_string());
        annotate(meta, MAX, &(wanted + sizes::max_surge(self.spec)).to_string()) || desired
    }

    fn next_revision(&self) -> i64 {
        let old = self.sets.iter().enumerate().filter(|(i, _)| Some(*i) != self.current);
        old.map(|(_, set)| revision(&set.metadata)).max().unwrap_or(0) + 1
    }

    fn copy_annotations(&self, meta: &mut ObjectMeta) -> bool {
        let mut changed = false;
        for (name, value) in self.old.metadata.annotations.iter().flatten() {
            if !NOT_COPIED.contains(&name.as_str()) {
                changed |= annotate(meta, name, value);
            }
        }
        changed
    }

    /// Brings the revision annotations up to date where the current ReplicaSet exists. Whether it does.
    pub fn find_revision(&mut self) -> bool {
        let Some(current) = self.current else { return false };
        let next = self.next_revision();
        let mut set = self.sets[current].clone();
        let mut changed = self.copy_annotations(&mut set.metadata);
        let held = annotation(&set.metadata, REVISION).map(str::to_owned);
        if revision(&set.metadata) < next {
            changed |= annotate(&mut set.metadata, REVISION, &next.to_string());
            // It had a revision before: this is a rollback, and the history keeps what it was.
            if let Some(held) = held {
                let history = annotation(&set.metadata, REVISION_HISTORY).unwrap_or("");
                let history = lengthened(history, &held);
                annotate(&mut set.metadata, REVISION_HISTORY, &history);
            }
        }
        let min_ready = self.spec.min_ready_seconds.filter(|s| *s != 0);
        if let Some(spec) = set.spec.as_mut().filter(|s| s.min_ready_seconds.filter(|s| *s != 0) != min_ready) {
            spec.min_ready_seconds = min_ready;
            changed = true;
        }
        let (name, revision) = (set.metadata.name.clone().unwrap_or_default(), revision(&set.metadata));
        if changed {
            self.plan.step(Write::update(&set));
            // The update above makes a new version, and scaling in the same plan would be refused as a conflict.
            self.settled_first = true;
        }
        self.sets[current] = set;
        annotate(&mut self.new.metadata, REVISION, &revision.to_string());
        if self.deadline().is_some() && self.condition("Progressing").is_none() {
            let message = format!("Found new replica set \"{name}\"");
            self.set_condition("Progressing", "True", "FoundNewReplicaSet", message);
        }
        true
    }

    /// Makes the ReplicaSet for the current template. When the name is taken by one of another template, the next
    /// attempt will use another name.
    pub fn create_current(&mut self, observed: &Observed) {
        if observed.namesake.is_some() {
            let status = self.new.status.get_or_insert_default();
            status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
            return;
        }
        if let Some(message) = observed.create_failed.as_ref().filter(|_| self.deadline().is_some()) {
            let message = format!("Failed to create new replica set \"{}\": {message}", set_name(self.old));
            self.set_condition("Progressing", "False", "ReplicaSetCreateError", message);
        }
        let mut set = self.fresh_set();
        let size = sizes::current_size(self.spec, sizes::sum(&self.sets, sizes::size), 0);
        if let Some(spec) = &mut set.spec {
            spec.replicas = Some(size);
        }
        let name = set.metadata.name.clone().unwrap_or_default();
        let failed = format!("Failed to create new replica set \"{name}\": {{error}}");
        let mut write = Write::create(&set).on_failure(Note::warning("ReplicaSetCreateError", failed));
        if size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            write = write.on_success(Note::normal("ScalingReplicaSet", message));
        }
        self.plan.step(write);
        annotate(&mut self.new.metadata, REVISION, &revision(&set.metadata).to_string());
        if self.deadline().is_some() && observed.create_failed.is_none() {
            let message = format!("Created new replica set \"{name}\"");
            self.set_condition("Progressing", "True", "NewReplicaSetCreated", message);
        }
        self.sets.push(set);
        self.current = Some(self.sets.len() - 1);
    }

    fn fresh_set(&self) -> ReplicaSet {
        let hash = hash(self.old);
        let mut template = self.spec.template.clone();
        let meta = template.metadata.get_or_insert_default();
        meta.labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
        let labels = meta.labels.clone();
        let mut selector: LabelSelector = self.spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash);
        let mut metadata = ObjectMeta {
            name: Some(set_name(self.old)),
            namespace: self.old.metadata.namespace.clone(),
            labels,
            owner_references: Some(vec![owner_reference(self.old)]),
            ..Default::default()
        };
        self.copy_annotations(&mut metadata);
        annotate(&mut metadata, REVISION, &self.next_revision().to_string());
        self.annotate_sizes(&mut metadata);
        let spec = ReplicaSetSpec {
            min_ready_seconds: self.spec.min_ready_seconds,
            replicas: Some(0),
            selector,
            template: Some(template),
        };
        ReplicaSet { metadata, spec: Some(spec), status: None }
    }
}

/// The list of former revisions with one more, the oldest left out when it grows too long.
fn lengthened(history: &str, revision: &str) -> String {
    let mut entries: Vec<&str> = history.split(',').filter(|e| !e.is_empty()).collect();
    entries.push(revision);
    while entries.join(",").len() > HISTORY_LENGTH && entries.len() > 1 {
        entries.remove(0);
    }
    entries.join(",")
}
