//! Tables: a claim and its volume, and what is written and told.

use std::sync::Arc;

use clock::Timestamp;
use controller::{Controller, Note, Plan, Step};
use json::{Value, json};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use super::{
    claims::{Claims, Observed},
    recycle::{Progress, Settings, pod_for},
    volumes::{self, Volumes},
};

fn volumes() -> Volumes {
    Volumes::new(Settings::default())
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Words: bound, named (of `v`), class (`c`), classless (no field), selected, ordered, and a phase.
fn claim(words: &str) -> PersistentVolumeClaim {
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let mut annotations = json!({});
    let mut note = |word: &str, name: &str, value: &str| {
        if has(word) {
            annotations[name] = json!(value);
        }
    };
    note("bound", "pv.kubernetes.io/bind-completed", "yes");
    note("selected", "volume.kubernetes.io/selected-node", "n");
    note("ordered", "volume.kubernetes.io/storage-provisioner", "example.com/maker");
    let phase = ["Bound", "Lost"].into_iter().find(|p| has(p)).unwrap_or("Pending");
    let class = match () {
        () if has("class") => json!("c"),
        () if has("classless") => Value::Null,
        () => json!(""),
    };
    let claim = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeName": has("named").then_some("v"),
            "volumeMode": has("block").then_some("Block"), "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": phase, "accessModes": if phase == "Bound" { json!(["ReadWriteOnce"]) } else { json!(null) }}});
    json::from_value(claim).unwrap()
}

/// Words: ours (bound to the claim), reserved (by name), others, by-controller, small, growing, made (by a provisioner),
/// internal (by one that is gone), csi, tmp, Delete, Recycle, and a phase.
fn volume(words: &str) -> PersistentVolume {
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let held = match () {
        () if has("ours") => json!({"namespace": "d", "name": "p", "uid": "u"}),
        () if has("reserved") => json!({"namespace": "d", "name": "p"}),
        () if has("others") => json!({"namespace": "d", "name": "p", "uid": "another"}),
        () => Value::Null,
    };
    let mut annotations = json!({});
    let mut note = |word: &str, name: &str, value: &str| {
        if has(word) {
            annotations[name] = json!(value);
        }
    };
    note("by-controller", "pv.kubernetes.io/bound-by-controller", "yes");
    note("growing", "volume.alpha.kubernetes.io/pre-resize-capacity", "1Gi");
    note("made", "pv.kubernetes.io/provisioned-by", "example.com/maker");
    note("internal", "pv.kubernetes.io/provisioned-by", "kubernetes.io/gone");
    let phase = ["Bound", "Released", "Failed"].into_iter().find(|p| has(p)).unwrap_or("Available");
    let policy = ["Delete", "Recycle"].into_iter().find(|p| has(p)).unwrap_or("Retain");
    let volume = json!({"metadata": {"name": "v", "uid": "w", "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": if has("small") { "1Mi" } else { "2Gi" }},
            "claimRef": held, "storageClassName": has("class").then_some("c"), "persistentVolumeReclaimPolicy": policy,
            "csi": has("csi").then(|| json!({"driver": "d", "volumeHandle": "h"})),
            "hostPath": (!has("csi")).then(|| json!({"path": if has("tmp") { "/tmp/x" } else { "/data" }}))},
        "status": {"phase": phase}});
    json::from_value(volume).unwrap()
}

