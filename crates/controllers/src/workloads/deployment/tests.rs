//! The plan of a Deployment, as tables.

use super::*;
use json::{Value, json};

fn deployment(strategy: Value, replicas: i32, image: &str) -> Deployment {
    json::from_value(json!({
        "metadata": {"name": "web", "namespace": "d", "uid": "dep", "generation": 1},
        "spec": {"replicas": replicas, "strategy": strategy, "selector": {"matchLabels": {"app": "web"}},
            "progressDeadlineSeconds": 600, "revisionHistoryLimit": 1, "template": template(image)},
    }))
    .unwrap()
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn rolling(surge: i32, unavailable: i32) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// `image size available`: a ReplicaSet named after its image, made in the order given.
fn set(index: usize, text: &str, wanted: i32, surge: i32) -> Arc<ReplicaSet> {
    let words: Vec<&str> = text.split(' ').collect();
    let [size, available] = [1, 2].map(|i| words[i].parse::<i32>().unwrap());
    let mut template = template(words[0]);
    template["metadata"]["labels"]["pod-template-hash"] = "h".into();
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "dep", "controller": true}]);
    let annotations = json!({revision::REVISION: (index + 1).to_string(), revision::DESIRED: wanted.to_string(),
        revision::MAX: (wanted + surge).to_string()});
    Arc::new(
        json::from_value(json!({
            "metadata": {"name": words[0], "namespace": "d", "uid": words[0], "ownerReferences": owner,
                "labels": {"app": "web"}, "annotations": annotations, "generation": 1,
                "creationTimestamp": format!("2026-01-01T00:00:0{index}Z")},
            "spec": {"replicas": size, "selector": {}, "template": template},
            "status": {"replicas": size, "availableReplicas": available, "readyReplicas": available, "observedGeneration": 1},
        }))
        .unwrap(),
    )
}

fn plan_of(deployment: &Deployment, observed: &Observed) -> Plan {
    Deployments.plan(deployment, observed, "2026-01-01T01:00:00Z".parse().unwrap())
}

fn observed(sets: Vec<Arc<ReplicaSet>>) -> Observed {
    Observed { sets, with_pods: Vec::new(), namesake: None, create_failed: None }
}

