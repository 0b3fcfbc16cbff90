//! Every field of a KubeletConfiguration of v1.35, and what becomes of it here. A field that is not in this list is an error.
//! Upstream counterpart: staging/src/k8s.io/kubelet/config/v1beta1/types.go.

/// The use that is made of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Use {
    /// It sets what this flag sets, unless the flag is given.
    Flag(&'static str),
    /// [`Settings`](super::settings::Settings) have it.
    Setting,
    /// It has fields of its own.
    Object(&'static [Field]),
    /// Nothing here does it, and nobody loses by that: a warning says why when it is set to something else than this.
    Without(&'static str, &'static str),
    /// Only this value is taken; any other is refused, with the reason.
    Only(&'static str, &'static str),
}

pub type Field = (&'static str, Use);

use Use::{Flag, Object, Only, Setting, Without};

/// The reason of fields that stand for a limit on what one kubelet may ask at once.
const BOUNDED: &str = "the server bounds what a node may ask for at once";
const AT_ONCE: &str = "each line is written at once, to one stream";
const WOKEN: &str = "the kernel, the engine and the API server tell of changes";

/// Values stand as JSON. An empty text is a field that must not be set at all.
pub const FIELDS: &[Field] = &[
    ("apiVersion", Setting),
    ("kind", Setting),
    ("enableServer", Only("true", "the API server asks this node by its server")),
    ("staticPodPath", Flag("pod-manifest-path")),
    ("podLogsDir", Setting),
    ("syncFrequency", Without("\"1m0s\"", WOKEN)),
    ("fileCheckFrequency", Without("\"20s\"", WOKEN)),
    ("httpCheckFrequency", Setting),
    ("staticPodURL", Setting),
    ("staticPodURLHeader", Setting),
    ("address", Setting),
    ("port", Flag("kubelet-port")),
    ("readOnlyPort", Only("0", "nothing listens here without TLS and authentication")),
    ("tlsCertFile", Only("\"\"", "the cluster issues and renews the node's certificate")),
    ("tlsPrivateKeyFile", Only("\"\"", "the cluster issues and renews the node's certificate")),
    ("tlsCipherSuites", Setting),
    ("tlsMinVersion", Setting),
    ("rotateCertificates", Without("true", "certificates are always renewed before they end")),
    ("serverTLSBootstrap", Without("true", "the cluster always issues the serving certificate")),
    (
        "authentication",
        Object(&[
            ("x509", Object(&[("clientCAFile", Flag("client-ca-file"))])),
            (
                "webhook",
                Object(&[
                    ("enabled", Only("true", "bearer tokens are always reviewed by the API server")),
                    ("cacheTTL", Without("\"0s\"", "the API server is asked about each request")),
                ]),
            ),
            ("anonymous", Object(&[("enabled", Only("false", "nobody is let in without a credential"))])),
        ]),
    ),
    (
        "authorization",
        Object(&[
            ("mode", Only("\"Webhook\"", "the API server is asked whether a client may")),
            (
                "webhook",
                Object(&[
                    ("cacheAuthorizedTTL", Without("\"0s\"", "the API server is asked about each request")),
                    ("cacheUnauthorizedTTL", Without("\"0s\"", "the API server is asked about each request")),
                ]),
            ),
        ]),
    ),
    ("registryPullQPS", Setting),
    ("registryBurst", Setting),
    ("imagePullCredentialsVerificationPolicy", Setting),
    ("preloadedImagesVerificationAllowlist", Setting),
    ("eventRecordQPS", Without("0", BOUNDED)),
    ("eventBurst", Without("0", BOUNDED)),
    ("enableDebuggingHandlers", Setting),
    ("enableContentionProfiling", Without("false", "no contention is recorded")),
    ("healthzPort", Setting),
    ("healthzBindAddress", Setting),
    ("oomScoreAdj", Setting),
    ("clusterDomain", Flag("cluster-domain")),
    ("clusterDNS", Flag("cluster-dns")),
    ("streamingConnectionIdleTimeout", Without("\"4h0m0s\"", "streams end with their clients")),
    ("nodeStatusUpdateFrequency", Setting),
    ("nodeStatusReportFrequency", Setting),
    ("nodeLeaseDurationSeconds", Setting),
    ("imageMinimumGCAge", Setting),
    ("imageMaximumGCAge", Setting),
    ("imageGCHighThresholdPercent", Setting),
    ("imageGCLowThresholdPercent", Setting),
    ("volumeStatsAggPeriod", Without("\"1m0s\"", "volumes are measured when somebody asks, once a minute at the most")),
    ("kubeletCgroups", Only("\"\"", "the kubelet shares its process with other parts of the node")),
    ("systemCgroups", Only("\"\"", "processes of the system stay in their cgroups")),
    ("cgroupRoot", Flag("cgroup-root")),
    ("cgroupsPerQOS", Only("true", "classes of Pods always have cgroups of their own")),
    ("cgroupDriver", Setting),
    ("cpuManagerPolicy", Setting),
    ("singleProcessOOMKill", Setting),
    ("cpuManagerPolicyOptions", Setting),
    ("cpuManagerReconcilePeriod", Setting),
    ("draManagerReconcilePeriod", Without("\"1m0s\"", WOKEN)),
    ("memoryManagerPolicy", Setting),
    ("topologyManagerPolicy", Setting),
    ("topologyManagerScope", Setting),
    ("topologyManagerPolicyOptions", Setting),
    ("qosReserved", Only("{}", "no class of Pods has memory of its own")),
    ("runtimeRequestTimeout", Without("\"2m0s\"", "each call of the engine has a limit that fits it")),
    ("hairpinMode", Without("\"hairpin-veth\"", "Pods are routed, and always reach themselves through their Services")),
    ("maxPods", Flag("max-pods")),
    ("podCIDR", Only("\"\"", "the cluster gives each node its range of addresses")),
    ("podPidsLimit", Setting),
    ("resolvConf", Flag("resolv-conf")),
    ("runOnce", Only("false", "a node always follows its sources")),
    ("cpuCFSQuota", Setting),
    ("cpuCFSQuotaPeriod", Setting),
    ("nodeStatusMaxImages", Setting),
    ("maxOpenFiles", Without("1000000", "as many files are opened as the machine allows")),
    ("contentType", Without("\"application/json\"", "the node speaks JSON to the API server")),
    ("kubeAPIQPS", Without("0", BOUNDED)),
    ("kubeAPIBurst", Without("0", BOUNDED)),
    ("serializeImagePulls", Setting),
    ("maxParallelImagePulls", Setting),
    ("evictionHard", Flag("eviction-hard")),
    ("evictionSoft", Flag("eviction-soft")),
    ("evictionSoftGracePeriod", Flag("eviction-soft-grace-period")),
    ("evictionPressureTransitionPeriod", Flag("eviction-pressure-transition-period")),
    ("evictionMaxPodGracePeriod", Flag("eviction-max-pod-grace-period")),
    ("evictionMinimumReclaim", Flag("eviction-minimum-reclaim")),
    ("mergeDefaultEvictionSettings", Setting),
    ("podsPerCore", Setting),
    ("enableControllerAttachDetach", Only("true", "volumes are attached by the control plane")),
    ("protectKernelDefaults", Setting),
    ("makeIPTablesUtilChains", Without("false", "the node's rules are in tables of their own")),
    ("iptablesMasqueradeBit", Without("14", "the node's rules are in tables of their own")),
    ("iptablesDropBit", Without("15", "the node's rules are in tables of their own")),
    ("featureGates", Flag("feature-gates")),
    ("failSwapOn", Setting),
    ("memorySwap", Object(&[("swapBehavior", Setting)])),
    ("containerLogMaxSize", Setting),
    ("containerLogMaxFiles", Setting),
    ("containerLogMaxWorkers", Setting),
    ("containerLogMonitorInterval", Setting),
    ("configMapAndSecretChangeDetectionStrategy", Without("\"Watch\"", "objects that volumes show are always watched")),
    ("systemReserved", Setting),
    ("kubeReserved", Setting),
    ("reservedSystemCPUs", Setting),
    ("showHiddenMetricsForVersion", Without("\"\"", "no metric is hidden")),
    ("systemReservedCgroup", Setting),
    ("kubeReservedCgroup", Setting),
    ("enforceNodeAllocatable", Setting),
    ("allowedUnsafeSysctls", Flag("allowed-unsafe-sysctls")),
    ("volumePluginDir", Without("\"\"", "there are no FlexVolumes; CSI drivers take their place")),
    ("providerID", Setting),
    ("kernelMemcgNotification", Without("false", "memory is looked at every ten seconds")),
    (
        "logging",
        Object(&[
            ("format", Flag("logging-format")),
            ("verbosity", Flag("v")),
            ("flushFrequency", Without("\"5s\"", AT_ONCE)),
            ("vmodule", Flag("vmodule")),
            (
                "options",
                Object(&[
                    (
                        "json",
                        Object(&[
                            ("splitStream", Without("false", AT_ONCE)),
                            ("infoBufferSize", Without("\"0\"", AT_ONCE)),
                        ]),
                    ),
                    (
                        "text",
                        Object(&[
                            ("splitStream", Without("false", AT_ONCE)),
                            ("infoBufferSize", Without("\"0\"", AT_ONCE)),
                        ]),
                    ),
                ]),
            ),
        ]),
    ),
    ("enableSystemLogHandler", Setting),
    ("enableSystemLogQuery", Setting),
    ("shutdownGracePeriod", Setting),
    ("shutdownGracePeriodCriticalPods", Setting),
    ("shutdownGracePeriodByPodPriority", Setting),
    ("crashLoopBackOff", Object(&[("maxContainerRestartPeriod", Setting)])),
    ("reservedMemory", Setting),
    ("enableProfilingHandler", Setting),
    ("enableDebugFlagsHandler", Setting),
    ("seccompDefault", Setting),
    ("memoryThrottlingFactor", Setting),
    ("registerWithTaints", Setting),
    ("registerNode", Setting),
    ("tracing", Setting),
    ("localStorageCapacityIsolation", Setting),
    ("containerRuntimeEndpoint", Flag("container-runtime-endpoint")),
    ("imageServiceEndpoint", Only("\"\"", "images and containers are with one engine")),
    ("failCgroupV1", Setting),
    ("userNamespaces", Object(&[("idsPerPod", Setting)])),
];
