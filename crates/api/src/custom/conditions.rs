//! Which names a definition gets, and the conditions that say so.
//!
//! Upstream counterpart: the controllers of apiextensions-apiserver/pkg/controller: status, establish, apiapproval. Schemas
//! that are not structural are refused before they are stored, so nothing says that of one.

use std::collections::HashSet;

use json::{Value, json};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionNames;

use super::conversion::has_sound_bundle;
use super::head::Head;

/// The annotation by which a group of the community's may be defined.
pub const APPROVED: &str = "api-approved.kubernetes.io";

/// The names that the definitions of one group have been given.
#[derive(Debug, Default)]
pub struct InUse {
    resources: HashSet<String>,
    kinds: HashSet<String>,
}

impl InUse {
    pub fn add(&mut self, names: &CustomResourceDefinitionNames) {
        self.resources.insert(names.plural.clone());
        self.resources.extend(names.singular.iter().chain(names.short_names.iter().flatten()).cloned());
        self.kinds.insert(names.kind.clone());
        self.kinds.extend(names.list_kind.clone());
    }
}

/// One condition of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The next names and conditions of a definition's status.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub accepted: CustomResourceDefinitionNames,
    pub conditions: Vec<Condition>,
    /// The generation that all of this is about, where that is told.
    pub observed: Option<i64>,
}

/// The next step of a definition's status; `None` when the status says all. `tracks` is whether it says of which generation.
pub fn plan(head: &Head, in_use: &InUse, tracks: bool) -> Option<Step> {
    let present = head.status.accepted_names.clone().unwrap_or_default();
    let observed = tracks.then_some(head.metadata.generation);
    let mut step = Step { accepted: present.clone(), conditions: Vec::new(), observed };
    if present != head.spec.names {
        let names = names(&head.spec.names, &present, in_use);
        step.accepted = names.0;
        step.conditions.push(names.1);
        if !head.has("Established") && !step.conditions[0].holds {
            step.conditions.push(condition("Established", false, "NotAccepted", "not all names are accepted"));
        }
    }
    let accepted = step.conditions.first().map_or_else(|| head.has("NamesAccepted"), |c| c.holds);
    if accepted && !head.has("Established") && head.metadata.deletion_timestamp.is_none() {
        step.conditions.push(establishment(head));
    }
    step.conditions.extend(approval(head));
    step.conditions.retain(|wanted| !is_told(head, wanted));
    let seen = observed.is_none() || head.status.observed_generation == observed;
    (step.accepted != present || !step.conditions.is_empty() || !seen).then_some(step)
}

/// The condition of a definition that has its names.
fn establishment(head: &Head) -> Condition {
    if has_sound_bundle(head) {
        condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        condition("Established", false, "InvalidCABundle", "The conversion webhook CABundle is invalid")
    }
}

fn condition(kind: &'static str, holds: bool, reason: &'static str, message: &str) -> Condition {
    Condition { kind, holds, reason, message: message.to_owned() }
}

fn is_told(head: &Head, wanted: &Condition) -> bool {
    let status = if wanted.holds { "True" } else { "False" };
    head.status.conditions.iter().flatten().any(|c| {
        c.type_ == wanted.kind
            && c.status == status
            && c.reason.as_deref() == Some(wanted.reason)
            && c.message.as_deref() == Some(&wanted.message)
    })
}

