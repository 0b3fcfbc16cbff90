//! The node service of the protocol `csi.v1`: what the kubelet asks a driver, and how it answers.

use std::collections::BTreeMap;

pub const GET_INFO: &str = "/csi.v1.Node/NodeGetInfo";
pub const GET_CAPABILITIES: &str = "/csi.v1.Node/NodeGetCapabilities";
pub const STAGE: &str = "/csi.v1.Node/NodeStageVolume";
pub const UNSTAGE: &str = "/csi.v1.Node/NodeUnstageVolume";
pub const PUBLISH: &str = "/csi.v1.Node/NodePublishVolume";
pub const EXPAND: &str = "/csi.v1.Node/NodeExpandVolume";
pub const STATS: &str = "/csi.v1.Node/NodeGetVolumeStats";
pub const UNPUBLISH: &str = "/csi.v1.Node/NodeUnpublishVolume";

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<Capability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Capability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<Rpc>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Rpc {
    #[prost(enumeration = "Ability", tag = "1")]
    pub r#type: i32,
}

/// The abilities that a driver can have on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub enum Ability {
    Unknown = 0,
    StageUnstageVolume = 1,
    GetVolumeStats = 2,
    ExpandVolume = 3,
    VolumeCondition = 4,
    SingleNodeMultiWriter = 5,
    VolumeMountGroup = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCapability {
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AccessType {
    #[prost(message, tag = "1")]
    Block(Empty),
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct AccessMode {
    #[prost(enumeration = "Mode", tag = "1")]
    pub mode: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub enum Mode {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReaderOnly = 2,
    MultiNodeReaderOnly = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnstageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnpublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExpandRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ExpandResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatsRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCondition {
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    #[prost(enumeration = "Unit", tag = "4")]
    pub unit: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub enum Unit {
    Unknown = 0,
    Bytes = 1,
    Inodes = 2,
}
