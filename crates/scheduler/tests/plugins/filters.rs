//! The reasons for which nodes are refused: resources, ports, volumes.

use api::{
    features::{Feature, Features},
    rules::declared_feature::{RESTART_ALL, RESTART_ALL_ACTION},
};
use clock::Instant;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use scheduler::{Engine, Settings};

use crate::text::{check, next, node, pod, pod_with};

fn container(requests: Value) -> Value {
    json!({"name": "c", "image": "i", "resources": {"requests": requests}})
}

/// A Pod of containers, of init containers and of sidecars, by their requests.
fn of(main: &[Value], init: &[Value], sidecars: &[Value]) -> Pod {
    let list = |all: &[Value]| all.iter().cloned().map(container).collect::<Vec<_>>();
    let mut before = list(sidecars);
    before.iter_mut().for_each(|sidecar| sidecar["restartPolicy"] = json!("Always"));
    before.extend(list(init));
    pod_with("p", json!({"containers": list(main), "initContainers": before}))
}

#[test]
fn requests_must_fit_into_what_is_left() {
    let node = ["a cpu=10 memory=20Gi ephemeral-storage=20Gi x.io/a=5 hugepages-2Mi=10Mi pods=32"];
    let placed = |text: &str| [pod(&format!("q on=a {text}"))];
    let short = |what: &str| format!("0/1 nodes are available: {what}.");
    let cpu = |n: i32| json!({"cpu": n});
    let full = placed("cpu=8 memory=19Gi");
    for (waiting, there, expected) in [
        (pod("p"), placed("cpu=10 memory=20Gi"), "a".to_owned()),
        (pod("p cpu=1 memory=1Gi"), placed("cpu=10 memory=20Gi"), short("1 Insufficient cpu, 1 Insufficient memory")),
        (pod("p cpu=1 memory=1Gi"), placed("cpu=9 memory=19Gi"), "a".to_owned()),
        (pod("p cpu=2 memory=1Gi"), placed("cpu=9 memory=5Gi"), short("1 Insufficient cpu")),
        (pod("p cpu=1 memory=2Gi"), placed("cpu=5 memory=19Gi"), short("1 Insufficient memory")),
        (pod("p cpu=0"), placed("cpu=10"), "a".to_owned()),
        (of(&[cpu(1)], &[cpu(3)], &[]), full.clone(), short("1 Insufficient cpu")),
        (of(&[cpu(1)], &[cpu(2), cpu(2)], &[]), full.clone(), "a".to_owned()),
        (of(&[cpu(1), cpu(1)], &[], &[]), full.clone(), "a".to_owned()),
        (of(&[cpu(1)], &[], &[cpu(1)]), full.clone(), "a".to_owned()),
        (of(&[cpu(1)], &[], &[cpu(2)]), full.clone(), short("1 Insufficient cpu")),
        (of(&[cpu(0)], &[cpu(2)], &[cpu(1)]), full, short("1 Insufficient cpu")),
        (pod("p x.io/a=1"), placed("x.io/a=4"), "a".to_owned()),
        (pod("p x.io/a=10"), placed("x.io/a=0"), short("1 Insufficient x.io/a")),
        (of(&[json!({"x.io/a": 3}), json!({"x.io/a": 3})], &[], &[]), placed(""), short("1 Insufficient x.io/a")),
        (of(&[], &[json!({"x.io/a": 3}), json!({"x.io/a": 3})], &[]), placed("x.io/a=2"), "a".to_owned()),
        (pod("p x.io/b=1"), placed(""), short("1 Insufficient x.io/b")),
        (pod("p hugepages-2Mi=4Mi"), placed("hugepages-2Mi=6Mi"), "a".to_owned()),
        (pod("p hugepages-2Mi=6Mi"), placed("hugepages-2Mi=6Mi"), short("1 Insufficient hugepages-2Mi")),
        (pod("p ephemeral-storage=6Gi"), placed("ephemeral-storage=15Gi"), short("1 Insufficient ephemeral-storage")),
        (pod_with("p cpu=1", json!({"overhead": {"cpu": "1"}})), placed("cpu=8"), "a".to_owned()),
        (pod_with("p cpu=1", json!({"overhead": {"cpu": "2"}})), placed("cpu=8"), short("1 Insufficient cpu")),
        (
            pod_with("p cpu=1", json!({"resources": {"requests": {"cpu": "3"}}})),
            placed("cpu=8"),
            short("1 Insufficient cpu"),
        ),
    ] {
        check(&node, &there, waiting, &expected);
    }
}

