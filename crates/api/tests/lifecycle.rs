//! Objects through the steps of a write: defaults, what the server sets, validation, generation.

use api::kind::{Definition, Target};
use api::kinds::built_in;
use json::{Value, json};

fn definition(group: &str, kind: &str) -> &'static Definition {
    built_in().by_kind(group, "v1", kind).unwrap()
}

/// A new object as the server would store it.
#[track_caller]
fn create(d: &Definition, mut object: Value) -> Value {
    object["apiVersion"] = json!(d.api_version());
    object["kind"] = json!(d.kind);
    if d.namespaced() {
        object["metadata"]["namespace"] = json!("default");
    }
    d.strategy.default(&mut object);
    d.strategy.prepare_create(&mut object);
    assert_eq!(d.strategy.validate(&object), []);
    object
}

fn update(d: &Definition, old: &Value, target: Target, change: impl FnOnce(&mut Value)) -> Result<Value, String> {
    let mut new = old.clone();
    change(&mut new);
    d.strategy.default(&mut new);
    d.strategy.prepare_update(&mut new, old, target);
    let errors = d.strategy.validate_update(&new, old, target);
    if errors.is_empty() { Ok(new) } else { Err(errors[0].to_string()) }
}

fn deployment() -> Value {
    json!({"metadata": {"name": "hello"}, "status": {"replicas": 9}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "hello"}},
        "template": {"metadata": {"labels": {"app": "hello"}}, "spec": {"containers": [{"name": "c", "image": "hello:1"}]}}}})
}

/// The metadata that may change with the status differs by kind, as upstream's strategies do.
#[test]
fn a_write_of_the_status_changes_the_metadata_that_it_may() {
    let check = |group: &str, kind: &str, labels: bool, annotations: bool| {
        let d = definition(group, kind);
        let before = json!({"apiVersion": d.api_version(), "kind": kind, "spec": {},
            "metadata": {"name": "a", "labels": {"l": "old"}, "annotations": {"a": "old"}}});
        let mut after = before.clone();
        after["metadata"]["labels"]["l"] = json!("new");
        after["metadata"]["annotations"]["a"] = json!("new");
        after["metadata"]["finalizers"] = json!(["example.com/f"]);
        d.strategy.prepare_update(&mut after, &before, Target::Status);
        let shown = |changes: bool| if changes { "new" } else { "old" };
        let metadata = &after["metadata"];
        assert_eq!(metadata["labels"]["l"], shown(labels), "{kind}");
        assert_eq!(metadata["annotations"]["a"], shown(annotations), "{kind}");
        assert_eq!(metadata.get("finalizers").is_some(), annotations, "{kind}");
    };
    check("apps", "Deployment", false, true);
    for (group, kind) in
        [("apps", "StatefulSet"), ("apps", "DaemonSet"), ("batch", "Job"), ("", "Node"), ("", "Service")]
    {
        check(group, kind, true, true);
    }
    for (group, kind) in [
        ("storage.k8s.io", "VolumeAttachment"),
        ("apiregistration.k8s.io", "APIService"),
        ("resource.k8s.io", "ResourceClaim"),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
    ] {
        check(group, kind, false, false);
    }
}

