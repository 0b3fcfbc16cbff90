//! A Deployment's life on 50 hollow nodes in bad weather, under several seeds.
//!
//! `SIM_SEED=7 cargo test -p sim --test clusters rollout` repeats one.

use client::rest::{self, DeleteOptions, Resource, Verb};
use clock::Duration;
use json::{Value, json};
use k8s_openapi::api::apps::v1::Deployment;
use sim::{
    Cluster, Component, Faults,
    cluster::{seeds, simulate},
};

const NODES: usize = 50;
const REPLICAS: i32 = 60;

fn deployment() -> Value {
    let container =
        json!({"name": "c", "image": "web:1", "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}},
    })
}

async fn write(cluster: &Cluster, name: &str, verb: Verb) {
    let written = rest::write(&cluster.client(), &Resource::of::<Deployment>(), "default", name, "", &verb).await;
    if let Err(error) = written {
        cluster.fail(&format!("the test's own write failed: {}", rest::message(&error)));
    }
}

fn new_image(image: &str) -> Verb {
    Verb::StrategicPatch(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}))
}

/// Something that may be killed at any moment.
fn any_component() -> Component {
    match clock::random_range(0..4) {
        0 => Component::Manager(0),
        1 => Component::Scheduler,
        _ => Component::Node(clock::random_range(0..NODES as u64) as usize),
    }
}

/// Kills and restarts parts at random for a while.
async fn restarts(cluster: &mut Cluster, times: usize) {
    for _ in 0..times {
        clock::sleep(Duration::from_millis(clock::random_range(200..3000))).await;
        let component = any_component();
        cluster.kill(component);
        clock::sleep(Duration::from_millis(clock::random_range(0..2000))).await;
        cluster.run(component);
        cluster.check("while parts restart");
    }
}

fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

/// A Deployment comes, and gets a new image while watches break off, requests fail and parts restart.
async fn storm(seed: u64) -> Cluster {
    let mut cluster = Cluster::start(seed, NODES).await;
    cluster.until("all nodes are there", minutes(2), |m| m.nodes().count() == NODES).await;
    write(&cluster, "", Verb::Create(deployment())).await;
    cluster
        .until("the first rollout is done", minutes(5), |m| m.deployments.all().count() == 1 && m.rolled_out())
        .await;
    cluster.weather.set(Faults::STORM);
    write(&cluster, "web", new_image("web:2")).await;
    restarts(&mut cluster, 20).await;
    cluster.until("the second rollout is done in the storm", minutes(20), |m| m.rolled_out()).await;
    cluster.weather.set(Faults::NONE);
    cluster.quiesce().await;
    cluster.stays_quiet(minutes(10), minutes(40)).await;
    cluster
}

/// The machine with the API server and the store loses power in the middle of rollouts.
async fn power_cuts(cluster: &mut Cluster) {
    cluster.weather.set(Faults::STORM);
    for round in 0..5 {
        write(cluster, "web", new_image(&format!("web:cut-{round}"))).await;
        clock::sleep(Duration::from_millis(clock::random_range(0..8000))).await;
        cluster.cut_power().await;
        cluster.check("after a power cut");
    }
    cluster.until("the last rollout is done", minutes(20), |m| m.rolled_out()).await;
    cluster.weather.set(Faults::NONE);
    cluster.quiesce().await;
}

/// More Pods than fit: the nodes take what they can hold, whoever restarts meanwhile, and the rest as soon as there is
/// room.
async fn crowd(seed: u64) {
    const FIT: i32 = 5 * 8;
    let mut cluster = Cluster::start(seed, 5).await;
    write(&cluster, "", Verb::Create(deployment())).await;
    cluster.weather.set(Faults::STORM);
    for _ in 0..5 {
        clock::sleep(Duration::from_millis(clock::random_range(500..4000))).await;
        cluster.run(Component::Scheduler);
        cluster.check("while the scheduler restarts");
    }
    cluster.cut_power().await;
    cluster.until("as many serve as fit", minutes(5), |m| m.serving("web:1") == FIT).await;
    write(&cluster, "web", Verb::MergePatch(json!({"spec": {"replicas": FIT - 5}}))).await;
    cluster.until("all that are wanted serve", minutes(10), |m| m.rolled_out()).await;
    cluster.weather.set(Faults::NONE);
    cluster.quiesce().await;
}

/// Nodes die while answers are lost; their Pods are replaced elsewhere, and cleaned up when the nodes return.
async fn dead_nodes(cluster: &mut Cluster) {
    cluster.model.lock().service_may_drop = true;
    cluster.weather.set(Faults::LOSSY_STORM);
    for number in 0..3 {
        cluster.kill(Component::Node(number));
    }
    write(cluster, "web", new_image("web:3")).await;
    cluster.until("the rollout is done without the dead nodes", minutes(30), |m| m.serving("web:3") >= REPLICAS).await;
    for number in 0..3 {
        cluster.run(Component::Node(number));
    }
    cluster.until("the returned nodes are cleaned up", minutes(10), |m| m.rolled_out()).await;
    cluster.weather.set(Faults::NONE);
    cluster.quiesce().await;
}

async fn delete(cluster: &Cluster) {
    write(cluster, "web", Verb::Delete(DeleteOptions::default())).await;
    let nothing_left = |m: &sim::check::Model| m.deployments.replica_sets().count() == 0 && m.pods().count() == 0;
    cluster.until("nothing of the Deployment is left", minutes(10), nothing_left).await;
    cluster.check("at the end");
}

#[test]
fn a_deployment_survives_storms_and_dead_nodes() {
    for seed in seeds(1..=2) {
        simulate(seed, async |seed| {
            let mut cluster = storm(seed).await;
            power_cuts(&mut cluster).await;
            dead_nodes(&mut cluster).await;
            delete(&cluster).await;
            let model = cluster.model.lock();
            println!("seed {seed}: {} changes, fingerprint {:016x}", model.revision, model.fingerprint);
        });
    }
}

#[test]
fn full_nodes_take_no_more() {
    for seed in seeds(1..=3) {
        simulate(seed, crowd);
    }
}

#[test]
fn a_seed_repeats_exactly() {
    let run = || {
        simulate(3, async |seed| {
            let cluster = storm(seed).await;
            let model = cluster.model.lock();
            (model.revision, model.fingerprint)
        })
    };
    assert_eq!(run(), run());
}