/// Sizes that the plan gives: `name=size`, and `-name` for what it deletes.
fn sizes_of(plan: &Plan) -> String {
    let words = plan.writes().filter(|w| w.subresource.is_empty()).map(|w| match w.verb_name() {
        "delete" => format!("-{}", w.name),
        "create" => format!("new={}", w.body()["spec"]["replicas"]),
        _ => format!("{}={}", w.name, w.body()["spec"]["replicas"]),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn check(strategy: (i32, i32), replicas: i32, sets: &[&str], expected: &str) {
    let deployment = deployment(rolling(strategy.0, strategy.1), replicas, "v2");
    let sets = sets.iter().enumerate().map(|(i, text)| set(i, text, replicas, strategy.0)).collect();
    assert_eq!(sizes_of(&plan_of(&deployment, &observed(sets))), expected, "{replicas}");
}

#[test]
fn a_rolling_update_takes_one_step_at_a_time() {
    check((1, 0), 3, &[], "new=3");
    check((1, 0), 3, &["v1 3 3"], "new=1");
    check((1, 0), 3, &["v1 3 3", "v2 1 0"], "");
    check((1, 0), 3, &["v1 3 3", "v2 1 1"], "v1=2");
    check((1, 0), 3, &["v1 2 2", "v2 1 1"], "v2=2");
    check((1, 0), 3, &["v1 1 1", "v2 3 3"], "v1=0");
    check((0, 1), 3, &["v1 3 3", "v2 0 0"], "v1=2");
    // Pods that serve nobody go first, and never more than may be missing.
    check((0, 1), 4, &["v0 2 0", "v1 2 2", "v2 0 0"], "v0=1");
    check((1, 1), 4, &["v1 5 2", "v2 0 0"], "v1=3");
    // One of the four that v1 says are available is about to go.
    check((1, 1), 4, &["v1 3 4", "v2 2 1"], "v1=2");
}

/// The sizes of all ReplicaSets after one plan. Each set tells its size before, and of which size and surge its Deployment
/// was then; the newest one is that of the template when the image is `v3`.
fn scaled(replicas: i32, surge: i32, image: &str, sets: &[(&str, i32, i32, i32)]) -> String {
    let deployment = deployment(rolling(surge, 1), replicas, image);
    let sets: Vec<_> = sets
        .iter()
        .enumerate()
        .map(|(i, (name, size, wanted, surge))| set(i, &format!("{name} {size} {size}"), *wanted, *surge))
        .collect();
    let mut sizes: std::collections::BTreeMap<String, i64> = sets
        .iter()
        .map(|s| (s.metadata.name.clone().unwrap(), i64::from(s.spec.as_ref().unwrap().replicas.unwrap())))
        .collect();
    let plan = plan_of(&deployment, &observed(sets));
    for write in plan.writes().filter(|w| w.subresource.is_empty() && w.verb_name() == "update") {
        sizes.insert(write.name.clone(), write.body()["spec"]["replicas"].as_i64().unwrap());
    }
    sizes.iter().map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_scaled_deployment_keeps_its_proportions() {
    /// A change from one number of replicas to another, with the sizes of the ReplicaSets, oldest first.
    fn check(from: i32, to: i32, sizes: &[i32], expected: &str) {
        let names = &["v1", "v2", "v3"][3 - sizes.len()..];
        let sets: Vec<_> = names.iter().zip(sizes).map(|(name, size)| (*name, *size, from, 0)).collect();
        assert_eq!(scaled(to, 0, "v3", &sets), expected, "{from} -> {to}");
    }
    check(10, 12, &[10], "v3=12");
    check(10, 5, &[10], "v3=5");
    check(5, 10, &[3, 2], "v2=6 v3=4");
    check(5, 3, &[3, 2], "v2=2 v3=1");
    check(9, 4, &[1, 8], "v2=0 v3=4");
    check(7, 10, &[2, 3, 2], "v1=3 v2=4 v3=3");
    check(13, 8, &[3, 8, 2], "v1=2 v2=5 v3=1");
    // The remainder of the rounding: the newest grows, the oldest shrinks.
    check(3, 4, &[1, 1, 1], "v1=1 v2=1 v3=2");
    check(3, 2, &[1, 1, 1], "v1=0 v2=1 v3=1");
    check(6, 0, &[1, 2, 3], "v1=0 v2=0 v3=0");
    check(6, 6, &[0, 0, 0], "v1=0 v2=0 v3=6");
    // Without one for the template.
    assert_eq!(scaled(5, 0, "v9", &[("v1", 2, 4, 0), ("v2", 2, 4, 0)]), "v1=2 v2=3");
    assert_eq!(scaled(14, 0, "v9", &[("v1", 3, 10, 0), ("v2", 7, 10, 0)]), "v1=4 v2=10");
    // With surge, and with another surge than before.
    assert_eq!(scaled(20, 2, "v3", &[("v1", 8, 10, 2), ("v3", 4, 10, 2)]), "v1=15 v3=7");
    assert_eq!(scaled(20, 2, "v3", &[("v1", 6, 10, 2), ("v3", 6, 10, 2)]), "v1=11 v3=11");
    assert_eq!(scaled(50, 6, "v3", &[("v1", 8, 10, 3), ("v3", 5, 10, 3)]), "v1=34 v3=22");
    // One of them was not written the last time.
    assert_eq!(scaled(5, 0, "v3", &[("v1", 1, 5, 0), ("v2", 1, 3, 0), ("v3", 2, 5, 0)]), "v1=1 v2=2 v3=2");
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let deployment = deployment(json!({"type": "Recreate"}), 2, "v2");
    let mut observed = observed(vec![set(0, "v1 2 2", 2, 0)]);
    assert_eq!(sizes_of(&plan_of(&deployment, &observed)), "v1=0");
    observed.sets = vec![set(0, "v1 0 0", 2, 0)];
    observed.with_pods = vec!["v1".into()];
    assert_eq!(sizes_of(&plan_of(&deployment, &observed)), "");
    observed.with_pods.clear();
    assert_eq!(sizes_of(&plan_of(&deployment, &observed)), "new=2");
}

#[test]
fn a_rollback_gets_the_next_revision() {
    let deployment = deployment(rolling(1, 0), 1, "v1");
    let plan = plan_of(&deployment, &observed(vec![set(0, "v1 0 0", 1, 1), set(1, "v2 1 1", 1, 1)]));
    let update = plan.writes().next().unwrap();
    let annotations = &update.body()["metadata"]["annotations"];
    assert_eq!((update.name.as_str(), &annotations[revision::REVISION]), ("v1", &json!("3")));
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    let status = plan.status.as_ref().unwrap().body();
    assert_eq!(status["metadata"]["annotations"][revision::REVISION], "3");
}

#[test]
fn a_complete_rollout_says_so_and_forgets_old_revisions() {
    let mut deployment = deployment(rolling(1, 0), 1, "v3");
    let sets = vec![set(0, "v1 0 0", 1, 1), set(1, "v2 0 0", 1, 1), set(2, "v3 1 1", 1, 1)];
    let mut observed = observed(sets);
    let mut current = (*observed.sets[2]).clone();
    current.status.as_mut().unwrap().terminating_replicas = Some(0);
    observed.sets[2] = Arc::new(current);
    let plan = plan_of(&deployment, &observed);
    let status = &plan.status.as_ref().unwrap().body()["status"];
    let reasons: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|c| c["reason"].clone()).collect();
    assert_eq!(reasons, ["MinimumReplicasAvailable", "NewReplicaSetAvailable"]);
    // Cleaning up waits until the status says that all is done.
    deployment.status = json::from_value(status.clone()).unwrap();
    assert_eq!(sizes_of(&plan_of(&deployment, &observed)), "-v1");
}

#[test]
fn a_rollout_that_stands_still_times_out() {
    let mut deployment = deployment(rolling(1, 0), 1, "v2");
    let observed = observed(vec![set(0, "v1 1 1", 1, 1), set(1, "v2 1 0", 1, 1)]);
    let first = plan_of(&deployment, &observed);
    deployment.metadata.annotations = Some([(revision::REVISION.to_owned(), "2".to_owned())].into());
    deployment.status = json::from_value(first.status.unwrap().body()["status"].clone()).unwrap();
    assert_eq!(first.requeue_after, Some(std::time::Duration::from_secs(601)));
    let reason = |plan: &Plan| {
        let status = &plan.status.as_ref()?.body()["status"]["conditions"];
        let progressing = status.as_array()?.iter().find(|c| c["type"] == "Progressing")?;
        Some(progressing["reason"].as_str()?.to_owned())
    };
    let later = |text: &str| Deployments.plan(&deployment, &observed, text.parse().unwrap());
    assert!(later("2026-01-01T01:10:00Z").status.is_none());
    assert_eq!(reason(&later("2026-01-01T01:10:01Z")).as_deref(), Some("ProgressDeadlineExceeded"));
}

#[test]
fn pods_that_are_about_to_go_are_counted_where_all_sets_tell() {
    // The status of each ReplicaSet: its `observedGeneration` and `terminatingReplicas`.
    let check = |sets: &[(Option<i64>, Option<i32>)], expected: Option<i32>| {
        let with = |(at, (observed, terminating)): (usize, &(Option<i64>, Option<i32>))| {
            let mut set = (*set(at, &format!("v{at} 1 1"), 1, 0)).clone();
            let status = set.status.as_mut().unwrap();
            (status.observed_generation, status.terminating_replicas) = (*observed, *terminating);
            Arc::new(set)
        };
        let observed = observed(sets.iter().enumerate().map(with).collect());
        let plan = plan_of(&deployment(rolling(1, 0), 1, "v0"), &observed);
        assert_eq!(plan.status.unwrap().body()["status"]["terminatingReplicas"], json!(expected), "{sets:?}");
    };
    check(&[], Some(0));
    check(&[(Some(1), Some(2)), (Some(1), Some(3))], Some(5));
    check(&[(Some(1), Some(2)), (Some(1), None)], None);
    // One that was made a moment ago.
    check(&[(Some(1), Some(2)), (None, None)], Some(2));
    check(&[(Some(1), Some(2)), (Some(0), None)], Some(2));
}

#[test]
fn a_taken_name_raises_the_collision_count() {
    let deployment = deployment(rolling(1, 0), 1, "v2");
    let mut observed = observed(Vec::new());
    observed.namesake = Some(set(0, "v9 1 1", 1, 0));
    let plan = plan_of(&deployment, &observed);
    assert_eq!((sizes_of(&plan).as_str(), &plan.status.unwrap().body()["status"]["collisionCount"]), ("", &json!(1)));
}
