//! The errors of Jobs and their changes, as tables.

use json::{Value, json};

use crate::kind::Target;
use crate::kinds::built_in;

/// Lays the changes over the object, field by field.
fn merge(object: &mut Value, changes: &Value) {
    match changes.as_object() {
        Some(changes) if object.is_object() => {
            for (field, value) in changes {
                merge(&mut object[field], value);
            }
        }
        _ => *object = changes.clone(),
    }
}

/// A valid Job with these changes to its spec, defaulted as the server does it.
fn job(spec: &Value) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "work", "namespace": "d", "uid": "u"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    });
    merge(&mut job["spec"], spec);
    let strategy = &built_in().find("batch", "v1", "jobs").expect("served").strategy;
    strategy.default(&mut job);
    strategy.prepare_create(&mut job);
    job
}

/// The messages about a new object, a line each.
fn said(errors: Vec<crate::validation::field::FieldError>) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn about(spec: &Value) -> String {
    said(built_in().find("batch", "v1", "jobs").expect("served").strategy.validate(&job(spec)))
}

fn about_update(new: &Value, old: &Value, target: Target) -> String {
    said(built_in().find("batch", "v1", "jobs").expect("served").strategy.validate_update(new, old, target))
}

const INDEXED: &str = "Indexed";

#[test]
fn numbers_and_modes() {
    let check = |spec: Value, expected: &str| assert_eq!(about(&spec), expected, "{spec}");
    check(json!({}), "");
    check(json!({"completionMode": INDEXED, "completions": 3, "parallelism": 2}), "");
    check(json!({"backoffLimit": -1}), "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0");
    check(
        json!({"completionMode": "Odd"}),
        "spec.completionMode: Unsupported value: \"Odd\": supported values: \"NonIndexed\", \"Indexed\"",
    );
    check(
        json!({"completionMode": INDEXED, "parallelism": 1}),
        "spec.completions: Required value: when completion mode is Indexed",
    );
    check(
        json!({"completionMode": INDEXED, "completions": 5, "parallelism": 100_001}),
        "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
    );
    check(
        json!({"backoffLimitPerIndex": 1}),
        "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
    );
    let indexed = |changes: Value| {
        let mut spec = json!({"completionMode": INDEXED, "completions": 10});
        merge(&mut spec, &changes);
        spec
    };
    check(
        indexed(json!({"maxFailedIndexes": 2})),
        "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
    );
    check(
        indexed(json!({"maxFailedIndexes": 11, "backoffLimitPerIndex": 1})),
        "spec.maxFailedIndexes: Invalid value: 11: must be less than or equal to completions",
    );
    check(
        indexed(json!({"completions": 100_001, "backoffLimitPerIndex": 1})),
        "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
    );
    check(
        indexed(
            json!({"completions": 100_001, "backoffLimitPerIndex": 1, "maxFailedIndexes": 10_001, "parallelism": 1}),
        ),
        "spec.maxFailedIndexes: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 \
         and used with backoff limit per index",
    );
    check(json!({"managedBy": "example.com/me"}), "");
    check(json!({"managedBy": ""}), "spec.managedBy: Required value");
    check(
        json!({"managedBy": "me"}),
        "spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path (such as \"acme.io/foo\")",
    );
    let template = |policy: &str| json!({"template": {"spec": {"restartPolicy": policy}}});
    check(
        template("Always"),
        "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
    );
}

