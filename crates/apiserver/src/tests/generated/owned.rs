//! The fields of which an applier becomes the owner: those that its write can set, of every kind that has a status.
//! Upstream counterpart: test/integration/apiserver/apply, `TestApplyResetFields` and `TestApplyStatus`.

use json::{Value, json};

use super::{server, smallest};

const APPLY: &str = "content-type: application/apply-patch+yaml";

/// A status that the kind can have.
fn status(kind: &str) -> Value {
    match kind {
        "PersistentVolume" => json!({"message": "hello"}),
        "ResourceQuota" => json!({"used": {"cpu": "5M"}}),
        "Ingress" => json!({"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}}),
        "HorizontalPodAutoscaler" => json!({"currentReplicas": 5, "desiredReplicas": 5}),
        "CronJob" => json!({"lastScheduleTime": "2020-01-01T00:00:00Z"}),
        "VolumeAttachment" => json!({"attached": true}),
        "PodDisruptionBudget" => json!({"currentHealthy": 5}),
        "ResourceClaim" => json!({}),
        "StorageVersion" => json!({"commonEncodingVersion": "v1", "storageVersions": [
            {"apiServerID": "1", "decodableVersions": ["v1"], "encodingVersion": "v1"}]}),
        _ => json!({"conditions": [{"type": "Mine", "status": "True", "reason": "Tested", "message": "",
            "lastTransitionTime": "2020-01-01T00:00:00Z"}]}),
    }
}

/// The parts of an object in which a manager owns something.
fn parts(object: &Value, manager: &str) -> String {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let own = entries.iter().find(|entry| entry["manager"] == *manager);
    let fields = own.and_then(|entry| entry["fieldsV1"].as_object());
    let names = fields.into_iter().flatten().map(|(name, _)| name.trim_start_matches("f:").to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names.join(" ")
}

/// The kinds whose metadata a write of the status does not set. Of all others labels are owned with the status.
const OF_STATUS_ALONE: &str = "
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy status
apiextensions.k8s.io/v1 CustomResourceDefinition status
apiregistration.k8s.io/v1 APIService status
apps/v1 Deployment status
flowcontrol.apiserver.k8s.io/v1 FlowSchema status
flowcontrol.apiserver.k8s.io/v1 PriorityLevelConfiguration status
internal.apiserver.k8s.io/v1alpha1 StorageVersion status
networking.k8s.io/v1 ServiceCIDR status
networking.k8s.io/v1beta1 ServiceCIDR status
resource.k8s.io/v1 ResourceClaim status
resource.k8s.io/v1alpha3 DeviceTaintRule status
resource.k8s.io/v1beta1 ResourceClaim status
resource.k8s.io/v1beta2 ResourceClaim status
storage.k8s.io/v1 VolumeAttachment status
storagemigration.k8s.io/v1beta1 StorageVersionMigration status";

#[tokio::test(start_paused = true)]
async fn an_applier_owns_what_it_can_set() {
    let (server, documents) = server().await;
    let (smallest, mut wrong, mut count) = (smallest(), Vec::new(), 0);
    let mut of_status = Vec::new();
    for of in &documents.created {
        let kind = format!("{} {}", of.api_version, of.kind);
        let Some(mut object) = smallest[&kind].clone() else { continue };
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let whole = if object.get("spec").is_some() { "metadata spec" } else { "metadata" };
        object["metadata"]["labels"] = json!({"l": "1"});
        object["status"] = status(&of.kind);
        let at = |rest: &str, manager: &str| format!("PATCH {}/{name}{rest}?fieldManager={manager}\n{APPLY}", of.uri);
        if server.say(&at("/status", "two"), object.to_string()).await.message().contains("could not find") {
            continue;
        }
        count += 1;
        let made = server.say(&at("", "one"), object.to_string()).await;
        if made.code != 201 || parts(&made.json(), "one") != whole {
            wrong.push(format!("{kind}: {:?} of {}", parts(&made.json(), "one"), made.text));
            continue;
        }
        // Nothing that both state is in dispute, whatever the second says where it cannot set it.
        let mut other = object.clone();
        other["metadata"]["labels"] = json!({"l": "1", "m": "2"});
        let told = server.say(&at("/status", "two"), other.to_string()).await;
        if told.code != 200 || parts(&told.json(), "one") != whole {
            wrong.push(format!("{kind}: {}", told.text));
            continue;
        }
        let owned = parts(&told.json(), "two");
        if owned != "metadata status" {
            of_status.push(format!("{kind} {owned}"));
        }
        server.say(&format!("DELETE {}/{name}?gracePeriodSeconds=0", of.uri), "").await;
    }
    super::nothing(&wrong);
    of_status.sort_unstable();
    assert_eq!(of_status.join("\n"), OF_STATUS_ALONE.trim_start());
    assert!(count > 25, "{count} kinds");
}
