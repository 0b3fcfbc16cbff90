//! The protocol `DRAPlugin`: what the kubelet and a driver say to each other. Its versions differ in their names only.

use std::collections::BTreeMap;

/// One version of the protocol, by the name under which drivers offer it.
#[derive(Debug, PartialEq, Eq)]
pub struct Service {
    pub name: &'static str,
    pub prepare: &'static str,
    pub unprepare: &'static str,
}

/// The versions that are spoken here, the newest first.
pub static SERVICES: [Service; 2] = [
    Service {
        name: "v1.DRAPlugin",
        prepare: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        unprepare: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    },
    Service {
        name: "v1beta1.DRAPlugin",
        prepare: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        unprepare: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    },
];

/// A driver that reports the health of its devices answers to this with the states of all of them, again and again.
pub const WATCH_HEALTH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeWatchResourcesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeWatchResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// 1 is healthy, 2 is not; anything else is not known.
    #[prost(int32, tag = "2")]
    pub health: i32,
    /// How long this counts; the default of the kubelet where it is not positive.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// The claims to prepare, or no longer to prepare.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    /// By the claim's uid.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, Prepared>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Prepared {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Why the claim is not prepared.
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// The requests of the claim that it is for; without any, it is for all of them.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// The names by which the engine finds what belongs into a container.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    /// By the claim's uid.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, Unprepared>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Unprepared {
    #[prost(string, tag = "1")]
    pub error: String,
}
