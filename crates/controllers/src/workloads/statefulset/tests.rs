//! The plan of a StatefulSet, as tables.

use super::*;
use json::{Value, json};
use k8s_openapi::api::apps::v1::StatefulSetStatus;

const NOW: &str = "2026-01-01T01:00:00Z";

/// A set of three whose template has this image, with other fields of the spec.
fn set(image: &str, spec: &Value) -> StatefulSet {
    let mut set = json!({
        "metadata": {"name": "web", "namespace": "d", "uid": "s", "generation": 4},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "serviceName": "peers",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}, "revisionHistoryLimit": 1,
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}},
    });
    for (name, value) in spec.as_object().unwrap() {
        set["spec"][name] = value.clone();
    }
    json::from_value(set).unwrap()
}

fn plan_of(set: &StatefulSet, observed: &Observed) -> Plan {
    StatefulSets.plan(set, observed, NOW.parse().unwrap())
}

/// The revision that a set with this image makes first, with a number.
fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
    let plan = plan_of(&set(image, &json!({})), &Observed::default());
    let mut made: ControllerRevision = json::from_value(plan.writes().next().unwrap().body().clone()).unwrap();
    made.revision = number;
    Arc::new(made)
}

/// `ordinal:word:…` with the words ready, late (ready since a moment), pending, failed, succeeded, terminating, orphan, bare
/// (without its labels), and v1 for a Pod of the earlier revision.
fn pod(text: &str) -> Arc<Pod> {
    let words: Vec<&str> = text.split(':').collect();
    let has = |word: &str| words.contains(&word);
    let set = set("v2", &json!({}));
    let image = if has("v1") { "v1" } else { "v2" };
    let template = set.spec.as_ref().unwrap().template.clone();
    let ordinal = words[0].parse().unwrap();
    let mut pod = identity::pod(&set, &template, history::name(&revision(image, 1)), ordinal);
    let phases = [("pending", "Pending"), ("failed", "Failed"), ("succeeded", "Succeeded")];
    let phase = phases.iter().find(|(word, _)| has(word)).map_or("Running", |(_, phase)| phase);
    let since = if has("late") { "2026-01-01T00:59:55Z" } else { "2026-01-01T00:00:00Z" };
    let ready = if has("ready") || has("late") { "True" } else { "False" };
    pod.status = json::from_value(json!({"phase": phase,
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}))
    .unwrap();
    pod.metadata.uid = Some(format!("uid-{ordinal}"));
    if has("terminating") {
        pod.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    }
    if has("orphan") {
        pod.metadata.owner_references = None;
    }
    if has("bare") {
        pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    }
    Arc::new(pod)
}

fn observed(pods: &str) -> Observed {
    Observed {
        pods: pods.split_whitespace().map(pod).collect(),
        history: Recorded { revisions: vec![revision("v1", 1), revision("v2", 2)], is_name_taken: false },
        ..Observed::default()
    }
}

/// The writes of a plan besides the status.
fn steps(plan: &Plan) -> String {
    let writes = plan.writes().filter(|w| w.subresource.is_empty()).map(|write| {
        let image = write.body()["spec"]["containers"][0]["image"].as_str();
        let image = image.map(|image| format!(" {image}")).unwrap_or_default();
        let words = write.to_string().replace(" pods", "").replace("web-", "").replace("persistentvolumeclaims", "pvc");
        format!("{words}{image}")
    });
    writes.collect::<Vec<_>>().join(", ")
}

fn check(spec: Value, pods: &str, expected: &str) {
    let plan = plan_of(&set("v2", &spec), &observed(pods));
    assert_eq!(steps(&plan), expected, "{spec} {pods}");
}

fn ordered(pods: &str, expected: &str) {
    check(json!({}), pods, expected);
}

fn parallel(pods: &str, expected: &str) {
    check(json!({"podManagementPolicy": "Parallel"}), pods, expected);
}

#[test]
fn ordered_pods_start_one_after_the_other() {
    ordered("", "create 0 v2");
    ordered("0:pending", "");
    ordered("0", "");
    ordered("0:ready", "create 1 v2");
    ordered("0:ready 2:ready", "create 1 v2");
    ordered("1:ready 2:ready", "create 0 v2");
    ordered("0:ready 1:ready 2:ready", "");
    ordered("0:ready 1:ready:terminating", "");
    check(json!({"minReadySeconds": 10}), "0:late", "");
    check(json!({"minReadySeconds": 10}), "0:ready", "create 1 v2");
    check(json!({"minReadySeconds": 2}), "0:late", "create 1 v2");
}

