//! DaemonSet: one Pod on every node that fits.

use std::num::IntErrorKind;

use json::{Value, json};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus, RollingUpdateDaemonSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::cell;
use crate::kind::{Kind, Target, age, col, int, name};
use crate::kinds::pod::{defaults, gated, validate as pod};
use crate::kinds::rollout;
use crate::kinds::workload::{self, Workload};
use crate::rules::selector::Selector;
use crate::validation::field::{Errors, FieldError, Path, quote};
use crate::validation::internal_form;

pub const DAEMON_SET: Kind<DaemonSet> = Kind {
    gated: gated::OF_TEMPLATE,
    gated_texts: gated::TEXTS_OF_TEMPLATE,
    short: &["ds"],
    default: Some(default),
    default_in_place: Some(|object| defaults::template_at(object, &["spec", "template"])),
    validate: Some(validate),
    validate_status: Some(validate_status),
    unreadable: Some(unreadable),
    prepare_create: Some(|set| note_template(set, 0)),
    prepare_update: Some(prepare_update),
    columns: &[
        name(),
        int("Desired", "Number of nodes that should run the Pod.", |d, _| count(d, |s| s.desired_number_scheduled)),
        int("Current", "Number of nodes that run the Pod and should.", |d, _| count(d, |s| s.current_number_scheduled)),
        int("Ready", "Number of nodes whose Pod is ready.", |d, _| count(d, |s| s.number_ready)),
        int("Up-to-date", "Number of nodes whose Pod has the present template.", |d, _| {
            count(d, |s| s.updated_number_scheduled.unwrap_or(0))
        }),
        int("Available", "Number of nodes whose Pod has been ready for long enough.", |d, _| {
            count(d, |s| s.number_available.unwrap_or(0))
        }),
        col("Node Selector", "The labels of the nodes that run the Pod.", |d, _| {
            Value::from(cell::labels(d.pod_spec().and_then(|p| p.node_selector.as_ref())))
        }),
        age(),
        workload::containers(),
        workload::images(),
        workload::selected(),
    ],
    ..workload::base()
};

/// Counts the templates that a set has had. It was a field before it was an annotation; Pods carry it in a label still.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The annotation is a field of upstream's internal form.
fn unreadable(set: &Value) -> Option<String> {
    let text = set["metadata"]["annotations"][TEMPLATE_GENERATION].as_str()?;
    let error = text.parse::<i64>().err()?;
    let why = match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    };
    Some(format!("strconv.ParseInt: parsing {}: {why}", quote(text)))
}

