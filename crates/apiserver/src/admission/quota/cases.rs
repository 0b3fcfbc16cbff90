//! The plugin case by case, as upstream's tests have them: one write, the quotas of its namespace, and what comes of both.

use api::k8s_openapi::api::core::v1::ScopedResourceSelectorRequirement;
use json::json;

use super::{
    charges::Charges,
    configuration::{Configuration, Limited},
    tests::{quota, used},
    *,
};
use crate::tests::admission::{self, Write};

/// `BestEffort:Exists` or `PriorityClass:In:a,b`.
fn scope(text: &str) -> Value {
    let mut parts = text.split(':');
    let (name, operator) = (parts.next(), parts.next());
    let values: Vec<&str> = parts.next().into_iter().flat_map(|list| list.split(',')).collect();
    let mut scope = json!({"scopeName": name, "operator": operator});
    if !values.is_empty() {
        scope["values"] = json!(values);
    }
    scope
}

/// Quotas `q0`, `q1`, … of the namespace: each is its scope, or `all`, and amounts as `name=hard/used`.
fn quotas(texts: &[&str]) -> Vec<(&'static str, Value)> {
    let of = |(at, text): (usize, &&str)| {
        let (first, amounts) = text.split_once(' ').unwrap_or((text, ""));
        let spec =
            if first == "all" { json!({}) } else { json!({"scopeSelector": {"matchExpressions": [scope(first)]}}) };
        quota(&format!("q{at}"), spec, amounts)
    };
    texts.iter().enumerate().map(of).collect()
}

/// A limited resource: its name, then scopes, and parts of names behind `~`.
fn limited(text: &str) -> Limited {
    let mut words = text.split(' ');
    let resource = words.next().unwrap().to_owned();
    let (contains, scopes): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('~'));
    let typed = |text: &str| json::from_value::<ScopedResourceSelectorRequirement>(scope(text)).unwrap();
    Limited {
        group: String::new(),
        resource,
        contains: contains.iter().map(|word| word[1..].to_owned()).collect(),
        scopes: scopes.into_iter().map(typed).collect(),
    }
}

/// A Pod of one container: `cpu=1 memory=2Gi` are requests, `limits.cpu=2` limits, `class=x` its priority class, `deadline=9`
/// the seconds that it may run; `elsewhere` seeks Pods of another namespace.
fn pod(text: &str) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "resources": {}}]});
    for word in text.split_whitespace() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("class", name) => spec["priorityClassName"] = json!(name),
            ("deadline", seconds) => spec["activeDeadlineSeconds"] = json!(seconds.parse::<i64>().unwrap()),
            ("elsewhere", _) => {
                let term = json!({"topologyKey": "t", "namespaces": ["other"]});
                spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([term]);
            }
            (name, amount) => {
                let (list, name) = name.strip_prefix("limits.").map_or(("requests", name), |name| ("limits", name));
                spec["containers"][0]["resources"][list][name] = json!(amount);
            }
        }
    }
    json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})
}

fn service(kind: &str, ports: usize) -> Value {
    let ports: Vec<Value> = (1..=ports).map(|port| json!({"port": port})).collect();
    json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"type": kind, "ports": ports}})
}

fn claim(size: &str) -> Value {
    json!({"metadata": {"name": "d", "namespace": "ns"}, "spec": {"resources": {"requests": {"storage": size}}}})
}

fn update(plural: &'static str, subresource: &'static str, old: Value, new: Value) -> Write {
    let write = Write::create(plural, new);
    Write { operation: Operation::Update, kind: ("", plural, subresource), old: Some(old), ..write }
}

/// A cluster with quotas where the configuration limits something.
async fn cluster(texts: &[&str], limits: &[&str]) -> Context {
    let configuration = Configuration { limited: limits.iter().map(|text| limited(text)).collect() };
    Context { charges: Charges::new(configuration), ..admission::context(quotas(texts)).await }
}

