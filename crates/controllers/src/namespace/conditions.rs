//! The conditions of a namespace that is being deleted: what is left in it, and why.

use std::collections::BTreeMap;

use clock::Timestamp;
use k8s_openapi::{
    api::core::v1::{NamespaceCondition, NamespaceStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::content::{Observed, title};

/// Says in the status why the namespace is still there, and returns whether anything changed.
pub fn set_conditions(status: &mut NamespaceStatus, observed: &Observed, now: Timestamp) -> bool {
    let (mut objects, mut finalizers) = (BTreeMap::new(), BTreeMap::new());
    for content in &observed.content {
        *objects.entry(title(&content.kind.resource)).or_default() += content.objects.len();
        for finalizer in content.objects.iter().flat_map(|object| object.finalizers.iter().flatten()) {
            *finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }
    let counted = |counts: &BTreeMap<String, usize>, join: &str| {
        let parts: Vec<String> =
            counts.iter().map(|(what, count)| format!("{what} {join} {count} resource instances")).collect();
        parts.join(", ")
    };
    let conditions = [
        (
            "NamespaceDeletionDiscoveryFailure",
            !observed.undiscovered.is_empty(),
            ("ResourcesDiscovered", "All resources successfully discovered".to_owned()),
            (
                "DiscoveryFailed",
                format!(
                    "Discovery failed for some groups, {} failing: {}",
                    observed.undiscovered.len(),
                    observed.undiscovered
                ),
            ),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed".to_owned()),
            ("GroupVersionParsingFailed", String::new()),
        ),
        (
            "NamespaceDeletionContentFailure",
            !observed.errors.is_empty(),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization".to_owned()),
            (
                "ContentDeletionFailed",
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    observed.errors.len(),
                    observed.errors.join(", ")
                ),
            ),
        ),
        (
            "NamespaceContentRemaining",
            !objects.is_empty(),
            ("ContentRemoved", "All content successfully removed".to_owned()),
            ("SomeResourcesRemain", format!("Some resources are remaining: {}", counted(&objects, "has"))),
        ),
        (
            "NamespaceFinalizersRemaining",
            !finalizers.is_empty(),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished".to_owned()),
            (
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {}", counted(&finalizers, "in")),
            ),
        ),
    ];
    let mut changed = false;
    let held = status.conditions.get_or_insert_default();
    for (kind, is_true, fine, wrong) in conditions {
        let (reason, message) = if is_true { wrong } else { fine };
        let word = if is_true { "True" } else { "False" };
        let old = held.iter().position(|c| c.type_ == kind);
        let same = |c: &NamespaceCondition| {
            c.status == word && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(&*message)
        };
        if old.is_some_and(|i| same(&held[i])) {
            continue;
        }
        let since = old.filter(|i| held[*i].status == word).and_then(|i| held[i].last_transition_time.clone());
        let new = NamespaceCondition {
            type_: kind.to_owned(),
            status: word.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        };
        match old {
            Some(i) => held[i] = new,
            None => held.push(new),
        }
        changed = true;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::content::tests::content;

    #[test]
    fn groups_that_cannot_be_asked_are_named() {
        let mut status = NamespaceStatus::default();
        let observed =
            Observed { undiscovered: crate::discovery::Unknown(vec!["a.io/v1".to_owned()]), ..Observed::default() };
        assert!(!observed.is_nothing(), "the namespace stays until all groups answer");
        assert!(set_conditions(&mut status, &observed, Timestamp::UNIX_EPOCH));
        let condition = status.conditions.unwrap().remove(0);
        let expected = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
                        a.io/v1: stale GroupVersion discovery: a.io/v1";
        assert_eq!(
            (condition.type_.as_str(), condition.status.as_str()),
            ("NamespaceDeletionDiscoveryFailure", "True")
        );
        assert_eq!(
            (condition.reason.as_deref(), condition.message.as_deref()),
            (Some("DiscoveryFailed"), Some(expected))
        );
    }

    #[test]
    fn conditions_say_what_remains() {
        let mut status = NamespaceStatus::default();
        let remains = Observed { content: vec![content("pods", "a b:held")], ..Observed::default() };
        assert!(set_conditions(&mut status, &remains, Timestamp::UNIX_EPOCH));
        assert!(!set_conditions(&mut status, &remains, Timestamp::UNIX_EPOCH));
        let text = |status: &NamespaceStatus, kind: &str| {
            let c = status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == kind).unwrap().clone();
            format!("{} {}: {}", c.status, c.reason.unwrap(), c.message.unwrap())
        };
        assert_eq!(
            text(&status, "NamespaceContentRemaining"),
            "True SomeResourcesRemain: Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            text(&status, "NamespaceFinalizersRemaining"),
            "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/x in 1 \
             resource instances"
        );
        assert!(set_conditions(&mut status, &Observed::default(), Timestamp::UNIX_EPOCH));
        assert_eq!(
            text(&status, "NamespaceContentRemaining"),
            "False ContentRemoved: All content successfully removed"
        );
    }
}
