//! Eviction: a delete that asks the Pod's disruption budget first.

use std::collections::BTreeMap;

use api::{
    Value,
    k8s_openapi::{api::policy::v1::PodDisruptionBudget, apimachinery::pkg::apis::meta::v1::StatusCause},
    kind::{Definition, Target},
    meta,
    object::Object,
    rules::{pod::is_terminal_phase, selector::Selector},
    status::StatusError,
};
use json::json;
use store::Entry;

use super::object::{admitted, body_in, same_name, set_condition, success, text};
use crate::{
    call::Call,
    http::{body::Response, options::DeleteOptions},
    pipeline::delete::{Deletion, check_preconditions},
    storage,
};

const VIOLATED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// Evictions that were allowed and not yet seen by the controller; more means that the controller is far behind.
const DISRUPTED_MAX: usize = 2000;

/// `pods/NAME/eviction`
pub async fn evict(mut call: Call) -> Result<Response, StatusError> {
    let (eviction, options) = body_in(&mut call, "policy", ("v1", &["v1beta1"]), "Eviction").await?;
    same_name(&call, &eviction, "Eviction")?;
    let objects = &call.state.objects;
    let definition = objects.definition("", "pods")?;
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    let eviction = admitted(&call, (&definition, name), eviction, &options, |_| Ok(())).await?;
    let entry = objects.entry(&definition, namespace, name).await?;
    let pod = storage::object::of_entry(&definition, &entry);
    // An eviction whose delete would be refused is refused before a budget is charged for it.
    let mut wanted = DeleteOptions::of(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
    wanted.dry_run |= options.dry_run;
    wanted.uid.get_or_insert_with(|| meta::uid(&pod).to_owned());
    if !unprotected(&pod) {
        let budgets = objects.definition("policy", "poddisruptionbudgets")?;
        let all = objects.list(&budgets, namespace).await?;
        match all.iter().filter(|b| selects(b, &pod)).collect::<Vec<_>>().as_slice() {
            [] => {}
            [budget] if may_go_unhealthy(&pod, budget) => {}
            [budget] => {
                let now = clock::now_seconds().to_string();
                if wanted.dry_run {
                    charge(&mut (*budget).clone(), name, &now)?;
                } else {
                    let charge = |budget: &mut Value| charge(budget, name, &now).map(|()| true);
                    objects.update(&budgets, (namespace, meta::name(budget)), Target::Status, charge).await?;
                }
            }
            _ => {
                let message =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(StatusError::new(500, "InternalError", message));
            }
        }
    }
    let entry = if wanted.dry_run { entry } else { marked(&call, &definition, entry, &mut wanted).await? };
    // As upstream's, the deletion is the server's own: who may evict need not be allowed to delete, and admission has
    // looked at the eviction.
    Deletion { state: &call.state, definition: &definition, options: &wanted, user: None, collection: false }
        .run(entry)
        .await?;
    Ok(success())
}

/// The Pod with the condition that says why it goes. It is the client's Pod and no other, and stays that until it is deleted.
async fn marked(
    call: &Call,
    definition: &Definition,
    entry: Entry,
    wanted: &mut DeleteOptions,
) -> Result<Entry, StatusError> {
    let now = clock::now_seconds().to_string();
    let mut swap = call.state.objects.swap(definition, entry);
    loop {
        let mut pod = swap.object();
        check_preconditions(definition, &pod, wanted)?;
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now,
            "observedGeneration": meta::generation(&pod).max(1),
        });
        set_condition(&mut pod, condition);
        if let Some(entry) = swap.replace(pod).await? {
            if wanted.resource_version.is_some() {
                wanted.resource_version = Some(entry.modified.to_string());
            }
            return Ok(entry);
        }
    }
}

/// Nobody relies on a Pod that never ran, is done, or is going anyway.
fn unprotected(pod: &Value) -> bool {
    let phase = text(pod, "/status/phase");
    phase == "Pending" || is_terminal_phase(phase) || meta::deletion_timestamp(pod).is_some()
}

fn selects(budget: &Value, pod: &Value) -> bool {
    let Ok(budget) = PodDisruptionBudget::from_value(budget) else { return false };
    let Some(selector) = budget.spec.and_then(|s| s.selector) else { return false };
    let labels = meta::labels(pod).into_iter().flatten();
    let labels: BTreeMap<String, String> =
        labels.filter_map(|(k, v)| Some((k.to_string(), v.as_str()?.to_owned()))).collect();
    Selector::of_object(Some(&selector)).is_ok_and(|selector| selector.matches(&labels))
}

/// A Pod that doesn't serve can go without a charge: always, or while enough others serve.
fn may_go_unhealthy(pod: &Value, budget: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready = |c: &Value| text(c, "/type") == "Ready" && text(c, "/status") == "True";
    if conditions.into_iter().flatten().any(ready) {
        return false;
    }
    let number = |field: &str| budget.get("status").and_then(|s| s.get(field)).and_then(Value::as_i64).unwrap_or(0);
    let (current, desired) = (number("currentHealthy"), number("desiredHealthy"));
    text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow" || (current >= desired && desired > 0)
}

fn violated(cause: String, retry_seconds: i32) -> StatusError {
    let mut error = StatusError::too_many_requests(VIOLATED, retry_seconds);
    if let Some(details) = &mut error.details {
        let reason = Some("DisruptionBudget".to_owned());
        details.causes = Some(vec![StatusCause { reason, message: Some(cause), field: None }]);
    }
    error
}