/// The refusal without its head; empty where the write is let through.
fn refusal(outcome: Result<Value, String>) -> String {
    let text = outcome.err().unwrap_or_default();
    text.split_once(" is forbidden: ").map_or(text.clone(), |(_, why)| why.to_owned())
}

/// Upstream: TestAdmitLimitedScopeWithCoverQuota, and the tests of limited resources beside it.
#[tokio::test]
async fn limited_resources_need_a_quota_that_covers_them() {
    const COSTLY: &str = "cpu=3 memory=2Gi class=fake-priority";
    const SERVING: &str = "cpu=3 memory=2Gi class=cluster-services";
    const ANY_CLASS: &[&str] = &["pods PriorityClass:Exists"];
    const BOTH: &[&str] = &["pods BestEffort:Exists", "pods PriorityClass:In:cluster-services"];
    const EITHER: &[&str] = &["pods PriorityClass:In:another-priorityclass-name,cluster-services"];
    const CPU: &[&str] = &["pods ~cpu"];
    const ASKED_CPU: &[&str] = &["pods ~requests.cpu"];
    const ELSEWHERE: &[&str] = &["pods CrossNamespacePodAffinity:Exists"];
    let unmatched = |scopes: &str| format!("insufficient quota to match these scopes: [{scopes}]");
    let cases: &[(&str, &[&str], &[&str], String)] = &[
        (COSTLY, &["PriorityClass:Exists"], ANY_CLASS, String::new()),
        (
            COSTLY,
            &["PriorityClass:Exists"],
            &["pods PriorityClass:Exists ~requests.cpu"],
            "insufficient quota to consume: requests.cpu".to_owned(),
        ),
        (COSTLY, &["all"], ANY_CLASS, unmatched("{PriorityClass Exists []}")),
        ("class=fake-priority", &["all"], &BOTH[..1], unmatched("{BestEffort Exists []}")),
        ("class=fake-priority", &["BestEffort:Exists pods=5/3"], &BOTH[..1], String::new()),
        ("cpu=100m memory=1Gi class=fake-priority", &["all"], BOTH, String::new()),
        ("class=fake-priority", &["all"], BOTH, unmatched("{BestEffort Exists []}")),
        (
            "cpu=100m memory=1Gi class=cluster-services",
            &["all"],
            BOTH,
            unmatched("{PriorityClass In [cluster-services]}"),
        ),
        (
            "class=cluster-services",
            &["all"],
            BOTH,
            unmatched("{BestEffort Exists []} {PriorityClass In [cluster-services]}"),
        ),
        (
            "class=cluster-services",
            &["BestEffort:Exists pods=5/3"],
            BOTH,
            unmatched("{PriorityClass In [cluster-services]}"),
        ),
        ("class=cluster-services", &["PriorityClass:In:cluster-services"], BOTH, unmatched("{BestEffort Exists []}")),
        (
            "class=cluster-services",
            &["BestEffort:Exists pods=5/3", "PriorityClass:In:cluster-services"],
            BOTH,
            String::new(),
        ),
        (COSTLY, &["all"], &[], String::new()),
        (
            "cpu=3 memory=20Gi class=fake-priority",
            &["PriorityClass:Exists memory=10Gi/1Gi"],
            ANY_CLASS,
            "exceeded quota: q0, requested: memory=20Gi, used: memory=1Gi, limited: memory=10Gi".to_owned(),
        ),
        (COSTLY, &["PriorityClass:In:cluster-services"], &BOTH[1..], String::new()),
        (SERVING, &["PriorityClass:In:cluster-services"], EITHER, String::new()),
        (
            SERVING,
            &["PriorityClass:In:another-priorityclass-name"],
            EITHER,
            unmatched("{PriorityClass In [another-priorityclass-name cluster-services]}"),
        ),
        (
            "cpu=3 memory=2Gi class=another-priorityclass-name",
            &["PriorityClass:In:another-priorityclass-name"],
            EITHER,
            String::new(),
        ),
        (SERVING, &[], EITHER, unmatched("{PriorityClass In [another-priorityclass-name cluster-services]}")),
        (SERVING, &["PriorityClass:Exists"], EITHER, String::new()),
        (SERVING, &["PriorityClass:NotIn:fake-priority"], EITHER, String::new()),
        // A Pod without a class is in none of these scopes but in that of those without one.
        ("cpu=3", &[], EITHER, String::new()),
        ("cpu=3", &[], &["pods PriorityClass:DoesNotExist"], unmatched("{PriorityClass DoesNotExist []}")),
        ("elsewhere", &["all"], ELSEWHERE, unmatched("{CrossNamespacePodAffinity Exists []}")),
        ("elsewhere", &["CrossNamespacePodAffinity:Exists pods=5/0"], ELSEWHERE, String::new()),
        (
            "elsewhere",
            &["CrossNamespacePodAffinity:Exists pods=0/0"],
            ELSEWHERE,
            "exceeded quota: q0, requested: pods=1, used: pods=0, limited: pods=0".to_owned(),
        ),
        ("", &["all"], ELSEWHERE, String::new()),
        // Names of what is consumed.
        ("cpu=3 memory=2Gi", &[], CPU, "insufficient quota to consume: cpu,requests.cpu".to_owned()),
        ("cpu=3 memory=2Gi", &[], &["services ~services"], String::new()),
        ("cpu=3 memory=2Gi", &["all requests.cpu=10/1"], ASKED_CPU, String::new()),
        ("cpu=3 memory=2Gi", &["all requests.cpu=10/1", "all memory=10Gi/1Gi"], ASKED_CPU, String::new()),
        (
            "cpu=3 memory=2Gi",
            &["all memory=10Gi/1Gi"],
            CPU,
            "insufficient quota to consume: cpu,requests.cpu".to_owned(),
        ),
        ("memory=2Gi", &[], CPU, String::new()),
    ];
    for (object, quotas, limits, expected) in cases {
        let context = cluster(quotas, limits).await;
        let outcome = Write::create("pods", pod(object)).through(&context, &PLUGIN).await;
        assert_eq!(refusal(outcome), *expected, "{object} {quotas:?} {limits:?}");
    }
}

