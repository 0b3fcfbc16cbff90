//! The objects that each of upstream's test cases sets up before its Pods are measured, and the changes meanwhile.

use std::time::Duration;

use client::Key;
use json::json;
use k8s_openapi::api::core::v1::{Namespace, Pod};

use super::{
    cluster::{Churn, Cluster, MEASURED, Run},
    devices, events, objects,
    table::Workload,
};

/// The namespaces of the Pods that are there before, and of those that are measured.
const BEFORE: &str = "sched-0";
const NOW: &str = "sched-1";
/// The node that stands alone, or that a DaemonSet's Pods name.
const NAMED_NODE: &str = "scheduler-perf-node";

/// One case, as far as it is like the others.
struct Case {
    /// The zones of the nodes, in turn.
    zones: &'static [&'static str],
    /// The templates of the Pods that are there before.
    before: &'static [&'static str],
    measured: &'static str,
    volumes: Volumes,
}

#[derive(Clone, Copy, PartialEq)]
enum Volumes {
    None,
    InTree,
    /// With a limit of each node.
    Limited {
        csi: bool,
    },
    /// Of the measured Pods only.
    Preempting,
}

const ONE: &[&str] = &["zone1"];
const THREE: &[&str] = &["moon-1", "moon-2", "moon-3"];
const DEFAULT: &[&str] = &["pod-default"];

fn case(name: &str) -> Case {
    let plain = |zones, before, measured| Case { zones, before, measured, volumes: Volumes::None };
    let like_before = |zones: &'static [&'static str], template: &'static [&'static str]| Case {
        zones,
        before: template,
        measured: template[0],
        volumes: Volumes::None,
    };
    let volumes = |volumes| Case { volumes, ..like_before(&[], DEFAULT) };
    match name {
        "SchedulingBasic" | "Unschedulable" | "SchedulingWithMixedChurn" => like_before(&[], DEFAULT),
        "SchedulingSecrets" => like_before(&[], &["pod-with-secret-volume"]),
        "SchedulingDaemonset" => plain(&[], &[], "daemonset-pod"),
        "PreemptionBasic" => plain(&[], &["pod-low-priority"], "pod-high-priority"),
        "PreemptionAsync" => plain(&[], &["pod-low-priority"], "pod-default"),
        "PreemptionPVs" => {
            Case { volumes: Volumes::Preempting, ..plain(&[], &["pod-low-priority"], "pod-high-priority") }
        }
        "SchedulingWhileGated" | "SchedulingDeletedPodsWithFinalizers" => plain(&[], &[], "light-pod"),
        "SchedulingWithExtendedResource" => plain(&[], &[], "light-pod"),
        "SchedulingPodAntiAffinity" => like_before(&[], &["pod-with-pod-anti-affinity"]),
        "SchedulingPodMatchingAntiAffinity" => {
            plain(&[], &["pod-with-pod-anti-affinity"], "pod-with-pod-anti-affinity-label")
        }
        "SchedulingPodAffinity" => like_before(ONE, &["pod-with-pod-affinity"]),
        "SchedulingPreferredPodAffinity" => like_before(&[], &["pod-with-preferred-pod-affinity"]),
        "SchedulingPreferredPodAntiAffinity" => like_before(&[], &["pod-with-preferred-pod-anti-affinity"]),
        "SchedulingNodeAffinity" => like_before(ONE, &["pod-with-node-affinity"]),
        "MixedSchedulingBasePod" => Case {
            before: &[
                "pod-default",
                "pod-with-pod-affinity",
                "pod-with-pod-anti-affinity",
                "pod-with-preferred-pod-affinity",
                "pod-with-preferred-pod-anti-affinity",
            ],
            ..plain(ONE, &[], "pod-default")
        },
        "SchedulingRequiredPodAntiAffinityWithNSSelector" => like_before(&[], &["pod-anti-affinity-ns-selector"]),
        "SchedulingPreferredAntiAffinityWithNSSelector" => {
            like_before(&[], &["pod-preferred-anti-affinity-ns-selector"])
        }
        "SchedulingRequiredPodAffinityWithNSSelector" => like_before(ONE, &["pod-affinity-ns-selector"]),
        "SchedulingPreferredAffinityWithNSSelector" => like_before(&[], &["pod-preferred-affinity-ns-selector"]),
        "SchedulingGatedPodsWithPodAffinityImpactForThroughput" => plain(&[], &[], "pod-with-label"),
        "TopologySpreading" => plain(THREE, DEFAULT, "pod-with-topology-spreading"),
        "PreferredTopologySpreading" => plain(THREE, DEFAULT, "pod-with-preferred-topology-spreading"),
        "DefaultTopologySpreading" => plain(THREE, DEFAULT, "pod-with-label"),
        "SchedulingWithNodeInclusionPolicy" => plain(&[], &[], "pod-with-node-inclusion-policy"),
        "SchedulingInTreePVs" => volumes(Volumes::InTree),
        "SchedulingMigratedInTreePVs" => volumes(Volumes::Limited { csi: false }),
        "SchedulingCSIPVs" => volumes(Volumes::Limited { csi: true }),
        other => panic!("nothing is known of {other}"),
    }
}

