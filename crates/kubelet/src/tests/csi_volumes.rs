//! Volumes of CSI drivers in Pods: what their drivers are asked and when, and that none is left or lost, whatever becomes of
//! drivers and kubelets.

use std::{collections::BTreeSet, path::PathBuf};

use api::features::Feature;
use json::{Value, json};
use runtime::grpc::Code;

use crate::{
    csi::messages::{Ability, AccessType, Mode},
    pod::spec::selinux,
    tests::{
        csi_driver::{CsiDriver, Disks, Mood, volumes_in_use},
        world::{World, until},
    },
};

const D: &str = "d.example.com";
const NAME: &str = "kubernetes.io/csi/d.example.com^h";
/// sha256 of `hd.example.comn1`, and of `h`.
const ATTACHMENT: &str = "csi-bf00c1a8390d248b3d2cf999edcf90407ea15c756d80e7f004a227d25e1a3492";
const CLAIM: &str = "/api/v1/namespaces/d/persistentvolumeclaims/c";
const STAGED: &str =
    "plugins/kubernetes.io/csi/d.example.com/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";

/// A driver that stages, and an API server that knows it and has one volume of it, bound to the claim `c`.
pub fn world(driver: Value, spec: Value) -> (World, Disks) {
    let mut driver = driver;
    if driver["volumeLifecycleModes"].is_null() {
        driver["volumeLifecycleModes"] = json!(["Persistent"]);
    }
    let world = World::new();
    let disks = Disks::new(&world);
    disks.abilities.lock().push(Ability::StageUnstageVolume);
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{D}");
    world.api.put(&path, json!({"metadata": {"name": D}, "spec": driver}));
    let mut volume = json!({
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "d", "name": "c", "uid": "uid-of-c"},
        "csi": {"driver": D, "volumeHandle": "h", "volumeAttributes": {"colour": "red"}},
    });
    for (key, value) in spec.as_object().unwrap() {
        volume[key.as_str()] = value.clone();
    }
    world.api.put("/api/v1/persistentvolumes/pv", json!({"metadata": {"name": "pv"}, "spec": volume}));
    let claim = json!({"metadata": {"name": "c", "namespace": "d", "uid": "uid-of-c"}, "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    world.api.put(CLAIM, claim);
    (world, disks)
}

pub fn serve(world: &World, disks: &Disks) -> CsiDriver {
    CsiDriver::with(world, D, &["1.0.0"], D, disks.clone())
}

/// A Pod with the claim `c` as its volume `v`.
pub fn spec() -> Value {
    json!({
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 5,
        "serviceAccountName": "robot",
        "containers": [{"name": "m", "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    })
}

/// A Pod with a volume of its own.
fn inline(source: Value) -> Value {
    let mut pod = spec();
    pod["volumes"] = json!([{"name": "v", "csi": source}]);
    pod
}

/// The part of the controller and the attacher. It waits for the node to say that it uses the volume.
async fn attach(world: &World) {
    until("the node says that it uses the volume", || volumes_in_use(world).contains(NAME)).await;
    let status = json!({"attached": true, "attachmentMetadata": {"disk": "sdx"}});
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{ATTACHMENT}");
    world.api.put(
        &path,
        json!({"metadata": {"name": ATTACHMENT}, "status": status,
        "spec": {"attacher": D, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}}}),
    );
    let mut node = world.api.get("/api/v1/nodes/n1").unwrap();
    node["status"]["volumesAttached"] = json!([{"name": NAME, "devicePath": ""}]);
    world.api.put("/api/v1/nodes/n1", node);
}

pub async fn ready(world: &World, pod: &str) {
    until("the Pod is ready", || world.is_ready(pod)).await;
}

async fn gone(world: &World, pod: &str) {
    world.delete_pod(pod);
    until("the Pod is gone", || world.pod(pod).is_none()).await;
}

/// Waits until the driver was asked for something again and again.
async fn asked(disks: &Disks, call: &str) {
    let mut seen = 0;
    until(call, || {
        seen += disks.calls().iter().filter(|asked| *asked == call).count();
        seen > 2
    })
    .await;
}

/// Nothing of any Pod or volume is left, on the node and at the driver.
async fn all_gone(world: &World, disks: &Disks) {
    until("nothing is left of Pods", || world.left().is_empty()).await;
    until("the driver has nothing in use", || disks.in_use().is_empty()).await;
    until("the node uses no volume", || volumes_in_use(world).is_empty()).await;
    let own = world.kubelet_folder().join("plugins/kubernetes.io/csi");
    let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let shared = ["staging", "publish"].map(|name| own.join("volumeDevices").join(name));
    let left: Vec<_> = below(own).flat_map(below).filter(|path| !shared.contains(path)).collect();
    let left: Vec<_> = left.into_iter().chain(shared.into_iter().flat_map(below)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_volume_is_attached_staged_and_published_and_all_of_that_is_undone() {
    let (world, disks) = world(json!({"podInfoOnMount": true}), json!({"mountOptions": ["noatime"]}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        attach(&world).await;
        ready(&world, "p").await;
        assert_eq!(disks.calls(), ["Stage h", "Publish h"]);
        let staging = world.kubelet_folder().join(STAGED).join("globalmount").display().to_string();
        let stage = disks.last_stage();
        assert_eq!(
            (stage.staging_target_path.as_str(), &stage.publish_context["disk"]),
            (staging.as_str(), &"sdx".to_owned())
        );
        let capability = stage.volume_capability.unwrap();
        assert_eq!(capability.access_mode.unwrap().mode, Mode::SingleNodeWriter as i32);
        let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("{:?}", capability.access_type) };
        assert_eq!(mount.mount_flags, ["noatime"]);
        let publish = disks.last_publish();
        let target = world.pod_dir("p").join("volumes/kubernetes.io~csi/pv/mount");
        assert_eq!((publish.target_path.as_str(), publish.readonly), (target.to_str().unwrap(), false));
        assert_eq!(
            (publish.staging_target_path.as_str(), &publish.publish_context["disk"]),
            (staging.as_str(), &"sdx".to_owned())
        );
        let context =
            |key: &str| publish.volume_context.get(&format!("csi.storage.k8s.io/{key}")).cloned().unwrap_or_default();
        let told = ["pod.name", "pod.namespace", "pod.uid", "serviceAccount.name", "ephemeral"].map(context);
        assert_eq!(told, ["p", "d", "p-1", "robot", "false"]);
        assert_eq!(publish.volume_context["colour"], "red");
        let record = std::fs::read_to_string(world.pod_dir("p").join("volumes/kubernetes.io~csi/pv/vol_data.json"));
        let record: Value = serde_json::from_str(&record.unwrap()).unwrap();
        let keys = ["specVolID", "volumeHandle", "driverName", "nodeName", "attachmentID", "volumeLifecycleMode"];
        assert_eq!(keys.map(|key| record[key].as_str().unwrap()), ["pv", "h", D, "n1", ATTACHMENT, "Persistent"]);
        // Another Pod gets the same staged volume, to read it only.
        let mut other = spec();
        other["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
        world.make_pod("q", other);
        ready(&world, "q").await;
        assert_eq!(disks.calls(), ["Publish h"]);
        assert!(disks.last_publish().readonly);
        gone(&world, "p").await;
        assert_eq!(disks.calls(), ["Unpublish h"]);
        assert_eq!(volumes_in_use(&world), BTreeSet::from([NAME.to_owned()]));
        gone(&world, "q").await;
        all_gone(&world, &disks).await;
        assert_eq!(disks.calls(), ["Unpublish h", "Unstage h"]);
    });
}

#[test]
fn a_volume_of_one_pod_is_mounted_with_its_label() {
    labelled_one_at_a_time(
        "ReadWriteOncePod",
        "FailedMount: MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode and is already in \
         use by another pod",
    );
}

#[test]
fn a_volume_of_several_pods_is_mounted_with_one_label_at_a_time() {
    // Nobody gives a Pod the volume with the label of another, and nobody takes it away from that one.
    labelled_one_at_a_time(
        "ReadWriteOnce",
        "FailedMount: MountVolume.MountDevice failed for volume \"pv\" : conflicting SELinux labels: it is mounted with \
         \"system_u:object_r:container_file_t:s0:c1\", and the Pod wants \"system_u:object_r:container_file_t:s0:c2\"",
    );
}

fn labelled_one_at_a_time(mode: &str, why: &str) {
    let (world, disks) = world(json!({"attachRequired": false, "seLinuxMount": true}), json!({"accessModes": [mode]}));
    let usual = *world.features.lock();
    *world.features.lock() = usual.with(Feature::SELinuxMount, mode != "ReadWriteOncePod");
    *world.labels.lock() = Some(selinux::Context::usual().into());
    let folder = world.path("of-the-host");
    let labelled = |level: &str| {
        let mut pod = spec();
        let more =
            [("e", json!({"emptyDir": {}})), ("h", json!({"hostPath": {"path": folder, "type": "DirectoryOrCreate"}}))];
        for (name, source) in more {
            let mut volume = source;
            volume["name"] = name.into();
            pod["volumes"].as_array_mut().unwrap().push(volume);
            let mount = json!({"name": name, "mountPath": format!("/{name}")});
            pod["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
        }
        pod["securityContext"] = json!({"seLinuxOptions": {"level": level}});
        pod
    };
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        let flags = |level: &str| [format!("context=\"system_u:object_r:container_file_t:{level}\"")];
        let check = |level: &str| {
            for capability in [disks.last_stage().volume_capability, disks.last_publish().volume_capability] {
                let access = capability.unwrap().access_type;
                let Some(AccessType::Mount(mount)) = access else { panic!("{access:?}") };
                assert_eq!(mount.mount_flags, flags(level));
            }
        };
        world.make_pod("p", labelled("s0:c1"));
        ready(&world, "p").await;
        check("s0:c1");
        // The engine labels the Pod's own files, but not what has its label by then, or belongs to the node.
        let mounts = world.engine.mounts("m").into_iter().filter(|mount| mount.selinux_relabel);
        let relabelled: Vec<_> = mounts.map(|mount| mount.container_path).collect();
        assert_eq!(relabelled, ["/e", "/etc/hosts", "/dev/termination-log"]);
        let record = world.pod_dir("p").join("volumes/kubernetes.io~csi/pv/vol_data.json");
        let record: Value = serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap();
        assert_eq!(record["selinuxMountContext"], "system_u:object_r:container_file_t:s0:c1");
        world.make_pod("q", labelled("s0:c2"));
        until("it has to wait", || world.api.has_said(why)).await;
        assert_eq!(disks.calls(), ["Stage h", "Publish h"]);
        gone(&world, "p").await;
        ready(&world, "q").await;
        check("s0:c2");
        assert_eq!(disks.calls(), ["Unpublish h", "Unstage h", "Stage h", "Publish h"]);
        gone(&world, "q").await;
        all_gone(&world, &disks).await;
    });
}

#[test]
fn a_driver_without_stages_and_attachments_is_asked_for_neither() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    disks.abilities.lock().clear();
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        ready(&world, "p").await;
        assert_eq!(disks.last_publish().staging_target_path, "");
        assert!(disks.last_publish().volume_context.keys().all(|key| key == "colour"));
        assert!(volumes_in_use(&world).is_empty());
        gone(&world, "p").await;
        all_gone(&world, &disks).await;
        assert_eq!(disks.calls(), ["Publish h", "Unpublish h"]);
    });
}

#[test]
fn a_volume_of_the_pods_own_goes_with_it() {
    let modes = json!(["Ephemeral"]);
    let (world, disks) = world(json!({"volumeLifecycleModes": modes, "podInfoOnMount": true}), json!({}));
    world.api.put("/api/v1/namespaces/d/secrets/key", json!({"metadata": {"name": "key"}, "data": {"k": "c2VjcmV0"}}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        let source = json!({"driver": D, "volumeAttributes": {"size": "1"}, "nodePublishSecretRef": {"name": "key"}});
        world.make_pod("p", inline(source));
        ready(&world, "p").await;
        let publish = disks.last_publish();
        // sha256 of `p-1v`.
        assert_eq!(publish.volume_id, "csi-91173eb4f4597142f8994874d1baa343fb0362ec009aef312ad8f31a0199fd77");
        let told = ["size", "csi.storage.k8s.io/ephemeral"].map(|key| publish.volume_context[key].as_str());
        assert_eq!((told, publish.secrets["k"].as_str()), (["1", "true"], "secret"));
        assert!(publish.target_path.ends_with("volumes/kubernetes.io~csi/v/mount"), "{}", publish.target_path);
        gone(&world, "p").await;
        all_gone(&world, &disks).await;
        let calls: Vec<_> = disks.calls().iter().map(|c| c.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(calls, ["Publish", "Unpublish"]);
        // Persistent volumes are not among what it says it has.
        world.make_pod("q", spec());
        let why = "FailedMount: MountVolume.SetUp failed for volume \"pv\" : volume mode \"Persistent\" not supported by \
                   driver d.example.com (only supports [\"Ephemeral\"])";
        until("it is refused", || world.api.has_said(why)).await;
        assert_eq!(disks.calls(), Vec::<String>::new());
    });
}

#[test]
fn a_pod_waits_for_its_driver_and_says_what_the_driver_says() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    world.life(None, async || {
        world.make_pod("p", spec());
        let said = async |words: &str| until(words, || world.api.has_said(words)).await;
        let device = "FailedMount: MountVolume.MountDevice failed for volume \"pv\" : ";
        let unknown = format!("driver name {D} not found in the list of registered CSI drivers");
        let words = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: ";
        said(&format!("{device}{words}{unknown}")).await;
        disks.becomes("Stage", Some(Mood::Refusing("no disk")));
        let _driver = serve(&world, &disks);
        said(&format!("{device}rpc error: code = Internal desc = no disk")).await;
        disks.becomes("Stage", Some(Mood::Hanging));
        said(&format!("{device}rpc error: code = DeadlineExceeded desc = context deadline exceeded")).await;
        disks.becomes("Stage", None);
        disks.becomes("Publish", Some(Mood::Refusing("no room")));
        said("FailedMount: MountVolume.SetUp failed for volume \"pv\" : rpc error: code = Internal desc = no room")
            .await;
        disks.becomes("Publish", None);
        ready(&world, "p").await;
        // While a driver does not give a volume back, its Pod stays, and the volume is not unstaged.
        disks.becomes("Unpublish", Some(Mood::Refusing("busy")));
        world.delete_pod("p");
        asked(&disks, "Unpublish h").await;
        assert!(world.pod("p").is_some());
        disks.becomes("Unpublish", None);
        disks.becomes("Unstage", Some(Mood::Refusing("busy")));
        until("the Pod is gone", || world.pod("p").is_none()).await;
        asked(&disks, "Unstage h").await;
        assert_eq!(disks.in_use(), ["staged h"]);
        // A Pod that comes meanwhile gets it as it is.
        world.make_pod("q", spec());
        ready(&world, "q").await;
        disks.becomes("Unstage", None);
        gone(&world, "q").await;
        all_gone(&world, &disks).await;
    });
}

#[test]
fn what_a_driver_has_refused_is_not_undone_and_what_it_may_have_done_is() {
    for (method, mood, expected) in [
        ("Stage", Mood::Refusing("no"), &[][..]),
        ("Stage", Mood::Unsure, &["Unstage h"][..]),
        ("Publish", Mood::Refusing("no"), &["Unstage h"][..]),
        ("Publish", Mood::Unsure, &["Unpublish h", "Unstage h"][..]),
        ("Publish", Mood::Hanging, &["Unpublish h", "Unstage h"][..]),
    ] {
        let (world, disks) = world(json!({"attachRequired": false}), json!({}));
        disks.becomes(method, Some(mood));
        world.life(None, async || {
            let _driver = serve(&world, &disks);
            world.make_pod("p", spec());
            let asked = format!("{method} h");
            until("the driver is asked", || disks.calls().contains(&asked)).await;
            gone(&world, "p").await;
            all_gone(&world, &disks).await;
            let undone: Vec<String> = disks.calls().into_iter().filter(|call| call.starts_with("Un")).collect();
            assert_eq!(undone, expected, "{method}");
        });
    }
}

#[test]
fn what_could_not_be_unstaged_is_staged_again_for_the_next_pod() {
    for mood in [Mood::Failing(Code::InvalidArgument), Mood::Failing(Code::DeadlineExceeded)] {
        let (world, disks) = world(json!({"attachRequired": false}), json!({}));
        world.life(None, async || {
            let _driver = serve(&world, &disks);
            world.make_pod("p", spec());
            ready(&world, "p").await;
            disks.becomes("Unstage", Some(mood));
            disks.calls();
            world.delete_pod("p");
            asked(&disks, "Unstage h").await;
            until("the Pod is gone", || world.pod("p").is_none()).await;
            disks.calls();
            world.make_pod("q", spec());
            ready(&world, "q").await;
            let calls = disks.calls();
            let kept: Vec<_> = calls.iter().filter(|call| *call != "Unstage h").map(String::as_str).collect();
            assert_eq!(kept, ["Stage h", "Publish h"]);
            disks.becomes("Unstage", None);
            world.delete_pod("q");
            until("the Pod is gone", || world.pod("q").is_none()).await;
            all_gone(&world, &disks).await;
        });
    }
}

#[test]
fn a_driver_that_only_says_that_it_has_undone_something_leaves_nothing_behind() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        ready(&world, "p").await;
        for method in ["Unpublish", "Unstage"] {
            disks.becomes(method, Some(Mood::Lying));
        }
        gone(&world, "p").await;
        until("nothing is left of Pods", || world.left().is_empty()).await;
        assert_eq!(disks.in_use(), ["staged h", "published h"]);
    });
}

