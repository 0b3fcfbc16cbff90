//! The plan of a DaemonSet, as tables.

use super::*;
use json::Value;
use k8s_openapi::api::apps::v1::DaemonSetStatus;

const NOW: &str = "2026-01-01T01:00:00Z";

fn set(image: &str, strategy: &Value) -> DaemonSet {
    json::from_value(json!({
        "metadata": {"name": "agent", "namespace": "d", "uid": "ds", "generation": 2},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "updateStrategy": strategy, "revisionHistoryLimit": 0,
            "template": {"metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}},
    }))
    .unwrap()
}

fn rolling(surge: impl Into<Value>, unavailable: impl Into<Value>) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge.into(), "maxUnavailable": unavailable.into()}})
}

fn plan_of(set: &DaemonSet, observed: &Observed) -> Plan {
    DaemonSets::default().plan(set, observed, NOW.parse().unwrap())
}

/// The revision that a set with this image makes first, with a number.
fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
    let plan = plan_of(&set(image, &rolling(0, 1)), &Observed::default());
    let mut made: ControllerRevision = json::from_value(plan.writes().next().unwrap().body().clone()).unwrap();
    made.revision = number;
    Arc::new(made)
}

/// `name:word` with the words full (a taint that repels new Pods), closed (one that repels all).
fn node(text: &str) -> Arc<Node> {
    let (name, word) = text.split_once(':').unwrap_or((text, ""));
    let taints = match word {
        "full" => json!([{"key": "full", "effect": "NoSchedule"}]),
        "closed" => json!([{"key": "closed", "effect": "NoExecute"}]),
        _ => json!([]),
    };
    Arc::new(json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": taints}})).unwrap())
}

/// `name@node:word:…`, made in the order of their names, with the words ready, late (ready since a moment), failed, kept
/// (failed, and not given up yet), succeeded, terminating, unbound, orphan, and v1 for a Pod of the earlier revision.
fn pod(text: &str) -> Arc<Pod> {
    let words: Vec<&str> = text.split(':').collect();
    let has = |word: &str| words.contains(&word);
    let (name, node) = words[0].split_once('@').unwrap();
    let set = set("v2", &rolling(0, 1));
    let image = if has("v1") { "v1" } else { "v2" };
    let mut pod = placement::pod(&set, hash(&revision(image, 1)), node);
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = pod.metadata.name.clone();
    let minute = name.bytes().last().unwrap_or(0) % 60;
    pod.metadata.creation_timestamp = json::from_value(json!(format!("2026-01-01T00:{minute:02}:00Z"))).unwrap();
    if !has("unbound") {
        pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
    }
    let failed = has("failed") || has("kept");
    let phase = if failed { "Failed" } else { ["Running", "Succeeded"][usize::from(has("succeeded"))] };
    let since = if has("late") { "2026-01-01T00:59:55Z" } else { "2026-01-01T00:00:00Z" };
    let ready = if has("ready") || has("late") { "True" } else { "False" };
    pod.status = json::from_value(json!({"phase": phase,
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}))
    .unwrap();
    if has("terminating") {
        pod.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    }
    if has("orphan") {
        pod.metadata.owner_references = None;
    }
    Arc::new(pod)
}

fn observed(nodes: &str, pods: &str) -> Observed {
    let kept = pods.split_whitespace().filter(|p| p.contains(":kept"));
    let kept = kept.map(|p| (p.split_once('@').unwrap().0.to_owned(), Duration::from_secs(7)));
    Observed {
        pods: pods.split_whitespace().map(pod).collect(),
        history: Recorded { revisions: vec![revision("v1", 1), revision("v2", 2)], is_name_taken: false },
        nodes: nodes.split_whitespace().map(node).collect(),
        kept: kept.collect(),
    }
}

/// The changes of Pods in a plan: `+node` makes one there, `-name` deletes one.
fn steps(plan: &Plan) -> String {
    let pods = plan.writes().filter(|w| w.resource.plural == "pods").map(|write| match write.verb_name() {
        "create" => {
            let made: Pod = json::from_value(write.body().clone()).unwrap();
            format!("+{}", placement::node_of(&made).unwrap())
        }
        "delete" => format!("-{}", write.name),
        verb => format!("{verb} {}", write.name),
    });
    pods.collect::<Vec<_>>().join(" ")
}

fn check(strategy: &Value, nodes: &str, pods: &str, expected: &str) {
    let plan = plan_of(&set("v2", strategy), &observed(nodes, pods));
    assert_eq!(steps(&plan), expected, "{strategy} {nodes} {pods}");
}

fn plain(nodes: &str, pods: &str, expected: &str) {
    check(&rolling(0, 1), nodes, pods, expected);
}

#[test]
fn each_node_that_fits_gets_one_pod() {
    plain("n1 n2 n3", "", "+n1 +n2 +n3");
    plain("n1 n2 n3", "a@n1:ready c@n3:unbound", "+n2");
    plain("n1:full n2:closed", "", "");
    plain("n1:full n2:closed", "a@n1:ready b@n2:ready", "-b");
    // A Pod that is going keeps its place until it is gone.
    plain("n1", "a@n1:terminating", "");
    plain("n1", "a@n1:failed:terminating", "+n1");
    plain("n1", "a@n1:ready:orphan", "patch a");
}

#[test]
fn of_several_pods_the_oldest_bound_one_stays() {
    plain("n1", "b@n1:ready a@n1:ready c@n1:ready", "-b -c");
    plain("n1", "a@n1:unbound b@n1:ready", "-a");
    plain("n1:full", "a@n1:ready b@n1:ready", "-b");
}

#[test]
fn pods_of_nodes_that_are_gone() {
    plain("n1", "a@n1:ready b@n2:unbound c@n2:ready", "-b");
    plain("n1", "a@n1:ready b@n2:unbound:terminating", "");
}

#[test]
fn pods_that_ended_are_replaced() {
    let told = |pods: &str| {
        let plan = plan_of(&set("v2", &rolling(0, 1)), &observed("n1", pods));
        let notes = plan.steps.iter().filter_map(|step| match step {
            Step::Tell(note) => Some(format!("{}: {}", note.reason, note.message)),
            _ => None,
        });
        (steps(&plan), notes.collect::<Vec<_>>().join(", "), plan.requeue_after)
    };
    let failed = "FailedDaemonPod: Found failed daemon pod d/a on node n1, will try to kill it".to_owned();
    assert_eq!(told("a@n1:failed"), ("-a".to_owned(), failed, None));
    let succeeded = "SucceededDaemonPod: Found succeeded daemon pod d/a on node n1, will try to delete it".to_owned();
    assert_eq!(told("a@n1:succeeded"), ("-a".to_owned(), succeeded, None));
    let kept = Some(Duration::from_secs(7));
    assert_eq!(told("a@n1:kept"), (String::new(), String::new(), kept), "not yet, after it failed often");
}

#[test]
fn an_update_in_place_takes_as_many_as_may_be_unavailable() {
    let (nodes, old) = ("n1 n2 n3 n4", "a@n1:ready:v1 b@n2:ready:v1 c@n3:ready:v1 d@n4:ready:v1");
    plain(nodes, old, "-a");
    check(&rolling(0, 2), nodes, old, "-a -b");
    check(&rolling(0, "60%"), nodes, old, "-a -b -c");
    check(&rolling(0, 0), nodes, old, "-a");
    check(&json!({"type": "OnDelete"}), nodes, old, "");
    plain(nodes, "b@n2:ready:v1 c@n3:ready:v1 d@n4:ready:v1", "+n1");
    plain(nodes, "a@n1 b@n2:ready:v1 c@n3:ready:v1 d@n4:ready:v1", "");
    plain(nodes, "a@n1:ready b@n2:ready:v1 c@n3:ready:v1 d@n4:ready:v1", "-b");
    // An old Pod that serves nobody costs nothing.
    plain(nodes, "a@n1:v1 b@n2:v1 c@n3:ready:v1 d@n4:ready:v1", "-a -b");
    plain(nodes, "a@n1:ready:v1:terminating b@n2:ready:v1 c@n3:ready:v1 d@n4:ready:v1", "");
    // Nodes that do not run a Pod do not count.
    check(&rolling(0, "50%"), "n1 n2:closed n3:closed", "a@n1:ready:v1", "-a");
}

#[test]
fn a_pod_serves_when_it_has_been_ready_for_long_enough() {
    let mut set = set("v2", &rolling(0, 1));
    set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
    let plan = plan_of(&set, &observed("n1 n2", "a@n1:late b@n2:ready:v1"));
    assert_eq!((steps(&plan).as_str(), plan.requeue_after), ("", Some(Duration::from_secs(6))));
    assert_eq!(steps(&plan_of(&set, &observed("n1 n2", "a@n1:ready b@n2:ready:v1"))), "-b");
}

#[test]
fn an_update_with_surge_makes_new_pods_beside_old_ones() {
    let surge = rolling(1, 0);
    let (nodes, old) = ("n1 n2 n3", "a@n1:ready:v1 b@n2:ready:v1 c@n3:ready:v1");
    check(&surge, nodes, old, "+n1");
    check(&rolling("60%", 0), nodes, old, "+n1 +n2");
    check(&surge, nodes, "a@n1:ready:v1 b@n2:ready:v1 c@n3:ready:v1 d@n1", "");
    check(&surge, nodes, "a@n1:ready:v1 b@n2:ready:v1 c@n3:ready:v1 d@n1:ready", "-a");
    // The new one stays where neither serves.
    check(&surge, nodes, "a@n1:v1 b@n2:ready:v1 c@n3:ready:v1 d@n1", "-a");
    // An old Pod that serves nobody is replaced at once.
    check(&surge, nodes, "a@n1:v1 b@n2:v1 c@n3:ready:v1", "+n1 +n2 +n3");
    check(&surge, nodes, "a@n1:v1 b@n2:v1 c@n3:ready:v1 d@n3", "+n1 +n2");
    // More than two of a node are never left.
    check(&surge, "n1", "a@n1:ready:v1 b@n1:ready:v1 c@n1 d@n1", "-d -b");
    check(&surge, "n1", "a@n1:ready:terminating", "+n1");
}

#[test]
fn an_old_pod_on_a_node_that_keeps_it_goes_when_another_serves_in_its_place() {
    let surge = rolling(1, 0);
    check(&surge, "n1:full n2", "a@n1:ready:v1 b@n2", "");
    check(&surge, "n1:full n2", "a@n1:ready:v1 b@n2:ready", "-a");
    check(&surge, "n1:full n2", "a@n1:v1 b@n2", "-a");
}

#[test]
fn the_status_counts_nodes() {
    let status = |set: &DaemonSet, nodes: &str, pods: &str| {
        let plan = plan_of(set, &observed(nodes, pods));
        plan.status.map_or(Value::Null, |write| write.body()["status"].clone())
    };
    let mut set = set("v2", &json!({"type": "OnDelete"}));
    set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
    let pods = "a@n1:ready b@n2:late:v1 c@n3:unbound e@n5:ready f@n6:ready";
    let counted = status(&set, "n1 n2 n3 n4 n5:full n6:closed", pods);
    let expected = json!({"desiredNumberScheduled": 4, "currentNumberScheduled": 3, "numberMisscheduled": 2,
        "numberReady": 2, "numberAvailable": 1, "numberUnavailable": 3, "updatedNumberScheduled": 2,
        "observedGeneration": 2});
    assert_eq!(counted, expected);
    set.status = Some(DaemonSetStatus { collision_count: Some(3), ..json::from_value(expected).unwrap() });
    assert_eq!(status(&set, "n1 n2 n3 n4 n5:full n6:closed", pods), Value::Null, "the count of collisions stays");
}

fn revisions(set: &DaemonSet, observed: &Observed) -> String {
    let plan = plan_of(set, observed);
    let writes = plan.writes().filter(|w| w.subresource.is_empty());
    writes.map(|w| w.to_string().replace("controllerrevisions ", "")).collect::<Vec<_>>().join(", ")
}

#[test]
fn revisions_stay_while_pods_name_them() {
    let on_delete = json!({"type": "OnDelete"});
    let v1 = revision("v1", 1).metadata.name.clone().unwrap();
    let set_of = |image: &str| set(image, &on_delete);
    assert_eq!(revisions(&set_of("v2"), &observed("n1", "a@n1:ready:v1")), "");
    assert_eq!(revisions(&set_of("v2"), &observed("n1", "a@n1:ready")), format!("delete {v1}"));
    assert_eq!(revisions(&set_of("v1"), &observed("n1", "a@n1:ready")), format!("patch {v1}"), "a rollback");
}

#[test]
fn equal_revisions_become_one() {
    let mut twins = observed("n1", "a@n1:ready");
    let mut twin = (*revision("v2", 5)).clone();
    twin.metadata.name = Some("agent-twin".to_owned());
    twin.metadata.labels.as_mut().unwrap().insert(POD_REVISION.to_owned(), "twin".to_owned());
    twins.history.revisions = vec![revision("v2", 2), Arc::new(twin)];
    let first = revision("v2", 2).metadata.name.clone().unwrap();
    assert_eq!(revisions(&set("v2", &rolling(0, 1)), &twins), format!("patch pods a, delete {first}"));
}

#[test]
fn a_set_that_goes_is_left_alone() {
    let mut set = set("v3", &rolling(0, 1));
    set.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    assert!(plan_of(&set, &observed("n1 n2", "a@n1:failed b@n1:orphan")).is_empty());
}

#[test]
fn a_taken_revision_name_is_counted() {
    let taken =
        Observed { history: Recorded { is_name_taken: true, ..Recorded::default() }, ..observed("n1", "a@n1:ready") };
    let plan = plan_of(&set("v2", &rolling(0, 1)), &taken);
    assert_eq!((steps(&plan).as_str(), &plan.status.unwrap().body()["status"]["collisionCount"]), ("", &json!(1)));
}