/// Upstream: TestAdmitZeroDeltaUsageWithoutCoveringQuota and the two behind it.
#[tokio::test]
async fn an_update_that_takes_no_more_of_a_limited_resource_needs_no_quota() {
    let context = cluster(&[], &["services ~services.loadbalancers"]).await;
    let balancer = || service("LoadBalancer", 0);
    let told = "insufficient quota to consume: services.loadbalancers";
    for (old, new, expected) in [
        (balancer(), balancer(), ""),
        (service("NodePort", 1), balancer(), told),
        (balancer(), service("NodePort", 1), ""),
    ] {
        let outcome = update("services", "", old, new).through(&context, &PLUGIN).await;
        assert_eq!(refusal(outcome), expected);
    }
}

/// A write against quotas without scopes, or with one each: the refusal, or the amounts used afterwards, those of each quota
/// behind a slash.
async fn check(texts: &[&str], write: Write, expected: &str) {
    let context = cluster(texts, &[]).await;
    let told = match write.through(&context, &PLUGIN).await {
        Err(refused) => refusal(Err(refused)),
        Ok(_) => {
            let mut all = Vec::new();
            for at in 0..texts.len() {
                let used = used(&context, &format!("q{at}")).await;
                let used = used.as_object().unwrap().iter();
                let words = used.map(|(name, amount)| format!("{name}={}", amount.as_str().unwrap()));
                all.push(words.collect::<Vec<_>>().join(" "));
            }
            all.join(" / ")
        }
    };
    assert_eq!(told, expected, "{texts:?}");
}

const COMPUTE: &str = "all cpu=3/1 memory=100Gi/50Gi pods=5/3";