#[test]
fn a_volume_that_nobody_attaches_is_not_used() {
    let (world, disks) = world(json!({}), json!({}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        let why = "FailedMount: Unable to attach or mount volumes: unmounted volumes=[pv], unattached volumes=[], failed to \
                   process volumes=[]: context deadline exceeded";
        until("the Pod says so", || world.api.has_said(why)).await;
        assert_eq!(disks.calls(), Vec::<String>::new());
        attach(&world).await;
        ready(&world, "p").await;
    });
}

#[test]
fn a_node_without_a_place_for_a_volume_says_so_and_refuses_the_pod() {
    let (world, disks) = world(json!({}), json!({}));
    world.life(None, async || {
        disks.info.lock().max_volumes_per_node = 3;
        let driver = serve(&world, &disks);
        until("it is registered", || driver.is_registered()).await;
        let error = json!({"message": "no more slots", "errorCode": 8});
        let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{ATTACHMENT}");
        let attachment = json!({"metadata": {"name": ATTACHMENT}, "status": {"attached": false, "attachError": error},
            "spec": {"attacher": D, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}}});
        world.api.put(&path, attachment);
        disks.info.lock().max_volumes_per_node = 2;
        world.make_pod("p", spec());
        until("the Pod is refused", || world.phase("p") == "Failed").await;
        let status = world.pod("p").unwrap()["status"].clone();
        assert_eq!(status["reason"], "VolumeAttachmentLimitExceeded");
        let message = "Pod was rejected: Node has reached its volume attachment limit, rejecting pod";
        assert_eq!(status["message"], message);
        let node = world.api.get("/apis/storage.k8s.io/v1/csinodes/n1").unwrap();
        assert_eq!(node["spec"]["drivers"][0]["allocatable"]["count"], 2);
        world.delete_pod("p");
        until("it has gone", || world.pod("p").is_none()).await;
    });
    assert_eq!(world.left(), Vec::<String>::new());
}