#[test]
fn a_deployment_is_made_whole_and_counts_its_generations() {
    let d = definition("apps", "Deployment");
    let object = create(d, deployment());
    assert_eq!(object["metadata"]["generation"], 1);
    assert_eq!(object["status"], json!({}));
    assert_eq!(
        object["spec"]["strategy"],
        json!({"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
    );
    assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    assert!(object["spec"]["template"]["spec"].get("enableServiceLinks").is_none(), "only Pods have it");

    let scaled = update(d, &object, Target::Object, |o| o["spec"]["replicas"] = json!(5)).unwrap();
    assert_eq!(scaled["metadata"]["generation"], 2);
    let labelled = update(d, &object, Target::Object, |o| o["metadata"]["labels"] = json!({"a": "b"})).unwrap();
    assert_eq!(labelled["metadata"]["generation"], 1);
    let forged = update(d, &object, Target::Object, |o| o["status"] = json!({"replicas": 7})).unwrap();
    assert_eq!(forged["status"], json!({}));
    let status = update(d, &object, Target::Status, |o| {
        o["status"] = json!({"replicas": 7});
        o["spec"]["replicas"] = json!(1);
    })
    .unwrap();
    assert_eq!((&status["status"]["replicas"], &status["spec"]["replicas"]), (&json!(7), &json!(3)));
    let other = update(d, &object, Target::Object, |o| {
        o["spec"]["selector"]["matchLabels"]["app"] = json!("x");
        o["spec"]["template"]["metadata"]["labels"]["app"] = json!("x");
    });
    assert!(other.unwrap_err().ends_with("field is immutable"));
}

#[test]
fn wrong_deployments_are_refused_in_upstreams_words() {
    let d = definition("apps", "Deployment");
    for (change, expected) in [
        (("/spec/selector", json!({})), "spec.selector: Required value"),
        (("/spec/replicas", json!(-1)), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        (
            ("/spec/selector", json!({"matchLabels": {"app": "x"}})),
            "spec.template.metadata.labels: Invalid value: {\"app\":\"hello\"}: `selector` does not match template `labels`",
        ),
        (("/spec/template/spec/containers", json!([])), "spec.template.spec.containers: Required value"),
        (("/metadata/name", json!("Hello")), "metadata.name: Invalid value: \"Hello\": a lowercase RFC 1123 subdomain"),
    ] {
        let mut object = deployment();
        object["metadata"]["namespace"] = json!("default");
        *object.pointer_mut(change.0).unwrap() = change.1;
        d.strategy.default(&mut object);
        let errors = d.strategy.validate(&object);
        assert!(errors.iter().any(|e| e.to_string().starts_with(expected)), "{errors:?}");
    }
}

#[test]
fn counts_that_are_always_written_start_at_zero() {
    let set = create(definition("apps", "ReplicaSet"), deployment());
    assert_eq!(set["status"], json!({"replicas": 0}));
}

/// Defaults go through a type that has no form for them.
#[test]
fn times_that_nobody_has_set_stay_null_beside_defaults() {
    for (group, kind) in [("", "Namespace"), ("", "PersistentVolumeClaim"), ("batch", "Job"), ("apps", "DaemonSet")] {
        let mut object =
            json!({"apiVersion": definition(group, kind).api_version(), "kind": kind, "metadata": {"name": "a"}});
        object["status"] = json!({"conditions": [{"type": "A", "status": "True", "lastTransitionTime": null}]});
        definition(group, kind).strategy.default(&mut object);
        let condition = object["status"]["conditions"][0].as_object().expect("a condition");
        assert_eq!(condition.get("lastTransitionTime"), Some(&Value::Null), "{kind}");
    }
}

#[test]
fn a_service_keeps_its_addresses_and_node_ports() {
    let d = definition("", "Service");
    let object = json!({"metadata": {"name": "hello"}, "spec": {"type": "NodePort", "clusterIP": "10.0.0.1",
        "ports": [{"port": 80, "nodePort": 30080}]}});
    let object = create(d, object);
    assert_eq!(object["spec"]["ports"][0]["targetPort"], 80);
    let again = update(d, &object, Target::Object, |o| {
        o["spec"].as_object_mut().unwrap().remove("clusterIP");
        o["spec"]["ports"] = json!([{"port": 80}]);
    })
    .unwrap();
    assert_eq!(
        (&again["spec"]["clusterIP"], &again["spec"]["ports"][0]["nodePort"]),
        (&json!("10.0.0.1"), &json!(30080))
    );
    let moved = update(d, &object, Target::Object, |o| o["spec"]["clusterIP"] = json!("10.0.0.2"));
    assert_eq!(moved.unwrap_err(), "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set");
}

#[test]
fn small_kinds_behave() {
    let secret = create(definition("", "Secret"), json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}}));
    assert_eq!((&secret["data"]["a"], &secret["type"]), (&json!("Yg=="), &json!("Opaque")));
    assert!(secret.get("stringData").is_none());

    let d = definition("", "Namespace");
    let namespace = create(d, json!({"metadata": {"name": "n"}}));
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "n");
    let freed = update(d, &namespace, Target::Other("finalize"), |o| o["spec"] = json!({})).unwrap();
    assert!(freed["spec"].get("finalizers").is_none());
    let kept = update(d, &namespace, Target::Object, |o| o["spec"] = json!({})).unwrap();
    assert_eq!(kept["spec"]["finalizers"], json!(["kubernetes"]));

    let map =
        create(definition("", "ConfigMap"), json!({"metadata": {"name": "m"}, "immutable": true, "data": {"a": "b"}}));
    let changed = update(definition("", "ConfigMap"), &map, Target::Object, |o| o["data"]["a"] = json!("c"));
    assert_eq!(changed.unwrap_err(), "data: Forbidden: field is immutable when `immutable` is set");
}

