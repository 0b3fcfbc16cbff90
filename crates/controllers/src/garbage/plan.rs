//! The decisions of the garbage collector about an object, given the object and the states of its owners. Pure.

use client::rest::{DeleteOptions, Verb};
use controller::{Note, Plan, Write};
use json::json;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::graph::{FOREGROUND, ORPHAN, Object};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OwnerState {
    There,
    Gone,
    /// Its deletion waits for its dependents.
    Waiting,
}

impl OwnerState {
    pub fn of(owner: &Object) -> Self {
        if owner.foreground { OwnerState::Waiting } else { OwnerState::There }
    }
}

/// The objects that name the object as their owner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dependents {
    None,
    Some,
    /// One of them is being deleted in the foreground, and may wait for this very object.
    Waiting,
}

/// Keeps an object that has no owners, or of whose owners one is there: the others are taken off it. Any other object is
/// deleted.
pub fn collect(object: &Object, meta: &ObjectMeta, owners: &[(String, OwnerState)], dependents: Dependents) -> Plan {
    let mut plan = Plan::default();
    let of = |state| owners.iter().filter(move |(_, s)| *s == state).map(|(uid, _)| uid.as_str());
    if owners.is_empty() {
        return plan;
    }
    if of(OwnerState::There).next().is_some() {
        let off: Vec<&str> = of(OwnerState::Gone).chain(of(OwnerState::Waiting)).collect();
        if !off.is_empty() {
            plan.step(disown(object, meta, &off));
        }
        return plan;
    }
    let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
    let in_foreground = of(OwnerState::Waiting).next().is_some() && dependents != Dependents::None;
    if in_foreground && dependents == Dependents::Waiting && blocks(meta) {
        return unblock(object, meta);
    }
    let policy = if in_foreground {
        "Foreground"
    } else if has(ORPHAN) {
        "Orphan"
    } else if has(FOREGROUND) {
        "Foreground"
    } else {
        "Background"
    };
    let options = DeleteOptions {
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        propagation: Some(policy),
        ..Default::default()
    };
    plan.step(write(object, Verb::Delete(options)));
    plan
}

/// Makes the dependents ownerless, then lets the object go.
pub fn orphan(uid: &str, object: &Object, meta: &ObjectMeta, dependents: &[(Object, ObjectMeta)]) -> Plan {
    let mut plan = Plan::default();
    for (dependent, meta) in dependents {
        plan.step(disown(dependent, meta, &[uid]));
    }
    drop_finalizer(&mut plan, object, meta, ORPHAN);
    plan
}

/// Lets an object go that no dependent blocks any more.
pub fn finish_foreground(object: &Object, meta: &ObjectMeta) -> Plan {
    let mut plan = Plan::default();
    drop_finalizer(&mut plan, object, meta, FOREGROUND);
    plan
}

fn blocks(meta: &ObjectMeta) -> bool {
    meta.owner_references.iter().flatten().any(|o| o.block_owner_deletion == Some(true))
}

/// Objects that own each other would wait for each other for ever: this one blocks its owners no longer. It is looked at
/// again after that.
pub fn unblock(object: &Object, meta: &ObjectMeta) -> Plan {
    let mut plan = Plan::default();
    if blocks(meta) {
        let mut owners = meta.owner_references.clone().unwrap_or_default();
        let blocking = owners.iter_mut().filter(|o| o.block_owner_deletion == Some(true));
        blocking.for_each(|o| o.block_owner_deletion = Some(false));
        let patch =
            json!({"metadata": {"ownerReferences": owners, "uid": meta.uid, "resourceVersion": meta.resource_version}});
        plan.step(write(object, Verb::MergePatch(patch))).retry();
    }
    plan
}