#[test]
fn secrets_tokens_and_groups_reach_the_driver_that_wants_them() {
    let secret = |name: &str| json!({"namespace": "storage", "name": name});
    let source = json!({"driver": D, "volumeHandle": "h", "nodeStageSecretRef": secret("stage"), "nodePublishSecretRef":
        secret("publish")});
    let tokens = json!([{"audience": "vault", "expirationSeconds": 600}]);
    let driver = json!({"attachRequired": false, "tokenRequests": tokens, "fsGroupPolicy": "File"});
    let (world, disks) = world(driver, json!({"csi": source, "accessModes": ["ReadWriteOncePod"]}));
    let abilities = [Ability::StageUnstageVolume, Ability::VolumeMountGroup, Ability::SingleNodeMultiWriter];
    *disks.abilities.lock() = abilities.to_vec();
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        let mut pod = spec();
        pod["securityContext"] = json!({"fsGroup": 77});
        world.make_pod("p", pod);
        let missing = "MountVolume.MountDevice failed for volume \"pv\" : fetching NodeStageSecretRef storage/stage failed: \
                       failed to find the secret stage in the namespace storage with error: secrets \"stage\" not found";
        until("the Pod says what is missing", || world.api.has_said(missing)).await;
        for name in ["stage", "publish"] {
            let data = json!({"metadata": {"name": name, "namespace": "storage"}, "data": {"for": if name == "stage" { "cw==" } else { "cA==" }}});
            world.api.put(&format!("/api/v1/namespaces/storage/secrets/{name}"), data);
        }
        ready(&world, "p").await;
        let (stage, publish) = (disks.last_stage(), disks.last_publish());
        assert_eq!((stage.secrets["for"].as_str(), publish.secrets["for"].as_str()), ("s", "p"));
        let tokens: Value = serde_json::from_str(&publish.volume_context["csi.storage.k8s.io/serviceAccount.tokens"]).unwrap();
        assert_eq!(tokens["vault"]["token"], "a-token");
        assert!(tokens["vault"]["expirationTimestamp"].as_str().unwrap().ends_with('Z'), "{tokens}");
        for capability in [stage.volume_capability.unwrap(), publish.volume_capability.unwrap()] {
            assert_eq!(capability.access_mode.unwrap().mode, Mode::SingleNodeSingleWriter as i32);
            let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("not mounted") };
            assert_eq!(mount.volume_mount_group, "77");
        }
    });
}