#[test]
fn ordered_pods_go_one_after_the_other() {
    ordered("0:ready 1:ready 2:ready 3:ready 4:ready", "delete 4");
    ordered("0:ready 1:ready 2:ready 3:ready 4:ready:terminating", "");
    // Nobody goes while one that stays does not serve.
    ordered("0:ready 1 2:ready 3:ready", "");
    ordered("0:ready 1:ready 2:ready 3", "delete 3");
    // The lowest that does not serve is waited for, unless it is the next to go.
    ordered("0:ready 1:ready 2:ready 3 4", "");
    ordered("0:ready 1:ready 2:ready 3 4:ready", "delete 4");
    check(json!({"replicas": 0}), "0:ready", "delete 0");
    check(json!({"replicas": 0}), "", "");
}

#[test]
fn parallel_pods_come_and_go_at_once() {
    parallel("", "create 0 v2, create 1 v2, create 2 v2");
    parallel("1", "create 0 v2, create 2 v2");
    parallel("0:ready 1 2:terminating 3 4:ready 5:terminating", "delete 4, delete 3");
    let none = json!({"podManagementPolicy": "Parallel", "replicas": 0});
    check(none, "0:ready 1:pending", "delete 1, delete 0");
}

#[test]
fn pods_that_ended_are_made_again() {
    ordered("0:failed", "delete 0");
    ordered("0:succeeded", "delete 0");
    ordered("0:failed:terminating", "");
    ordered("0:ready 1:failed 2:failed", "delete 1");
    parallel("0:failed 1:succeeded 2:failed:terminating", "delete 0, delete 1");
    // It is deleted once, also when it is outdated.
    parallel("0:failed:v1 1:ready 2:ready", "delete 0");
}

#[test]
fn a_lost_pod_is_never_alive_twice() {
    // Its node is gone, and nobody can say that it has ended.
    ordered("0:ready 1:terminating 2:ready", "");
    parallel("0:ready 1:terminating 2:ready", "");
    let mut observed = observed("0:ready");
    observed.taken.insert("web-1".to_owned());
    let plan = plan_of(&set("v2", &json!({})), &observed);
    assert_eq!((steps(&plan).as_str(), plan.retry), ("", true), "a Pod of others has the name");
}

#[test]
fn an_update_goes_from_the_highest_to_the_lowest() {
    ordered("0:ready:v1 1:ready:v1 2:ready:v1", "delete 2");
    ordered("0:ready:v1 1:ready:v1", "create 2 v2");
    ordered("0:ready:v1 1:ready:v1 2", "");
    ordered("0:ready:v1 1:ready:v1 2:ready", "delete 1");
    ordered("0:ready:v1 1:ready 2:ready", "delete 0");
    // Scaling comes first.
    ordered("0:ready:v1 1:ready:v1 2:ready:v1 3:ready:v1", "delete 3");
    check(json!({"minReadySeconds": 10}), "0:ready:v1 1:ready:v1 2:late", "");
    check(json!({"updateStrategy": {"type": "OnDelete"}}), "0:ready:v1 1:ready:v1 2:ready:v1", "");
    check(json!({"updateStrategy": {"type": "OnDelete"}}), "0:ready:v1 1:ready:v1", "create 2 v2");
}