/// Runs a workload.
pub fn run(workload: &Workload) -> (Run, Cluster) {
    let mut cluster = Cluster::new();
    let run = match workload.case.as_str() {
        case if case.starts_with("EventHandling") => events::run(&mut cluster, workload),
        case if case.contains("ResourceClaim") => devices::run(&mut cluster, workload),
        _ => {
            let case = case(&workload.case);
            set_up(&mut cluster, workload, &case);
            let pods = measured(&mut cluster, workload, &case);
            let churn = churn(workload);
            cluster.run(pods, churn)
        }
    };
    (run, cluster)
}

fn set_up(cluster: &mut Cluster, workload: &Workload, case: &Case) {
    let alone = workload.nodes == 1 || workload.case == "SchedulingDaemonset";
    if alone {
        let mut node = objects::node(NAMED_NODE, None);
        objects::offer(&mut node, "pods", "90000");
        cluster.set_node(&node);
    }
    // Upstream taints a fifth of the nodes there.
    let tainted = |i: usize| workload.case == "SchedulingWithNodeInclusionPolicy" && i.is_multiple_of(5);
    for i in 0..if workload.nodes == 1 { 0 } else { workload.nodes } {
        let mut node = objects::node(&format!("node-{i}"), case.zones.get(i % case.zones.len().max(1)).copied());
        objects::taint(&mut node, tainted(i));
        if matches!(case.volumes, Volumes::Limited { .. }) {
            objects::offer(&mut node, "attachable-volumes-csi-ebs.csi.aws.com", "39");
        }
        if workload.case == "SchedulingWithExtendedResource" {
            objects::offer(&mut node, &format!("foo.com/bar-{i}"), "1");
        }
        cluster.set_node(&node);
    }
    let namespaces = namespaces(workload);
    let labels = json!({"team": "devops"});
    for name in &namespaces {
        let object = json!({"metadata": {"name": name, "labels": &labels}});
        let object: Namespace = json::from_value(object).expect("a namespace");
        cluster.engine.set_namespace(&object, cluster.now);
    }
    if workload.case == "DefaultTopologySpreading" {
        let selector = [("app".to_owned(), "scheduler-perf".to_owned())].into();
        cluster.engine.set_service(&Key::new(NOW, "service"), Some(selector), cluster.now);
    }
    before(cluster, workload, case, &namespaces);
    waiting(cluster, workload);
}

/// The namespaces of a case that selects by them; the last one is that of the measured Pods.
fn namespaces(workload: &Workload) -> Vec<String> {
    if !workload.case.ends_with("NSSelector") {
        return Vec::new();
    }
    let count = if workload.nodes < 5000 { 10 } else { 100 };
    (0..count).map(|i| format!("init-ns-{i}")).chain([NOW.to_owned()]).collect()
}