#[test]
fn a_driver_that_wants_to_publishes_again_and_again() {
    let (world, disks) = world(json!({"attachRequired": false, "requiresRepublish": true}), json!({}));
    let story = async || {
        let _driver = serve(&world, &disks);
        ready(&world, "p").await;
        asked(&disks, "Publish h").await;
        // A refusal takes nothing away from a Pod that has its volume.
        disks.becomes("Publish", Some(Mood::Refusing("no")));
        until("it was asked", || disks.calls().contains(&"Publish h".to_owned())).await;
        assert_eq!(disks.in_use(), ["staged h", "published h"]);
        let words = "FailedMount: MountVolume.SetUp failed for volume \"pv\" : rpc error: code = Internal desc = no";
        until("the Pod says so", || world.api.has_said(words)).await;
        disks.becomes("Publish", None);
    };
    world.make_pod("p", spec());
    world.life(None, story);
    world.life(None, async || {
        story().await;
        let _driver = serve(&world, &disks);
        gone(&world, "p").await;
        all_gone(&world, &disks).await;
    });
}

#[test]
fn a_block_volume_has_places_of_its_own_and_is_a_block_device() {
    let (world, disks) =
        world(json!({"attachRequired": false, "podInfoOnMount": true}), json!({"volumeMode": "Block"}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        let mut pod = spec();
        world.make_pod("mounts", pod.clone());
        let words = "error processing PVC c: volume v has volumeMode Block, but is specified in volumeMounts";
        until("who mounts it hears why not", || world.api.has_said(words)).await;
        gone(&world, "mounts").await;
        let container = &mut pod["containers"][0];
        (container["volumeMounts"], container["volumeDevices"]) =
            (json!([]), json!([{"name": "v", "devicePath": "/dev/x"}]));
        world.make_pod("p", pod);
        // The driver has made a folder there.
        let own = world.kubelet_folder().join("plugins/kubernetes.io/csi/volumeDevices");
        let target = own.join("publish/pv/p-1").display().to_string();
        let words = "FailedMapVolume: MapVolume.SetUpDevice failed for volume \"pv\" : ";
        let words = format!("{words}{target} is not a block device");
        until("the Pod says so", || world.api.has_said(&words)).await;
        let (stage, publish) = (disks.last_stage(), disks.last_publish());
        assert_eq!(stage.staging_target_path, own.join("staging/pv").display().to_string());
        assert_eq!(publish.target_path, target);
        assert_eq!(publish.volume_context.len(), 1, "drivers of devices hear nothing of Pods");
        for capability in [stage.volume_capability, publish.volume_capability] {
            assert!(matches!(capability.unwrap().access_type, Some(AccessType::Block(_))));
        }
        gone(&world, "p").await;
        all_gone(&world, &disks).await;
    });
}