/// The writes with what matters of them, then the events.
fn told(plan: &Plan) -> String {
    let mut parts: Vec<String> = Vec::new();
    let say = |note: &Note| format!("{}: {}", note.reason, note.message);
    for step in &plan.steps {
        match step {
            Step::One(write) => {
                let body = write.body();
                let marks = body["metadata"]["annotations"].as_object().into_iter().flatten();
                let marks = marks.map(|(name, _)| name.rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>();
                let fact = match (write.subresource, write.resource.plural.as_str()) {
                    ("status", _) => body["status"]["phase"].to_string(),
                    (_, "persistentvolumes") => format!("{} {marks:?}", body["spec"]["claimRef"]["uid"]),
                    _ => format!("{} {} {marks:?}", body["spec"]["volumeName"], body["spec"]["storageClassName"]),
                };
                parts.push(format!("{write} {fact}"));
                parts.extend(write.on_success.as_ref().map(say));
            }
            Step::Tell(note) => parts.push(say(note)),
            _ => unreachable!("the binder writes one by one"),
        }
    }
    parts.extend(plan.status.as_ref().map(|write| format!("{write} {}", write.body()["status"]["phase"])));
    parts.join("; ").replace('"', "").replace("persistentvolumeclaims", "claim").replace("persistentvolumes", "volume")
}

fn check_claim(words: &str, offered: Option<&str>, expected: &str) {
    let observed = Observed { volume: offered.map(|words| Arc::new(volume(words))), ..Observed::default() };
    let plan = Claims::new(false).plan(&claim(words), &observed, NOW);
    assert_eq!(told(&plan), expected, "{words} with {offered:?}");
}

#[test]
fn a_binding_is_written_side_by_side() {
    check_claim("", Some(""), "update volume v u [bound-by-controller]");
    // Interrupted after each write.
    check_claim(
        "",
        Some("ours by-controller"),
        "update volume/status v Bound; update claim p v  [bind-completed, bound-by-controller]",
    );
    check_claim("", Some("ours by-controller Bound"), "update claim p v  [bind-completed, bound-by-controller]");
    check_claim("named bound", Some("ours by-controller Bound"), "update claim/status p Bound");
    check_claim("named bound Bound", Some("ours by-controller Bound"), "");
    // Reserved by a user on either side, and on both.
    check_claim("", Some("reserved"), "update volume v u []");
    check_claim("named", Some(""), "update volume v u [bound-by-controller]");
    check_claim("named", Some("reserved"), "update volume v u []");
    check_claim("named", Some("ours Bound"), "update claim p v  [bind-completed]");
}

#[test]
fn a_named_volume_may_not_do() {
    let different = "FailedBinding: volume v already bound to a different claim.";
    check_claim("named", Some("others"), different);
    check_claim("named", Some("small"), "VolumeMismatch: Cannot bind to requested volume v: requested PV is too small");
    check_claim("named", None, "");
    check_claim("named Lost", None, "update claim/status p Pending");
}

#[test]
fn what_was_bound_is_bound_again_or_lost() {
    check_claim("named bound Bound", Some(""), "update volume v u [bound-by-controller]");
    let lost = |why: &str| format!("update claim/status p Lost; {why}");
    check_claim(
        "bound Bound",
        None,
        &lost("ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"),
    );
    let gone = lost("ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    check_claim("named bound Bound", None, &gone);
    check_claim("named bound Lost", None, "");
    check_claim(
        "named bound Bound",
        Some("others"),
        &lost("ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"),
    );
    let late = Observed { cache_is_late: true, ..Observed::default() };
    assert!(Claims::new(false).plan(&claim("named bound Bound"), &late, NOW).is_empty());
}

#[test]
fn a_claim_without_volume_waits_or_orders_one() {
    let class = |words: &str| -> StorageClass {
        let mode = if words.contains("late") { "WaitForFirstConsumer" } else { "Immediate" };
        let maker = words.split(' ').find(|w| w.contains('/')).unwrap_or("example.com/maker");
        let value = json!({"metadata": {"name": "c"}, "provisioner": maker, "volumeBindingMode": mode});
        json::from_value(value).unwrap()
    };
    let check = |words: &str, of: Option<&str>, default: Option<&str>, pods: &[&str], expected: &str| {
        let observed = Observed {
            class: of.map(|words| Arc::new(class(words))),
            default_class: default.map(str::to_owned),
            waiting: pods.iter().map(|p| (*p).to_owned()).collect(),
            ..Observed::default()
        };
        let plan = Claims::new(false).plan(&claim(words), &observed, NOW);
        assert_eq!(told(&plan), expected, "{words} of {of:?}");
    };
    let none = "FailedBinding: no persistent volumes available for this claim and no storage class is set";
    check("", None, None, &[], none);
    check("classless", None, None, &[], none);
    check("classless", None, Some("best"), &[], "update claim p null best []");
    let first = "WaitForFirstConsumer: waiting for first consumer to be created before binding";
    check("class", Some("late"), None, &[], first);
    check("class", Some("late"), None, &["a"], "WaitForPodScheduled: waiting for pod a to be scheduled");
    check("class", Some("late"), None, &["a", "b"], "WaitForPodScheduled: waiting for pods a,b to be scheduled");
    let waiting = |maker: &str| {
        format!(
            "ExternalProvisioning: Waiting for a volume to be created either by the external provisioner '{maker}' or \
             manually by the system administrator. If volume creation is delayed, please verify that the provisioner is \
             running and correctly registered."
        )
    };
    let ordered = |marks: &str, maker: &str| format!("update claim p null c [{marks}]; {}", waiting(maker));
    let marks = "storage-provisioner, storage-provisioner";
    check("class", Some(""), None, &[], &ordered(marks, "example.com/maker"));
    check("class ordered", Some(""), None, &[], &waiting("example.com/maker"));
    let selected = "storage-provisioner, selected-node, storage-provisioner";
    check("class selected", Some("late"), None, &[], &ordered(selected, "example.com/maker"));
    check("class", Some("kubernetes.io/aws-ebs"), None, &[], &ordered(marks, "ebs.csi.aws.com"));
    let by_hand = "ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner";
    check("class", Some("kubernetes.io/no-provisioner"), None, &[], by_hand);
    check("class", None, None, &[], "ProvisioningFailed: storageclass.storage.k8s.io c not found");
}

#[test]
fn a_volume_of_another_moment_is_not_chosen_twice() {
    let observed = Observed { contended: true, ..Observed::default() };
    let plan = Claims::new(false).plan(&claim(""), &observed, NOW);
    assert_eq!((told(&plan).as_str(), plan.requeue_after.is_some()), ("", true));
}

#[test]
fn the_status_says_what_the_claim_has() {
    let status = |offered: &str| {
        let observed = Observed { volume: Some(Arc::new(volume(offered))), ..Observed::default() };
        let plan = Claims::new(false).plan(&claim("named bound"), &observed, NOW);
        plan.status.unwrap().body()["status"].clone()
    };
    let whole = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}});
    assert_eq!(status("ours Bound"), whole);
    assert_eq!(status("ours Bound growing")["capacity"]["storage"], "1Gi");
}

