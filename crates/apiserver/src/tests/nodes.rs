//! The rights of a node before and after it has a Pod, request by request: upstream's test/integration/auth/node_test.go as tables.

use api::Value;
use json::json;

use super::assembled::{Talk, options};
use crate::Options;

/// The objects that a Pod of node2 needs; a volume's Secret among them.
async fn things(talk: &Talk) {
    talk.namespaces(&["ns"]).await;
    let volume = json!({"kind": "PersistentVolume", "metadata": {"name": "mypv"}, "spec": {
        "accessModes": ["ReadOnlyMany"], "capacity": {"storage": "1"}, "claimRef": {"namespace": "ns", "name": "mypvc"},
        "azureFile": {"shareName": "default", "secretName": "mypvsecret"}}});
    let claim = json!({"metadata": {"name": "mypvc"},
        "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1"}}}});
    for (path, body) in [
        ("namespaces/ns/secrets", json!({"metadata": {"name": "mysecret"}})),
        ("namespaces/ns/secrets", json!({"metadata": {"name": "mypvsecret"}})),
        ("namespaces/ns/configmaps", json!({"metadata": {"name": "myconfigmap"}})),
        ("namespaces/ns/persistentvolumeclaims", claim),
        ("persistentvolumes", volume),
    ] {
        talk.ok("+admin", &format!("POST /api/v1/{path}"), body).await;
    }
}