/// Makes the volume larger, and the claim wait for the node to follow.
fn grow(world: &World, size: &str) {
    let mut volume = world.api.get("/api/v1/persistentvolumes/pv").unwrap();
    volume["spec"]["capacity"]["storage"] = size.into();
    world.api.put("/api/v1/persistentvolumes/pv", volume);
    let mut claim = world.api.get(CLAIM).unwrap();
    claim["spec"]["resources"]["requests"]["storage"] = size.into();
    claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
    claim["status"]["conditions"] = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    world.api.put(CLAIM, claim);
}

/// The claim's status: its capacity, what is under way, and its conditions.
fn claim_says(world: &World) -> [String; 3] {
    let status = world.api.get(CLAIM).unwrap()["status"].clone();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let conditions: Vec<_> = conditions.iter().map(|c| c["type"].as_str().unwrap().to_owned()).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    [text(&status["capacity"]["storage"]), text(&status["allocatedResourceStatuses"]["storage"]), conditions.join(" ")]
}

#[test]
fn a_volume_grows_when_a_pod_gets_it_and_while_it_has_it() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    disks.abilities.lock().push(Ability::ExpandVolume);
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        grow(&world, "2Gi");
        world.make_pod("p", spec());
        ready(&world, "p").await;
        assert_eq!(disks.calls(), ["Stage h", "Publish h", "Expand h"]);
        let (expand, publish) = (disks.last_expand(), disks.last_publish());
        let paths = (expand.volume_path, expand.staging_target_path);
        assert_eq!(paths, (publish.target_path, publish.staging_target_path));
        assert_eq!(expand.capacity_range.unwrap().required_bytes, 2 << 30);
        assert_eq!(claim_says(&world), ["2Gi", "", ""]);
        assert!(world.api.has_said("FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume \"pv\""));
        // While it is in use: refused for now, for good, and done.
        disks.becomes("Expand", Some(Mood::Refusing("busy")));
        grow(&world, "3Gi");
        let words = "VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : Expander.NodeExpand \
                     failed to expand the volume : rpc error: code = Internal desc = busy";
        until("the Pod says so", || world.api.has_said(words)).await;
        let conditions = "FileSystemResizePending NodeResizeError";
        assert_eq!(claim_says(&world), ["2Gi", "NodeResizeInProgress", conditions]);
        disks.becomes("Expand", Some(Mood::Failing(Code::OutOfRange)));
        until("the claim says so", || claim_says(&world) == ["2Gi", "NodeResizeInfeasible", conditions]).await;
        disks.becomes("Expand", None);
        grow(&world, "4Gi");
        until("it has grown", || claim_says(&world) == ["4Gi", "", ""]).await;
        assert_eq!(disks.last_expand().capacity_range.unwrap().required_bytes, 4 << 30);
        // A driver that cannot do it while the volume is in use keeps no Pod from it, and is not asked again.
        disks.becomes("Expand", Some(Mood::Failing(Code::FailedPrecondition)));
        grow(&world, "5Gi");
        let error = || claim_says(&world)[2].contains("NodeResizeError");
        until("the claim says so", error).await;
        disks.calls();
        world.make_pod("q", spec());
        ready(&world, "q").await;
        assert_eq!(disks.calls(), ["Publish h"]);
    });
}