fn check_volume(words: &str, owner: Option<&str>, expected: &str) {
    let observed = volumes::Observed { claim: owner.map(|words| Arc::new(claim(words))), ..Default::default() };
    assert_eq!(told(&volumes().plan(&volume(words), &observed, NOW)), expected, "{words}");
}

#[test]
fn a_volume_follows_its_claim() {
    check_volume("", None, "");
    check_volume("Released", None, "update volume/status v Available");
    check_volume("reserved Bound", None, "update volume/status v Available");
    check_volume("ours", Some("named"), "update volume/status v Bound");
    check_volume("ours Bound", Some("named"), "");
    // The other half goes on.
    check_volume("ours by-controller", Some(""), "");
    check_volume(
        "ours",
        Some("block"),
        "VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim p due to incompatible \
         volumeMode.; VolumeMismatch: Cannot bind PersistentVolume v to requested PersistentVolumeClaim due to \
         incompatible volumeMode.",
    );
}

#[test]
fn a_volume_whose_claim_has_another_is_given_free() {
    let mut elsewhere = claim("named");
    elsewhere.spec.as_mut().unwrap().volume_name = Some("w".to_owned());
    let owner = volumes::Observed { claim: Some(Arc::new(elsewhere)), ..Default::default() };
    let check = |words: &str, expected: &str| {
        assert_eq!(told(&volumes().plan(&volume(words), &owner, NOW)), expected, "{words}");
    };
    check("ours by-controller Bound", "update volume v null []");
    check("ours Bound", "update volume v null []");
    check("ours made Delete Bound", "update volume/status v Released");
    check("ours made Delete Released", "");
    let freed = volumes().plan(&volume("ours Bound"), &owner, NOW);
    assert_eq!(freed.writes().next().unwrap().body()["spec"]["claimRef"], json!({"namespace": "d", "name": "p"}));
}

