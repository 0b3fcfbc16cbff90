//! Namespaces: their labels must be understood when they are set, and who makes them stricter hears of the Pods that
//! are there and would not be let in again.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use api::{Value, meta, status::StatusError};
use clock::{Duration, Instant};

use super::{
    Level, Policy, Standard,
    checks::{reasons, violations},
    level::{AUDIT, ENFORCE, WARN},
    workload::Workload,
};
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, items, text},
};

/// At most this many Pods are looked at, and no longer than this.
const MOST_PODS: usize = 3000;
const LONGEST: Duration = Duration::from_secs(1);
/// After this many Pods other requests get their turn on this thread.
const AT_ONCE: usize = 64;

pub async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let settings = &context.pod_security;
    let Some(object) = &attributes.object else { return Ok(()) };
    let labels = meta::labels(object);
    let (policy, errors) = Policy::of(labels, &settings.defaults);
    let (old, old_errors) = match attributes.old {
        Some(old) => Policy::of(meta::labels(old), &settings.defaults),
        None => (policy, Vec::new()),
    };
    if !errors.is_empty() && errors != old_errors {
        return Err(StatusError::invalid("", "Namespace", attributes.name, &errors));
    }
    let grows = attributes.operation == Operation::Update && is_stricter(policy.enforce, old.enforce);
    if attributes.operation == Operation::Update && !grows {
        return Ok(());
    }
    if settings.exempt.namespaces.iter().any(|name| name == attributes.name) {
        let warning = ignored(attributes.name, &policy, &settings.defaults, labels);
        attributes.warnings.extend(warning);
    } else if grows {
        let end = Instant::now() + LONGEST;
        let pods = match clock::timeout(LONGEST, context.objects.list("", "pods", attributes.name)).await {
            Ok(Ok(pods)) => pods,
            Ok(Err(_)) | Err(_) => {
                let what = "failed to list pods while checking new PodSecurity enforce level";
                attributes.warnings.push(what.to_owned());
                return Ok(());
            }
        };
        let exempt = |class: &str| settings.exempt.runtime_classes.iter().any(|name| name == class);
        let pods = unlike_first(pods.into_iter().filter(|pod| !exempt(text(pod, "/spec/runtimeClassName"))));
        attributes.warnings.extend(against(policy.enforce, attributes.name, &pods, end).await);
    }
    Ok(())
}

/// Whether Pods that the old standard let in may violate the new one.
fn is_stricter(new: Standard, old: Standard) -> bool {
    let relaxed = new.version == old.version && new.level <= old.level;
    new != old && new.level != Level::Privileged && !relaxed
}

/// The Pods, with those behind the others of whose controller one has come before: they are likely to be like it.
fn unlike_first(pods: impl Iterator<Item = Arc<Value>>) -> Vec<Arc<Value>> {
    let mut controllers: HashSet<String> = HashSet::new();
    let controller = |pod: &Value| {
        let owner = items(pod, "/metadata/ownerReferences").find(|o| o.get("controller") == Some(&Value::Bool(true)));
        owner.map(|owner| text(owner, "/uid").to_owned())
    };
    let (mut first, rest): (Vec<_>, Vec<_>) =
        pods.partition(|pod| controller(pod).is_none_or(|c| controllers.insert(c)));
    first.extend(rest);
    first
}

/// The Pods with the same violations: the first one by name, and how many they are.
type Alike = BTreeMap<String, (String, usize)>;

/// The warnings about these Pods. `end` is when to stop.
async fn against(standard: Standard, namespace: &str, pods: &[Arc<Value>], end: Instant) -> Vec<String> {
    let mut alike = Alike::new();
    let mut checked = 0_usize;
    for pod in pods.iter().take(MOST_PODS) {
        if checked > 0 && checked.is_multiple_of(AT_ONCE) {
            tokio::task::yield_now().await;
        }
        // The store holds what validation has let in; what could not be read is no Pod that runs.
        let found = Workload::read(pod).map(|workload| violations(standard, &workload)).unwrap_or_default();
        if !found.is_empty() {
            let name = meta::name(pod);
            let (first, count) = alike.entry(reasons(&found)).or_insert_with(|| (name.to_owned(), 0));
            *count += 1;
            if name < first.as_str() {
                name.clone_into(first);
            }
        }
        checked += 1;
        if Instant::now() >= end {
            break;
        }
    }
    let mut warnings = Vec::new();
    if checked < pods.len() {
        let all = pods.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {all} existing pods"
        ));
    }
    if !alike.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{standard}\""
        ));
    }
    let mut of_pods: Vec<String> = alike
        .into_iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            _ => format!("{name} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    of_pods.sort();
    warnings.extend(of_pods);
    warnings
}

/// The warning for somebody who labels a namespace that is not looked at.
fn ignored(namespace: &str, policy: &Policy, defaults: &Policy, labels: Option<&json::Map>) -> Option<String> {
    if policy.is_privileged() || policy.is_like(defaults) {
        return None;
    }
    let modes = [("enforce", policy.enforce, ENFORCE), ("audit", policy.audit, AUDIT), ("warn", policy.warn, WARN)];
    let set = |keys: &[&str; 2]| labels.is_some_and(|labels| keys.iter().any(|key| labels.contains_key(key)));
    let shown = modes.iter().filter(|(_, standard, keys)| standard.level != Level::Privileged && set(keys));
    let shown: Vec<String> = shown.map(|(mode, standard, _)| format!("{mode}={standard}")).collect();
    let shown = shown.join(", ");
    Some(format!("namespace {namespace:?} is exempt from Pod Security, and the policy ({shown}) will be ignored"))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::admission::pod_security::Version;

    #[test]
    fn the_first_of_each_controller_come_first() {
        let pod = |name: &str, owner: &str| {
            let owners = json!([{"uid": "other"}, {"uid": owner, "controller": !owner.is_empty()}]);
            Arc::new(json!({"metadata": {"name": name, "ownerReferences": owners}}))
        };
        let pods = [("a0", "a"), ("a1", "a"), ("b0", "b"), ("x", ""), ("a2", "a"), ("c0", "c"), ("b1", "b"), ("y", "")];
        let sorted = unlike_first(pods.into_iter().map(|(name, owner)| pod(name, owner)));
        let names: Vec<&str> = sorted.iter().map(|pod| meta::name(pod)).collect();
        assert_eq!(names, ["a0", "b0", "x", "c0", "y", "a1", "a2", "b1"]);
    }

    #[tokio::test]
    async fn who_runs_out_of_time_tells_how_far_it_came() {
        let pod = |name: &str| {
            let spec = json!({"containers": [{"name": "c"}], "hostPID": true});
            Arc::new(json!({"metadata": {"name": name}, "spec": spec}))
        };
        let pods = ["d", "b", "c", "a"].map(pod);
        let baseline = Standard { level: Level::Baseline, version: Version::Latest };
        let told = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"";
        let first = "new PodSecurity enforce level only checked against the first 1 of 4 existing pods";
        let warnings = against(baseline, "n", &pods, Instant::now()).await;
        assert_eq!(warnings, [first, told, "d: host namespaces"]);
        let warnings = against(baseline, "n", &pods, Instant::now() + Duration::from_secs(3600)).await;
        assert_eq!(warnings, [told, "a (and 3 other pods): host namespaces"]);
    }
}