#[test]
fn a_volume_that_does_not_grow_keeps_a_pod_from_it() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        grow(&world, "2Gi");
        world.make_pod("p", spec());
        let words = "FailedMount: MountVolume.Setup failed while expanding volume for volume \"pv\" : NodeExpand is not \
                     supported by the CSI driver d.example.com";
        until("the Pod says so", || world.api.has_said(words)).await;
        assert!(claim_says(&world)[2].contains("NodeResizeError"));
        assert!(!world.is_ready("p"));
        disks.abilities.lock().push(Ability::ExpandVolume);
        ready(&world, "p").await;
        assert_eq!(claim_says(&world), ["2Gi", "", ""]);
    });
}

#[test]
fn a_claim_that_asks_for_another_size_after_a_failure_is_given_back_to_its_resizer() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    disks.abilities.lock().push(Ability::ExpandVolume);
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        ready(&world, "p").await;
        disks.becomes("Expand", Some(Mood::Failing(Code::PermissionDenied)));
        grow(&world, "9Gi");
        until("the claim says so", || claim_says(&world)[2].contains("NodeResizeError")).await;
        assert_eq!(claim_says(&world)[1], "NodeResizeInProgress");
        disks.calls();
        until("it is tried again", || disks.calls() == ["Expand h"]).await;
        assert_eq!(claim_says(&world)[1], "NodeResizeInProgress", "nothing else is wanted");
        let mut claim = world.api.get(CLAIM).unwrap();
        claim["spec"]["resources"]["requests"]["storage"] = "5Gi".into();
        world.api.put(CLAIM, claim);
        until("it is over", || claim_says(&world)[1] == "NodeResizeInfeasible").await;
        // Which is the resizer's to mend: it asks for less, and the node may try again.
        disks.becomes("Expand", None);
        grow(&world, "5Gi");
        until("it has grown", || claim_says(&world) == ["5Gi", "", ""]).await;
    });
}

