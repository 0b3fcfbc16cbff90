//! The history of a DaemonSet or StatefulSet: each template that it had is a ControllerRevision.
//! Upstream counterpart: pkg/controller/history, and for DaemonSets pkg/controller/daemon/update.go.
//!
//! The name of a revision follows from its content. A process that ends right after it made one finds it again, and makes
//! no second one. A revision is made before the Pods that name it, and deleted only when none does any more.

use std::sync::Arc;

use api::{
    object::Object,
    rules::selector::{self, Labels, Selector},
};
use client::{Key, Kind};
use controller::{Listers, Plan, Watches, Write, claim, controller_of, owner_reference};
use json::{Value, json};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        runtime::RawExtension,
    },
};

use crate::workloads::template_hash::template_hash;

/// The label of Pods that names the revision they were made from.
pub const POD_REVISION: &str = "controller-revision-hash";

/// A kind whose templates are remembered.
pub trait HistoryOwner: Kind {
    /// The label of a revision that holds the hash in its name.
    const HASH_LABEL: &'static str;

    fn template(&self) -> Option<&PodTemplateSpec>;
    fn selector(&self) -> Option<&LabelSelector>;
    fn collisions(&self) -> Option<i32>;
    /// How many revisions are kept that are not in use.
    fn limit(&self) -> Option<i32>;
}

macro_rules! history_owners {
    ($($kind:ident: $label:expr),*) => {$(
        impl HistoryOwner for $kind {
            const HASH_LABEL: &'static str = $label;

            fn template(&self) -> Option<&PodTemplateSpec> {
                self.spec.as_ref().map(|s| &s.template)
            }

            fn selector(&self) -> Option<&LabelSelector> {
                self.spec.as_ref().map(|s| &s.selector)
            }

            fn collisions(&self) -> Option<i32> {
                self.status.as_ref()?.collision_count
            }

            fn limit(&self) -> Option<i32> {
                self.spec.as_ref()?.revision_history_limit
            }
        }
    )*};
}

history_owners!(DaemonSet: POD_REVISION, StatefulSet: "controller.kubernetes.io/hash");

/// The owner's selector; one that is broken or empty takes nothing.
pub fn selector<O: HistoryOwner>(owner: &O) -> Selector {
    let selector = Selector::of_object(owner.selector()).unwrap_or(Selector::NOTHING);
    if selector.is_everything() { Selector::NOTHING } else { selector }
}

/// Whether the owner's selector takes something with these labels.
pub fn takes<O: HistoryOwner>(owner: &O, labels: &impl Labels) -> bool {
    selector::takes(owner.selector(), labels)
}

/// Changes of revisions, and their ends, lead to their owners. A revision that somebody makes for an owner does not: it is
/// looked at with the next change, as with upstream, whose tests make some to see that they are left alone.
pub fn watch<O: HistoryOwner>(watches: &mut Watches<O>) {
    watches.indexed::<ControllerRevision>().changed::<ControllerRevision>(|change, _| {
        let states = change.old.iter().chain(&change.new).filter(|_| change.old.is_some());
        let owners = states.filter_map(|revision| controller_of(&**revision)).filter(|owner| owner.kind == O::KIND);
        owners.map(|owner| Key::new(&change.key.namespace, &owner.name)).collect()
    });
    watches.selected::<ControllerRevision>(|owner, revision| takes(owner, &revision.metadata.labels));
}

/// The caches' view of an owner's history.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Revisions that the owner controls, and free ones that its selector takes.
    pub revisions: Vec<Arc<ControllerRevision>>,
    /// Some object has the name that the next revision would get.
    pub is_name_taken: bool,
}

impl Recorded {
    pub fn observe<O: HistoryOwner>(owner: &O, listers: &Listers) -> Self {
        let name = fresh(owner, 0).metadata.name.unwrap_or_default();
        let key = Key::new(owner.metadata().namespace.clone().unwrap_or_default(), name);
        let selector = selector(owner);
        Recorded {
            revisions: listers.owned_or_selected(owner, |r: &ControllerRevision| selector.matches(&r.metadata.labels)),
            is_name_taken: listers.caches.of::<ControllerRevision>().get(&key).is_some(),
        }
    }
}

