//! The types that components read and write, each with its codec compiled once. Reading a Pod is some hundred kilobytes of
//! machine code; as a generic function every crate that reads Pods would hold a copy of its own.

use std::fmt::Debug;

use json::{Error, Reader, Value};
use k8s_openapi::{
    Metadata,
    api::{
        admissionregistration::v1 as admissionregistration,
        admissionregistration::v1beta1 as admissionregistration_beta,
        apiserverinternal::v1alpha1 as api_server_internal, apps::v1 as apps, authentication::v1 as authentication,
        authorization::v1 as authorization, autoscaling::v2 as autoscaling, batch::v1 as batch,
        certificates::v1 as certificates, certificates::v1beta1 as certificates_beta, coordination::v1 as coordination,
        coordination::v1beta1 as coordination_beta, core::v1 as core, discovery::v1 as discovery,
        networking::v1 as networking, node::v1 as node, policy::v1 as policy, rbac::v1 as rbac,
        resource::v1 as resource, resource::v1alpha3 as resource_alpha, scheduling::v1alpha1 as scheduling_alpha,
        storage::v1 as storage, storagemigration::v1beta1 as storage_migration,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error as _},
};

/// The fields that no type is asked for: the largest part of most metadata, which belongs to the server alone. On a write
/// the server keeps what it has.
const MANAGED_FIELDS: &[&str] = &["metadata", "managedFields"];
/// These fields by their path below `metadata`.
const MANAGED_FIELDS_OF_METADATA: &[&str] = &["managedFields"];

/// A type that is read from JSON, without `metadata.managedFields`, and goes as JSON.
pub trait Object: Sized {
    fn from_value(value: &Value) -> Result<Self, Error>;
    fn from_json(text: &str) -> Result<Self, Error>;
    fn to_value(&self) -> Value;
}

/// A typed API kind, as `k8s-openapi` declares them.
pub trait Kind: Metadata<Ty = ObjectMeta> + Object + Clone + Debug + Send + Sync + 'static {}
impl<K: Metadata<Ty = ObjectMeta> + Object + Clone + Debug + Send + Sync + 'static> Kind for K {}

/// The object in this text.
pub fn without_managers(text: &[u8]) -> Result<Value, Error> {
    json::parse_without(std::str::from_utf8(text).map_err(Error::custom)?, MANAGED_FIELDS)
}

/// The object as a `T`, for the crate that compiles all types.
pub(crate) fn decode<T: DeserializeOwned>(object: &Value) -> Result<T, Error> {
    let read = |object: &Value| T::deserialize(Reader::of(object).without(MANAGED_FIELDS));
    read(object).or_else(|why| with_zero_times(object).map_or(Err(why), |object| read(&object)))
}

/// Go's zero time, which means that there is none.
pub const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// The object with the zero time wherever a condition or a series of events has none, if it lacks one: the types of `k8s-openapi`
/// cannot be without it, while upstream's take such objects and write null. One of them must not keep a whole list from being read.
fn with_zero_times(object: &Value) -> Option<Value> {
    fn fill(value: &mut Value, name: &'static str) -> bool {
        let Some(map) = value.as_object_mut() else { return false };
        let lacks = map.get(name).is_none_or(Value::is_null);
        if lacks {
            map.insert(name, ZERO_TIME.into());
        }
        lacks
    }
    fn walk(value: &mut Value) -> bool {
        let mut changed = false;
        match value {
            Value::Array(items) => {
                for item in items.iter_mut() {
                    changed |= walk(item);
                }
            }
            Value::Object(map) => {
                for (name, value) in map.iter_mut() {
                    changed |= walk(value);
                    if *name == *"conditions" {
                        for condition in value.as_array_mut().into_iter().flat_map(|list| list.iter_mut()) {
                            changed |= fill(condition, "lastTransitionTime");
                        }
                    } else if *name == *"series" {
                        changed |= fill(value, "lastObservedTime");
                    }
                }
            }
            _ => {}
        }
        changed
    }
    let mut object = object.clone();
    walk(&mut object).then_some(object)
}

/// The metadata of an object, which may be without any. As everywhere, without `managedFields`.
pub(crate) fn decode_metadata(object: &Value) -> Result<ObjectMeta, Error> {
    let metadata = object.get("metadata").map(|metadata| Reader::of(metadata).without(MANAGED_FIELDS_OF_METADATA));
    metadata.map_or_else(|| Ok(ObjectMeta::default()), ObjectMeta::deserialize)
}

/// No inlining: a function that is compiled in this crate is called by the others, one that is inlined is copied.
macro_rules! objects {
    ($($kind:ty),* $(,)?) => {$(
        impl Object for $kind {
            #[inline(never)]
            fn from_value(value: &Value) -> Result<Self, Error> {
                decode(value)
            }

            #[inline(never)]
            fn from_json(text: &str) -> Result<Self, Error> {
                json::from_text_without(text, MANAGED_FIELDS).or_else(|why| match json::parse(text) {
                    Ok(object) => decode(&object),
                    Err(_) => Err(why),
                })
            }

            #[inline(never)]
            fn to_value(&self) -> Value {
                json::to_value(self).expect("API types are plain data")
            }
        }
    )*};
}