#[test]
fn a_volume_of_several_nodes_that_grew_elsewhere_grows_here_too_where_its_driver_can_do_that() {
    for can in [false, true] {
        let (world, disks) = world(json!({"attachRequired": false}), json!({"accessModes": ["ReadWriteMany"]}));
        if can {
            disks.abilities.lock().push(Ability::ExpandVolume);
        }
        world.life(None, async || {
            let _driver = serve(&world, &disks);
            let mut claim = world.api.get(CLAIM).unwrap();
            claim["spec"]["accessModes"] = json!(["ReadWriteMany"]);
            world.api.put(CLAIM, claim);
            world.make_pod("p", spec());
            ready(&world, "p").await;
            // Another node has done its part, and said so.
            grow(&world, "2Gi");
            let mut claim = world.api.get(CLAIM).unwrap();
            claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
            world.api.put(CLAIM, claim);
            disks.calls();
            world.make_pod("q", spec());
            ready(&world, "q").await;
            let expected: &[&str] = if can { &["Publish h", "Expand h"] } else { &["Publish h"] };
            assert_eq!(disks.calls(), expected);
            assert_eq!(claim_says(&world), ["2Gi", "", ""]);
            assert!(!world.api.has_said("VolumeResizeFailed"));
        });
    }
}

/// Says anew whether the driver's volumes are attached: it does not change in an object.
fn attaches(world: &World, required: bool) {
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{D}");
    let spec = json!({"attachRequired": required, "volumeLifecycleModes": ["Persistent"]});
    world.api.put(&path, json!({"metadata": {"name": D}, "spec": spec}));
}