#[test]
fn names_and_selectors() {
    let check = |change: Value, expected: &str| {
        let mut object = job(&json!({"completionMode": INDEXED, "completions": 10}));
        merge(&mut object, &change);
        let strategy = &built_in().find("batch", "v1", "jobs").expect("served").strategy;
        assert_eq!(said(strategy.validate(&object)), expected, "{change}");
    };
    let renamed = |name: &str| {
        let labels = json!({"job-name": name, "batch.kubernetes.io/job-name": name});
        json!({"metadata": {"name": name}, "spec": {"template": {"metadata": {"labels": labels}}}})
    };
    check(renamed("other"), "");
    check(
        renamed("with.dot"),
        "metadata.name: Invalid value: \"with.dot\": will not able to create pod with invalid DNS label: with.dot-9",
    );
    check(
        json!({"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}}}}}),
        "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"x\",\"batch.kubernetes.io/controller-uid\":\"u\"}}: \
         `selector` not auto-generated",
    );
    let of_other = json!({"metadata": {"labels": {"job-name": "other"}}});
    let shown = "{\"batch.kubernetes.io/controller-uid\":\"u\",\"batch.kubernetes.io/job-name\":\"work\",\
                 \"controller-uid\":\"u\",\"job-name\":\"other\"}";
    check(
        json!({"spec": {"template": of_other}}),
        &format!("spec.template.metadata.labels[job-name]: Invalid value: {shown}: must be 'work'"),
    );
}

#[test]
fn policies() {
    let failure = |rule: Value| {
        let place = "spec.podFailurePolicy.rules[0]";
        about(&json!({"podFailurePolicy": {"rules": [rule]}})).replace(place, "RULE")
    };
    let check = |rule: Value, expected: &str| assert_eq!(failure(rule.clone()), expected, "{rule}");
    let codes = |codes: Value| json!({"action": "FailJob", "onExitCodes": codes});
    check(codes(json!({"operator": "In", "values": [1, 2]})), "");
    check(json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}), "");
    check(
        json!({"action": "Odd", "onPodConditions": [{"type": "A"}]}),
        "RULE.action: Unsupported value: \"Odd\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
    );
    check(
        json!({"action": "FailIndex", "onPodConditions": [{"type": "A"}]}),
        "RULE.action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set",
    );
    check(
        json!({"action": "Count"}),
        "RULE: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
    );
    check(
        json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}, "onPodConditions": [{"type": "A"}]}),
        "RULE: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
    );
    check(
        json!({"action": "Count", "onPodConditions": [{"type": "A", "status": "Maybe"}]}),
        "RULE.onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
    );
    check(
        codes(json!({"operator": "", "values": [1]})),
        "RULE.onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]",
    );
    check(
        codes(json!({"operator": "In", "values": [0]})),
        "RULE.onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
    );
    check(
        codes(json!({"operator": "NotIn", "values": [2, 1, 1]})),
        "RULE.onExitCodes.values[2]: Duplicate value: 1\nRULE.onExitCodes.values: Invalid value: [2,1,1]: must be ordered",
    );
    check(
        codes(json!({"operator": "In", "values": []})),
        "RULE.onExitCodes.values: Invalid value: []: at least one value is required",
    );
    check(
        codes(json!({"operator": "In", "values": [1], "containerName": "x"})),
        "RULE.onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the \
         pod template",
    );
    let many: Vec<Value> = (0..21).map(|_| codes(json!({"operator": "In", "values": [1]}))).collect();
    let about_many = about(&json!({"podFailurePolicy": {"rules": many}}));
    assert_eq!(about_many, "spec.podFailurePolicy.rules: Too many: 21: must have at most 20 items");

    let check = |spec: Value, expected: &str| assert_eq!(about(&spec), expected, "{spec}");
    let rules = json!([{"action": "Ignore", "onPodConditions": [{"type": "A"}]}]);
    check(
        json!({"podFailurePolicy": {"rules": rules}, "podReplacementPolicy": "TerminatingOrFailed"}),
        "spec.podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\"",
    );
    check(
        json!({"podFailurePolicy": {"rules": rules}, "template": {"spec": {"restartPolicy": "OnFailure"}}}),
        "spec.template.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy \
         is specified",
    );
    let success =
        |rules: Value| json!({"completionMode": INDEXED, "completions": 5, "successPolicy": {"rules": rules}});
    check(success(json!([{"succeededIndexes": "0-2,4", "succeededCount": 3}])), "");
    check(
        json!({"successPolicy": {"rules": [{"succeededCount": 1}]}}),
        "spec.successPolicy: Invalid value: {\"Rules\":[{\"SucceededIndexes\":null,\"SucceededCount\":1}]}: requires indexed \
         completion mode",
    );
    check(
        success(json!([])),
        "spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified",
    );
    check(
        success(json!([{}])),
        "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
    );
    check(
        success(json!([{"succeededIndexes": "5"}])),
        "spec.successPolicy.rules[0].succeededIndexes: Invalid value: \"5\": error parsing succeededIndexes: too large \
         index: \"5\"",
    );
    check(
        success(json!([{"succeededIndexes": "1-2", "succeededCount": 3}])),
        "spec.successPolicy.rules[0].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of \
         indexes in the specified succeededIndexes field)",
    );
}