/// Upstream: TestAdmitBelowQuotaLimit to TestAdmitWhenUnrelatedResourceExceedsQuota.
#[tokio::test]
async fn new_objects_are_charged_to_the_quotas_whose_scope_they_are_in() {
    let create = |text: &str| Write::create("pods", pod(text));
    check(&[COMPUTE], create("cpu=100m memory=2Gi"), "cpu=1100m memory=52Gi pods=4").await;
    let told = "exceeded quota: q0, requested: cpu=3, used: cpu=1, limited: cpu=3";
    check(&[COMPUTE], create("cpu=3 memory=2Gi"), told).await;
    let told = "exceeded quota: q0, requested: cpu=3,memory=60Gi, used: cpu=1,memory=50Gi, limited: cpu=3,memory=100Gi";
    check(&[COMPUTE], create("cpu=3 memory=60Gi"), told).await;
    let strict = ["all cpu=3/1 memory=100Gi/50Gi limits.memory=200Gi/100Gi pods=5/3"];
    let told = "failed quota: q0: must specify limits.memory for: c";
    check(&strict, create("cpu=100m memory=2Gi limits.cpu=200m"), told).await;
    let amounts = "cpu=3/1 memory=100Gi/50Gi pods=5/3";
    let (after, before) = ("cpu=1100m memory=52Gi pods=4", "cpu=1 memory=50Gi pods=3");
    let ending = [format!("NotTerminating:Exists {amounts}"), format!("Terminating:Exists {amounts}")];
    let ending: Vec<&str> = ending.iter().map(String::as_str).collect();
    check(&ending, create("cpu=100m memory=2Gi deadline=30"), &format!("{before} / {after}")).await;
    check(&ending, create("cpu=100m memory=2Gi"), &format!("{after} / {before}")).await;
    let efforts = ["BestEffort:Exists pods=5/3", "NotBestEffort:Exists pods=5/3"];
    check(&efforts, create(""), "pods=4 / pods=3").await;
    check(&efforts, create("cpu=100m memory=1Gi"), "pods=3 / pods=4").await;
    check(&["all services=3/4 pods=4/1"], create(""), "pods=2 services=4").await;
    let storage = "all persistentvolumeclaims=3/1 requests.storage=100Gi/10Gi";
    let told = "quota usage is negative for resource(s): requests.storage";
    check(&[storage], Write::create("persistentvolumeclaims", claim("-1Gi")), told).await;
    let charged = "persistentvolumeclaims=2 requests.storage=11Gi";
    check(&[storage], Write::create("persistentvolumeclaims", claim("1Gi")), charged).await;
    // Quotas of another namespace are not asked.
    let context = cluster(&["all pods=0/0"], &[]).await;
    let mut elsewhere = pod("");
    elsewhere["metadata"]["namespace"] = json!("other");
    Write::create("pods", elsewhere).through(&context, &PLUGIN).await.unwrap();
}

/// Upstream: TestAdmitHandlesOldObjects to TestAdmitHandlesPVCUpdates, TestPodResourcesResizeWithResourceQuota.
#[tokio::test]
async fn updates_are_charged_for_the_difference_and_give_nothing_back() {
    let services = "all services=10/1 services.loadbalancers=10/1 services.nodeports=10/0";
    let write = update("services", "", service("LoadBalancer", 0), service("NodePort", 1));
    check(&[services], write, "services=1 services.loadbalancers=1 services.nodeports=1").await;
    let storage = "all persistentvolumeclaims=3/1 requests.storage=100Gi/10Gi";
    let resize = |size: &str| update("persistentvolumeclaims", "", claim("10Gi"), claim(size));
    let used = |size: &str| format!("persistentvolumeclaims=1 requests.storage={size}");
    check(&[storage], resize("5Gi"), &used("10Gi")).await;
    check(&[storage], resize("15Gi"), &used("15Gi")).await;
    let told = "exceeded quota: q0, requested: requests.storage=91Gi, used: requests.storage=10Gi, \
                limited: requests.storage=100Gi";
    check(&[storage], resize("101Gi"), told).await;
    // The size that a driver has set aside already is charged, and never refused.
    let mut allocated = claim("10Gi");
    allocated["status"] = json!({"allocatedResources": {"storage": "200Gi"}});
    let write = update("persistentvolumeclaims", "status", claim("10Gi"), allocated);
    check(&[storage], write, &used("200Gi")).await;

    let compute = "all cpu=1/500m memory=1000Mi/500Mi pods=5/1";
    let resize = |cpu: &str, memory: &str| {
        let of = |cpu: &str, memory: &str| {
            pod(&format!("cpu={cpu} memory={memory} limits.cpu={cpu} limits.memory={memory}"))
        };
        update("pods", "resize", of("500m", "500Mi"), of(cpu, memory))
    };
    check(&[compute], resize("990m", "500Mi"), "cpu=990m memory=500Mi pods=1").await;
    check(&[compute], resize("300m", "500Mi"), "cpu=500m memory=500Mi pods=1").await;
    check(&[compute], resize("300m", "900Mi"), "cpu=500m memory=900Mi pods=1").await;
    let told = "exceeded quota: q0, requested: memory=600Mi, used: memory=500Mi, limited: memory=1000Mi";
    check(&[compute], resize("500m", "1100Mi"), told).await;
}

