//! Tables of plans, and autoscalers that come to rest under any load.

use client::rest::Resource;
use json::{Value, json};

use super::{
    propose::{Measured, propose},
    replicas::{Reading, Readings},
    *,
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn autoscaler(spec: Value) -> HorizontalPodAutoscaler {
    let mut whole = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "minReplicas": 2, "maxReplicas": 10,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
    });
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    let object = json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}, "spec": whole});
    json::from_value(object).unwrap()
}

fn target(replicas: i32) -> Target {
    let resource = Resource {
        group: "apps".into(),
        version: "v1".into(),
        kind: "Deployment".into(),
        plural: "deployments".into(),
    };
    let scale = json!({
        "metadata": {"name": "d", "namespace": "n"}, "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": "app=d"},
    });
    Target { resource, scale }
}

fn pods(count: i32) -> Vec<Arc<Pod>> {
    let pod = |place: i32| {
        let object = json!({
            "metadata": {"name": format!("p{place}"), "labels": {"app": "d"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]},
        });
        Arc::new(json::from_value(object).unwrap())
    };
    (0..count).map(pod).collect()
}

/// Each Pod uses this.
fn used(count: i32, milli: i64) -> Measured {
    let reading = Reading { milli, time: now(), window_seconds: 15 };
    Measured::Pods((0..count).map(|place| (format!("p{place}"), reading)).collect::<Readings>())
}

fn observed(
    a: &HorizontalPodAutoscaler,
    replicas: i32,
    measured: &[Result<Measured, String>],
    at: Timestamp,
) -> Observed {
    let (spec, pods) = (a.spec.as_ref().unwrap(), pods(replicas));
    let tolerance = propose::tolerance(spec, 0.1);
    let scene =
        Scene { pods: &pods, current: replicas, present: replicas, tolerance, settings: Settings::default(), now: at };
    let proposed = propose(spec.metrics.as_deref().unwrap(), measured, &scene);
    Observed {
        settings: Settings::default(),
        failure: None,
        target: Ok(target(replicas)),
        proposed: is_measured(spec, replicas).then_some(proposed),
        memory: Memory::default(),
        pods,
    }
}

/// Writes, then the conditions as `type status reason`, then the events' reasons.
fn shown(plan: &Plan) -> (String, Vec<String>, Vec<String>) {
    let status = plan.writes().filter(|w| w.subresource == "status").last().map(|w| w.body()["status"].clone());
    let conditions = status.unwrap_or_default()["conditions"].as_array().cloned().unwrap_or_default();
    let text = |c: &Value| ["type", "status", "reason"].map(|field| c[field].as_str().unwrap().to_owned()).join(" ");
    let events = plan.steps.iter().filter_map(|step| match step {
        controller::Step::Tell(note) => Some(format!("{}: {}", note.reason, note.message)),
        _ => None,
    });
    (plan.to_string(), conditions.iter().map(text).collect(), events.collect())
}

fn check(plan: &Plan, writes: &str, conditions: &[&str], events: &[&str]) {
    let (found, told, said) = shown(plan);
    assert_eq!(found, writes);
    assert_eq!(told, conditions, "{writes}");
    assert_eq!(said, events, "{writes}");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(15)));
}

const RESCALED: &str = "update deployments/scale d, update horizontalpodautoscalers/status a";
const STATUS: &str = "update horizontalpodautoscalers/status a";

