//! The mandatory and suggested priority levels and flow schemas.

use json::{Value, json};

use super::object::{AUTOUPDATE_SPEC, BootstrapObject, EXEMPT};

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
pub const SCHEMAS: &str = "flowschemas";
pub const LEVELS_PLURAL: &str = "prioritylevelconfigurations";

/// Without these no request would be of any level: they are always as they are here.
const MANDATORY: [&str; 2] = [EXEMPT, CATCH_ALL];
pub const CATCH_ALL: &str = "catch-all";

/// The objects that are always there.
pub fn mandatory() -> impl Iterator<Item = BootstrapObject> {
    objects().into_iter().filter(|one| one.mandatory == Some(true))
}

/// Name, nominal shares, lendable percent, and queues with hand size; no queues means that what is too much is refused.
type Level = (&'static str, i32, i32, Option<(i32, i32)>);

const LEVELS: &[Level] = &[
    ("catch-all", 5, 0, None),
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
];

pub fn objects() -> Vec<BootstrapObject> {
    let mut all = vec![level(
        EXEMPT,
        &json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
    )];
    for (name, shares, lendable, queues) in LEVELS {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => {
                json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}})
            }
        };
        let limited = json!({
            "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response,
        });
        all.push(level(name, &json!({"type": "Limited", "limited": limited})));
    }
    all.extend(schemas());
    all
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": {AUTOUPDATE_SPEC: "true"}},
        "spec": spec,
    })
}

fn made(name: &str, plural: &'static str, object: Value) -> BootstrapObject {
    BootstrapObject { mandatory: Some(MANDATORY.contains(&name)), ..BootstrapObject::new(GROUP, plural, object) }
}

fn level(name: &str, spec: &Value) -> BootstrapObject {
    made(name, LEVELS_PLURAL, object("PriorityLevelConfiguration", name, spec))
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": name}})
}

fn resources(verbs: &[&str], groups: &[&str], resources: &[&str], namespaces: &[&str], cluster: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": resources});
    if !namespaces.is_empty() {
        rule["namespaces"] = json!(namespaces);
    }
    if cluster {
        rule["clusterScope"] = json!(true);
    }
    rule
}

fn everything() -> (Vec<Value>, Vec<Value>) {
    let paths = json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
    (vec![resources(&["*"], &["*"], &["*"], &["*"], true)], vec![paths])
}

fn rule(subjects: &[Value], (resource, path): (Vec<Value>, Vec<Value>)) -> Value {
    let mut rule = json!({"subjects": subjects});
    if !resource.is_empty() {
        rule["resourceRules"] = json!(resource);
    }
    if !path.is_empty() {
        rule["nonResourceRules"] = json!(path);
    }
    rule
}

fn schema(name: &str, level: &str, precedence: i32, by: &str, rules: &[Value]) -> BootstrapObject {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": rules,
    });
    if !by.is_empty() {
        spec["distinguisherMethod"] = json!({"type": by});
    }
    made(name, SCHEMAS, object("FlowSchema", name, &spec))
}

fn schemas() -> Vec<BootstrapObject> {
    let all = || [group("system:unauthenticated"), group("system:authenticated")];
    let leases = |namespaces: &[&str]| {
        let verbs = ["get", "create", "update"];
        (vec![resources(&verbs, &["coordination.k8s.io"], &["leases"], namespaces, false)], Vec::new())
    };
    let probes = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]});
    let endpoints = vec![
        resources(&["get", "create", "update"], &[""], &["endpoints"], &["*"], false),
        resources(&["get", "create", "update"], &["discovery.k8s.io"], &["endpointslices"], &["*"], false),
    ];
    let heartbeats = vec![
        resources(&["*"], &[""], &["nodes", "nodes/status"], &["*"], true),
        resources(&["*"], &["coordination.k8s.io"], &["leases"], &["*"], false),
    ];
    let managers = [user("system:kube-controller-manager"), user("system:kube-scheduler")];
    vec![
        schema("exempt", "exempt", 1, "", &[rule(&[group("system:masters")], everything())]),
        schema("probes", "exempt", 2, "", &[rule(&all(), (Vec::new(), vec![probes]))]),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            &[rule(&managers, leases(&["kube-system"]))],
        ),
        schema(
            "endpoint-controller",
            "workload-high",
            150,
            "ByUser",
            &[rule(
                &[
                    user("system:kube-controller-manager"),
                    account("endpoint-controller"),
                    account("endpointslicemirroring-controller"),
                ],
                (endpoints, Vec::new()),
            )],
        ),
        schema(
            "workload-leader-election",
            "leader-election",
            200,
            "ByUser",
            &[rule(
                &[json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}})],
                leases(&["*"]),
            )],
        ),
        schema(
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            &[rule(&[group("system:nodes")], (heartbeats, Vec::new()))],
        ),
        schema("system-nodes", "system", 500, "ByUser", &[rule(&[group("system:nodes")], everything())]),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            &[rule(&[user("system:kube-controller-manager")], everything())],
        ),
        schema(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            &[rule(&[user("system:kube-scheduler")], everything())],
        ),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            &[rule(&[account("*")], everything())],
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            "ByUser",
            &[rule(&[group("system:serviceaccounts")], everything())],
        ),
        schema("global-default", "global-default", 9900, "ByUser", &[rule(&all(), everything())]),
        schema("catch-all", "catch-all", 10000, "ByUser", &[rule(&all(), everything())]),
    ]
}