/// A Pod that gets a deadline is in other quotas from then on. Upstream: TestPodEvaluatorHandles.
#[tokio::test]
async fn a_pod_that_gets_a_deadline_is_charged_where_that_counts() {
    let amounts = "cpu=3/1 pods=5/3";
    let quotas = [format!("NotTerminating:Exists {amounts}"), format!("Terminating:Exists {amounts}")];
    let quotas: Vec<&str> = quotas.iter().map(String::as_str).collect();
    let change = |old: &str, new: &str| update("pods", "", pod(old), pod(new));
    check(&quotas, change("cpu=1", "cpu=1 deadline=30"), "cpu=1 pods=3 / cpu=2 pods=4").await;
    check(&quotas, change("cpu=1 deadline=30", "cpu=1 deadline=20"), "cpu=1 pods=3 / cpu=1 pods=3").await;
    check(&quotas, change("cpu=1", "cpu=1 class=x"), "cpu=1 pods=3 / cpu=1 pods=3").await;
    // In a quota of all Pods it is counted already.
    check(&["all cpu=1/1 pods=1/1"], change("cpu=1", "cpu=1 deadline=30"), "cpu=1 pods=1").await;
    let told = "exceeded quota: q0, requested: pods=1, used: pods=2, limited: pods=2";
    check(&["Terminating:Exists pods=2/2"], change("", "deadline=30"), told).await;
    // It uses no more than before, so that no quota need cover it where the configuration demands one.
    let context = cluster(&[], &["pods Terminating:Exists"]).await;
    assert_eq!(refusal(change("", "deadline=30").through(&context, &PLUGIN).await), "");
}

/// Upstream: the tests of the evaluators' Handles.
#[tokio::test]
async fn writes_that_use_nothing_more_are_not_looked_at() {
    use Operation::{Connect, Create, Delete, Update};
    let full = ["all pods=0/0 services=0/0 persistentvolumeclaims=0/0 secrets=0/0 \
                 count/resourceclaims.resource.k8s.io=0/0 count/events=0/0"];
    let context = cluster(&full, &[]).await;
    let object = || json!({"metadata": {"name": "x", "namespace": "ns"}, "spec": {"containers": [], "devices": {}}});
    for (operation, (group, plural, subresource), looked_at) in [
        (Create, ("", "pods", ""), true),
        (Create, ("", "pods", "binding"), false),
        (Create, ("", "pods", "eviction"), false),
        (Update, ("", "pods", ""), false),
        (Update, ("", "pods", "status"), false),
        (Update, ("", "pods", "ephemeralcontainers"), false),
        (Delete, ("", "pods", ""), false),
        (Connect, ("", "pods", "exec"), false),
        (Create, ("", "services", ""), true),
        (Delete, ("", "services", ""), false),
        (Create, ("", "persistentvolumeclaims", ""), true),
        (Create, ("resource.k8s.io", "resourceclaims", ""), true),
        (Create, ("resource.k8s.io", "resourceclaims", "subresource"), false),
        (Update, ("resource.k8s.io", "resourceclaims", "status"), false),
        (Create, ("", "secrets", ""), true),
        (Create, ("", "secrets", "subresource"), false),
        (Update, ("", "secrets", ""), false),
        (Create, ("", "events", ""), false),
    ] {
        let old = matches!(operation, Update | Delete).then(object);
        let write = Write { operation, kind: (group, plural, subresource), old, ..Write::create("", object()) };
        let refused = write.through(&context, &PLUGIN).await.is_err();
        assert_eq!(refused, looked_at, "{operation:?} {plural} {subresource}");
    }
    // An object of no namespace is in none of the quotas.
    let mut write = Write::create("pods", object());
    write.object = Some(json!({"metadata": {"name": "x"}, "spec": {"containers": []}}));
    write.through(&context, &PLUGIN).await.unwrap();
}