#[test]
fn a_partition_holds_the_lower_pods_back() {
    let partition = |n: i32, more: &Value| {
        let mut spec = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": n}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let none = json!({});
    check(partition(2, &none), "0:ready:v1 1:ready:v1 2:ready:v1", "delete 2");
    check(partition(2, &none), "0:ready:v1 1:ready:v1 2:ready", "");
    check(partition(9, &none), "0:ready:v1 1:ready:v1 2:ready:v1", "");
    let start = json!({"ordinals": {"start": 5}});
    check(partition(1, &start), "5:ready:v1 6:ready:v1 7:ready", "delete 6");
    check(partition(1, &start), "5:ready:v1 6:ready 7:ready", "");
    // A Pod below the partition that is made again is what it was.
    let current = |pods: &str, spec: &Value| {
        let mut set = set("v2", spec);
        let status = StatefulSetStatus {
            current_revision: revision("v1", 1).metadata.name.clone(),
            current_replicas: Some(1),
            ..StatefulSetStatus::default()
        };
        set.status = Some(status);
        steps(&plan_of(&set, &observed(pods)))
    };
    assert_eq!(current("1:ready:v1 2:ready", &partition(2, &none)), "create 0 v1");
    assert_eq!(current("0:ready:v1 1:ready:v1", &partition(2, &none)), "create 2 v2");
    assert_eq!(current("6:ready:v1 7:ready", &partition(1, &start)), "create 5 v1");
    // Without a partition it depends on how many have been updated.
    let plain = json!({"updateStrategy": {"type": "RollingUpdate"}});
    assert_eq!(current("1:ready 2:ready", &plain), "create 0 v1");
    assert_eq!(current("0:ready:v1 2:ready", &plain), "create 1 v2");
}

#[test]
fn as_many_as_may_be_unavailable_are_updated_at_once() {
    let most = |n: Value, policy: &str, replicas: i32| {
        json!({"replicas": replicas, "podManagementPolicy": policy,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": n}}})
    };
    let old = "0:ready:v1 1:ready:v1 2:ready:v1 3:ready:v1";
    check(most(json!(2), "OrderedReady", 4), old, "delete 3, delete 2");
    check(most(json!("50%"), "OrderedReady", 4), old, "delete 3, delete 2");
    check(most(json!("1%"), "OrderedReady", 4), old, "delete 3");
    check(most(json!(9), "Parallel", 4), old, "delete 3, delete 2, delete 1, delete 0");
    check(most(json!(2), "Parallel", 4), "0:ready:v1 1:ready:v1 2:ready:v1 3", "delete 2");
    check(most(json!(2), "Parallel", 4), "0:ready:v1 1:ready:v1 2:ready:v1:terminating 3", "");
    // A Pod that serves nobody goes first and costs nothing.
    check(most(json!(2), "Parallel", 4), "0:v1 1:ready:v1 2:ready:v1 3:ready", "delete 0, delete 2");
    check(most(json!(1), "Parallel", 4), "0:v1 1:v1 2:v1 3:ready:v1", "delete 2, delete 1, delete 0");
    let five = |n: i32, partition: i32| {
        json!({"replicas": 5, "podManagementPolicy": "Parallel", "updateStrategy": {"type": "RollingUpdate",
            "rollingUpdate": {"partition": partition, "maxUnavailable": n}}})
    };
    let ready = "0:ready:v1 1:ready:v1 2:ready:v1";
    check(five(3, 0), &format!("{ready} 3:v1 4:ready:v1:terminating"), "delete 3, delete 2");
    check(five(3, 0), &format!("{ready} 3:ready:v1:terminating 4:v1"), "delete 4, delete 2");
    check(five(3, 0), "0:v1 1:v1 2:ready:v1 3:ready:v1 4:ready:v1", "delete 1, delete 0, delete 4");
    // A Pod below the partition stays, and counts.
    check(five(1, 2), "0:ready:v1 1:ready:v1 2:v1 3:ready:v1 4:ready:v1", "delete 2");
    check(five(1, 2), "0:ready:v1 1:v1 2:ready:v1 3:ready:v1 4:ready:v1", "");
    check(five(2, 3), &format!("{ready} 3:v1 4:v1"), "delete 4, delete 3");
    check(five(2, 3), "0:ready:v1 1:v1 2:ready:v1 3:ready:v1 4:v1", "delete 4");
    let mut late = five(1, 0);
    late["minReadySeconds"] = json!(10);
    check(late, &format!("{ready} 3:ready:v1 4:late:v1"), "delete 4");
    parallel("0:ready:v1 1:ready:v1 2:ready:v1", "delete 2");
    parallel("0:ready:v1 1:ready:v1", "create 2 v2");
}

#[test]
fn claims_come_before_pods() {
    let claimed = json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}, {"metadata": {"name": "log"}}]});
    check(claimed.clone(), "", "create pvc data-0, create pvc log-0, create 0 v2");
    let with = |pods: &str, claims: &[&str], spec: &Value, change: &dyn Fn(&mut PersistentVolumeClaim)| {
        let mut observed = observed(pods);
        for name in claims {
            let mut claim: PersistentVolumeClaim =
                json::from_value(json!({"metadata": {"name": name, "namespace": "d"}})).unwrap();
            change(&mut claim);
            observed.claims.insert((*name).to_owned(), Arc::new(claim));
        }
        plan_of(&set("v2", spec), &observed)
    };
    let found = |claims: &[&str]| steps(&with("", claims, &claimed, &|_| {}));
    assert_eq!(found(&["data-web-0"]), "create pvc log-0, create 0 v2");
    assert_eq!(found(&["data-web-0", "log-web-0"]), "create 0 v2");
    let going = with("", &["data-web-0"], &claimed, &|c| {
        c.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    });
    assert_eq!((steps(&going).as_str(), going.retry), ("", true));
    assert!(matches!(&going.steps[0], Step::Tell(note) if note.message
        == "create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted"));
    // A Pod whose claims are complete does not wait for the claims of others.
    let mut parallel = claimed;
    parallel["podManagementPolicy"] = json!("Parallel");
    let plan = with("0:ready", &["data-web-2", "log-web-2"], &parallel, &|_| {});
    assert_eq!(steps(&plan), "create 2 v2, create pvc data-1, create pvc log-1, create 1 v2, patch 0");
}