#[test]
fn a_driver_that_turns_out_to_need_no_attachment_has_its_volumes_let_go_of_while_pods_have_them() {
    let (world, disks) = world(json!({}), json!({}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        attach(&world).await;
        ready(&world, "p").await;
        attaches(&world, false);
        until("the node uses nothing that is attached", || volumes_in_use(&world).is_empty()).await;
        assert!(world.is_ready("p"));
        assert_eq!(disks.calls(), ["Stage h", "Publish h"], "the Pod keeps its volume");
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        all_gone(&world, &disks).await;
    });
}

#[test]
fn a_pod_that_waits_for_an_attachment_starts_when_none_is_needed() {
    let (world, disks) = world(json!({}), json!({}));
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        until("the node says that it uses the volume", || volumes_in_use(&world).contains(NAME)).await;
        attaches(&world, false);
        ready(&world, "p").await;
        assert!(!world.api.has_said("FailedMount"), "it did not wait to the end");
        until("the node uses nothing that is attached", || volumes_in_use(&world).is_empty()).await;
    });
    // A kubelet that starts anew has nothing in use either.
    world.life(None, async || {
        let _driver = serve(&world, &disks);
        ready(&world, "p").await;
        assert!(volumes_in_use(&world).is_empty());
    });
}

/// A Pod with a volume that is attached and staged, and one of its own, from its beginning to its end.
async fn story(world: &World, disks: &Disks) {
    let _driver = serve(world, disks);
    if world.pod("p").is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
        attach(world).await;
        ready(world, "p").await;
        world.delete_pod("p");
    }
    until("the Pod is gone", || world.pod("p").is_none()).await;
    all_gone(world, disks).await;
}

fn doomed() -> (World, Disks) {
    let modes = json!(["Ephemeral", "Persistent"]);
    let (world, disks) = world(json!({"volumeLifecycleModes": modes}), json!({}));
    let mut pod = spec();
    pod["volumes"] = json!([pod["volumes"][0], {"name": "own", "csi": {"driver": D}}]);
    world.make_pod("p", pod);
    (world, disks)
}

#[test]
fn no_volume_is_left_or_lost_wherever_the_kubelet_is_killed() {
    for pass in 1.. {
        let (world, disks) = doomed();
        let was_killed = !world.life(Some(pass), async || story(&world, &disks).await);
        if was_killed {
            assert!(world.life(None, async || story(&world, &disks).await));
        }
        assert_eq!(disks.in_use(), Vec::<String>::new(), "killed at {pass}");
        if !was_killed {
            assert!(pass > 20, "only {pass} calls went out");
            return;
        }
    }
}

#[test]
fn no_volume_is_left_or_lost_although_the_kubelet_is_killed_again_and_again() {
    let (world, disks) = doomed();
    let mut lives = 1_u64;
    while !world.life(Some(lives * 2), async || story(&world, &disks).await) {
        lives += 1;
    }
    assert!(lives > 5, "only {lives} lives");
    assert_eq!(disks.in_use(), Vec::<String>::new());
}