#[test]
fn load_makes_more_pods() {
    let a = autoscaler(json!({}));
    let plan = super::plan(&a, &observed(&a, 3, &[Ok(used(3, 900))], now()), now());
    let conditions = [
        "AbleToScale True SucceededRescale",
        "ScalingActive True ValidMetricFound",
        "ScalingLimited False DesiredWithinRange",
    ];
    check(&plan, RESCALED, &conditions, &[]);
    let writes: Vec<&Write> = plan.writes().collect();
    assert_eq!(writes[0].body()["spec"]["replicas"], 6);
    let status = &writes[1].body()["status"];
    assert_eq!((&status["currentReplicas"], &status["desiredReplicas"]), (&json!(3), &json!(6)));
    assert_eq!(status["lastScaleTime"], json!(now()));
    let current = json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 90, "averageValue": "900m"}}}]);
    assert_eq!(status["currentMetrics"], current);
    let said = writes[0].on_success.as_ref().unwrap();
    let reason = "New size: 6; reason: cpu resource utilization (percentage of request) above target";
    assert_eq!((said.reason.as_str(), said.message.as_str()), ("SuccessfulRescale", reason));
}

#[test]
fn bounds_come_before_metrics() {
    let a = autoscaler(json!({}));
    let size = |replicas: i32| {
        let plan = super::plan(&a, &observed(&a, replicas, &[Ok(used(replicas, 500))], now()), now());
        let message = plan.writes().next().and_then(|w| w.on_success.as_ref()).map(|note| note.message.clone());
        (message, shown(&plan).1)
    };
    let able = "AbleToScale True SucceededRescale".to_owned();
    let over = "New size: 10; reason: Current number of replicas above Spec.MaxReplicas".to_owned();
    assert_eq!(size(12), (Some(over), vec![able.clone()]));
    let below = "New size: 2; reason: Current number of replicas below Spec.MinReplicas".to_owned();
    assert_eq!(size(1), (Some(below), vec![able]));
    let off = ["AbleToScale True SucceededGetScale", "ScalingActive False ScalingDisabled"].map(str::to_owned).to_vec();
    assert_eq!(size(0), (None, off));
}

#[test]
fn a_metric_that_cannot_be_had_stops_removing_only() {
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1"}}});
    let cpu = autoscaler(json!({})).spec.unwrap().metrics.unwrap();
    let a = autoscaler(json!({"metrics": [cpu[0], memory]}));
    let why = "unable to fetch metrics from resource metrics API: no";
    let with = |milli| super::plan(&a, &observed(&a, 3, &[Ok(used(3, milli)), Err(why.to_owned())], now()), now());
    let event = format!(
        "FailedGetResourceMetric: failed to get memory usage: unable to get metrics for resource memory: {why}"
    );
    let up = with(900);
    assert_eq!((shown(&up).0.as_str(), shown(&up).2), (RESCALED, vec![event.clone()]));
    let error = "FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 2), first error is: failed to get memory \
                 resource metric value: failed to get memory usage: unable to get metrics for resource memory: ";
    let conditions = ["AbleToScale True SucceededGetScale", "ScalingActive False FailedGetResourceMetric"];
    check(&with(100), STATUS, &conditions, &[&event, &format!("{error}{why}")]);
}

#[test]
fn what_cannot_be_scaled_or_told_apart_is_said() {
    let a = autoscaler(json!({}));
    let mut seen = observed(&a, 3, &[Ok(used(3, 500))], now());
    seen.target = Err("deployments.apps \"d\" not found".to_owned());
    let event = "FailedGetScale: deployments.apps \"d\" not found";
    check(&super::plan(&a, &seen, now()), STATUS, &["AbleToScale False FailedGetScale"], &[event]);
    seen.target = Ok(target(3));
    let message = "the HPA target's scale is missing a selector";
    seen.proposed = Some(propose::refused("InvalidSelector", "SelectorRequired", message, "selector is required"));
    let conditions = ["AbleToScale True SucceededGetScale", "ScalingActive False InvalidSelector"];
    let events = ["SelectorRequired: selector is required", "FailedComputeMetricsReplicas: selector is required"];
    check(&super::plan(&a, &seen, now()), STATUS, &conditions, &events);
}