#[test]
fn a_volume_without_claim_is_released_and_left_or_fails() {
    check_volume("ours Bound", None, "update volume/status v Released");
    check_volume("ours Bound Delete", None, "update volume/status v Released");
    check_volume("ours Released", None, "");
    check_volume("ours Released Delete made", None, "");
    check_volume("ours Released Delete csi", None, "");
    let failed = |why: &str| format!("update volume/status v Failed; {why}");
    let no_recycler = failed("VolumeFailedRecycle: No recycler plugin found for the volume!");
    check_volume("ours Released Recycle", None, &no_recycler);
    let elsewhere = failed("VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /data");
    check_volume("ours Released Delete", None, &elsewhere);
    check_volume("ours Released Delete tmp", None, "");
    let gone = failed("VolumeFailedDelete: no volume plugin matched name: kubernetes.io/gone");
    check_volume("ours Released Delete internal", None, &gone);
    check_volume("ours Failed Delete", None, "");
}

#[test]
fn the_binder_deletes_and_empties_by_itself() {
    let made = pod_for(&volume("tmp"), &Settings::default()).unwrap();
    let pod = || Box::new(made.clone());
    let check = |words: &str, progress: Progress, expected: &str, again: bool| {
        let observed = volumes::Observed { progress: Some(progress), ..Default::default() };
        let plan = volumes().plan(&volume(words), &observed, NOW);
        assert_eq!((told(&plan).as_str(), plan.requeue_after.is_some()), (expected, again), "{words}");
    };
    check("ours Released Delete tmp", Progress::Removed(Ok(())), "delete volume v null []", false);
    let busy = || Progress::Removed(Err("busy".to_owned()));
    check("ours Released Delete tmp", busy(), "update volume/status v Failed; VolumeFailedDelete: busy", true);
    check("ours Failed Delete tmp", busy(), "", true);
    check("ours Failed Delete tmp", Progress::Removed(Ok(())), "delete volume v null []", false);
    let used = "VolumeFailedRecycle: Volume is used by pods: d/a,d/b";
    check("ours Released Recycle", Progress::Used(vec!["d/a".to_owned(), "d/b".to_owned()]), used, true);
    check("ours Released Recycle", Progress::Emptying, "", false);
    let gone = "delete pods recycler-for-v null null []";
    let empty = format!("{gone}; update volume v null []; VolumeRecycled: Volume recycled");
    check("ours by-controller Released Recycle", Progress::Empty(pod()), &empty, false);
    check("ours Failed Recycle", Progress::Empty(pod()), &empty, false);
    let failed = "update volume/status v Failed; VolumeFailedRecycle: Recycle failed: deadline";
    let not = |pod| Progress::NotEmpty(pod, "deadline".to_owned());
    check("ours Released Recycle", not(None), failed, true);
    check("ours Released Recycle", not(Some(pod())), &format!("{failed}; {gone}"), true);
    check("ours Failed Recycle", not(Some(pod())), gone, true);
    // It waits for whoever it is reserved for.
    let observed = volumes::Observed { progress: Some(Progress::Empty(pod())), ..Default::default() };
    let freed = volumes().plan(&volume("ours Released Recycle"), &observed, NOW);
    assert_eq!(freed.writes().nth(1).unwrap().body()["spec"]["claimRef"], json!({"namespace": "d", "name": "p"}));
}