/// Books one disruption, or says why there is none left.
fn charge(budget: &mut Value, pod: &str, now: &str) -> Result<(), StatusError> {
    let name = meta::name(budget).to_owned();
    let number = |field: &str| budget.get("status").and_then(|s| s.get(field)).and_then(Value::as_i64).unwrap_or(0);
    let (seen, allowed) = (number("observedGeneration"), number("disruptionsAllowed"));
    if seen < meta::generation(budget) {
        return Err(violated(format!("The disruption budget {name} is still being processed by the server."), 10));
    }
    let forbid = |why: &str| {
        let message = format!("poddisruptionbudgets.policy \"{name}\" is forbidden: {why}");
        Err(StatusError::forbidden("policy", "poddisruptionbudgets", &name, message))
    };
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, |d| d.len());
    if allowed < 0 {
        return forbid("pdb disruptions allowed is negative");
    }
    if disrupted > DISRUPTED_MAX {
        return forbid("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        return Err(violated(exhausted(budget, &name), 0));
    }
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    budget["status"]["disruptedPods"][pod] = json!(now);
    if allowed == 1 {
        let condition = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "lastTransitionTime": now, "observedGeneration": seen,
        });
        set_condition(budget, condition);
    }
    Ok(())
}

/// Why a budget allows no disruption.
fn exhausted(budget: &Value, name: &str) -> String {
    let number = |field: &str| budget.get("status").and_then(|s| s.get(field)).and_then(Value::as_i64).unwrap_or(0);
    let conditions = budget.pointer("/status/conditions").and_then(Value::as_array);
    let refused = |c: &&Value| {
        text(c, "/type") == "DisruptionAllowed" && text(c, "/status") == "False" && !text(c, "/message").is_empty()
    };
    let condition = conditions.into_iter().flatten().find(refused);
    let (reason, why) = condition.map_or(("", ""), |c| (text(c, "/reason"), text(c, "/message")));
    let head = format!("The disruption budget {name}");
    let (needed, have) = (number("desiredHealthy"), number("currentHealthy"));
    // The numbers mean nothing when they could not be reckoned.
    if reason == "SyncFailed" {
        format!("{head} does not allow evicting pods currently because it failed sync: {why}")
    } else if have <= needed {
        format!("{head} needs {needed} healthy pods and has {have} currently")
    } else if condition.is_some() {
        format!("{head} does not allow evicting pods currently ({reason}): {why}")
    } else {
        format!("{head} does not allow evicting pods currently")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(status: Value) -> Value {
        json!({"metadata": {"name": "b", "generation": 2}, "spec": {"selector": {"matchLabels": {"app": "a"}}}, "status": status})
    }

    #[test]
    fn a_budget_is_charged_until_it_is_empty() {
        let mut one =
            budget(json!({"observedGeneration": 2, "disruptionsAllowed": 1, "desiredHealthy": 3, "currentHealthy": 3}));
        charge(&mut one, "p", "now").unwrap();
        assert_eq!(one["status"]["disruptionsAllowed"], 0);
        assert_eq!(one["status"]["conditions"][0]["reason"], "InsufficientPods");
        assert_eq!(one["status"]["disruptedPods"], json!({"p": "now"}));
        let error = charge(&mut one, "q", "now").unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (429, VIOLATED));
        let causes = error.details.unwrap().causes.unwrap();
        let expected = "The disruption budget b needs 3 healthy pods and has 3 currently";
        assert_eq!(causes[0].message.as_deref(), Some(expected));
        let mut behind = budget(json!({"observedGeneration": 1, "disruptionsAllowed": 1}));
        assert_eq!(charge(&mut behind, "p", "now").unwrap_err().code, 429);
    }

    #[test]
    fn a_refusal_says_what_is_known() {
        let check = |have: i64, reason: &str, expected: &str| {
            let conditions = match reason {
                "" => json!([]),
                reason => json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "why"}]),
            };
            let status = json!({"desiredHealthy": 3, "currentHealthy": have, "conditions": conditions});
            assert_eq!(exhausted(&budget(status), "b"), format!("The disruption budget b {expected}"));
        };
        check(3, "", "needs 3 healthy pods and has 3 currently");
        check(0, "SyncFailed", "does not allow evicting pods currently because it failed sync: why");
        check(4, "Other", "does not allow evicting pods currently (Other): why");
        check(4, "", "does not allow evicting pods currently");
    }

    #[test]
    fn budgets_protect_the_pods_they_select() {
        let pod = |app: &str, ready: &str| {
            json!({"metadata": {"labels": {"app": app}}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}]}})
        };
        let full = budget(json!({"currentHealthy": 2, "desiredHealthy": 2}));
        assert!(selects(&full, &pod("a", "True")) && !selects(&full, &pod("b", "True")));
        assert!(may_go_unhealthy(&pod("a", "False"), &full) && !may_go_unhealthy(&pod("a", "True"), &full));
        assert!(!may_go_unhealthy(&pod("a", "False"), &budget(json!({"currentHealthy": 1, "desiredHealthy": 2}))));
        assert!(unprotected(&json!({"status": {"phase": "Pending"}})) && !unprotected(&pod("a", "True")));
    }
}