#[test]
fn a_target_that_refuses_is_told_once_and_tried_again() {
    let mut a = autoscaler(json!({}));
    let mut seen = observed(&a, 3, &[Ok(used(3, 900))], now());
    seen.failure = Some("refused".to_owned());
    let told = super::plan(&a, &seen, now());
    assert!(told.retry);
    assert_eq!(shown(&told).0, STATUS);
    let status = told.writes().last().unwrap().body()["status"].clone();
    assert_eq!(status["conditions"][0]["reason"], "FailedUpdateScale");
    assert_eq!(status["lastScaleTime"], Value::Null);
    a.status = json::from_value(status).unwrap();
    assert_eq!(shown(&super::plan(&a, &seen, now())).0, RESCALED);
}

#[test]
fn two_autoscalers_of_the_same_pods_are_found() {
    let controller = HorizontalPodAutoscalers::default();
    for (namespace, name, selector) in
        [("n", "a", "app=d"), ("n", "b", "app in (d,e)"), ("n", "c", "app=e"), ("m", "a", "app=d")]
    {
        controller.with(&Key::new(namespace, name), |known| known.selector = Some(Selector::parse(selector).unwrap()));
    }
    assert_eq!(controller.selecting("n", &pods(1)), ["n/a", "n/b"]);
    assert_eq!(controller.selecting("m", &pods(1)), ["m/a"]);
    assert_eq!(controller.selecting("n", &[]), [""; 0]);
}

/// One round of a world in which `load` is shared by all Pods at once. Returns the writes.
fn round(a: &mut HorizontalPodAutoscaler, memory: &mut Memory, replicas: &mut i32, load: i64, at: Timestamp) -> String {
    memory.begin(*replicas, at);
    let mut seen = observed(a, *replicas, &[Ok(used(*replicas, load / i64::from((*replicas).max(1))))], at);
    seen.memory = memory.clone();
    if let Some((recommended, _)) = seen.proposed.as_ref().and_then(|p| p.outcome.as_ref().ok()) {
        memory.recommended(*recommended, at);
    }
    let plan = super::plan(a, &seen, at);
    let before = *replicas;
    for write in plan.writes() {
        if write.subresource == "scale" {
            *replicas = write.body()["spec"]["replicas"].as_i64().unwrap() as i32;
        } else {
            a.status = json::from_value(write.body()["status"].clone()).unwrap();
        }
    }
    if *replicas != before {
        memory.rescaled(*replicas - before, at);
    }
    plan.to_string()
}

#[test]
fn any_load_comes_to_rest_and_then_nothing_is_written() {
    let policies = json!([{"type": "Pods", "value": 1, "periodSeconds": 60}]);
    let slow = json!({"behavior": {"scaleUp": {"policies": policies, "stabilizationWindowSeconds": 30},
        "scaleDown": {"policies": policies, "stabilizationWindowSeconds": 60, "selectPolicy": "Min"}}});
    for spec in [json!({}), slow] {
        for start in [1, 2, 5, 10, 12] {
            for load in (0..=8000).step_by(800) {
                let (mut a, mut memory, mut replicas) = (autoscaler(spec.clone()), Memory::default(), start);
                let at = |round: i64| Timestamp::from_second(now().as_second() + round * 15).unwrap();
                for turn in 0..60 {
                    round(&mut a, &mut memory, &mut replicas, load, at(turn));
                    assert!((1..=12).contains(&replicas), "{spec} {start} {load}");
                }
                for turn in 60..63 {
                    assert_eq!(round(&mut a, &mut memory, &mut replicas, load, at(turn)), "", "{spec} {start} {load}");
                }
                // Within the tolerance of what is aimed at (in whole percents), or at a bound.
                let share = load as f64 / f64::from(replicas) / 1000.0;
                assert!(share < 0.56 || replicas == 10, "{spec} {start} {load}: {replicas}");
                assert!(
                    replicas == 2 || load as f64 / f64::from(replicas - 1) / 1000.0 > 0.45,
                    "{spec} {start} {load}: {replicas}"
                );
            }
        }
    }
}
