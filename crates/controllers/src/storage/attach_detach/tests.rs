//! A node, what its Pods want and what is attached, and what comes of it.

use std::sync::Arc;

use controller::Step;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::*;

const NOW: &str = "2026-01-01T01:00:00Z";

/// Words: ready, off (out of service), mounted (volume `v` is in use), listed (it is in volumesAttached), foreign (another
/// kubelet that attaches by itself).
fn node(words: &str) -> Node {
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let name = "kubernetes.io/csi/d^h";
    let node = json!({"metadata": {"name": "n", "resourceVersion": "7", "annotations": {MANAGED: if has("foreign") { "false" } else { "true" }}},
        "spec": {"taints": has("off").then(|| json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]))},
        "status": {"conditions": [{"type": "Ready", "status": if has("ready") { "True" } else { "Unknown" }}],
            "volumesInUse": has("mounted").then(|| json!([name])),
            "volumesAttached": has("listed").then(|| json!([{"name": name, "devicePath": ""}]))}});
    json::from_value(node).unwrap()
}

fn volume() -> Arc<PersistentVolume> {
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d", "volumeHandle": "h"}}});
    Arc::new(json::from_value(volume).unwrap())
}

/// Words: attached, failed, leaving.
fn attachment(words: &str) -> Arc<VolumeAttachment> {
    let mut attachment = volume::attachment(&volume(), "n");
    let status = json!({"attached": words.contains("attached"),
        "attachError": words.contains("failed").then(|| json!({"message": "no room"}))});
    attachment.status = json::from_value(status).unwrap();
    if words.contains("leaving") {
        attachment.metadata.deletion_timestamp = json::from_value(json!(NOW)).unwrap();
    }
    Arc::new(attachment)
}

fn told(plan: &Plan) -> String {
    let step = |step: &Step| match step {
        Step::One(write) if write.subresource == "status" => {
            let (body, version) = (write.body(), json!("7"));
            let only_if_unchanged = body["metadata"]["resourceVersion"] == version;
            let when = if only_if_unchanged { " if the node has said nothing new" } else { "" };
            format!("attached: {}{when}", body["status"]["volumesAttached"].as_array().unwrap().len())
        }
        Step::One(write) => write.verb_name().to_owned(),
        Step::Tell(note) => format!("{}: {}", note.reason, note.message),
        _ => unreachable!("one by one"),
    };
    plan.steps.iter().map(step).collect::<Vec<_>>().join("; ")
}

fn wanted(attachment: Option<Arc<VolumeAttachment>>, rivals: Vec<Rival>) -> Observed {
    let pod: Pod = json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}})).unwrap();
    let attachments = attachment.iter().map(|a| (a.clone(), volume())).collect();
    let wanted = DesiredVolume {
        volume: volume(),
        pods: vec![Arc::new(pod)],
        attachment,
        rivals,
        perhaps_of: None,
        is_told: false,
    };
    Observed { wanted: [("v".to_owned(), wanted)].into(), attachments, ..Observed::default() }
}

fn check_wanted(words: &str, held: Option<&str>, expected: &str) {
    let plan =
        AttachDetach::default().plan(&node(words), &wanted(held.map(attachment), Vec::new()), NOW.parse().unwrap());
    assert_eq!(told(&plan), expected, "{words} {held:?}");
}

#[test]
fn a_wanted_volume_is_attached() {
    check_wanted("ready", None, "create");
    check_wanted("ready foreign", None, "");
    check_wanted("ready", Some(""), "");
    let succeeded = "attached: 1; SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume \"v\" ";
    check_wanted("ready", Some("attached"), succeeded);
    check_wanted("ready listed", Some("attached"), "");
    let failed = "FailedAttachVolume: AttachVolume.Attach failed for volume \"v\" : no room";
    check_wanted("ready", Some("failed"), failed);
    check_wanted("ready", Some("leaving"), "");
    check_wanted("ready", Some("attached leaving"), "");
}

#[test]
fn a_volume_of_another_node_is_waited_for() {
    let check = |pods: &[&str], expected: &str| {
        let pods = pods.iter().map(|p| p.split_once('/').unwrap()).map(|(ns, name)| Key::new(ns, name)).collect();
        let observed = wanted(None, vec![Rival { pods }]);
        let plan = AttachDetach::default().plan(&node("ready"), &observed, NOW.parse().unwrap());
        assert_eq!(told(&plan), format!("FailedAttachVolume: Multi-Attach error for volume \"v\" {expected}"));
    };
    check(&[], "Volume is already exclusively attached to one node and can't be attached to another");
    check(&["d/a", "d/b"], "Volume is already used by pod(s) a, b");
    check(&["e/a"], "Volume is already used by 1 pod(s) in different namespaces");
    check(&["d/a", "e/b"], "Volume is already used by pod(s) a and 1 pod(s) in different namespaces");
    let mut observed = wanted(None, vec![Rival::default()]);
    observed.wanted.values_mut().for_each(|wanted| wanted.is_told = true);
    assert!(AttachDetach::default().plan(&node("ready"), &observed, NOW.parse().unwrap()).steps.is_empty());
}

#[test]
fn a_volume_without_pods_is_detached_when_the_node_lets_go_of_it() {
    // The node (none: it is gone), for how many seconds no Pod wants the volume, what is done, and whether it is looked at
    // again by itself.
    let check_with = |patience: Patience, words: Option<&str>, seconds: i64, expected: &str, again: bool| {
        let now: Timestamp = NOW.parse().unwrap();
        let held = attachment("attached");
        let name = held.metadata.name.clone().unwrap();
        let since = now.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap();
        let observed = Observed {
            attachments: vec![(held, volume())],
            unused_since: [(name, since)].into(),
            ..Observed::default()
        };
        let plan = match words {
            Some(words) => AttachDetach::new(patience).plan(&node(words), &observed, now),
            None => {
                let mut plan = Plan::default();
                let writes = detach(None, &observed, &mut Vec::new(), &mut plan, (now, patience));
                writes.into_iter().for_each(|write| _ = plan.step(write));
                plan
            }
        };
        assert_eq!((told(&plan).as_str(), plan.requeue_after.is_some()), (expected, again), "{words:?} {seconds}");
    };
    let check =
        |words, seconds, expected: &str, again| check_with(Patience::SixMinutes, words, seconds, expected, again);
    let taken = "attached: 0 if the node has said nothing new; delete";
    check(Some("ready listed"), 0, taken, false);
    check(Some("ready listed mounted"), 0, "", true);
    check(Some("ready listed mounted"), 400, "", false);
    check(Some("listed mounted"), 359, "", true);
    check(Some("listed mounted"), 360, taken, false);
    check(Some("listed mounted off"), 0, taken, false);
    check(Some("foreign mounted"), 400, "", false);
    check(None, 10, "", true);
    check(None, 360, "delete", false);
    // Only a word of the administrator's ends the wait then.
    let check = |words, seconds, expected: &str| check_with(Patience::ForEver, words, seconds, expected, false);
    check(Some("ready listed"), 0, taken);
    check(Some("listed mounted"), 360, "");
    check(Some("listed mounted"), 99_999, "");
    check(Some("listed mounted off"), 0, taken);
    check(None, 360, "");
}

#[test]
fn an_attachment_has_the_name_that_drivers_expect() {
    let made = volume::attachment(&volume(), "n");
    // The SHA-256 of "hdn".
    let digest = "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d";
    assert_eq!(made.metadata.name, Some(format!("csi-{digest}")));
    assert_eq!((made.spec.attacher.as_str(), made.spec.node_name.as_str()), ("d", "n"));
}
