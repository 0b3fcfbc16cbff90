//! The kinds that components read and write, each with its JSON codec compiled once. Reading a Pod from text is some
//! hundred kilobytes of machine code; as a generic function every crate that reads Pods would hold a copy of its own.

use std::fmt::Debug;

use json::Value;
use k8s_openapi::{
    Metadata,
    api::{
        admissionregistration::v1 as admissionregistration, apiserverinternal::v1alpha1 as api_server_internal,
        apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
        autoscaling::v2 as autoscaling, batch::v1 as batch, certificates::v1 as certificates,
        certificates::v1beta1 as certificates_beta, coordination::v1 as coordination,
        coordination::v1beta1 as coordination_beta, core::v1 as core, discovery::v1 as discovery,
        networking::v1 as networking, node::v1 as node, policy::v1 as policy, rbac::v1 as rbac,
        resource::v1 as resource, resource::v1alpha3 as resource_alpha, scheduling::v1alpha1 as scheduling_alpha,
        storage::v1 as storage, storagemigration::v1beta1 as storage_migration,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};
use serde_json::Error;

/// A type whose objects come as JSON and go as JSON. Nobody who reads them needs to know who set which field, so
/// `metadata.managedFields` does not come; on a write the server keeps what it has.
pub trait Object: Sized {
    fn from_json(text: &str) -> Result<Self, Error>;
    fn to_value(&self) -> Value;
}

/// A typed API kind, as `k8s-openapi` declares them.
pub trait Kind: Metadata<Ty = ObjectMeta> + Object + Clone + Debug + Send + Sync + 'static {}
impl<K: Metadata<Ty = ObjectMeta> + Object + Clone + Debug + Send + Sync + 'static> Kind for K {}

/// No inlining: a function that is compiled in this crate is called by the others, one that is inlined is copied.
macro_rules! objects {
    ($($kind:ty),* $(,)?) => {$(
        impl Object for $kind {
            #[inline(never)]
            fn from_json(text: &str) -> Result<Self, Error> {
                api::kind::typed::read(text.as_bytes())
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
    core::Endpoints,
    core::Event,
    core::Namespace,
    core::Node,
    core::PersistentVolume,
    core::PersistentVolumeClaim,
    core::Pod,
    core::ReplicationController,
    core::ResourceQuota,
    core::Secret,
    core::Service,
    core::ServiceAccount,
    discovery::EndpointSlice,
    networking::IPAddress,
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