/// An owner in another namespace is none, which surprises users who name one.
pub fn wrong_namespace(owner: &OwnerReference, uid: &str, object: &Object) -> Note {
    let about = ObjectReference {
        api_version: Some(object.resource.api_version()),
        kind: Some(object.resource.kind.clone()),
        namespace: Some(object.namespace.to_string()),
        name: Some(object.name.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    let OwnerReference { api_version, kind, name, uid, .. } = owner;
    let namespace = &object.namespace;
    let message = format!(
        "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace \
         \"{namespace}\""
    );
    Note::warning("OwnerRefInvalidNamespace", message).about(about)
}

fn disown(object: &Object, meta: &ObjectMeta, off: &[&str]) -> Write {
    let kept: Vec<&OwnerReference> =
        meta.owner_references.iter().flatten().filter(|o| !off.contains(&o.uid.as_str())).collect();
    let patch =
        json!({"metadata": {"ownerReferences": kept, "uid": meta.uid, "resourceVersion": meta.resource_version}});
    write(object, Verb::MergePatch(patch))
}

fn drop_finalizer(plan: &mut Plan, object: &Object, meta: &ObjectMeta, name: &str) {
    let (off, kept): (Vec<&String>, Vec<&String>) = meta.finalizers.iter().flatten().partition(|f| *f == name);
    if !off.is_empty() {
        let patch =
            json!({"metadata": {"finalizers": kept, "uid": meta.uid, "resourceVersion": meta.resource_version}});
        plan.step(write(object, Verb::MergePatch(patch)));
    }
}

/// An object that is gone already is fine; one that changed is looked at again.
fn write(object: &Object, verb: Verb) -> Write {
    Write::dynamic(&object.resource, &object.namespace, &object.name, verb).tolerate(&["NotFound"])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use client::rest::Resource;

    use super::*;

    fn object(meta: &ObjectMeta) -> Object {
        let resource = Resource { group: "".into(), version: "v1".into(), kind: "X".into(), plural: "xs".into() };
        Object::of(&Arc::new(resource), meta)
    }

    /// `delete POLICY`, or `keep` and the owners that are kept.
    fn text(plan: &Plan) -> String {
        let Some(write) = plan.writes().next() else { return "keep".to_owned() };
        let Verb::Delete(options) = &write.verb else { return write.body()["metadata"].to_string() };
        format!("delete {}", options.propagation.unwrap())
    }

    #[test]
    fn an_object_goes_when_its_last_owner_does() {
        use Dependents::{None, Some as Have, Waiting as Wait};
        use OwnerState::{Gone, There, Waiting};
        let check = |owners: &[(&str, OwnerState)], dependents: Dependents, finalizers: &[&str], expected: &str| {
            let reference = |uid: &str| OwnerReference {
                uid: uid.trim_end_matches('!').to_owned(),
                block_owner_deletion: uid.ends_with('!').then_some(true),
                ..OwnerReference::default()
            };
            let meta = ObjectMeta {
                name: Some("x".to_owned()),
                finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
                owner_references: Some(owners.iter().map(|(uid, _)| reference(uid)).collect()),
                ..Default::default()
            };
            let owners: Vec<_> = owners.iter().map(|(uid, state)| (uid.replace('!', ""), *state)).collect();
            assert_eq!(text(&collect(&object(&meta), &meta, &owners, dependents)), expected);
        };
        check(&[], None, &[], "keep");
        check(&[("a", There)], None, &[], "keep");
        let kept = r#"{"ownerReferences":[{"apiVersion":"","kind":"","name":"","uid":"a"}],"resourceVersion":null,"uid":null}"#;
        check(&[("a", There), ("b", Gone), ("c", Waiting)], None, &[], kept);
        check(&[("a", Gone)], Have, &[], "delete Background");
        check(&[("a", Gone)], Have, &[ORPHAN], "delete Orphan");
        check(&[("a", Waiting)], Have, &[], "delete Foreground");
        check(&[("a", Waiting), ("b", Gone)], None, &[], "delete Background");
        let unblocked = r#"{"ownerReferences":[{"apiVersion":"","blockOwnerDeletion":false,"kind":"","name":"","uid":"a"}],"resourceVersion":null,"uid":null}"#;
        check(&[("a!", Waiting)], Wait, &[], unblocked);
        check(&[("a", Waiting)], Wait, &[], "delete Foreground");
        check(&[("a!", Gone)], Wait, &[], "delete Background");
    }

    #[test]
    fn dependents_are_made_ownerless_before_their_owner_goes() {
        let meta = |name: &str, finalizer: Option<&str>| ObjectMeta {
            name: Some(name.to_owned()),
            finalizers: finalizer.map(|f| vec![f.to_owned()]),
            ..Default::default()
        };
        let (owner, child) = (meta("owner", Some(ORPHAN)), meta("child", None));
        let plan = orphan("u", &object(&owner), &owner, &[(object(&child), child.clone())]);
        assert_eq!(plan.to_string(), "patch xs child, patch xs owner");
        assert!(finish_foreground(&object(&owner), &owner).is_empty(), "it has no such finalizer");
    }
}