#[test]
fn an_approval_writes_conditions_and_nothing_else() {
    let d = definition("certificates.k8s.io", "CertificateSigningRequest");
    let pem = pki::Wish::new(&pki::Subject::client("jane", None)).unwrap().request;
    let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let object = create(
        d,
        json!({"metadata": {"name": "r"}, "spec": {"request": request, "signerName": "a.b/c", "usages": ["client auth"]}}),
    );
    let approved = update(d, &object, Target::Other("approval"), |o| {
        o["spec"]["signerName"] = json!("x.y/z");
        o["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": "YQ=="});
    })
    .unwrap();
    assert_eq!(approved["spec"]["signerName"], "a.b/c");
    assert_eq!(approved["status"], json!({"conditions": [{"type": "Approved", "status": "True"}]}));
}

#[test]
fn a_kubelet_writes_status_and_nothing_else() {
    let d = definition("", "Pod");
    let mut object =
        create(d, json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    assert_eq!((&object["status"]["phase"], &object["metadata"]["generation"]), (&json!("Pending"), &json!(1)));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["status"]["conditions"] = json!([{"type": "Ready", "status": "False", "observedGeneration": 1}]);
    let written = update(d, &object, Target::Status, |o| {
        o["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
        o["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]);
        o["spec"]["nodeName"] = json!("elsewhere");
        o["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    })
    .unwrap();
    assert_eq!(written["metadata"], object["metadata"]);
    assert_eq!(written["spec"], object["spec"]);
    assert_eq!(
        written["status"],
        json!({"phase": "Running", "qosClass": "BestEffort",
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]})
    );
}

/// Fields that are no pointers in Go are there as zeros when the body has been read.
#[test]
fn zeros_of_priority_and_fairness_stand_for_nothing() {
    let of = |kind: &str, spec: Value| {
        let d = definition("flowcontrol.apiserver.k8s.io", kind);
        let gvk = api::codec::decode::Gvk { group: &d.group, version: "v1", kind };
        let body = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        let validation = api::codec::decode::Validation::Strict;
        let read = api::codec::decode::decode(&d.ty, gvk, body.as_bytes(), "application/json", validation).unwrap();
        create(d, read.value)["spec"].clone()
    };
    let schema = of("FlowSchema", json!({"priorityLevelConfiguration": {"name": "workload-low"}}));
    assert_eq!(schema["matchingPrecedence"], 1000);
    let queued = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}});
    let level = of("PriorityLevelConfiguration", queued);
    assert_eq!(
        level["limited"]["limitResponse"]["queuing"],
        json!({"queues": 64, "handSize": 8, "queueLengthLimit": 50})
    );
    let none =
        json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}});
    assert_eq!(of("PriorityLevelConfiguration", none)["limited"]["nominalConcurrencyShares"], 0, "a pointer in Go");
}