#[test]
fn claims_go_with_the_pod_or_the_set() {
    let spec = json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}], "replicas": 1,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"}});
    let mut observed = observed("0:ready 1:ready");
    for (ordinal, uid) in [(0, "uid-0"), (1, "other")] {
        let name = format!("data-web-{ordinal}");
        let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": format!("web-{ordinal}"), "uid": uid, "controller": true}]);
        let claim = json!({"metadata": {"name": name, "namespace": "d", "ownerReferences": owners}});
        observed.claims.insert(name, Arc::new(json::from_value(claim).unwrap()));
    }
    let give_claims = |observed: &mut Observed| {
        for pod in &mut observed.pods {
            let mut with = (**pod).clone();
            let ordinal = identity::ordinal(&set("v2", &spec), &with).unwrap();
            let patch = identity::repair(&set("v2", &spec), &with, ordinal).unwrap();
            with.spec.as_mut().unwrap().volumes = json::from_value(patch["spec"]["volumes"].clone()).unwrap();
            *pod = Arc::new(with);
        }
    };
    give_claims(&mut observed);
    let plan = plan_of(&set("v2", &spec), &observed);
    assert_eq!(steps(&plan), "update pvc data-0, delete 1", "the claim of an earlier web-1 is left alone");
    let owners = &plan.writes().next().unwrap().body()["metadata"]["ownerReferences"];
    assert_eq!((owners.as_array().unwrap().len(), &owners[0]["uid"]), (1, &json!("s")));
    // The claim of the Pod that goes is its own before it goes.
    observed.claims.remove("data-web-0");
    let claim = json!({"metadata": {"name": "data-web-1", "namespace": "d"}});
    observed.claims.insert("data-web-1".to_owned(), Arc::new(json::from_value(claim).unwrap()));
    assert_eq!(steps(&plan_of(&set("v2", &spec), &observed)), "update pvc data-1, delete 1");
    // No new Pod takes the claim that goes with the old one.
    let mut again = spec.clone();
    again["replicas"] = json!(2);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-1", "uid": "uid-1", "controller": true}]);
    let claim = json!({"metadata": {"name": "data-web-1", "namespace": "d", "ownerReferences": owners}});
    observed.claims.insert("data-web-1".to_owned(), Arc::new(json::from_value(claim).unwrap()));
    observed.pods.pop();
    assert_eq!(steps(&plan_of(&set("v2", &again), &observed)), "");
}

#[test]
fn pods_are_adopted_and_labelled() {
    ordered("0:ready:orphan 1:ready 2:ready", "patch 0");
    // Without a revision it is outdated as well.
    ordered("0:ready 1:ready 2:ready:bare", "patch 2, delete 2");
    let plan = plan_of(&set("v2", &json!({})), &observed("0:ready 1:ready 2:ready:bare"));
    let Some(Step::One(repair)) = plan.steps.first() else { panic!("no step") };
    let labels = json!({"statefulset.kubernetes.io/pod-name": "web-2", "apps.kubernetes.io/pod-index": "2"});
    assert_eq!(repair.body()["metadata"]["labels"], labels);
    let note = repair.on_success.as_ref().unwrap();
    assert_eq!(
        (note.reason.as_str(), note.message.as_str()),
        ("SuccessfulUpdate", "update Pod web-2 in StatefulSet web successful")
    );
}