fn template_generation(set: &Value) -> i64 {
    set["metadata"]["annotations"][TEMPLATE_GENERATION].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Sets the annotation, to what the object says itself where nothing else is known.
fn note_template(set: &mut Value, generation: i64) {
    let generation = if generation > 0 { generation } else { template_generation(set).max(1) };
    let annotations = &mut set["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[TEMPLATE_GENERATION] = generation.to_string().into();
}

/// No client changes the count, or takes it away.
fn prepare_update(new: &mut Value, old: &Value, target: Target) {
    let changed = target == Target::Object && new["spec"]["template"] != old["spec"]["template"];
    note_template(new, template_generation(old).max(1).saturating_add(changed.into()));
}

fn spec(set: &DaemonSet) -> Option<&DaemonSetSpec> {
    set.spec.as_ref()
}

fn count(set: &DaemonSet, of: fn(&DaemonSetStatus) -> i32) -> Value {
    Value::from(set.status.as_ref().map_or(0, of))
}

/// An object that does not tell the count has none, and whoever writes it as the whole object says so.
fn default(set: &mut DaemonSet) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.entry(TEMPLATE_GENERATION.to_owned()).or_insert_with(|| "0".to_owned());
    let spec = set.spec.get_or_insert_default();
    let strategy = spec.update_strategy.get_or_insert_default();
    defaults::fill(&mut strategy.type_, "RollingUpdate");
    if strategy.type_.as_deref() == Some("RollingUpdate") {
        let rolling = strategy.rolling_update.get_or_insert_default();
        rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
        rolling.max_surge.get_or_insert(IntOrString::Int(0));
    }
    spec.revision_history_limit.get_or_insert(10);
}

fn validate(set: &DaemonSet) -> Errors {
    let path = Path::new("spec");
    let Some(spec) = spec(set) else { return vec![FieldError::required(&path, "")] };
    let selector = &spec.selector;
    let mut errors = rollout::validate_selector(selector, &path.child("selector"));
    let given = selector.match_labels.is_some() || selector.match_expressions.is_some();
    if let Ok(rule) = Selector::of_object(Some(selector)) {
        let labels = spec.template.metadata.as_ref().and_then(|m| m.labels.as_ref());
        errors.extend(rollout::template_matches(given && rule.matches(&labels), labels, &path.child("template")));
    }
    let empty = selector.match_labels.as_ref().is_none_or(|m| m.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if given && empty {
        let shown = internal_form::compact("LabelSelector", selector);
        let detail = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid_shown(&path.child("selector"), &shown, detail));
    }
    errors.extend(pod::validate_template(&spec.template, &path.child("template")));
    errors.extend(rollout::always_restarts(&spec.template, "DaemonSet", &path.child("template")));
    errors.extend(rollout::not_negative(&path, "minReadySeconds", spec.min_ready_seconds));
    errors.extend(validate_strategy(spec, &path.child("updateStrategy")));
    errors.extend(rollout::not_negative(&path, "revisionHistoryLimit", spec.revision_history_limit));
    errors
}

fn validate_strategy(spec: &DaemonSetSpec, path: &Path) -> Errors {
    let Some(strategy) = &spec.update_strategy else { return Errors::new() };
    match (strategy.type_.as_deref().unwrap_or_default(), &strategy.rolling_update) {
        ("OnDelete", _) => Errors::new(),
        ("RollingUpdate", None) => vec![FieldError::required(&path.child("rollingUpdate"), "")],
        ("RollingUpdate", Some(rolling)) => validate_rolling(rolling, &path.child("rollingUpdate")),
        _ => {
            let shown = internal_form::compact("DaemonSetUpdateStrategy", strategy);
            vec![FieldError::not_supported_shown(path, &shown, &["RollingUpdate", "OnDelete"])]
        }
    }
}

/// While it rolls out, a node either misses its Pod or has one too many; never both.
fn validate_rolling(rolling: &RollingUpdateDaemonSet, path: &Path) -> Errors {
    let (unavailable, surge) = (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref());
    let (missing, more) = (path.child("maxUnavailable"), path.child("maxSurge"));
    let mut errors = rollout::count_or_percent(unavailable, &missing);
    errors.extend(rollout::count_or_percent(surge, &more));
    errors.extend(rollout::at_most_all(unavailable, &missing));
    errors.extend(rollout::at_most_all(surge, &more));
    match (rollout::is_zero(unavailable), rollout::is_zero(surge)) {
        (false, false) => {
            let detail = "may not be set when maxUnavailable is non-zero";
            errors.push(FieldError::invalid(&more, surge, detail));
        }
        (true, true) => errors.push(FieldError::required(&missing, "cannot be 0 when maxSurge is 0")),
        _ => {}
    }
    errors
}

fn validate_status(new: &Value, old: &Value) -> Errors {
    let counts = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    rollout::revision_counts(new, old, &counts, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_of_a_status_is_negative() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            rollout::check_status(DAEMON_SET.validate_status, &new, &old, expected);
        };
        check(json!({"currentNumberScheduled": 1, "numberReady": 2, "collisionCount": 3}), Value::Null, &[]);
        check(
            json!({"numberMisscheduled": -1, "numberUnavailable": -2}),
            json!({"collisionCount": 0}),
            &[
                "status.numberMisscheduled: Invalid value: -1: must be greater than or equal to 0",
                "status.numberUnavailable: Invalid value: -2: must be greater than or equal to 0",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ],
        );
    }

    #[test]
    fn an_object_that_tells_no_count_says_none() {
        for (given, expected) in [(json!({}), "0"), (json!({"a": "b"}), "0"), (json!({TEMPLATE_GENERATION: "7"}), "7")]
        {
            let mut set: DaemonSet = json::from_value(json!({"metadata": {"annotations": given}})).unwrap();
            default(&mut set);
            assert_eq!(set.metadata.annotations.unwrap()[TEMPLATE_GENERATION], expected);
        }
    }

    #[test]
    fn the_count_is_a_number() {
        let told = |text: &str| unreadable(&json!({"metadata": {"annotations": {TEMPLATE_GENERATION: text}}}));
        assert_eq!(["0", "7", "-1", "+3"].map(told), [const { None }; 4]);
        assert_eq!(unreadable(&json!({})), None);
        for (text, why) in
            [("", "invalid syntax"), ("word", "invalid syntax"), ("9223372036854775808", "value out of range")]
        {
            assert_eq!(told(text), Some(format!("strconv.ParseInt: parsing \"{text}\": {why}")));
        }
    }

    #[test]
    fn templates_are_counted_by_the_server_alone() {
        let set = |held: Value, image: &str| json!({"metadata": {"annotations": held}, "spec": {"template": image}});
        let held = |generation: &str| json!({TEMPLATE_GENERATION: generation, "a": "b"});
        for (given, expected) in [(Value::Null, 1), (held("0"), 1), (held("word"), 1), (held("7"), 7)] {
            let mut new = set(given.clone(), "x");
            note_template(&mut new, 0);
            assert_eq!(template_generation(&new), expected, "{given}");
        }
        let check = |old: Value, new: Value, image: &str, target: Target, expected: i64| {
            let (old, mut new) = (set(old, "x"), set(new, image));
            prepare_update(&mut new, &old, target);
            assert_eq!(template_generation(&new), expected, "{old} {new}");
        };
        check(held("3"), Value::Null, "x", Target::Object, 3);
        check(held("3"), held("9"), "x", Target::Object, 3);
        check(held("3"), held("9"), "y", Target::Object, 4);
        check(held("3"), held("9"), "y", Target::Status, 3);
        check(held(&i64::MAX.to_string()), Value::Null, "y", Target::Object, i64::MAX);
        // One that was stored before the server counted.
        check(Value::Null, Value::Null, "x", Target::Object, 1);
        check(Value::Null, Value::Null, "y", Target::Object, 2);
    }
}