#[test]
fn new_workloads_are_warned_about() {
    let check = |kind: &str, name: &str, change: fn(&mut Value), expected: &[&str]| {
        let mut object = deployment();
        object["metadata"]["name"] = json!(name);
        change(&mut object["spec"]);
        let d = definition("apps", kind);
        let object = create(d, object);
        assert_eq!(d.strategy.check(&object).unwrap().warnings, expected, "{kind}");
        // Only for the history an update is enough.
        let again: Vec<&str> = expected.iter().copied().filter(|text| text.contains("History")).collect();
        assert_eq!(d.strategy.check_update(&object, &object, Target::Object).unwrap(), again, "{kind}");
    };
    const DOTS: &str = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS \
                        label is recommended: [must not contain dots]";
    check("Deployment", "z.y", |_| (), &[DOTS]);
    check("ReplicaSet", "z.y", |_| (), &[DOTS]);
    check("Deployment", "z", |_| (), &[]);
    check("DaemonSet", "z.y", |_| (), &[]);
    let claims = |spec: &mut Value| {
        spec["revisionHistoryLimit"] = json!(-1);
        spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1500m"}}}}]);
    };
    let expected = [
        "spec.volumeClaimTemplates[0].resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
        "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended",
    ];
    check("StatefulSet", "z", claims, &expected);
}

#[test]
fn new_pods_are_warned_about() {
    let d = definition("", "Pod");
    let env = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let pod = create(
        d,
        json!({"metadata": {"name": "a.b"}, "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}),
    );
    let warnings = d.strategy.check(&pod).unwrap().warnings;
    assert!(warnings[0].ends_with("a DNS label is recommended: [must not contain dots]"), "{warnings:?}");
    assert_eq!(
        warnings[1],
        "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"
    );
    assert_eq!(d.strategy.check_update(&pod, &pod, Target::Object), Ok(Vec::new()));
}

#[test]
fn other_kinds_refuse_what_makes_no_sense() {
    for (group, kind, object, expected) in [
        (
            "",
            "PersistentVolumeClaim",
            json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
            "spec.resources[storage]: Required value",
        ),
        (
            "policy",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": 1, "maxUnavailable": "5%"}}),
            "spec: Invalid value",
        ),
        (
            "policy",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": "5"}}),
            "spec.minAvailable: Invalid value: \"5\"",
        ),
        (
            "autoscaling",
            "HorizontalPodAutoscaler",
            json!({"spec": {"maxReplicas": 0}}),
            "spec.maxReplicas: Invalid value: 0",
        ),
        (
            "storage.k8s.io",
            "StorageClass",
            json!({"reclaimPolicy": "Keep", "provisioner": "p"}),
            "reclaimPolicy: Unsupported value: \"Keep\"",
        ),
        ("node.k8s.io", "RuntimeClass", json!({"handler": "A"}), "handler: Invalid value: \"A\""),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            json!({"spec": {}}),
            "metadata.name: Invalid value: \"a\": must be spec.names.plural",
        ),
        (
            "scheduling.k8s.io",
            "PriorityClass",
            json!({"value": 2_000_000_000}),
            "value: Forbidden: maximum allowed value of a user defined",
        ),
        (
            "rbac.authorization.k8s.io",
            "Role",
            json!({"rules": [{"verbs": ["get"]}]}),
            "rules[0].apiGroups: Required value",
        ),
        (
            "coordination.k8s.io",
            "Lease",
            json!({"spec": {"leaseDurationSeconds": 0}}),
            "spec.leaseDurationSeconds: Invalid value: 0",
        ),
    ] {
        let d = definition(group, kind);
        let mut object = object;
        object["metadata"] = json!({"name": "a"});
        if d.namespaced() {
            object["metadata"]["namespace"] = json!("default");
        }
        d.strategy.default(&mut object);
        let errors: Vec<String> = d.strategy.validate(&object).iter().map(ToString::to_string).collect();
        assert!(errors.iter().any(|e| e.starts_with(expected)), "{kind}: {errors:?}");
    }
}