#[test]
fn a_start_ordinal_moves_the_set() {
    let start = json!({"ordinals": {"start": 2}});
    check(start.clone(), "", "create 2 v2");
    check(start.clone(), "0:ready 1:ready 2:ready", "create 3 v2");
    check(start.clone(), "0:ready 1:ready 2:ready 3:ready 4:ready", "delete 1");
    check(start, "0:ready 2:ready 3:ready 4:ready", "delete 0");
}

fn status(set: &StatefulSet, pods: &str) -> Value {
    plan_of(set, &observed(pods)).status.map_or(Value::Null, |write| write.body()["status"].clone())
}

#[test]
fn the_status_counts() {
    let (v1, v2) = (revision("v1", 1).metadata.name.clone(), revision("v2", 2).metadata.name.clone());
    let mut set = set("v2", &json!({"minReadySeconds": 10}));
    set.status = Some(StatefulSetStatus { current_revision: v1.clone(), ..StatefulSetStatus::default() });
    let expected = json!({"observedGeneration": 4, "replicas": 3, "readyReplicas": 2, "availableReplicas": 1,
        "currentReplicas": 1, "updatedReplicas": 2, "currentRevision": v1, "updateRevision": v2, "collisionCount": 0});
    assert_eq!(status(&set, "0:ready:v1 1:late 2"), expected);
    // A Pod that is being replaced counts no longer as current.
    set.spec.as_mut().unwrap().min_ready_seconds = None;
    assert_eq!(status(&set, "0:ready:v1 1:ready:v1 2:ready")["currentReplicas"], 1);
    // A rollout that is complete makes the revision the current one.
    let complete = status(&set, "0:ready 1:ready 2:ready");
    assert_eq!((&complete["currentRevision"], &complete["currentReplicas"]), (&json!(v2), &json!(3)));
    set.status = Some(json::from_value(complete).unwrap());
    assert!(plan_of(&set, &observed("0:ready 1:ready 2:ready")).is_empty(), "and then all is said");
    let plan = plan_of(&set, &observed("0:ready 1:ready 2:ready:terminating"));
    assert_eq!(plan.status.unwrap().body()["status"]["updatedReplicas"], 2);
}

#[test]
fn a_pod_that_will_count_is_waited_for() {
    let plan = plan_of(&set("v2", &json!({"minReadySeconds": 10})), &observed("0:late"));
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(6)));
}

#[test]
fn a_set_that_goes_is_only_counted() {
    let mut set = set("v3", &json!({}));
    set.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    let plan = plan_of(&set, &observed("0:ready:orphan 5:failed"));
    assert!(plan.steps.is_empty(), "{plan}");
    assert_eq!(plan.status.unwrap().body()["status"]["replicas"], 1);
}

#[test]
fn a_taken_revision_name_is_counted() {
    let taken = Observed { history: Recorded { is_name_taken: true, ..Recorded::default() }, ..observed("0:ready") };
    let plan = plan_of(&set("v2", &json!({})), &taken);
    assert_eq!(steps(&plan), "");
    assert_eq!(plan.status.unwrap().body()["status"]["collisionCount"], 1);
}

#[test]
fn revisions_are_kept_while_they_are_named() {
    let spec = json!({"revisionHistoryLimit": 0});
    check(spec.clone(), "0:ready 1:ready 2:ready", &format!("delete controllerrevisions {}", short("v1")));
    let plan = plan_of(&set("v2", &spec), &observed("0:ready:v1 1:ready 2:ready"));
    assert_eq!(steps(&plan), "delete 0");
    // A template that comes back is a rollback.
    let rollback = plan_of(&set("v1", &json!({})), &observed("0:ready:v1 1:ready 2:ready"));
    assert_eq!(steps(&rollback), format!("patch controllerrevisions {}, delete 2", short("v1")));
}

fn short(image: &str) -> String {
    revision(image, 1).metadata.name.clone().unwrap().replace("web-", "")
}

#[test]
fn writes_tell_what_they_do() {
    let plan = plan_of(&set("v2", &json!({})), &observed(""));
    let create = plan.writes().find(|w| w.verb_name() == "create").unwrap();
    let said = |note: &Option<Note>| note.as_ref().map(|n| format!("{}: {}", n.reason, n.message)).unwrap();
    assert_eq!(said(&create.on_success), "SuccessfulCreate: create Pod web-0 in StatefulSet web successful");
    assert_eq!(said(&create.on_failure), "FailedCreate: create Pod web-0 in StatefulSet web failed error: {error}");
}
