//! Pods with processors and memory of their own: nobody else runs there, and they keep them over kubelets that start again.

use api::features::Feature;
use json::{Value, json};
use runtime::grpc;

use crate::{
    affinity::{
        allocate::{Affinity, Pass},
        fixture::{self as machine, dual_socket_ht, single_socket_ht},
        requests,
    },
    configuration::{Document, settings::Settings},
    node::machine::Machine,
    pod::fixture,
    server::pod_resources_messages::*,
    tests::{
        device_plugin::DevicePlugin,
        world::{World, until},
    },
};

const GPU: &str = "a.io/gpu";

/// The settings of a KubeletConfiguration with these fields, of which one processor is reserved.
fn settings(mut fields: Value) -> Settings {
    fields["apiVersion"] = "kubelet.config.k8s.io/v1beta1".into();
    fields["kind"] = "KubeletConfiguration".into();
    fields["kubeReserved"] = json!({"cpu": "500m", "memory": "1Gi"});
    Settings::of(Document::new(fields).unwrap().value()).unwrap()
}

fn container(name: &str, amounts: &Value) -> Value {
    json!({"name": name, "image": "x:1", "resources": {"requests": amounts, "limits": amounts}})
}

fn spec(containers: &[Value]) -> Value {
    json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "containers": containers})
}

/// A container with that number of processors for itself.
fn own(name: &str, cpus: &str) -> Value {
    spec(&[container(name, &json!({"cpu": cpus, "memory": "64Mi"}))])
}

/// The processors of the newest container of that name.
fn cpuset(world: &World, name: &str) -> String {
    world.engine.resources(name).unwrap_or_default().cpuset_cpus
}

async fn runs(world: &World, name: &str, spec: Value) {
    world.make_pod(name, spec);
    until("the Pod is ready", || world.is_ready(name)).await;
}

async fn goes(world: &World, name: &str) {
    world.delete_pod(name);
    until("the Pod is gone", || world.pod(name).is_none()).await;
}

async fn fails(world: &World, name: &str, spec: Value) -> String {
    world.make_pod(name, spec);
    until("the Pod is not let in", || world.phase(name) == "Failed").await;
    let status = world.pod(name).unwrap()["status"].clone();
    format!("{}: {}", status["reason"].as_str().unwrap(), status["message"].as_str().unwrap())
}