/// The names that can be had of those that are wanted; the others stay what they are.
fn names(
    wanted: &CustomResourceDefinitionNames,
    present: &CustomResourceDefinitionNames,
    in_use: &InUse,
) -> (CustomResourceDefinitionNames, Condition) {
    let taken = |wanted: &str, present: &str, used: &HashSet<String>| {
        (wanted != present && used.contains(wanted)).then(|| format!("{wanted:?} is already in use"))
    };
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    let mut accepted = present.clone();
    let mut conflict: Option<(&'static str, String)> = None;
    let (resources, kinds) = (&in_use.resources, &in_use.kinds);
    match taken(&wanted.plural, &present.plural, resources) {
        Some(why) => conflict = Some(("PluralConflict", why)),
        None => accepted.plural.clone_from(&wanted.plural),
    }
    match taken(&text(&wanted.singular), &text(&present.singular), resources) {
        Some(why) => conflict = Some(("SingularConflict", why)),
        None => accepted.singular.clone_from(&wanted.singular),
    }
    let own: HashSet<&String> = present.short_names.iter().flatten().collect();
    let new = wanted.short_names.iter().flatten().filter(|name| !own.contains(name));
    let wrong: Vec<String> = new.filter_map(|name| taken(name, "", resources)).collect();
    match wrong.as_slice() {
        [] => accepted.short_names.clone_from(&wanted.short_names),
        [one] => conflict = Some(("ShortNamesConflict", one.clone())),
        many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
    }
    match taken(&wanted.kind, &present.kind, kinds) {
        Some(why) => conflict = Some(("KindConflict", why)),
        None => accepted.kind.clone_from(&wanted.kind),
    }
    match taken(&text(&wanted.list_kind), &text(&present.list_kind), kinds) {
        Some(why) => conflict = Some(("ListKindConflict", why)),
        None => accepted.list_kind.clone_from(&wanted.list_kind),
    }
    accepted.categories.clone_from(&wanted.categories);
    let told = match conflict {
        Some((reason, message)) => Condition { kind: "NamesAccepted", holds: false, reason, message },
        None => condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
    };
    (accepted, told)
}

/// Whether only the community may define kinds of this group.
pub fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// The meaning of an approval: the reason of the condition, its message, and whether the definition may be written.
pub fn approval_state(annotation: &str) -> (&'static str, String, bool) {
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = || {
        let (scheme, rest) = annotation.split_once("://").unwrap_or_default();
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        !scheme.is_empty() && !host.is_empty() && !annotation.contains(' ')
    };
    if annotation.is_empty() {
        let message = format!("protected groups must have approval annotation {APPROVED:?}, {see}");
        ("MissingAnnotation", message, false)
    } else if annotation.starts_with("unapproved") {
        ("UnapprovedAnnotation", format!("not approved: {annotation:?}"), true)
    } else if is_url() {
        ("ApprovedAnnotation", format!("approved in {annotation}"), true)
    } else {
        let how = "with either a URL or a reason starting with \"unapproved\"";
        (
            "InvalidAnnotation",
            format!("protected groups must have approval annotation {APPROVED:?} {how}, {see}"),
            false,
        )
    }
}

fn approval(head: &Head) -> Option<Condition> {
    if !is_protected(&head.spec.group) {
        return None;
    }
    let annotation = head.metadata.annotations.get(APPROVED).map(String::as_str).unwrap_or_default();
    let (reason, message, _) = approval_state(annotation);
    let holds = reason == "ApprovedAnnotation";
    Some(Condition { kind: "KubernetesAPIApprovalPolicyConformant", holds, reason, message })
}

/// Writes a step into the status of a definition.
pub fn write(object: &mut Value, step: &Step, now: &str) {
    object["status"]["acceptedNames"] = json::to_value(&step.accepted).unwrap_or_default();
    step.conditions.iter().for_each(|condition| set(object, condition, now));
    let Some(observed) = step.observed else { return };
    object["status"]["observedGeneration"] = observed.into();
    for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["observedGeneration"] = observed.into();
    }
}

