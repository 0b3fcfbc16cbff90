//! The objects of the API that a Pod names. A static Pod, or the mirror of one, may name none: nobody has looked at whether its node may
//! read them.
//! Upstream counterpart: HasAPIObjectReference of pkg/api/pod.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodSpec, Volume, VolumeProjection};

/// A kind of objects that the Pod names one of, by its plural and where that is seen.
pub fn first(spec: &PodSpec) -> Option<&'static str> {
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if names_secret(spec) {
        return Some("secrets");
    }
    if names_config_map(spec) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(of_volume)
}

/// Whether something of the Pod comes from a Secret, also one without a name.
pub fn names_secret(spec: &PodSpec) -> bool {
    let of_volume = |volume: &Volume| {
        let cinder = volume.cinder.as_ref().is_some_and(|v| v.secret_ref.is_some());
        volume.secret.is_some()
            || volume.azure_file.is_some()
            || cinder
            || volume.cephfs.as_ref().is_some_and(|v| v.secret_ref.is_some())
            || volume.csi.as_ref().is_some_and(|v| v.node_publish_secret_ref.is_some())
            || volume.flex_volume.as_ref().is_some_and(|v| v.secret_ref.is_some())
            || volume.iscsi.as_ref().is_some_and(|v| v.secret_ref.is_some())
            || volume.rbd.as_ref().is_some_and(|v| v.secret_ref.is_some())
            || volume.scale_io.is_some()
            || volume.storageos.as_ref().is_some_and(|v| v.secret_ref.is_some())
    };
    spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty())
        || of_containers(
            spec,
            |from| from.secret_ref.is_some(),
            |variable| variable.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some()),
        )
        || spec.volumes.iter().flatten().any(of_volume)
        || parts(spec).any(|part| part.secret.is_some())
}

fn names_config_map(spec: &PodSpec) -> bool {
    of_containers(
        spec,
        |from| from.config_map_ref.is_some(),
        |variable| variable.value_from.as_ref().is_some_and(|from| from.config_map_key_ref.is_some()),
    ) || spec.volumes.iter().flatten().any(|volume| volume.config_map.is_some())
        || parts(spec).any(|part| part.config_map.is_some())
}

/// Whether some container's environment comes from there.
fn of_containers(spec: &PodSpec, whole: fn(&EnvFromSource) -> bool, one: fn(&EnvVar) -> bool) -> bool {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ours = containers.flat_map(|c| [(&c.env_from, &c.env)]);
    let debugging = spec.ephemeral_containers.iter().flatten().flat_map(|c| [(&c.env_from, &c.env)]);
    ours.chain(debugging).any(|(from, env)| from.iter().flatten().any(whole) || env.iter().flatten().any(one))
}

fn parts(spec: &PodSpec) -> impl Iterator<Item = &VolumeProjection> {
    let projected = spec.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref());
    projected.flat_map(|projected| projected.sources.iter().flatten())
}

/// The kinds that only volumes name.
fn of_volume(volume: &Volume) -> Option<&'static str> {
    let of_part = |part: &VolumeProjection| {
        let all = [
            (part.service_account_token.is_some(), "serviceaccounts (via projected volumes)"),
            (part.cluster_trust_bundle.is_some(), "clustertrustbundles"),
            (part.pod_certificate.is_some(), "podcertificates"),
        ];
        all.into_iter().find_map(|(is_there, kind)| is_there.then_some(kind))
    };
    let all = [
        (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
        (volume.glusterfs.is_some(), "endpoints (via glusterFS volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "persistentvolumeclaims (via ephemeral volumes)"),
    ];
    let projected = || volume.projected.as_ref()?.sources.iter().flatten().find_map(of_part);
    all.into_iter().find_map(|(is_there, kind)| is_there.then_some(kind)).or_else(projected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[test]
    fn objects_are_found_wherever_a_pod_names_them() {
        let check = |spec: Value, expected: Option<&str>| {
            let mut whole = json!({"containers": [{"name": "c"}]});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            assert_eq!(first(&json::from_value(whole).unwrap()), expected, "{spec}");
        };
        let volume = |source: Value| {
            let mut volume = json!({"name": "v"});
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            json!({ "volumes": [volume] })
        };
        let part = |part: Value| volume(json!({"projected": {"sources": [part]}}));
        let env = |list: &str, from: Value| json!({list: [{"name": "c", "env": [{"name": "A", "valueFrom": from}]}]});
        check(json!({"serviceAccountName": "s"}), Some("serviceaccounts"));
        check(json!({"serviceAccountName": ""}), None);
        check(json!({"imagePullSecrets": [{"name": "s"}]}), Some("secrets"));
        check(env("containers", json!({"secretKeyRef": {"name": "s", "key": "k"}})), Some("secrets"));
        check(env("initContainers", json!({"configMapKeyRef": {"name": "s", "key": "k"}})), Some("configmaps"));
        check(env("containers", json!({"fieldRef": {"fieldPath": "metadata.name"}})), None);
        let from = json!({"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "m"}}]}]});
        check(from, Some("configmaps"));
        check(json!({"resourceClaims": [{"name": "r", "resourceClaimName": "r"}]}), Some("resourceclaims"));
        check(volume(json!({"secret": {"secretName": "s"}})), Some("secrets"));
        check(volume(json!({"configMap": {"name": "m", "optional": true}})), Some("configmaps"));
        check(volume(json!({"csi": {"driver": "d"}})), Some("csidrivers (via CSI volumes)"));
        check(volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}})), Some("secrets"));
        check(volume(json!({"persistentVolumeClaim": {"claimName": "c"}})), Some("persistentvolumeclaims"));
        let claims = Some("persistentvolumeclaims (via ephemeral volumes)");
        check(volume(json!({"ephemeral": {}})), claims);
        check(part(json!({"secret": {"name": "s"}})), Some("secrets"));
        check(part(json!({"configMap": {"name": "m"}})), Some("configmaps"));
        let token = Some("serviceaccounts (via projected volumes)");
        check(part(json!({"serviceAccountToken": {"path": "t"}})), token);
        check(part(json!({"clusterTrustBundle": {"path": "t"}})), Some("clustertrustbundles"));
        check(part(json!({"downwardAPI": {}})), None);
        check(volume(json!({"hostPath": {"path": "/"}})), None);
        check(volume(json!({"emptyDir": {}})), None);
        check(json!({}), None);
    }
}