fn state(world: &World) -> Value {
    let text = std::fs::read_to_string(world.kubelet_folder().join("cpu_manager_state")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The answer of the socket about who has what.
async fn listed(world: &World) -> ListPodResourcesResponse {
    let socket = world.kubelet_folder().join("pod-resources/kubelet.sock");
    let channel = grpc::channel(&socket);
    grpc::unary(&channel, LIST, ListPodResourcesRequest {}, clock::Duration::from_secs(20)).await.unwrap()
}

#[test]
fn processors_of_one_are_not_shared_by_the_others_and_are_kept_over_a_restart() {
    let world = World::on_machine(&single_socket_ht(), 4);
    *world.settings.lock() = settings(json!({"cpuManagerPolicy": "static"}));
    world.life(None, async || {
        runs(&world, "b", spec(&[json!({"name": "b", "image": "x:1"})])).await;
        assert_eq!(cpuset(&world, "b"), "0-7");
        runs(&world, "p", own("p", "2")).await;
        let told = world.engine.resources("p").unwrap();
        assert_eq!((told.cpuset_cpus.as_str(), told.cpu_quota, told.cpu_shares), ("1,5", -1, 2048));
        until("the others share what is left", || cpuset(&world, "b") == "0,2-4,6-7").await;
        assert_eq!(world.asked("update p"), 0, "it was made with what it has");
        // An amount that is not whole is shared.
        runs(&world, "part", own("part", "500m")).await;
        assert_eq!(cpuset(&world, "part"), "0,2-4,6-7");
        assert_eq!(state(&world)["entries"], json!({"p-1": {"p": "1,5"}}));
        // A container that starts again has the same.
        world.engine.exit("p", 1);
        until("it runs again", || world.asked("start p") == 2).await;
        assert_eq!(cpuset(&world, "p"), "1,5");
        let all = listed(&world).await.pod_resources;
        let of = |name: &str| all.iter().find(|pod| pod.name == name).unwrap().containers[0].cpu_ids.clone();
        assert_eq!((of("p"), of("b")), (vec![1, 5], vec![]));
        world.change_pod("p", |spec| spec["containers"] = own("p", "3")["containers"].clone());
        let pending = || world.said("p", "PodResizePending");
        until("it cannot have others", || pending()["reason"] == "Infeasible").await;
        let text = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
        assert_eq!(pending()["message"], text);
        world.change_pod("p", |spec| spec["containers"] = own("p", "2")["containers"].clone());
        until("it is content", || pending().is_null()).await;
    });
    let starts = world.engine.calls().iter().filter(|call| call.starts_with("start ")).count();
    world.life(None, async || {
        runs(&world, "q", own("q", "4")).await;
        assert_eq!(cpuset(&world, "q"), "2-3,6-7");
        until("the others share what is left", || cpuset(&world, "b") == "0,4" && cpuset(&world, "part") == "0,4")
            .await;
        assert_eq!(cpuset(&world, "p"), "1,5");
        assert!(world.said("p", "PodResizeInProgress").is_null(), "nothing of it has to change");
        goes(&world, "p").await;
        until("what it had is shared", || cpuset(&world, "b") == "0-1,4-5").await;
        goes(&world, "q").await;
        until("and so is the rest", || cpuset(&world, "b") == "0-7" && cpuset(&world, "part") == "0-7").await;
        assert_eq!(
            state(&world),
            json!({"policyName": "static", "defaultCpuSet": "0-7", "checksum": state(&world)["checksum"]})
        );
    });
    let starts_now = world.engine.calls().iter().filter(|call| call.starts_with("start ")).count();
    assert_eq!(starts_now, starts + 1, "only q was started");
}

/// Behind their gates, as upstream: the amounts change, and what the container has for itself does not.
#[test]
fn a_pod_is_resized_beside_what_it_has_for_itself_where_the_gates_are_on() {
    let world = World::on_machine(&dual_socket_ht(), 4);
    *world.settings.lock() = settings(json!({
        "cpuManagerPolicy": "static", "memoryManagerPolicy": "Static", "topologyManagerPolicy": "single-numa-node",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    }));
    let with = |feature, on| {
        let mut features = world.features.lock();
        *features = features.with(feature, on);
    };
    with(Feature::InPlacePodVerticalScalingExclusiveCPUs, true);
    let wants = |cpu: &str, memory: &str| spec(&[container("p", &json!({"cpu": cpu, "memory": memory}))]);
    let ask = |cpu: &str, memory: &str| {
        let wanted = wants(cpu, memory)["containers"].clone();
        world.change_pod("p", |spec| spec["containers"] = wanted);
    };
    let told = || world.engine.resources("p").unwrap();
    let pending = || world.said("p", "PodResizePending");
    let is_content = || pending().is_null() && world.said("p", "PodResizeInProgress").is_null();
    world.life(None, async || {
        runs(&world, "p", wants("2", "64Mi")).await;
        let made = told();
        assert_eq!((made.cpuset_cpus.as_str(), made.cpuset_mems.as_str(), made.cpu_shares), ("2,8", "0", 2048));
        ask("5", "64Mi");
        until("it has more", || told().cpu_shares == 5120 && is_content()).await;
        let resized = told();
        assert_eq!((&resized.cpuset_cpus, resized.cpu_quota), (&made.cpuset_cpus, -1));
        assert_eq!(state(&world)["entries"], json!({"p-1": {"p": "2,8"}}));
        ask("5", "128Mi");
        until("its memory cannot change", || pending()["reason"] == "Infeasible").await;
        let text = "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
        assert_eq!(pending()["message"], text);
    });
    with(Feature::InPlacePodVerticalScalingExclusiveMemory, true);
    world.life(None, async || {
        until("it can now", || told().memory_limit_in_bytes == 128 << 20 && is_content()).await;
        // An amount that is not whole, or more than its node has, is nothing to a container that runs.
        ask("1500m", "128Mi");
        until("it has less", || told().cpu_shares == 1536 && is_content()).await;
        ask("7", "128Mi");
        until("it has more than its node", || told().cpu_shares == 7168 && is_content()).await;
    });
    world.life(None, async || {
        runs(&world, "q", own("q", "2")).await;
        assert!(world.is_ready("p"), "another kubelet leaves it what it has");
        let shown = told();
        assert_eq!((shown.cpuset_cpus.as_str(), shown.cpuset_mems.as_str()), ("2,8", "0"));
        assert_eq!((cpuset(&world, "q").as_str(), world.asked("start p")), ("4,10", 1));
        goes(&world, "p").await;
        until("what it had is free", || state(&world)["entries"] == json!({"q-1": {"q": "4,10"}})).await;
    });
}

#[test]
fn what_a_pod_had_that_went_while_no_kubelet_ran_is_shared_again() {
    let world = World::on_machine(&single_socket_ht(), 4);
    *world.settings.lock() = settings(json!({"cpuManagerPolicy": "static"}));
    world.life(None, async || runs(&world, "p", own("p", "7")).await);
    world.api.remove("/api/v1/namespaces/d/pods/p");
    world.life(None, async || {
        until("nothing is left of it", || state(&world)["entries"].is_null()).await;
        runs(&world, "q", own("q", "7")).await;
        assert_eq!(cpuset(&world, "q"), "1-7");
    });
}

#[test]
fn whole_cores_alone_are_given_where_that_is_asked_for() {
    let world = World::on_machine(&single_socket_ht(), 4);
    let options = json!({"full-pcpus-only": "true"});
    *world.settings.lock() = settings(json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": options}));
    world.life(None, async || {
        let words = "SMTAlignmentError: Pod was rejected: SMT Alignment Error:";
        let why = fails(&world, "odd", own("odd", "3")).await;
        assert_eq!(why, format!("{words} requested 3 cpus not multiple cpus per core = 2"));
        runs(&world, "even", own("even", "4")).await;
        assert_eq!(cpuset(&world, "even"), "1-2,5-6");
    });
}

#[test]
fn all_that_a_container_has_comes_from_one_node_or_it_is_not_let_in() {
    let world = World::on_machine(&dual_socket_ht(), 4);
    *world.settings.lock() = settings(json!({
        "cpuManagerPolicy": "static", "memoryManagerPolicy": "Static", "topologyManagerPolicy": "single-numa-node",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    }));
    let wants = |name: &str, cpu: &str, memory: &str, gpus: &str| {
        spec(&[container(name, &json!({"cpu": cpu, "memory": memory, GPU: gpus}))])
    };
    world.life(None, async || {
        let plugin = DevicePlugin::registered(&world, GPU, &[("d1", true), ("d9", true)]).await;
        let shown =
            |world: &World| world.api.get("/api/v1/nodes/n1").unwrap_or_default()["status"]["capacity"][GPU].clone();
        until("the node shows them", || shown(&world) == "2").await;
        // Node 0 has less memory left than this, and node 1 the second device.
        runs(&world, "p", wants("p", "2", "3Gi", "1")).await;
        let told = world.engine.resources("p").unwrap();
        assert_eq!((told.cpuset_cpus.as_str(), told.cpuset_mems.as_str()), ("1,7", "1"));
        assert_eq!(plugin.calls(), ["allocate d9", "start d9"]);
        let words = "TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality";
        assert_eq!(fails(&world, "both", wants("both", "6", "64Mi", "1")).await, words);
        runs(&world, "far", wants("far", "5", "64Mi", "1")).await;
        let told = world.engine.resources("far").unwrap();
        assert_eq!((told.cpuset_cpus.as_str(), told.cpuset_mems.as_str()), ("2,4,6,8,10", "0"));
        assert_eq!(plugin.calls(), ["allocate d1", "start d1"]);
        goes(&world, "p").await;
        runs(&world, "next", wants("next", "6", "64Mi", "1")).await;
        assert_eq!(cpuset(&world, "next"), "1,3,5,7,9,11");
    });
    world.life(None, async || {
        // Memory is given where it is left, and processors are shared where they are.
        runs(&world, "more", spec(&[container("more", &json!({"cpu": "200m", "memory": "2Gi"}))])).await;
        let told = world.engine.resources("more").unwrap();
        assert_eq!((told.cpuset_cpus.as_str(), told.cpuset_mems.as_str()), ("0", "1"));
        assert!(world.is_ready("far") && world.is_ready("next"), "they keep what they have");
        let wide = spec(&[container("wide", &json!({"cpu": "200m", "memory": "3Gi"}))]);
        let why =
            "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
        let words = format!("Allocate failed due to {why}, which is unexpected");
        assert_eq!(fails(&world, "wide", wide).await, format!("UnexpectedAdmissionError: Pod was rejected: {words}"));
        let all = listed(&world).await.pod_resources;
        let of = |name: &str| all.iter().find(|pod| pod.name == name).unwrap().containers[0].memory.clone();
        let [held] = &of("more")[..] else { panic!("{:?}", of("more")) };
        let nodes: Vec<i64> = held.topology.iter().flat_map(|at| &at.nodes).map(|node| node.id).collect();
        assert_eq!((held.memory_type.as_str(), held.size, nodes), ("memory", 2 << 30, vec![1]));
    });
}

#[test]
fn a_whole_pod_is_on_one_node_where_that_is_asked_for() {
    let world = World::on_machine(&dual_socket_ht(), 4);
    *world.settings.lock() = settings(json!({
        "cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod",
    }));
    let two = json!({"cpu": "2", "memory": "64Mi"});
    let pair = |name: &str, other: &str| spec(&[container(name, &two), container(other, &two)]);
    world.life(None, async || {
        runs(&world, "p", own("p", "2")).await;
        runs(&world, "q", own("q", "4")).await;
        assert_eq!((cpuset(&world, "p").as_str(), cpuset(&world, "q").as_str()), ("2,8", "1,3,7,9"));
        // Each of the two would find a node by itself.
        let words = "TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality";
        assert_eq!(fails(&world, "r", pair("m", "n")).await, words);
        goes(&world, "p").await;
        runs(&world, "s", pair("m", "n")).await;
        assert_eq!((cpuset(&world, "m").as_str(), cpuset(&world, "n").as_str()), ("2,8", "4,10"));
    });
}

#[tokio::test]
async fn work_is_counted_under_the_names_that_dashboards_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let sys = folder.path().join("sys");
    machine::write(&sys, &dual_socket_ht(), 4);
    let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
    let mut config = std::sync::Arc::into_inner(kubelet).unwrap().config;
    config.settings = settings(json!({"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node"}));
    let affinity = Affinity::new(&config, &Machine { cpus: 12, ..Machine::read() }, &sys).unwrap();
    let shows = |rows: &[&str]| {
        let text = affinity.render();
        for row in rows {
            assert!(text.lines().any(|line| line == *row), "{row}\n{text}");
        }
    };
    shows(&[
        "kubelet_cpu_manager_pinning_requests_total 0",
        "kubelet_cpu_manager_shared_pool_size_millicores 11000",
        "kubelet_memory_manager_pinning_requests_total 0",
    ]);
    let give = |uid: &str, containers: &[&str]| {
        let (pod, mut pass) = (requests::fixture::pod(uid, containers), Pass::default());
        requests::containers(&pod).try_for_each(|container| {
            affinity.align(&pass, &pod, Some(container), Default::default())?;
            affinity.allocate(&mut pass, &pod, container)
        })
    };
    assert_eq!(give("p", &["a 2", "b 6", "c 500m"]), Ok(()));
    assert_eq!(give("q", &["a 4"]).unwrap_err().reason, "TopologyAffinityError");
    affinity.admitted(false, std::time::Duration::from_millis(3));
    shows(&[
        "kubelet_cpu_manager_pinning_requests_total 2",
        "kubelet_cpu_manager_pinning_errors_total 0",
        "kubelet_cpu_manager_shared_pool_size_millicores 3000",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count 8",
        "kubelet_cpu_manager_allocation_per_numa{numa_node=\"0\"} 2",
        "kubelet_cpu_manager_allocation_per_numa{numa_node=\"1\"} 6",
        "kubelet_container_aligned_compute_resources_count{boundary=\"numa_node\",scope=\"container\"} 3",
        "kubelet_container_aligned_compute_resources_failure_count{boundary=\"numa_node\",scope=\"container\"} 1",
        "kubelet_topology_manager_admission_errors_total 1",
        "kubelet_topology_manager_admission_duration_ms_bucket{le=\"3.2\"} 1",
    ]);
    affinity.release("p").await;
    shows(&[
        "kubelet_cpu_manager_exclusive_cpu_allocation_count 0",
        "kubelet_cpu_manager_shared_pool_size_millicores 11000",
    ]);
}

#[tokio::test]
async fn what_the_machine_cannot_do_stops_the_kubelet() {
    let folder = tempfile::tempdir().unwrap();
    let sys = folder.path().join("sys");
    machine::write(&sys, &dual_socket_ht(), 4);
    let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
    let mut config = std::sync::Arc::into_inner(kubelet).unwrap().config;
    files::modes::make(&config.root_dir, files::modes::NODE_FOLDER).unwrap();
    let here = Machine { cpus: 12, memory: 8 << 30, ..Machine::read() };
    let mut made = |fields: Value| {
        config.settings = settings(fields);
        Affinity::new(&config, &here, &sys)
    };
    let mut why = |fields: Value| made(fields).err().unwrap_or_default();
    let none = "new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]";
    assert_eq!(why(json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}})), none);
    let unknown = "new static policy error: unknown CPU Manager Policy option: \"x\"";
    assert_eq!(why(json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"x": "true"}})), unknown);
    let two = json!([{"numaNode": 1, "limits": {"memory": "2Gi"}}]);
    let sum = "the total amount \"2Gi\" of type \"memory\" is not equal to the value \"1Gi\" determined by Node Allocatable feature";
    assert_eq!(why(json!({"memoryManagerPolicy": "Static", "reservedMemory": two})), sum);
    let unknown = "unknown Topology Manager Policy option: \"x\"";
    let options = json!({"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"x": "1"}});
    assert_eq!(why(options), unknown);
    // A state of another policy has to be looked at by a person.
    made(json!({"cpuManagerPolicy": "static"})).unwrap().save().await.unwrap();
    let other = made(json!({})).err().unwrap();
    let words = "start cpu manager error: could not restore state from checkpoint: configured policy \"none\" differs from state checkpoint policy \"static\", please drain this node and delete the CPU manager checkpoint file ";
    assert!(other.starts_with(words) && other.ends_with(" before restarting Kubelet"), "{other}");
    // So has one whose reserved processors are others.
    let reserved = made(json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "11-12"})).err().unwrap();
    assert!(reserved.ends_with("unknown CPU ID: 12"), "{reserved}");
    assert!(made(json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "1"})).is_ok());
}