/// Sets one condition. Its time stays as long as it does.
pub fn set(object: &mut Value, condition: &Condition, now: &str) {
    let status = if condition.holds { "True" } else { "False" };
    let observed = object["status"].get("observedGeneration").cloned();
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    let known = list.iter().position(|c| c["type"] == condition.kind);
    let since = known.filter(|at| list[*at]["status"] == status).map(|at| list[at]["lastTransitionTime"].clone());
    let mut told = json!({"type": condition.kind, "status": status, "reason": condition.reason, "message": condition.message,
        "lastTransitionTime": since.filter(Value::is_string).unwrap_or_else(|| now.into())});
    if let Some(observed) = observed {
        told["observedGeneration"] = observed;
    }
    match known {
        Some(at) => list[at] = told,
        None => list.push(told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(names: Value, status: Value) -> Head {
        json::from_value(json!({"metadata": {"name": "x"}, "status": status,
            "spec": {"group": "example.com", "names": names, "scope": "Cluster", "versions": []}}))
        .expect("a head")
    }

    fn shown(step: Option<Step>) -> String {
        let Some(step) = step else { return "nothing".to_owned() };
        let one = |c: &Condition| format!("{}={} {}: {}", c.kind, c.holds, c.reason, c.message);
        format!(
            "{} {}; {}",
            step.accepted.plural,
            step.accepted.kind,
            step.conditions.iter().map(one).collect::<Vec<_>>().join("; ")
        )
    }

    #[test]
    fn the_generation_is_told_where_it_is_wanted() {
        let mut head = head(json!({"plural": "dogs", "kind": "Dog"}), json!({}));
        head.metadata.generation = 3;
        let step = plan(&head, &InUse::default(), true).expect("a new definition has a step");
        let mut object = json!({});
        write(&mut object, &step, "2024-01-01T00:00:00Z");
        let told = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let of = |c: &Value| format!("{} {}", c["type"].as_str().unwrap_or_default(), c["observedGeneration"]);
            (object["status"]["observedGeneration"].clone(), conditions.iter().map(of).collect::<Vec<_>>())
        };
        assert_eq!(told(&object), (json!(3), vec!["NamesAccepted 3".to_owned(), "Established 3".to_owned()]));
        head.status = json::from_value(object["status"].clone()).expect("a status");
        assert_eq!(plan(&head, &InUse::default(), true), None, "all is said");
        assert_eq!(plan(&head, &InUse::default(), false), None);
        head.metadata.generation = 4;
        let step = plan(&head, &InUse::default(), true).expect("there is another generation");
        assert!(step.conditions.is_empty());
        write(&mut object, &step, "2024-01-02T00:00:00Z");
        assert_eq!(told(&object), (json!(4), vec!["NamesAccepted 4".to_owned(), "Established 4".to_owned()]));
        assert_eq!(object["status"]["conditions"][0]["lastTransitionTime"], "2024-01-01T00:00:00Z");
        set(&mut object, &condition("Terminating", true, "InstanceDeletionPending", ""), "2024-01-03T00:00:00Z");
        assert_eq!(object["status"]["conditions"][2]["observedGeneration"], 4);
    }

    #[test]
    fn names_are_accepted_unless_others_have_them() {
        let names =
            || json!({"plural": "dogs", "singular": "dog", "kind": "Dog", "listKind": "DogList", "shortNames": ["d"]});
        let check = |used: Value, expected: &str| {
            let mut in_use = InUse::default();
            in_use.add(&json::from_value(used).expect("names"));
            assert_eq!(shown(plan(&head(names(), json!({})), &in_use, false)), expected);
        };
        check(
            json!({"plural": "cats", "kind": "Cat"}),
            "dogs Dog; NamesAccepted=true NoConflicts: no conflicts found; \
            Established=true InitialNamesAccepted: the initial names have been accepted",
        );
        let not = "Established=false NotAccepted: not all names are accepted";
        check(
            json!({"plural": "dogs", "kind": "Cat"}),
            &format!(" Dog; NamesAccepted=false PluralConflict: \"dogs\" is already in use; {not}"),
        );
        check(
            json!({"plural": "cats", "kind": "Dog"}),
            &format!("dogs ; NamesAccepted=false KindConflict: \"Dog\" is already in use; {not}"),
        );
        check(
            json!({"plural": "cats", "kind": "Cat", "shortNames": ["d"]}),
            &format!("dogs Dog; NamesAccepted=false ShortNamesConflict: \"d\" is already in use; {not}"),
        );
        check(
            json!({"plural": "cats", "kind": "Cat", "listKind": "DogList"}),
            &format!("dogs Dog; NamesAccepted=false ListKindConflict: \"DogList\" is already in use; {not}"),
        );
    }

    #[test]
    fn what_cannot_be_converted_is_not_established() {
        let mut head = head(json!({"plural": "dogs", "kind": "Dog"}), json!({}));
        let conversion = |bundle: &str| {
            let client = json!({"url": "https://a.io", "caBundle": bundle});
            json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}})
        };
        head.spec.conversion = json::from_value(conversion("Z2FyYmFnZQ==")).expect("a conversion");
        let step = plan(&head, &InUse::default(), false).expect("a new definition has a step");
        assert_eq!(step.conditions[1], establishment(&head));
        assert_eq!((step.conditions[1].holds, step.conditions[1].reason), (false, "InvalidCABundle"));
        let mut object = json!({});
        write(&mut object, &step, "2024-01-01T00:00:00Z");
        head.status = json::from_value(object["status"].clone()).expect("a status");
        assert_eq!(plan(&head, &InUse::default(), false), None, "all is said");
        head.spec.conversion = json::from_value(conversion("")).expect("a conversion");
        let step = plan(&head, &InUse::default(), false).expect("the bundle is gone");
        assert_eq!((step.conditions[0].holds, step.conditions[0].reason), (true, "InitialNamesAccepted"));
    }

    #[test]
    fn what_is_established_stays_so() {
        let conditions = json!([{"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"}]);
        let names = json!({"plural": "dogs", "singular": "dog", "kind": "Dog", "listKind": "DogList"});
        let status = json!({"acceptedNames": names, "conditions": conditions});
        assert_eq!(shown(plan(&head(names.clone(), status.clone()), &InUse::default(), false)), "nothing");
        let mut more = names;
        more["shortNames"] = json!(["taken"]);
        let mut in_use = InUse::default();
        in_use.add(&json::from_value(json!({"plural": "taken", "kind": "Taken"})).expect("names"));
        let step = shown(plan(&head(more, status), &in_use, false));
        assert_eq!(step, "dogs Dog; NamesAccepted=false ShortNamesConflict: \"taken\" is already in use");
    }

    #[test]
    fn groups_of_the_community_ask_for_approval() {
        assert!(
            is_protected("k8s.io")
                && is_protected("a.kubernetes.io")
                && !is_protected("xk8s.io")
                && !is_protected("k8s.io.example.com")
        );
        let check = |annotation: &str, reason: &str, may: bool| {
            let (found, _, allowed) = approval_state(annotation);
            assert_eq!((found, allowed), (reason, may), "{annotation}");
        };
        check("", "MissingAnnotation", false);
        check("https://github.com/kubernetes/enhancements/pull/1", "ApprovedAnnotation", true);
        check("unapproved, testing", "UnapprovedAnnotation", true);
        check("yes", "InvalidAnnotation", false);
    }

    #[test]
    fn conditions_keep_the_time_at_which_they_turned() {
        let mut object = json!({});
        let mut told = condition("Terminating", true, "A", "a");
        set(&mut object, &told, "t1");
        (told.reason, told.message) = ("B", "b".to_owned());
        set(&mut object, &told, "t2");
        assert_eq!(
            object["status"]["conditions"],
            json!([{"type": "Terminating", "status": "True", "reason": "B",
            "message": "b", "lastTransitionTime": "t1"}])
        );
        told.holds = false;
        set(&mut object, &told, "t3");
        assert_eq!(object["status"]["conditions"][0]["lastTransitionTime"], "t3");
    }
}