fn bodies(node: &str) -> Vec<(&'static str, Value)> {
    let pod = |name: &str, metadata: Value, volumes: Value| {
        let mut pod = json!({"metadata": metadata, "spec": {"nodeName": "node2", "volumes": volumes,
            "containers": [{"name": "image", "image": "busybox"}], "automountServiceAccountToken": false}});
        pod["metadata"]["name"] = json!(name);
        pod
    };
    let volumes = json!([
        {"name": "secret", "secret": {"secretName": "mysecret"}},
        {"name": "cm", "configMap": {"name": "myconfigmap"}},
        {"name": "pvc", "persistentVolumeClaim": {"claimName": "mypvc"}},
    ]);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "node2", "uid": node, "controller": true}]);
    let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "true"}, "ownerReferences": owner});
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "node2"}, "spec": {"holderIdentity": "node2"}});
    vec![
        ("normal", pod("node2normalpod", json!({}), volumes)),
        ("mirror", pod("node2mirrorpod", mirror, json!([]))),
        ("status", json!({"metadata": {"name": "node2normalpod"}, "status": {"startTime": "2026-01-01T00:00:00Z"}})),
        ("node", json!({"metadata": {"name": "node2"}})),
        // A status comes with the taint that every new node gets.
        (
            "tainted",
            json!({"metadata": {"name": "node2"}, "spec": {"taints": [
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}),
        ),
        ("lease", lease),
        ("csinode", json!({"metadata": {"name": "node2"}, "spec": {"drivers": []}})),
        ("evict", eviction("node2normalpod")),
        ("evictmirror", eviction("node2mirrorpod")),
        ("now", json!({"gracePeriodSeconds": 0})),
    ]
}

/// The requests that concern what Pods of node2 need, one user's, with one code for all.
fn related(user: &str, code: u16) -> String {
    let paths = [
        "namespaces/ns/secrets/mysecret",
        "namespaces/ns/secrets/mypvsecret",
        "namespaces/ns/configmaps/myconfigmap",
        "namespaces/ns/persistentvolumeclaims/mypvc",
        "persistentvolumes/mypv",
    ];
    paths.map(|path| format!("{user} GET {path} - {code}\n")).concat()
}

#[tokio::test(start_paused = true)]
async fn a_node_reaches_what_its_pods_need_once_it_has_them() {
    let tokens = ("tokens".into(), "unknown,unknown,u,system:nodes\n".into());
    let talk = Talk::over(Options { token_file: Some(tokens), ..options() }).await;
    things(&talk).await;
    let strangers = related("unknown", 403)
        + "unknown POST   namespaces/ns/pods                         normal      403
           unknown POST   namespaces/ns/pods                         mirror      403
           unknown DELETE namespaces/ns/pods/node2normalpod          now         403
           unknown DELETE namespaces/ns/pods/node2mirrorpod          now         403
           unknown POST   namespaces/ns/pods/node2mirrorpod/eviction evictmirror 403
           unknown POST   nodes                                      node        403
           unknown PUT    nodes/node2/status                         node        403
           unknown DELETE nodes/node2                                -           403
           unknown POST   coordination.k8s.io:namespaces/kube-node-lease/leases lease 403
           unknown POST   storage.k8s.io:csinodes                    csinode     403
           ";
    let neighbours = related("@node1", 403)
        + "@node1 POST   namespaces/ns/pods                         mirror      403
           @node1 DELETE namespaces/ns/pods/node2mirrorpod          now         404
           @node1 POST   namespaces/ns/pods/node2mirrorpod/eviction evictmirror 404
           @node1 POST   nodes                                      node        403
           @node1 PUT    nodes/node2/status                         node        404
           @node1 DELETE nodes/node2                                -           403
           @node1 POST   coordination.k8s.io:namespaces/kube-node-lease/leases lease 403
           @node1 POST   storage.k8s.io:csinodes                    csinode     403
           ";
    let own = related("@node2", 403)
        + "@node2 POST   nodes                                      node        201
           @node2 PUT    nodes/node2/status                         tainted     200
           @node2 POST   coordination.k8s.io:namespaces/kube-node-lease/leases        lease 201
           @node2 PATCH  coordination.k8s.io:namespaces/kube-node-lease/leases/node2  lease 200
           @node1 GET    coordination.k8s.io:namespaces/kube-node-lease/leases/node2  -     403
           @node2 DELETE coordination.k8s.io:namespaces/kube-node-lease/leases/node2  -     200
           @node2 POST   storage.k8s.io:csinodes                    csinode     201
           @node1 GET    storage.k8s.io:csinodes/node2              -           403
           @node2 DELETE storage.k8s.io:csinodes/node2              -           200
           ";
    talk.table(&bodies("none"), &(strangers.clone() + &neighbours + &own)).await;
    let node = talk.ok("+admin", "GET /api/v1/nodes/node2", json!(null)).await;
    let bodies = bodies(api::meta::uid(&node));
    let mirrors = "@node2 POST   namespaces/ns/pods                         normal      403
                   @node2 POST   namespaces/ns/pods                         mirror      201
                   @node2 DELETE namespaces/ns/pods/node2mirrorpod          now         200
                   @node2 POST   namespaces/ns/pods                         mirror      201
                   @node2 POST   namespaces/ns/pods/node2mirrorpod/eviction evictmirror 201
                   @node2 DELETE nodes/node2                                -           403
                   +admin DELETE namespaces/ns/pods/node2mirrorpod          now         200
                   +admin POST   namespaces/ns/pods                         normal      201
                   ";
    talk.table(&bodies, mirrors).await;
    let with_a_pod = related("unknown", 403)
        + &related("@node1", 403)
        + &related("@node2", 200)
        + "unknown PUT    namespaces/ns/pods/node2normalpod/status   status 403
           unknown DELETE namespaces/ns/pods/node2normalpod          now    403
           unknown POST   namespaces/ns/pods/node2normalpod/eviction evict  403
           @node1  POST   namespaces/ns/pods                         normal 403
           @node1  PUT    namespaces/ns/pods/node2normalpod/status   status 403
           @node1  DELETE namespaces/ns/pods/node2normalpod          now    403
           @node1  POST   namespaces/ns/pods/node2normalpod/eviction evict  403
           @node2  POST   namespaces/ns/pods                         normal 403
           @node2  PUT    namespaces/ns/pods/node2normalpod/status   status 200
           @node2  DELETE namespaces/ns/pods/node2normalpod          now    200
           +admin  POST   namespaces/ns/pods                         normal 201
           @node2  POST   namespaces/ns/pods/node2normalpod/eviction evict  201
           ";
    talk.table(&bodies, &with_a_pod).await;
    // With its Pod the way to what that needs is gone.
    talk.ok("+admin", "DELETE /api/v1/namespaces/ns/pods/node2normalpod?gracePeriodSeconds=0", json!(null)).await;
    talk.table(&bodies, &related("@node2", 403)).await;
}