/// The patch that brings a template back, as `kubectl rollout undo` applies it. kubectl and upstream's tests compare it byte
/// by byte with their own, in which some fields are there even when they are empty.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = template.to_value();
    fill(Some(&mut template), "metadata");
    if let Some(fields) = template.as_object_mut() {
        fields.insert("$patch".to_owned(), json!("replace"));
    }
    for list in ["/spec/containers", "/spec/initContainers"] {
        for container in template.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            fill(Some(container), "resources");
        }
    }
    for volume in template.pointer_mut("/spec/volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        fill(volume.pointer_mut("/ephemeral/volumeClaimTemplate"), "metadata");
        fill(volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec"), "resources");
    }
    json!({"spec": {"template": template}})
}

/// Gives an object this field, empty, unless it has it.
fn fill(object: Option<&mut Value>, field: &str) {
    if let Some(fields) = object.and_then(Value::as_object_mut) {
        fields.entry(json::Key::of(field)).or_insert_with(|| json!({}));
    }
}

/// The template that a revision holds.
pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.pointer("/spec/template")?;
    PodTemplateSpec::from_value(&Value::from(template)).ok()
}

/// Whether the revision holds this patch, in whatever way it was written down.
fn holds(revision: &ControllerRevision, wanted: &Value) -> bool {
    let same = revision.data.as_ref().is_some_and(|held| Value::from(&held.0) == *wanted);
    same || template_of(revision).is_some_and(|template| data(&template) == *wanted)
}

/// The revision that stands for the owner's template, with this number.
fn fresh<O: HistoryOwner>(owner: &O, number: i64) -> ControllerRevision {
    const PREFIX_MAX: usize = 223;
    let template = owner.template().cloned().unwrap_or_default();
    let data = data(&template);
    let hash = template_hash(data.to_string().as_bytes(), owner.collisions());
    let meta = owner.metadata();
    let prefix: String = meta.name.iter().flat_map(|name| name.chars()).take(PREFIX_MAX).collect();
    let mut labels = template.metadata.and_then(|m| m.labels).unwrap_or_default();
    labels.insert(O::HASH_LABEL.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: meta.annotations.clone(),
            owner_references: Some(vec![owner_reference(owner)]),
            ..Default::default()
        },
        data: Some(RawExtension(data.into())),
        revision: number,
    }
}

pub fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or("")
}

/// The revisions of an owner as they are after the plan, oldest first.
#[derive(Debug)]
pub struct History {
    revisions: Vec<ControllerRevision>,
    /// Where the one of the present template is.
    present: usize,
    limit: Option<i32>,
}

impl History {
    /// Adopts and releases revisions, makes sure that there is one of the present template, and that it has the highest
    /// number: a template that comes back is a rollback. `None` when the name that it needs is taken by something else; a
    /// higher count of collisions in the status gives it another name. An owner that is being deleted gets no new ones.
    pub fn keep<O: HistoryOwner>(owner: &O, recorded: &Recorded, plan: &mut Plan) -> Option<History> {
        let selector = selector(owner);
        let claimed = claim(owner, &recorded.revisions, |r| selector.matches(&r.metadata.labels), plan);
        let mut revisions: Vec<ControllerRevision> = claimed.into_iter().cloned().collect();
        sort(&mut revisions);
        let wanted = data(&owner.template().cloned().unwrap_or_default());
        let lives = owner.metadata().deletion_timestamp.is_none();
        let newest = revisions.iter().rposition(|r| holds(r, &wanted));
        let others = revisions.iter().filter(|r| !holds(r, &wanted)).map(|r| r.revision);
        let next = others.max().unwrap_or(0) + 1;
        let present = match newest {
            Some(at) => {
                if revisions[at].revision < next && lives {
                    let patch = json!({"metadata": {"uid": revisions[at].metadata.uid}, "revision": next});
                    plan.step(Write::merge_patch(&revisions[at], "", patch));
                    revisions[at].revision = next;
                }
                name(&revisions[at]).to_owned()
            }
            None if recorded.is_name_taken || !lives => return None,
            None => {
                let made = fresh(owner, next);
                plan.step(Write::create(&made));
                let name = name(&made).to_owned();
                revisions.push(made);
                name
            }
        };
        sort(&mut revisions);
        let present = revisions.iter().position(|r| name(r) == present)?;
        Some(History { revisions, present, limit: owner.limit() })
    }

