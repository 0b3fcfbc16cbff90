//! The use of Pods and containers, as CRI of Kubernetes 1.35 has it: the crate `k8s-cri` knows an older form, without the waits for processors,
//! memory and disks. An engine that is older than a field tells nothing of it.

use k8s_cri::v1::{
    ContainerAttributes, ContainerStatsFilter, FilesystemUsage, NetworkUsage, PodSandboxAttributes,
    PodSandboxStatsFilter, ProcessUsage, SwapUsage, UInt64Value,
};

/// runtime.v1.PsiData. Engines hand on the kernel's own total, which is in microseconds.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PsiData {
    #[prost(uint64, tag = "1")]
    pub total: u64,
    #[prost(double, tag = "2")]
    pub avg10: f64,
    #[prost(double, tag = "3")]
    pub avg60: f64,
    #[prost(double, tag = "4")]
    pub avg300: f64,
}

/// runtime.v1.PsiStats
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PsiStats {
    #[prost(message, optional, tag = "1")]
    pub full: Option<PsiData>,
    #[prost(message, optional, tag = "2")]
    pub some: Option<PsiData>,
}

/// runtime.v1.CpuUsage
#[derive(Clone, PartialEq, prost::Message)]
pub struct CpuUsage {
    /// In nanoseconds.
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub usage_core_nano_seconds: Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub usage_nano_cores: Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub psi: Option<PsiStats>,
}

/// runtime.v1.MemoryUsage
#[derive(Clone, PartialEq, prost::Message)]
pub struct MemoryUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub working_set_bytes: Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub available_bytes: Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub usage_bytes: Option<UInt64Value>,
    #[prost(message, optional, tag = "5")]
    pub rss_bytes: Option<UInt64Value>,
    #[prost(message, optional, tag = "6")]
    pub page_faults: Option<UInt64Value>,
    #[prost(message, optional, tag = "7")]
    pub major_page_faults: Option<UInt64Value>,
    #[prost(message, optional, tag = "8")]
    pub psi: Option<PsiStats>,
}

/// runtime.v1.IoUsage
#[derive(Clone, PartialEq, prost::Message)]
pub struct IoUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub psi: Option<PsiStats>,
}

/// runtime.v1.ContainerStats
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStats {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<ContainerAttributes>,
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<CpuUsage>,
    #[prost(message, optional, tag = "3")]
    pub memory: Option<MemoryUsage>,
    #[prost(message, optional, tag = "4")]
    pub writable_layer: Option<FilesystemUsage>,
    #[prost(message, optional, tag = "5")]
    pub swap: Option<SwapUsage>,
    #[prost(message, optional, tag = "6")]
    pub io: Option<IoUsage>,
}

/// runtime.v1.LinuxPodSandboxStats
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxPodSandboxStats {
    #[prost(message, optional, tag = "1")]
    pub cpu: Option<CpuUsage>,
    #[prost(message, optional, tag = "2")]
    pub memory: Option<MemoryUsage>,
    #[prost(message, optional, tag = "3")]
    pub network: Option<NetworkUsage>,
    #[prost(message, optional, tag = "4")]
    pub process: Option<ProcessUsage>,
    #[prost(message, repeated, tag = "5")]
    pub containers: Vec<ContainerStats>,
    #[prost(message, optional, tag = "6")]
    pub io: Option<IoUsage>,
}

/// runtime.v1.PodSandboxStats, without what is Windows' alone.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxStats {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<PodSandboxAttributes>,
    #[prost(message, optional, tag = "2")]
    pub linux: Option<LinuxPodSandboxStats>,
}

/// runtime.v1.ListContainerStatsRequest
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListContainerStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerStatsFilter>,
}

/// runtime.v1.ListContainerStatsResponse
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListContainerStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub stats: Vec<ContainerStats>,
}

/// runtime.v1.ListPodSandboxStatsRequest
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodSandboxStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<PodSandboxStatsFilter>,
}

/// runtime.v1.ListPodSandboxStatsResponse
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodSandboxStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub stats: Vec<PodSandboxStats>,
}