#[test]
fn a_pod_empties_folders_and_nfs_in_the_time_that_they_may_take() {
    let check = |source: Value, size: &str, expected: Option<(Value, i64)>| {
        let mut spec = json!({"capacity": {"storage": size}});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let volume = json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap();
        let pod = pod_for(&volume, &Settings::default());
        let facts = pod.map(|pod| {
            let pod = json::to_value(pod).unwrap();
            assert_eq!(pod["metadata"], json!({"name": "recycler-for-v", "namespace": "default"}));
            assert_eq!(pod["spec"]["containers"][0]["volumeMounts"], json!([{"name": "vol", "mountPath": "/scrub"}]));
            (pod["spec"]["volumes"][0].clone(), pod["spec"]["activeDeadlineSeconds"].as_i64().unwrap())
        });
        assert_eq!(facts, expected, "{volume:?}");
    };
    let folder = |more: Value| json!({"hostPath": more});
    let mounted = json!({"name": "vol", "hostPath": {"path": "/data"}});
    check(folder(json!({"path": "/data", "type": "Directory"})), "1Gi", Some((mounted.clone(), 60)));
    check(folder(json!({"path": "/data"})), "10Gi", Some((mounted, 300)));
    let nfs = json!({"nfs": {"server": "s", "path": "/p"}});
    let mounted = json!({"name": "vol", "nfs": {"server": "s", "path": "/p"}});
    check(nfs.clone(), "1Gi", Some((mounted.clone(), 300)));
    check(nfs, "20Gi", Some((mounted, 600)));
    check(json!({"local": {"path": "/data"}}), "1Gi", None);
}

#[test]
fn folders_of_a_node_are_made_where_that_is_wanted() {
    let class = |more: Value| -> Option<Arc<StorageClass>> {
        let mut value =
            json!({"metadata": {"name": "c"}, "provisioner": "kubernetes.io/host-path", "reclaimPolicy": "Delete"});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Some(Arc::new(json::from_value(value).unwrap()))
    };
    let plan = |claim: &PersistentVolumeClaim, more: Value, host_paths: bool| {
        let observed = Observed { class: class(more), host_paths, ..Observed::default() };
        Claims::new(false).plan(claim, &observed, NOW)
    };
    let check = |words: &str, more: Value, host_paths: bool, expected: &str| {
        assert_eq!(told(&plan(&claim(words), more, host_paths)), expected, "{words}");
    };
    let none = "ProvisioningFailed: no volume plugin matched name: kubernetes.io/host-path";
    check("class", json!({}), false, none);
    check("class", json!({}), true, "update claim p null c [storage-provisioner, storage-provisioner]");
    let mounts = "ProvisioningFailed: Mount options are not supported by the provisioner but StorageClass c has mount options [ro hard]";
    check("class", json!({"mountOptions": ["ro", "hard"]}), true, mounts);
    let block = "ProvisioningFailed: Failed to provision volume with StorageClass c: kubernetes.io/host-path does not support block volume provisioning";
    check("class block", json!({}), true, block);
    let mut ordered = claim("class");
    ordered
        .metadata
        .annotations
        .get_or_insert_default()
        .insert("volume.kubernetes.io/storage-provisioner".to_owned(), "kubernetes.io/host-path".to_owned());
    let plan = plan(&ordered, json!({}), true);
    let marks = "[createdby, bound-by-controller, provisioned-by]";
    let made = "ProvisioningSucceeded: Successfully provisioned volume pvc-u using kubernetes.io/host-path";
    assert!(told(&plan).starts_with(&format!("create volume pvc-u u {marks}; {made}")), "{}", told(&plan));
    let spec = &plan.writes().next().unwrap().body()["spec"];
    assert_eq!(spec["hostPath"], json!({"path": "/tmp/hostpath_pv/u", "type": "DirectoryOrCreate"}));
    assert_eq!(
        (&spec["capacity"], &spec["persistentVolumeReclaimPolicy"]),
        (&json!({"storage": "1Gi"}), &json!("Delete"))
    );
}