    /// The revision of the present template.
    pub fn present(&self) -> &ControllerRevision {
        &self.revisions[self.present]
    }

    pub fn find(&self, wanted: &str) -> Option<&ControllerRevision> {
        self.revisions.iter().find(|r| name(r) == wanted)
    }

    /// All but the present one, oldest first.
    pub fn past(&self) -> impl Iterator<Item = &ControllerRevision> {
        self.revisions.iter().enumerate().filter(|(at, _)| *at != self.present).map(|(_, revision)| revision)
    }

    /// The others that hold the present template too.
    pub fn duplicates(&self) -> impl Iterator<Item = &ControllerRevision> {
        let wanted = template_of(self.present()).map(|t| data(&t)).unwrap_or_default();
        self.past().filter(move |r| holds(r, &wanted))
    }

    /// Of past revisions, of which `counted` stand against the limit, deletes the oldest that are not in use.
    pub fn truncate(&self, counted: usize, is_used: impl Fn(&ControllerRevision) -> bool, plan: &mut Plan) {
        let Some(limit) = self.limit.and_then(|limit| usize::try_from(limit).ok()) else { return };
        let unused = self.past().filter(|r| !is_used(r) && r.metadata.deletion_timestamp.is_none());
        for revision in unused.take(counted.saturating_sub(limit)) {
            plan.step(Write::delete(revision));
        }
    }
}