objects! {
    admissionregistration::ValidatingAdmissionPolicy,
    admissionregistration::ValidatingAdmissionPolicyBinding,
    admissionregistration_beta::MutatingAdmissionPolicy,
    admissionregistration_beta::MutatingAdmissionPolicyBinding,
    api_server_internal::StorageVersion,
    apps::ControllerRevision,
    apps::DaemonSet,
    apps::Deployment,
    apps::ReplicaSet,
    apps::StatefulSet,
    authentication::TokenRequest,
    authentication::TokenReview,
    authorization::SubjectAccessReview,
    autoscaling::HorizontalPodAutoscaler,
    batch::CronJob,
    batch::Job,
    certificates::CertificateSigningRequest,
    certificates_beta::ClusterTrustBundle,
    certificates_beta::PodCertificateRequest,
    coordination::Lease,
    coordination_beta::LeaseCandidate,
    core::ConfigMap,
    core::Container,
    core::Endpoints,
    core::EphemeralContainer,
    core::Event,
    core::LimitRange,
    core::Namespace,
    core::Node,
    core::PersistentVolume,
    core::PersistentVolumeClaim,
    core::Pod,
    core::PodSpec,
    core::PodStatus,
    core::PodTemplateSpec,
    core::ReplicationController,
    core::ResourceQuota,
    core::Secret,
    core::Service,
    core::ServiceAccount,
    discovery::EndpointSlice,
    networking::IPAddress,
    networking::NetworkPolicy,
    networking::ServiceCIDR,
    node::RuntimeClass,
    policy::PodDisruptionBudget,
    rbac::ClusterRole,
    resource::DeviceClass,
    resource::ResourceClaim,
    resource::ResourceClaimTemplate,
    resource::ResourceSlice,
    resource_alpha::DeviceTaintRule,
    scheduling_alpha::Workload,
    MetadataOnly,
    storage::CSIDriver,
    storage::CSINode,
    storage::CSIStorageCapacity,
    storage::StorageClass,
    storage::VolumeAttachment,
    storage::VolumeAttributesClass,
    storage_migration::StorageVersionMigration,
}

/// An object of any kind, of which only the metadata counts.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct MetadataOnly {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

#[cfg(test)]
mod tests {
    use json::json;
    use k8s_openapi::api::core::v1::{Pod, Service};

    use super::*;

    #[test]
    fn all_but_the_managed_fields_is_there() {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"managedFields": "kept"}, "managedFields": [{"manager": "m"}]},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "nodeName": null},
        });
        let whole: Pod = json::from_value(object.clone()).expect("a Pod");
        let mut expected = whole.clone();
        expected.metadata.managed_fields = None;
        assert!(whole.metadata.managed_fields.is_some());
        assert_eq!(decode::<Pod>(&object).expect("a Pod"), expected);
        assert_eq!(Pod::from_json(&object.to_string()).expect("a Pod"), expected);
        let escaped = object.to_string().replace("\"managedFields\":[", r#""managed\u0046ields":["#);
        assert_eq!(Pod::from_json(&escaped).expect("a Pod"), expected);
        assert!(Pod::from_json(&format!("{object} {object}")).is_err(), "something follows");
        let mut bare = object.clone();
        bare["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        assert_eq!(without_managers(object.to_string().as_bytes()).expect("a value"), bare);

        object["metadata"]["managedFields"] = 7.into();
        assert!(decode::<Pod>(&object).is_ok(), "not even looked at");
        for metadata in [json!(null), json!(7), json!([])] {
            let object = json!({"metadata": metadata});
            let expected = json::from_value::<Pod>(object.clone()).map_err(|e| e.to_string());
            assert_eq!(decode::<Pod>(&object).map_err(|e| e.to_string()), expected);
        }
        object["metadata"]["name"] = 7.into();
        let wrong = json::from_value::<Pod>(json!({"metadata": {"name": 7}})).expect_err("a number");
        assert_eq!(decode::<Pod>(&object).expect_err("a number").to_string(), wrong.to_string());
    }

    #[test]
    fn a_condition_may_be_without_a_time() {
        let condition = |time: Option<Value>| {
            let mut one = json!({"type": "A", "status": "True", "reason": "R", "message": ""});
            if let Some(time) = time {
                one["lastTransitionTime"] = time;
            }
            json!({"metadata": {"name": "s"}, "status": {"conditions": [one]}})
        };
        for time in [None, Some(Value::Null), Some(ZERO_TIME.into())] {
            let object = condition(time);
            for read in [Service::from_value(&object), Service::from_json(&object.to_string())] {
                let found = read.expect("a Service").status.and_then(|s| s.conditions).expect("conditions");
                assert_eq!(found[0].last_transition_time.0.to_string(), ZERO_TIME, "{object}");
            }
        }
        let wrong = condition(Some(7.into()));
        assert!(Service::from_value(&wrong).is_err());
        assert!(Service::from_json(&wrong.to_string()).is_err());
    }
}