/// The Pods that have a node before.
fn before(cluster: &mut Cluster, workload: &Workload, case: &Case, namespaces: &[String]) {
    let of = |i: usize| match namespaces {
        [] => BEFORE,
        [init @ .., _] => &init[i % init.len()],
    };
    let each = workload.init / case.before.len().max(1);
    for (at, template) in case.before.iter().enumerate() {
        for i in at * each..(at + 1) * each {
            let mut pod = objects::named(&objects::pod(template, of(i)), format!("init-{i}"));
            if !matches!(case.volumes, Volumes::None | Volumes::Preempting) {
                cluster.add_volume(of(i), &format!("init-{i}"), case.volumes == Volumes::Limited { csi: true });
                pod = objects::with_claim(pod);
            }
            cluster.settle([pod].into_iter());
        }
    }
}

/// Pods that wait all the time, or are deleted before they have a node.
fn waiting(cluster: &mut Cluster, workload: &Workload) {
    let many = |template: &str, count: usize, sort: &str| -> Vec<Pod> {
        let template = objects::pod(template, NOW);
        (0..count).map(|i| objects::named(&template, format!("{sort}-{i}"))).collect()
    };
    match workload.case.as_str() {
        "SchedulingWhileGated" => {
            cluster.settle(many("gated-pod", 10_000, "gated").into_iter());
            cluster.settle(many("light-pod", workload.measured, "deleted").into_iter());
        }
        "SchedulingGatedPodsWithPodAffinityImpactForThroughput" => {
            cluster.settle(many("gated-pod-with-pod-affinity", 10_000, "gated").into_iter());
        }
        "SchedulingDeletedPodsWithFinalizers" => {
            for mut pod in many("pod-with-finalizer", workload.measured, "leaving") {
                pod.metadata.finalizers = Some(vec!["test.k8s.io/finalizer".to_owned()]);
                cluster.add(pod.clone());
                let leaving = json!("2026-01-01T00:00:00Z");
                pod.metadata.deletion_timestamp = json::from_value(leaving).ok();
                cluster.add(pod);
            }
        }
        _ => {}
    }
}

fn measured(cluster: &mut Cluster, workload: &Workload, case: &Case) -> Vec<Pod> {
    let template = objects::pod(case.measured, NOW);
    let mut pods = Vec::with_capacity(workload.measured);
    for i in 0..workload.measured {
        let name = format!("{MEASURED}-{i}");
        let mut pod = objects::named(&template, name.clone());
        if case.volumes != Volumes::None {
            cluster.add_volume(NOW, &name, case.volumes == Volumes::Limited { csi: true });
            pod = objects::with_claim(pod);
        }
        if workload.case == "SchedulingWithExtendedResource" {
            let requests = json!({"requests": {format!("foo.com/bar-{i}"): "1"}});
            pod.spec.get_or_insert_default().containers[0].resources = json::from_value(requests).ok();
        }
        pods.push(pod);
    }
    pods
}

/// A Pod of a template beside the measured ones.
fn beside(template: &str, i: usize) -> Pod {
    objects::named(&objects::pod(template, "churn"), format!("churn-{i}"))
}

fn churn(workload: &Workload) -> Option<Churn> {
    let churn = |millis, happens: fn(&mut Cluster, usize)| {
        Some(Churn { every: Duration::from_millis(millis), happens: Box::new(happens) })
    };
    match workload.case.as_str() {
        "PreemptionAsync" => churn(200, |cluster, i| cluster.add(beside("pod-high-priority", i))),
        "Unschedulable" => churn(200, |cluster, i| cluster.add(beside("pod-high-priority-large-cpu", i))),
        "SchedulingWithMixedChurn" => churn(1000, |cluster, i| {
            if i > 0 {
                cluster.remove(&Key::new("churn", format!("churn-{}", i - 1)));
                cluster.engine.remove_node(&format!("churn-{}", i - 1), cluster.now);
                cluster.engine.set_service(&Key::new("churn", format!("churn-{}", i - 1)), None, cluster.now);
            }
            cluster.set_node(&objects::node(&format!("churn-{i}"), None));
            cluster.add(beside("pod-high-priority-large-cpu", i));
            let selector = [("app".to_owned(), "churn".to_owned())].into();
            cluster.engine.set_service(&Key::new("churn", format!("churn-{i}")), Some(selector), cluster.now);
        }),
        "SchedulingWhileGated" => churn(20, |cluster, i| cluster.remove(&Key::new(NOW, format!("deleted-{i}")))),
        _ => None,
    }
}