#[test]
fn changes() {
    let check = |old: Value, started: bool, new: Value, expected: &str| {
        let mut old_job = job(&old);
        if started {
            old_job["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
        }
        let mut new_job = old_job.clone();
        merge(&mut new_job["spec"], &new);
        let errors = about_update(&new_job, &old_job, Target::Object);
        let shown = errors.split("Invalid value: {").next().unwrap_or_default();
        let short = if errors.contains("Invalid value: {") { format!("{shown}…") } else { errors.clone() };
        assert_eq!(short, expected, "{old} to {new}");
    };
    check(json!({}), true, json!({"parallelism": 3, "suspend": true, "backoffLimit": 1}), "");
    check(json!({}), true, json!({"completions": 3}), "spec.completions: Invalid value: 3: field is immutable");
    let indexed = json!({"completionMode": INDEXED, "completions": 4, "parallelism": 4});
    check(indexed.clone(), true, json!({"completions": 6, "parallelism": 6}), "");
    check(
        indexed,
        true,
        json!({"completions": 6}),
        "spec.completions: Invalid value: 6: can only be modified in tandem with spec.parallelism",
    );
    let moved = json!({"template": {"spec": {
        "nodeSelector": {"zone": "a"}, "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}},
    }, "metadata": {"annotations": {"a": "b"}}}});
    check(json!({"suspend": true}), false, moved.clone(), "");
    check(json!({"suspend": true}), true, moved.clone(), "spec.template: …");
    check(json!({"suspend": false}), false, moved.clone(), "spec.template: …");
    let back = json!({"template": {"spec": {"affinity": null, "nodeSelector": null}}});
    let mut suspended = moved;
    suspended["suspend"] = json!(true);
    check(suspended.clone(), false, back, "");
    let other = json!({"template": {"spec": {"terminationGracePeriodSeconds": 5}}});
    check(suspended.clone(), false, other, "spec.template: …");
    let near = json!({"template": {"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "zone", "labelSelector": {}}]}}}}});
    check(suspended, false, near, "spec.template: …");
}

#[test]
fn statuses() {
    let condition = |kinds: &str| -> Vec<Value> {
        kinds.split(' ').filter(|k| !k.is_empty()).map(|kind| json!({"type": kind, "status": "True"})).collect()
    };
    let with = |conditions: &str, rest: Value| {
        let mut status = json!({"conditions": condition(conditions), "startTime": "2026-01-01T00:00:00Z"});
        merge(&mut status, &rest);
        status
    };
    let check = |spec: Value, old: Value, new: Value, expected: &str| {
        let (mut before, mut after) = (job(&spec), job(&spec));
        (before["status"], after["status"]) = (old, new.clone());
        assert_eq!(about_update(&after, &before, Target::Status), expected, "{new}");
    };
    let any = || json!({});
    let none = || with("", json!({}));
    let ended = json!({"completionTime": "2026-01-01T00:01:00Z", "succeeded": 1});
    check(any(), none(), with("", json!({"active": 2, "ready": 1})), "");
    check(any(), none(), with("SuccessCriteriaMet Complete", ended.clone()), "");
    check(any(), none(), with("FailureTarget Failed", json!({"failed": 1})), "");
    let conditions = |text: &str| format!("status.conditions: Invalid value: {text}");
    check(
        any(),
        none(),
        with("Complete", ended.clone()),
        &conditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition"),
    );
    check(
        any(),
        none(),
        with("Failed", json!({})),
        &conditions("cannot set Failed=True condition without the FailureTarget=true condition"),
    );
    check(
        any(),
        with("FailureTarget", json!({})),
        none(),
        &conditions("cannot disable the terminal FailureTarget=True condition"),
    );
    check(
        any(),
        none(),
        with("SuccessCriteriaMet Complete", json!({})),
        "status.completionTime: Required value: completionTime is required for Complete jobs",
    );
    check(
        any(),
        none(),
        with("", ended),
        "status.completionTime: Invalid value: \"2026-01-01T00:01:00Z\": cannot set completionTime when there is no \
         Complete=True condition",
    );
    check(
        any(),
        none(),
        with("FailureTarget Failed", json!({"active": 1})),
        "status.active: Invalid value: 1: active>0 is invalid for finished job",
    );
    check(
        any(),
        none(),
        with("FailureTarget Failed", json!({"uncountedTerminatedPods": {"failed": ["a"]}})),
        "status.uncountedTerminatedPods: Invalid value: {\"Succeeded\":null,\"Failed\":[\"a\"]}: uncountedTerminatedPods \
         needs to be empty for finished job",
    );
    check(
        any(),
        none(),
        with("", json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["a", ""]}})),
        "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"\n\
         status.uncountedTerminatedPods.failed[1]: Invalid value: \"\": must not be empty",
    );
    check(
        any(),
        with("", json!({"failed": 2, "succeeded": 2})),
        with("", json!({"failed": 1, "succeeded": 1})),
        "status.failed: Invalid value: 1: cannot decrease the failed counter\n\
         status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
    );
    check(
        any(),
        none(),
        with("", json!({"startTime": "2026-01-01T00:00:05Z"})),
        "status.startTime: Required value: startTime cannot be removed for unsuspended job",
    );
    check(
        any(),
        none(),
        with("", json!({"active": 1, "ready": 2})),
        "status.ready: Invalid value: 2: cannot set more ready pods than active",
    );
    let indexed = || json!({"completionMode": INDEXED, "completions": 5, "parallelism": 5, "backoffLimitPerIndex": 1});
    check(
        indexed(),
        with("", json!({"succeeded": 3})),
        with("", json!({"succeeded": 2, "completedIndexes": "0,1"})),
        "",
    );
    check(
        indexed(),
        none(),
        with("", json!({"completedIndexes": "0-3", "failedIndexes": "3"})),
        "status.failedIndexes: Invalid value: \"3\": failedIndexes and completedIndexes overlap at index: 3",
    );
    check(
        indexed(),
        none(),
        with("", json!({"completedIndexes": "7"})),
        "status.completedIndexes: Invalid value: \"7\": error parsing completedIndexes: too large index: \"7\"",
    );
    check(
        any(),
        none(),
        with("", json!({"completedIndexes": "0", "failedIndexes": "1"})),
        "status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion \
         mode\nstatus.failedIndexes: Invalid value: \"1\": cannot set non-null failedIndexes when backoffLimitPerIndex is \
         null",
    );
    // A status that was wrong before can still be written.
    let wrong = || with("Complete", json!({"active": 1}));
    check(any(), wrong(), with("Complete", json!({"active": 1, "succeeded": 1})), "");
}