/// Upstream: TestAdmitDryRun.
#[tokio::test]
async fn a_dry_run_is_refused_and_never_charged() {
    let context = cluster(&[COMPUTE], &[]).await;
    let write = |text: &str| Write::create("pods", pod(text));
    write("cpu=100m memory=2Gi").dry(&context, &PLUGIN).await.unwrap();
    let told = "exceeded quota: q0, requested: memory=60Gi, used: memory=50Gi, limited: memory=100Gi";
    assert_eq!(refusal(write("cpu=100m memory=60Gi").dry(&context, &PLUGIN).await), told);
    assert_eq!(used(&context, "q0").await, json!({"cpu": "1", "memory": "50Gi", "pods": "3"}));
}

/// Of what a quota limits only that must be counted which the object uses. Upstream: TestHasUsageStats.
#[tokio::test]
async fn a_quota_is_believed_as_far_as_it_is_counted() {
    let unknown = "status unknown for quota: q0, resources: memory";
    for (amounts, expected) in [
        ("all memory=1Gi", unknown),
        ("all memory=1Gi/500Mi", "memory=501Mi"),
        ("all memory=1Gi/500Mi services=1", "memory=501Mi"),
        ("all memory=1Gi pods=1/0", "status unknown for quota: q0, resources: memory,pods"),
    ] {
        check(&[amounts], Write::create("pods", pod("memory=1Mi")), expected).await;
    }
}

/// The attribute class of a volume claim is a scope. Upstream: TestPersistentVolumeClaimEvaluatorMatchingScopes.
#[tokio::test]
async fn claims_are_charged_by_their_attribute_class() {
    let of = |class: &str| {
        let mut claim = claim("1Gi");
        claim["spec"]["volumeAttributesClassName"] = json!(class);
        claim
    };
    let amounts = "persistentvolumeclaims=2/1";
    let quotas = ["In:gold,silver", "Exists", "NotIn:gold"].map(|s| format!("VolumeAttributesClass:{s} {amounts}"));
    let quotas: Vec<&str> = quotas.iter().map(String::as_str).collect();
    let used = |counts: [u8; 3]| counts.map(|count| format!("persistentvolumeclaims={count}")).join(" / ");
    check(&quotas, Write::create("persistentvolumeclaims", of("gold")), &used([2, 2, 1])).await;
    check(&quotas, Write::create("persistentvolumeclaims", of("bronze")), &used([1, 2, 2])).await;
    check(&quotas, Write::create("persistentvolumeclaims", claim("1Gi")), &used([1, 1, 2])).await;
    // A claim that changes its class is charged where it comes, and stays charged where it was.
    let moves = update("persistentvolumeclaims", "", of("gold"), of("bronze"));
    check(&quotas, moves, &used([1, 1, 2])).await;
    let told = "exceeded quota: q0, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=1, \
                limited: persistentvolumeclaims=1";
    let full = ["VolumeAttributesClass:In:gold persistentvolumeclaims=1/1"];
    check(&full, update("persistentvolumeclaims", "", of("bronze"), of("gold")), told).await;
}