fn sort(revisions: &mut [ControllerRevision]) {
    let made = |r: &ControllerRevision| r.metadata.creation_timestamp.as_ref().map(|t| t.0);
    // One that is about to be made has no age yet, and is the youngest.
    let rank = |r: &ControllerRevision| (r.revision, made(r).is_none(), made(r));
    revisions.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| name(a).cmp(name(b))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(image: &str, limit: i32) -> StatefulSet {
        json::from_value(json!({
            "metadata": {"name": "web", "namespace": "d", "uid": "s", "annotations": {"kubernetes.io/change-cause": "why"}},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "revisionHistoryLimit": limit, "serviceName": "",
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": image}]}}},
        }))
        .unwrap()
    }

    /// `image number word …` with the words orphan, foreign, relabelled: a revision that is named after its image.
    fn revision(text: &str) -> Arc<ControllerRevision> {
        let words: Vec<&str> = text.split(' ').collect();
        let mut revision = fresh(&owner(words[0], 0), words[1].parse().unwrap());
        let meta = &mut revision.metadata;
        meta.name = Some(words[0].to_owned());
        meta.uid = meta.name.clone();
        if words.contains(&"orphan") {
            meta.owner_references = None;
        }
        if words.contains(&"relabelled") {
            meta.labels = None;
        }
        // As a server of another version would have written it.
        if words.contains(&"foreign") {
            revision.data.as_mut().unwrap().0["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null.into();
            revision.data.as_mut().unwrap().0["spec"]["template"]["spec"]["containers"][0]
                .as_object_mut()
                .unwrap()
                .remove("resources");
        }
        Arc::new(revision)
    }

    fn keep(image: &str, revisions: &[&str], is_name_taken: bool) -> (Option<History>, Plan) {
        let mut plan = Plan::default();
        let recorded = Recorded { revisions: revisions.iter().map(|text| revision(text)).collect(), is_name_taken };
        (History::keep(&owner(image, 2), &recorded, &mut plan), plan)
    }

    /// The writes, with what numbers they give, and the revision that is present afterwards.
    fn check(image: &str, revisions: &[&str], expected: &str) {
        let (history, plan) = keep(image, revisions, false);
        let words = plan.writes().map(|w| match w.verb_name() {
            "create" => format!("create {}", w.body()["revision"]),
            "patch" if w.body()["revision"].is_number() => format!("{}={}", w.name, w.body()["revision"]),
            verb => format!("{verb} {}", w.name),
        });
        let history = history.unwrap();
        let at = template_of(history.present()).unwrap().spec.unwrap().containers[0].image.clone().unwrap();
        assert_eq!(words.chain([at]).collect::<Vec<_>>().join(", "), expected, "{revisions:?}");
    }

    #[test]
    fn each_template_is_one_revision() {
        check("v1", &[], "create 1, v1");
        check("v1", &["v1 1"], "v1");
        check("v2", &["v1 1"], "create 2, v2");
        check("v3", &["v2 7", "v1 3"], "create 8, v3");
        check("v1", &["v1 1 foreign"], "v1");
    }

    #[test]
    fn a_rollback_counts_the_old_revision_up() {
        check("v1", &["v1 1", "v2 2"], "v1=3, v1");
        check("v2", &["v1 1", "v2 2", "v3 5"], "v2=6, v2");
        check("v1", &["v1 2", "v2 2"], "v1=3, v1");
    }

    #[test]
    fn free_revisions_are_adopted_and_strange_ones_released() {
        check("v1", &["v1 1 orphan"], "patch v1, v1");
        check("v2", &["v1 1 relabelled", "v2 4"], "patch v1, v2");
        check("v1", &["v1 1 orphan", "v2 2"], "patch v1, v1=3, v1");
    }

    #[test]
    fn a_taken_name_makes_nothing() {
        let (history, plan) = keep("v2", &["v1 1"], true);
        assert!(history.is_none() && plan.is_empty());
        let mut collided = owner("v2", 2);
        let name_of = |owner: &StatefulSet| fresh(owner, 1).metadata.name;
        let before = name_of(&collided);
        collided.status = Some(json::from_value(json!({"replicas": 0, "collisionCount": 1})).unwrap());
        assert_ne!(name_of(&collided), before);
    }

    #[test]
    fn an_owner_that_goes_makes_nothing() {
        let mut gone = owner("v2", 2);
        gone.metadata.deletion_timestamp = Some(json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let mut plan = Plan::default();
        let recorded = Recorded { revisions: vec![revision("v1 1 orphan")], is_name_taken: false };
        assert!(History::keep(&gone, &recorded, &mut plan).is_none() && plan.is_empty());
    }

    #[test]
    fn the_oldest_that_nobody_uses_go_first() {
        let truncated = |used: &str, counted: usize| {
            let (history, _) = keep("v5", &["v1 1", "v2 2", "v3 3", "v4 4", "v5 5"], false);
            let mut plan = Plan::default();
            history.unwrap().truncate(counted, |r| name(r) == used, &mut plan);
            plan.to_string().replace("delete controllerrevisions ", "")
        };
        assert_eq!(truncated("", 4), "v1, v2");
        assert_eq!(truncated("v1", 4), "v2, v3");
        assert_eq!(truncated("v1", 3), "v2");
        assert_eq!(truncated("", 2), "");
    }

    #[test]
    fn a_revision_says_whose_it_is_and_how_to_come_back() {
        let made = json::to_value(fresh(&owner("v1", 2), 1)).unwrap();
        let hash = made["metadata"]["labels"]["controller.kubernetes.io/hash"].as_str().unwrap();
        assert_eq!(made["metadata"]["name"], format!("web-{hash}"));
        assert_eq!(made["metadata"]["labels"]["app"], "web");
        assert_eq!(made["metadata"]["annotations"]["kubernetes.io/change-cause"], "why");
        assert_eq!(made["metadata"]["ownerReferences"][0]["kind"], "StatefulSet");
        let template = json!({"$patch": "replace", "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "v1", "resources": {}}]}});
        assert_eq!(made["data"], json!({"spec": {"template": template}}));
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
        let ephemeral = json!({"spec": {"containers": [], "volumes":
            [{"name": "v", "ephemeral": {"volumeClaimTemplate": claim}}]}});
        let text = data(&json::from_value(ephemeral).unwrap()).to_string();
        let claim = r#"{"metadata":{},"spec":{"accessModes":["ReadWriteOnce"],"resources":{}}}"#;
        assert!(text.contains(claim) && text.starts_with(r#"{"spec":{"template":{"$patch":"replace","metadata":{},"#));
    }
}