#[test]
fn a_resize_counts_with_what_it_may_need() {
    let resized = |wanted: &str, allocated: &str, actual: &str, pending: Option<&str>| {
        let mut pod = pod(&format!("q on=a cpu={wanted}"));
        let conditions: Vec<Value> = pending
            .iter()
            .map(|reason| json!({"type": "PodResizePending", "status": "True", "reason": reason}))
            .collect();
        let status = json!({"conditions": conditions, "containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "allocatedResources": {"cpu": allocated},
            "resources": {"requests": {"cpu": actual}}}]});
        pod.status = Some(json::from_value(status).unwrap());
        pod
    };
    let short = "0/1 nodes are available: 1 Insufficient cpu.";
    for (wanted, allocated, actual, pending, expected) in [
        ("1", "1", "1", None, "a"),
        ("3", "1", "1", None, short),
        ("3", "1", "1", Some("Deferred"), short),
        ("3", "1", "1", Some("Infeasible"), "a"),
        ("1", "3", "1", None, short),
        ("1", "1", "3", None, short),
        ("3", "1", "3", Some("Infeasible"), short),
    ] {
        check(&["a cpu=4"], &[resized(wanted, allocated, actual, pending)], pod("p cpu=2"), expected);
    }
}

#[test]
fn host_ports_conflict_by_protocol_and_address() {
    let with_ports = |text: &str, ports: &[(&str, &str, i32)]| {
        let port = |(protocol, ip, port): &(&str, &str, i32)| json!({"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol});
        let ports: Vec<Value> = ports.iter().map(port).collect();
        pod_with(text, json!({"containers": [{"name": "c", "image": "i", "ports": ports}]}))
    };
    let taken = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";
    let (tcp, udp, any) = ("TCP", "UDP", "0.0.0.0");
    for (wanted, used, expected) in [
        (vec![(udp, "127.0.0.1", 8080)], vec![(udp, "127.0.0.1", 9090)], "a"),
        (vec![(udp, "127.0.0.1", 8080)], vec![(udp, "127.0.0.1", 8080)], taken),
        (vec![(tcp, "127.0.0.1", 8080)], vec![(tcp, "127.0.0.2", 8080)], "a"),
        (vec![(udp, "127.0.0.1", 8080)], vec![(tcp, "127.0.0.1", 8080)], "a"),
        (vec![(tcp, any, 8001)], vec![(tcp, "127.0.0.1", 8001)], taken),
        (vec![(tcp, "10.0.10.10", 8001), (tcp, any, 8001)], vec![(tcp, "127.0.0.1", 8001)], taken),
        (vec![(tcp, "127.0.0.1", 8001)], vec![(tcp, any, 8001)], taken),
        (vec![(tcp, "127.0.0.1", 8001)], vec![(udp, any, 8001)], "a"),
        (vec![(tcp, "", 8001), (udp, "127.0.0.1", 8080)], vec![(udp, any, 8080)], taken),
    ] {
        check(&["a"], &[with_ports("q on=a", &used)], with_ports("p", &wanted), expected);
    }
}

#[test]
fn disks_are_shared_by_those_who_can() {
    let using = |text: &str, volume: &Value| {
        let mut volume = volume.clone();
        volume["name"] = json!("v");
        pod_with(text, json!({"volumes": [volume]}))
    };
    let gce = |name: &str, read: bool| json!({"gcePersistentDisk": {"pdName": name, "readOnly": read}});
    let aws = |id: &str, read: bool| json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": read}});
    let iscsi = |iqn: &str, read: bool| json!({"iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": iqn, "lun": 0, "readOnly": read}});
    let rbd = |monitors: &[&str], pool: &str, image: &str, read: bool| json!({"rbd": {"monitors": monitors, "pool": pool, "image": image, "readOnly": read}});
    let taken = "0/1 nodes are available: 1 node(s) had no available disk.";
    for (wanted, used, expected) in [
        (gce("x", false), gce("x", false), taken),
        (gce("x", true), gce("x", false), taken),
        (gce("x", true), gce("x", true), "a"),
        (gce("x", false), gce("y", false), "a"),
        (aws("x", true), aws("x", true), taken),
        (aws("x", false), aws("y", false), "a"),
        (iscsi("x", false), iscsi("x", true), taken),
        (iscsi("x", true), iscsi("x", true), "a"),
        (iscsi("x", false), iscsi("y", false), "a"),
        (rbd(&["m", "n"], "p", "i", false), rbd(&["n", "o"], "p", "i", false), taken),
        (rbd(&["m"], "p", "i", false), rbd(&["o"], "p", "i", false), "a"),
        (rbd(&["m"], "p", "i", false), rbd(&["m"], "q", "i", false), "a"),
        (rbd(&["m"], "p", "i", false), rbd(&["m"], "p", "j", false), "a"),
        (rbd(&["m"], "p", "i", true), rbd(&["m"], "p", "i", true), "a"),
        (gce("x", false), aws("x", false), "a"),
    ] {
        check(&["a"], &[using("q on=a", &used)], using("p", &wanted), expected);
        check(&["a"], &[using("q on=a priority=1", &used)], using("p", &wanted), expected);
    }
    check(&["a", "b"], &[using("q on=a", &gce("x", false))], using("p", &gce("x", false)), "b");
    check(&["a"], &[using("q on=a", &gce("x", false))], using("p priority=1", &gce("x", false)), "q must leave a");
}

#[test]
fn nodes_are_selected_by_terms() {
    let node = ["a label=foo:bar label=n:5"];
    let unselected = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    let term = |expressions: Value| json!({"matchExpressions": expressions});
    let one = |key: &str, operator: &str, values: Value| json!([{"key": key, "operator": operator, "values": values}]);
    let check_terms = |selector: Value, terms: Value, expected: &str| {
        let affinity = match &terms {
            Value::Null => json!(null),
            terms => json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}}),
        };
        check(&node, &[], pod_with("p", json!({"nodeSelector": selector, "affinity": affinity})), expected);
    };
    let none = json!(null);
    check_terms(json!({"foo": "bar"}), none.clone(), "a");
    check_terms(json!({"foo": "bar", "baz": "blah"}), none.clone(), unselected);
    for (key, operator, values, expected) in [
        ("foo", "In", json!(["bar", "value2"]), "a"),
        ("foo", "In", json!(["value1"]), unselected),
        ("foo", "NotIn", json!(["value1"]), "a"),
        ("gone", "NotIn", json!(["value1"]), "a"),
        ("foo", "Exists", json!([]), "a"),
        ("gone", "Exists", json!([]), unselected),
        ("gone", "DoesNotExist", json!([]), "a"),
        ("foo", "DoesNotExist", json!([]), unselected),
        ("n", "Gt", json!(["4"]), "a"),
        ("n", "Gt", json!(["5"]), unselected),
        ("n", "Lt", json!(["6"]), "a"),
        ("foo", "Lt", json!(["6"]), unselected),
    ] {
        check_terms(none.clone(), json!([term(one(key, operator, values))]), expected);
    }
    // Terms are alternatives, their conditions hold together, and an empty term selects nothing.
    check_terms(none.clone(), json!([{}]), unselected);
    check_terms(none.clone(), json!([{}, term(one("foo", "Exists", json!([])))]), "a");
    let both = json!([one("foo", "Exists", json!([]))[0], one("gone", "Exists", json!([]))[0]]);
    check_terms(none, json!([term(both)]), unselected);
    check_terms(json!({"foo": "other"}), json!([term(one("foo", "Exists", json!([])))]), unselected);
}

#[test]
fn taints_are_tolerated_by_key_value_and_effect() {
    let node = |taint: &str| [format!("a taint={taint}")];
    let refused = "0/1 nodes are available: 1 node(s) had untolerated taint(s).";
    let cases = [
        ("k:NoSchedule", json!(null), refused),
        ("k:NoSchedule", json!([{"key": "k", "operator": "Exists"}]), "a"),
        ("k:NoSchedule", json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), "a"),
        ("k:NoSchedule", json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), refused),
        ("k:NoSchedule", json!([{"key": "k", "operator": "Equal", "value": "other"}]), refused),
        ("k:NoSchedule", json!([{"key": "k"}]), "a"),
        ("k:NoExecute", json!([{"operator": "Exists"}]), "a"),
        ("k:NoExecute", json!([{"key": "other", "operator": "Exists"}]), refused),
        ("k:PreferNoSchedule", json!(null), "a"),
    ];
    for (taint, tolerations, expected) in cases {
        let nodes = node(taint);
        check(&[&*nodes[0]], &[], pod_with("p", json!({"tolerations": tolerations})), expected);
    }
}

#[test]
fn a_node_declares_the_features_that_the_pod_needs() {
    let features = Features::default().with(Feature::NodeDeclaredFeatures, true);
    let told = |features: Features, needs: &str, declared: &[&str]| {
        let (mut engine, now) = (Engine::new(Settings { features, ..Settings::default() }), Instant::now());
        for (name, names) in [("n1", &["Other"][..]), ("n2", declared)] {
            let mut node = node(&format!("{name} cpu=4"));
            node.status.as_mut().unwrap().declared_features = Some(names.iter().map(|n| (*n).to_owned()).collect());
            engine.set_node(&node, now);
        }
        let rules = json!([{"action": needs}]);
        let container = json!({"name": "c", "image": "i", "restartPolicyRules": rules});
        engine.set_pod(&pod_with("p", json!({"containers": [container]})), now);
        next(&mut engine)
    };
    let none = "0/2 nodes are available: 2 node(s) didn't match Pod's required features.";
    assert_eq!(told(features, RESTART_ALL_ACTION, &["Other", RESTART_ALL]), "n2");
    assert_eq!(told(features, RESTART_ALL_ACTION, &[]), none);
    assert_ne!(told(features, "Restart", &[]), none);
    assert_ne!(told(Features::default(), RESTART_ALL_ACTION, &[]), none);
}
