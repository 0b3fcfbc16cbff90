//! The settings of a configuration that no flag sets, with the values that count without it.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use api::rules::{pod::Resources, quantity::Quantity};
use json::Value;
use k8s_openapi::api::core::v1::Taint;
use runtime::CgroupDriver;

use super::{
    affinity::{self, Managers},
    credential_providers::CredentialProvider,
    pulls::{Allowlist, Pulls, Verification},
    shutdown::{self, Shutdown},
    time::duration,
};
use crate::{pod::spec::quota::Cfs, users::range::UNIT};

/// When logs of containers are moved away.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRotation {
    pub max_bytes: u64,
    /// Files of a container's log, the one that is written among them.
    pub max_files: usize,
    /// The number of logs that are moved away at once.
    pub workers: usize,
    pub interval: Duration,
}

/// When images go that nobody uses. Shares of the disk are in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageCollection {
    pub high: i64,
    pub low: i64,
    pub min_age: Duration,
    /// Also where there is room.
    pub max_age: Option<Duration>,
}

/// The part of the machine that is not for Pods, and the cgroups that are kept to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reserved {
    pub kube: Resources,
    pub system: Resources,
    /// Processors, by their numbers, that take the place of both.
    pub cpus: Option<String>,
    pub kube_cgroup: String,
    pub system_cgroup: String,
    pub enforced: Enforced,
}

/// The cgroups that have limits. `compressible` is processors alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Enforced {
    pub pods: bool,
    pub kube: Option<Enforcement>,
    pub system: Option<Enforcement>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    All,
    Compressible,
}

impl Default for Enforced {
    fn default() -> Self {
        Enforced { pods: true, kube: None, system: None }
    }
}

/// A place on the web whose Pods run here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StaticUrl {
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub interval: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub logs: LogRotation,
    /// The folder of Pods' logs, where it is not the usual one.
    pub pod_logs: Option<PathBuf>,
    pub images: ImageCollection,
    pub pulls: Pulls,
    /// The programs that are asked for credentials of registries. No field of a configuration names them, a flag does.
    pub credential_providers: Vec<CredentialProvider>,
    pub reserved: Reserved,
    pub managers: Managers,
    pub static_url: Option<StaticUrl>,
    /// Where the kubelet's server listens; everywhere when `None`.
    pub address: Option<IpAddr>,
    /// Where everybody on the machine may ask whether the kubelet is well; nowhere when the port is 0.
    pub healthz: (IpAddr, u16),
    pub oom_score: i32,
    /// Processes of one Pod; as many as the machine has when `None`.
    pub pod_pids: Option<i64>,
    /// The maker of cgroups, where the engine does not say.
    pub cgroup_driver: CgroupDriver,
    /// How limits of processors are kept.
    pub cfs: Cfs,
    pub limited_swap: bool,
    pub memory_throttling: f64,
    pub kills_one: Option<bool>,
    pub status_update: Duration,
    pub status_report: Duration,
    pub lease_seconds: i32,
    /// Images that the Node object names; all when `None`.
    pub status_images: Option<usize>,
    pub pods_per_core: u32,
    pub debugging_handlers: bool,
    /// Profiles are made for those who may ask.
    pub profiling: bool,
    /// Whether the verbosity of the log can be set at `/debug/flags/v`.
    pub debug_flags: bool,
    pub system_logs: bool,
    /// Services of the machine may be asked for there.
    pub log_query: bool,
    /// The calls that containers may make are bounded by the engine's profile where they ask for nothing else.
    pub seccomp_default: bool,
    pub registers: bool,
    pub taints: Vec<Taint>,
    pub provider_id: String,
    /// The longest pause before a container that fails starts again.
    pub restart_pause: Option<Duration>,
    /// Limits on the node's own disk are held.
    pub local_storage: bool,
    pub fail_swap_on: bool,
    pub fail_cgroup_v1: bool,
    pub protect_kernel: bool,
    pub shutdown: Shutdown,
    /// The ids of a Pod whose users are none of the node's.
    pub users_per_pod: u32,
    /// The versions and cipher suites of TLS that the node's server speaks.
    pub protocols: pki::Protocols,
    /// Where spans go; none are made when absent.
    pub tracing: Option<spans::config::Config>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            logs: LogRotation { max_bytes: 10 << 20, max_files: 5, workers: 1, interval: Duration::from_secs(10) },
            pod_logs: None,
            images: ImageCollection { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: None },
            pulls: Pulls::default(),
            credential_providers: Vec::new(),
            reserved: Reserved::default(),
            managers: Managers::default(),
            static_url: None,
            address: None,
            healthz: (std::net::Ipv4Addr::LOCALHOST.into(), 10248),
            oom_score: -999,
            pod_pids: None,
            cgroup_driver: CgroupDriver::Cgroupfs,
            cfs: Cfs::default(),
            limited_swap: false,
            memory_throttling: 0.9,
            kills_one: None,
            status_update: Duration::from_secs(10),
            status_report: Duration::from_secs(300),
            lease_seconds: 40,
            status_images: Some(50),
            pods_per_core: 0,
            debugging_handlers: true,
            profiling: true,
            debug_flags: true,
            system_logs: true,
            log_query: false,
            seccomp_default: false,
            registers: true,
            taints: Vec::new(),
            provider_id: String::new(),
            restart_pause: None,
            local_storage: true,
            // Machines with swap, or with cgroups of version 1, are taken as they are unless the configuration says otherwise.
            fail_swap_on: false,
            fail_cgroup_v1: false,
            protect_kernel: false,
            shutdown: Shutdown::default(),
            users_per_pod: UNIT,
            protocols: pki::Protocols::default(),
            tracing: None,
        }
    }
}

/// The fields of a document.
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    fn at(&self, path: &str) -> Option<&'a Value> {
        let value = path.split('.').fold(self.0, |value, name| &value[name]);
        Some(value).filter(|value| !value.is_null())
    }

    fn set<T>(&self, path: &str, to: &mut T, read: impl FnOnce(&'a Value) -> Result<T, String>) -> Result<(), String> {
        if let Some(value) = self.at(path) {
            *to = read(value).map_err(|why| format!("{path}: {why}"))?;
        }
        Ok(())
    }
}

fn yes(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "it must be true or false".to_owned())
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "it must be a text".to_owned())
}

fn number(range: std::ops::RangeInclusive<i64>) -> impl Fn(&Value) -> Result<i64, String> {
    move |value| {
        let number = value.as_i64().ok_or("it must be a number")?;
        if range.contains(&number) {
            return Ok(number);
        }
        match (*range.start(), *range.end()) {
            (least, i64::MAX) => Err(format!("it must be {least} at least, not {number}")),
            (least, most) => Err(format!("it must be a number from {least} to {most}, not {number}")),
        }
    }
}

fn time(value: &Value) -> Result<Duration, String> {
    text(value).and_then(duration)
}

fn period(value: &Value) -> Result<Duration, String> {
    time(value)
        .and_then(|time| if time.is_zero() { Err("it must be longer than nothing".to_owned()) } else { Ok(time) })
}

fn quantity(value: &Value) -> Result<Quantity, String> {
    let given = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let parsed = given.parse::<Quantity>().ok().filter(|amount| !amount.is_negative());
    parsed.ok_or_else(|| format!("{given:?} is no amount"))
}

/// The amounts that are reserved, in upstream's names of resources.
fn resources(value: &Value) -> Result<Resources, String> {
    const NAMES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
    let map = value.as_object().ok_or("it must be a map of amounts")?;
    let one = |(name, amount): (&_, &Value)| {
        let name: &str = name;
        if !NAMES.contains(&name) {
            return Err(format!("{name:?} cannot be reserved; {} can", NAMES.join(", ")));
        }
        Ok((name.to_owned(), quantity(amount)?))
    };
    map.iter().map(|(name, amount)| one((&**name, amount))).collect()
}

fn enforced(value: &Value) -> Result<Enforced, String> {
    let list = value.as_array().ok_or("it must be a list")?;
    let mut enforced = Enforced { pods: false, kube: None, system: None };
    let put = |to: &mut Option<Enforcement>, what, name: &str| match to.replace(what) {
        Some(held) if held != what => Err(format!("{name:?} stands beside its other form")),
        _ => Ok(()),
    };
    for one in list {
        match text(one)? {
            "pods" => enforced.pods = true,
            "none" if list.len() == 1 => {}
            "none" => return Err("\"none\" stands alone".to_owned()),
            name @ "kube-reserved" => put(&mut enforced.kube, Enforcement::All, name)?,
            name @ "kube-reserved-compressible" => put(&mut enforced.kube, Enforcement::Compressible, name)?,
            name @ "system-reserved" => put(&mut enforced.system, Enforcement::All, name)?,
            name @ "system-reserved-compressible" => put(&mut enforced.system, Enforcement::Compressible, name)?,
            other => return Err(format!("{other:?} is nothing that can be enforced")),
        }
    }
    Ok(enforced)
}

/// The processors of a list such as `0-3,7`.
pub fn cpus(list: &str) -> Result<Vec<u32>, String> {
    const MOST: u32 = 8192;
    let wrong = || format!("{list:?} is no list of processors such as 0-3,7");
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let of = |text: &str| text.parse::<u32>().ok().filter(|number| *number < MOST).ok_or_else(wrong);
        let (first, last) = (of(first)?, of(last)?);
        if first > last {
            return Err(wrong());
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The folder of logs, named in the one way in which records can be compared.
fn logs_folder(path: &str) -> Result<PathBuf, String> {
    let is_clean = || path == "/" || path[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
    match () {
        () if !path.starts_with('/') => Err(format!("pod logs path {path:?} must be absolute path")),
        () if !is_clean() => Err(format!("pod logs path {path:?} must be normalized")),
        () if !path.is_ascii() => Err(format!("pod logs path {path:?} must contain ASCII characters only")),
        () if path.contains('\0') => Err(format!("{path:?} is no path")),
        () => Ok(PathBuf::from(path)),
    }
}

fn ip(value: &Value) -> Result<IpAddr, String> {
    text(value)?.parse().map_err(|_| "it must be an address".to_owned())
}

impl Settings {
    /// The values of the document, over those that count without it.
    pub fn of(document: &Value) -> Result<Self, String> {
        let (fields, mut settings) = (Fields(document), Settings::default());
        settings.read_amounts(&fields)?;
        settings.read_pulls(&fields)?;
        settings.read_node(&fields)?;
        settings.read_reserved(&fields)?;
        settings.read_managers(&fields)?;
        settings.read_static_url(&fields)?;
        settings.read_shutdown(&fields)?;
        Ok(settings)
    }

    fn read_amounts(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        let (logs, images) = (&mut self.logs, &mut self.images);
        let size = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        fields.set("containerLogMaxSize", &mut logs.max_bytes, |value| {
            let bytes = quantity(value)?.value();
            u64::try_from(bytes)
                .ok()
                .filter(|bytes| *bytes > 0)
                .ok_or_else(|| "it must be more than nothing".to_owned())
        })?;
        fields.set("containerLogMaxFiles", &mut logs.max_files, |v| number(2..=100_000)(v).map(size))?;
        fields.set("containerLogMaxWorkers", &mut logs.workers, |v| number(1..=1000)(v).map(size))?;
        fields.set("containerLogMonitorInterval", &mut logs.interval, |value| {
            period(value).and_then(|time| match time >= Duration::from_secs(3) {
                true => Ok(time),
                false => Err("it must be 3s at least".to_owned()),
            })
        })?;
        fields.set("podLogsDir", &mut self.pod_logs, |v| match text(v)? {
            "" => Ok(None),
            path => logs_folder(path).map(Some),
        })?;
        fields.set("imageGCHighThresholdPercent", &mut images.high, number(0..=100))?;
        fields.set("imageGCLowThresholdPercent", &mut images.low, number(0..=100))?;
        if images.low >= images.high {
            return Err("imageGCLowThresholdPercent: it must be less than imageGCHighThresholdPercent".to_owned());
        }
        fields.set("imageMinimumGCAge", &mut images.min_age, |value| {
            time(value).map(|age| if age.is_zero() { Duration::from_secs(120) } else { age })
        })?;
        fields
            .set("imageMaximumGCAge", &mut images.max_age, |v| time(v).map(|age| Some(age).filter(|a| !a.is_zero())))?;
        if images.max_age.is_some_and(|age| age <= images.min_age) {
            return Err("imageMaximumGCAge: it must be longer than imageMinimumGCAge".to_owned());
        }
        fields.set("oomScoreAdj", &mut self.oom_score, |v| number(-1000..=1000)(v).map(|n| n as i32))?;
        fields.set("podPidsLimit", &mut self.pod_pids, |v| {
            number(-1..=i64::MAX)(v).map(|n| Some(n).filter(|n| *n > 0))
        })?;
        fields.set("userNamespaces.idsPerPod", &mut self.users_per_pod, |value| {
            let ids = number(UNIT.into()..=u32::MAX.into())(value)? as u32;
            if ids.is_multiple_of(UNIT) { Ok(ids) } else { Err(format!("it must be a multiple of {UNIT}, not {ids}")) }
        })?;
        fields.set("podsPerCore", &mut self.pods_per_core, |v| number(0..=10_000)(v).map(|n| n as u32))?;
        fields.set("cgroupDriver", &mut self.cgroup_driver, |value| match text(value)? {
            "" | "cgroupfs" => Ok(CgroupDriver::Cgroupfs),
            "systemd" => Ok(CgroupDriver::Systemd),
            other => Err(format!("{other:?} is neither \"cgroupfs\" nor \"systemd\"")),
        })?;
        fields.set("cpuCFSQuota", &mut self.cfs.enforced, yes)?;
        fields.set("cpuCFSQuotaPeriod", &mut self.cfs.period, |value| {
            let period = time(value)?;
            let fits = (Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period);
            if fits { Ok(period.as_micros() as i64) } else { Err("it must be from 1ms to 1s".to_owned()) }
        })?;
        fields.set("memoryThrottlingFactor", &mut self.memory_throttling, |value| {
            let factor = value.as_f64().filter(|factor| *factor > 0.0 && *factor <= 1.0);
            factor.ok_or_else(|| "it must be more than 0 and 1 at the most".to_owned())
        })?;
        fields.set("singleProcessOOMKill", &mut self.kills_one, |v| yes(v).map(Some))?;
        fields.set("memorySwap.swapBehavior", &mut self.limited_swap, |value| match text(value)? {
            "" | "NoSwap" => Ok(false),
            "LimitedSwap" => Ok(true),
            other => Err(format!("{other:?} is neither \"NoSwap\" nor \"LimitedSwap\"")),
        })?;
        fields.set("crashLoopBackOff.maxContainerRestartPeriod", &mut self.restart_pause, |value| {
            let range = Duration::from_secs(1)..=Duration::from_secs(300);
            time(value).and_then(|t| {
                if range.contains(&t) { Ok(Some(t)) } else { Err("it must be from 1s to 300s".to_owned()) }
            })
        })
    }

    fn read_pulls(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        let pulls = &mut self.pulls;
        let amount = |value: &Value| number(0..=i32::MAX.into())(value).map(|n| n.unsigned_abs() as u32);
        fields.set("registryPullQPS", &mut pulls.per_second, amount)?;
        fields.set("registryBurst", &mut pulls.burst, amount)?;
        fields.set("serializeImagePulls", &mut pulls.serialize, |v| yes(v).map(Some))?;
        fields.set("maxParallelImagePulls", &mut pulls.at_once, |v| {
            number(1..=i32::MAX.into())(v).map(|n| usize::try_from(n).ok())
        })?;
        let policy = "imagePullCredentialsVerificationPolicy";
        fields.set(policy, &mut pulls.verification, |v| Verification::read(text(v)?))?;
        let mut list = None;
        fields.set("preloadedImagesVerificationAllowlist", &mut list, |v| Allowlist::read(v).map(Some))?;
        pulls.complete(list)
    }

    fn read_node(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        fields.set("address", &mut self.address, |v| ip(v).map(|ip| Some(ip).filter(|ip| !ip.is_unspecified())))?;
        fields.set("healthzBindAddress", &mut self.healthz.0, ip)?;
        fields.set("healthzPort", &mut self.healthz.1, |v| number(0..=65_535)(v).map(|n| n as u16))?;
        fields.set("tlsMinVersion", &mut self.protocols, |v| pki::Protocols::default().since(text(v)?))?;
        let oldest = self.protocols.clone();
        fields.set("tlsCipherSuites", &mut self.protocols, |value| {
            let names = value.as_array().ok_or("it must be a list")?;
            oldest.with_suites(names.iter().map(text).collect::<Result<Vec<_>, _>>()?)
        })?;
        fields.set("nodeStatusUpdateFrequency", &mut self.status_update, period)?;
        // Whoever says how often it is looked at means by that how often it is told, unless that is said too.
        if fields.at("nodeStatusUpdateFrequency").is_some() {
            self.status_report = self.status_update;
        }
        fields.set("nodeStatusReportFrequency", &mut self.status_report, period)?;
        fields.set("nodeLeaseDurationSeconds", &mut self.lease_seconds, |v| {
            number(1..=i32::MAX.into())(v).map(|n| n as i32)
        })?;
        fields.set("nodeStatusMaxImages", &mut self.status_images, |v| {
            number(-1..=i32::MAX.into())(v).map(|most| usize::try_from(most).ok())
        })?;
        fields.set("enableDebuggingHandlers", &mut self.debugging_handlers, yes)?;
        fields.set("enableProfilingHandler", &mut self.profiling, yes)?;
        fields.set("enableDebugFlagsHandler", &mut self.debug_flags, yes)?;
        fields.set("enableSystemLogHandler", &mut self.system_logs, yes)?;
        fields.set("enableSystemLogQuery", &mut self.log_query, yes)?;
        if self.log_query && !self.system_logs {
            return Err("enableSystemLogQuery: it needs enableSystemLogHandler".to_owned());
        }
        fields.set("seccompDefault", &mut self.seccomp_default, yes)?;
        fields.set("registerNode", &mut self.registers, yes)?;
        fields.set("providerID", &mut self.provider_id, |v| text(v).map(str::to_owned))?;
        fields.set("localStorageCapacityIsolation", &mut self.local_storage, yes)?;
        fields.set("failSwapOn", &mut self.fail_swap_on, yes)?;
        fields.set("failCgroupV1", &mut self.fail_cgroup_v1, yes)?;
        fields.set("protectKernelDefaults", &mut self.protect_kernel, yes)?;
        fields.set("tracing", &mut self.tracing, |v| spans::config::Config::of_part(v).map(Some))?;
        fields.set("registerWithTaints", &mut self.taints, |value| {
            let taints: Vec<Taint> = json::from_value(value.clone()).map_err(|error| error.to_string())?;
            match taints.iter().find(|taint| taint.key.is_empty() || taint.effect.is_empty()) {
                Some(_) => Err("a taint has a key and an effect".to_owned()),
                None => Ok(taints),
            }
        })
    }

    fn read_reserved(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        let reserved = &mut self.reserved;
        fields.set("kubeReserved", &mut reserved.kube, resources)?;
        fields.set("systemReserved", &mut reserved.system, resources)?;
        fields.set("kubeReservedCgroup", &mut reserved.kube_cgroup, |v| text(v).map(str::to_owned))?;
        fields.set("systemReservedCgroup", &mut reserved.system_cgroup, |v| text(v).map(str::to_owned))?;
        fields.set("reservedSystemCPUs", &mut reserved.cpus, |value| {
            let list = text(value)?;
            if list.is_empty() { Ok(None) } else { cpus(list).map(|_| Some(list.to_owned())) }
        })?;
        fields.set("enforceNodeAllocatable", &mut reserved.enforced, enforced)?;
        for (what, cgroup, field) in [
            (reserved.enforced.kube, &reserved.kube_cgroup, "kubeReservedCgroup"),
            (reserved.enforced.system, &reserved.system_cgroup, "systemReservedCgroup"),
        ] {
            let is_path = cgroup.starts_with('/') && !cgroup.split('/').any(|part| matches!(part, "." | ".."));
            if (what.is_some() || !cgroup.is_empty()) && !is_path {
                return Err(format!("{field}: enforceNodeAllocatable needs the path of a cgroup, such as /system"));
            }
            if reserved.cpus.is_some() && !cgroup.is_empty() {
                return Err(format!("reservedSystemCPUs: it cannot stand beside {field}"));
            }
        }
        Ok(())
    }

    fn read_managers(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        let to = &mut self.managers;
        fields.set("cpuManagerPolicy", &mut to.cpus, |v| affinity::policy(v, "none", "static"))?;
        fields.set("cpuManagerPolicyOptions", &mut to.cpu_options, affinity::options)?;
        fields.set("cpuManagerReconcilePeriod", &mut to.period, period)?;
        fields.set("memoryManagerPolicy", &mut to.memory, |v| affinity::policy(v, "None", "Static"))?;
        fields.set("reservedMemory", &mut to.reserved_memory, |v| affinity::reserved_memory(v, quantity))?;
        fields.set("topologyManagerPolicy", &mut to.topology, affinity::topology)?;
        fields.set("topologyManagerScope", &mut to.by_pod, affinity::scope)?;
        fields.set("topologyManagerPolicyOptions", &mut to.topology_options, affinity::options)
    }

    fn read_shutdown(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        let times = &mut self.shutdown;
        fields.set("shutdownGracePeriod", &mut times.all, time)?;
        fields.set("shutdownGracePeriodCriticalPods", &mut times.critical, time)?;
        fields.set("shutdownGracePeriodByPodPriority", &mut times.by_priority, shutdown::periods)?;
        times.check()
    }

    fn read_static_url(&mut self, fields: &Fields<'_>) -> Result<(), String> {
        let mut place = StaticUrl { interval: Duration::from_secs(20), ..StaticUrl::default() };
        fields.set("staticPodURL", &mut place.url, |v| text(v).map(str::to_owned))?;
        fields.set("httpCheckFrequency", &mut place.interval, period)?;
        fields.set("staticPodURLHeader", &mut place.headers, |value| {
            let all: BTreeMap<String, Vec<String>> =
                json::from_value(value.clone()).map_err(|error| error.to_string())?;
            let pairs = all.into_iter().flat_map(|(name, values)| values.into_iter().map(move |v| (name.clone(), v)));
            let pairs: Vec<_> = pairs.collect();
            let is_one = |(name, value): &(String, String)| {
                name.parse::<http::HeaderName>().is_ok() && value.parse::<http::HeaderValue>().is_ok()
            };
            pairs.iter().all(is_one).then_some(pairs).ok_or_else(|| "these are no headers".to_owned())
        })?;
        if place.url.is_empty() {
            return Ok(());
        }
        let uri = place.url.parse::<http::Uri>().ok();
        let is_known = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if !uri.as_ref().is_some_and(is_known) {
            return Err("staticPodURL: it must be a URL with http or https".to_owned());
        }
        self.static_url = Some(place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Document;
    use json::json;

    fn read(mut value: Value) -> Result<Settings, String> {
        value["apiVersion"] = "kubelet.config.k8s.io/v1beta1".into();
        value["kind"] = "KubeletConfiguration".into();
        Settings::of(Document::new(value)?.value())
    }

    #[test]
    fn nothing_said_leaves_the_defaults() {
        assert_eq!(read(json!({})).unwrap(), Settings::default());
        assert_eq!(read(json!({"podPidsLimit": -1, "imageMinimumGCAge": "0s"})).unwrap(), Settings::default());
    }

    #[test]
    fn what_is_set_counts() {
        let set = read(json!({
            "containerLogMaxSize": "256Ki", "containerLogMaxFiles": 3, "podPidsLimit": 100, "nodeStatusUpdateFrequency": "20s",
            "podLogsDir": "/logs/of/pods", "memorySwap": {"swapBehavior": "LimitedSwap"}, "kubeReserved": {"cpu": "100m", "pid": "1000"},
            "enforceNodeAllocatable": ["pods", "kube-reserved-compressible"], "kubeReservedCgroup": "/kube",
            "cpuCFSQuota": false, "cpuCFSQuotaPeriod": "20ms", "enableSystemLogQuery": true,
            "registerWithTaints": [{"key": "a", "effect": "NoSchedule"}], "staticPodURL": "https://x.example/pods",
            "staticPodURLHeader": {"X-A": ["b", "c"]}, "nodeStatusMaxImages": -1, "healthzPort": 0,
            "tracing": {"samplingRatePerMillion": 100},
            "maxParallelImagePulls": 3, "registryPullQPS": 0, "imagePullCredentialsVerificationPolicy": "AlwaysVerify",
            "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "topologyManagerScope": "pod",
            "memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1Gi"}}],
            "shutdownGracePeriodByPodPriority": [{"priority": 7, "shutdownGracePeriodSeconds": 20}],
        }))
        .unwrap();
        assert_eq!((set.logs.max_bytes, set.logs.max_files, set.pod_pids), (256 << 10, 3, Some(100)));
        assert_eq!(set.pod_logs.as_deref(), Some(std::path::Path::new("/logs/of/pods")));
        assert_eq!((set.status_report, set.limited_swap, set.status_images), (Duration::from_secs(20), true, None));
        assert_eq!((set.cfs, set.log_query), (Cfs { enforced: false, period: 20_000 }, true));
        assert_eq!(set.reserved.kube["cpu"].milli_value(), 100);
        assert_eq!(set.tracing.as_ref().map(|tracing| tracing.per_million), Some(100));
        let pulls = &set.pulls;
        assert_eq!((pulls.most(), pulls.per_second, pulls.burst), (Some(3), 0, 10));
        assert_eq!((&pulls.verification, Settings::default().pulls.most()), (&Verification::Always, Some(1)));
        let kube = Some(Enforcement::Compressible);
        assert_eq!(set.reserved.enforced, Enforced { pods: true, kube, system: None });
        assert_eq!((set.taints[0].key.as_str(), set.healthz.1), ("a", 0));
        let of = &set.managers;
        assert_eq!(
            (of.cpu_policy(), of.memory_policy(), of.scope(), of.topology.name()),
            ("static", "Static", "pod", "none")
        );
        assert_eq!((&*of.cpu_options["full-pcpus-only"], of.reserved_memory[0].node), ("true", 1));
        assert_eq!(set.shutdown.by_priority, [shutdown::Period { priority: 7, seconds: 20 }]);
        let headers = [("X-A".to_owned(), "b".to_owned()), ("X-A".to_owned(), "c".to_owned())];
        assert_eq!(set.static_url.unwrap().headers, headers);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (value, expected) in [
            (json!({"containerLogMaxFiles": 1}), "containerLogMaxFiles: it must be a number from 2 to 100000, not 1"),
            (
                json!({"maxParallelImagePulls": 3, "serializeImagePulls": true}),
                "maxParallelImagePulls: it cannot be larger than 1 unless serializeImagePulls is false",
            ),
            (
                json!({"imagePullCredentialsVerificationPolicy": "Sometimes"}),
                "imagePullCredentialsVerificationPolicy: \"Sometimes\" is none of NeverVerify,",
            ),
            (
                json!({"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages"}),
                "preloadedImagesVerificationAllowlist: NeverVerifyAllowlistedImages needs the images that it is about",
            ),
            (
                json!({"preloadedImagesVerificationAllowlist": ["r.io/a"]}),
                "preloadedImagesVerificationAllowlist: it stands beside NeverVerifyAllowlistedImages alone, not NeverVerifyPreloadedImages",
            ),
            (
                json!({"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
                    "preloadedImagesVerificationAllowlist": ["r.io/*a"]}),
                "preloadedImagesVerificationAllowlist: not a valid wildcard pattern",
            ),
            (json!({"tracing": {"rate": 1}}), "tracing: unknown field \"rate\""),
            (json!({"tlsMinVersion": "1.3"}), "tlsMinVersion: unknown tls version \"1.3\""),
            (
                json!({"tlsCipherSuites": ["TLS_AES_128_GCM_SHA256", "RC4"]}),
                "tlsCipherSuites: Cipher suite RC4 not supported or doesn't exist",
            ),
            (
                json!({"tracing": {"samplingRatePerMillion": 1_000_001}}),
                "tracing: samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal",
            ),
            (
                json!({"tracing": {"endpoint": "https://c:1"}}),
                "tracing: endpoint: Invalid value: \"https://c:1\": unsupported",
            ),
            (
                json!({"enableSystemLogQuery": true, "enableSystemLogHandler": false}),
                "enableSystemLogQuery: it needs enableSystemLogHandler",
            ),
            (json!({"cpuCFSQuotaPeriod": "0.9ms"}), "cpuCFSQuotaPeriod: it must be from 1ms to 1s"),
            (json!({"cpuCFSQuotaPeriod": "1.1s"}), "cpuCFSQuotaPeriod: it must be from 1ms to 1s"),
            (json!({"registryPullQPS": -1}), "registryPullQPS: it must be a number from 0 to 2147483647, not -1"),
            (json!({"containerLogMaxSize": "0"}), "containerLogMaxSize: it must be more than nothing"),
            (json!({"podLogsDir": "./test"}), "podLogsDir: pod logs path \"./test\" must be absolute path"),
            (json!({"podLogsDir": "/path/../"}), "podLogsDir: pod logs path \"/path/../\" must be normalized"),
            (json!({"podLogsDir": "/path/"}), "podLogsDir: pod logs path \"/path/\" must be normalized"),
            (
                json!({"podLogsDir": "/p\u{e4}th"}),
                "podLogsDir: pod logs path \"/p\u{e4}th\" must contain ASCII characters only",
            ),
            (json!({"podLogsDir": "/a\u{0}b"}), "podLogsDir: \"/a\\0b\" is no path"),
            (json!({"containerLogMonitorInterval": "2s"}), "containerLogMonitorInterval: it must be 3s at least"),
            (
                json!({"kubeReserved": {"gpu": "1"}}),
                "kubeReserved: \"gpu\" cannot be reserved; cpu, memory, ephemeral-storage, pid can",
            ),
            (json!({"systemReserved": {"cpu": "-1"}}), "systemReserved: \"-1\" is no amount"),
            (json!({"enforceNodeAllocatable": ["none", "pods"]}), "enforceNodeAllocatable: \"none\" stands alone"),
            (
                json!({"enforceNodeAllocatable": ["system-reserved"]}),
                "systemReservedCgroup: enforceNodeAllocatable needs the path of a cgroup, such as /system",
            ),
            (
                json!({"reservedSystemCPUs": "3-1"}),
                "reservedSystemCPUs: \"3-1\" is no list of processors such as 0-3,7",
            ),
            (
                json!({"imageGCLowThresholdPercent": 85}),
                "imageGCLowThresholdPercent: it must be less than imageGCHighThresholdPercent",
            ),
            (
                json!({"memorySwap": {"swapBehavior": "Much"}}),
                "memorySwap.swapBehavior: \"Much\" is neither \"NoSwap\" nor \"LimitedSwap\"",
            ),
            (json!({"staticPodURL": "file:///x"}), "staticPodURL: it must be a URL with http or https"),
            (json!({"registerWithTaints": [{"key": "a"}]}), "registerWithTaints: "),
            (json!({"cpuManagerPolicy": "Static"}), "cpuManagerPolicy: unknown policy: \"Static\""),
            (json!({"memoryManagerPolicy": "static"}), "memoryManagerPolicy: unknown policy: \"static\""),
            (
                json!({"topologyManagerPolicy": "best"}),
                "topologyManagerPolicy: \"best\" must be one of: [\"none\" \"best-effort\" \"restricted\" \"single-numa-node\"]",
            ),
            (
                json!({"topologyManagerScope": "node"}),
                "topologyManagerScope: \"node\" must be one of: \"container\", or \"pod\"",
            ),
            (json!({"cpuManagerPolicyOptions": {"a": true}}), "cpuManagerPolicyOptions: it must be a text"),
            (
                json!({"reservedMemory": [{"numaNode": -1}]}),
                "reservedMemory: numaNode: it must be the number of a node",
            ),
            (json!({"reservedMemory": [{"node": 1}]}), "reservedMemory: unknown field \"node\""),
            (
                json!({"reservedMemory": [{"numaNode": 1, "limits": {"cpu": "1"}}]}),
                "reservedMemory: the limit type \"cpu\" for NUMA node 1 is not supported, only [memory hugepages-<HugePageSize>] is accepted",
            ),
            (
                json!({"reservedMemory": [{"limits": {"memory": "0"}}]}),
                "reservedMemory: reserved memory may not be zero for NUMA node 0 and resource \"memory\"",
            ),
            (
                json!({"reservedMemory": [{"limits": {"memory": "1Gi"}}, {"numaNode": 0, "limits": {"memory": "1Gi"}}]}),
                "reservedMemory: the reserved memory has a duplicate value for NUMA node 0 and resource \"memory\"",
            ),
            (
                json!({"shutdownGracePeriod": "1s", "shutdownGracePeriodCriticalPods": "2s"}),
                "shutdownGracePeriodCriticalPods: it cannot be longer than shutdownGracePeriod",
            ),
            (json!({"shutdownGracePeriod": "1ms"}), "shutdownGracePeriod: it must be nothing or 1s at least"),
            (
                json!({"shutdownGracePeriod": "1s", "shutdownGracePeriodByPodPriority": [{"priority": 1}]}),
                "shutdownGracePeriodByPodPriority: it cannot stand beside shutdownGracePeriod",
            ),
            (
                json!({"shutdownGracePeriodByPodPriority": [{"shutdownGracePeriodSeconds": -1}]}),
                "shutdownGracePeriodByPodPriority: shutdownGracePeriodSeconds: it must be a number from 0 to 2147483647",
            ),
            (
                json!({"shutdownGracePeriodByPodPriority": [{"prio": 1}]}),
                "shutdownGracePeriodByPodPriority: unknown field \"prio\"",
            ),
            (
                json!({"userNamespaces": {"idsPerPod": 65537}}),
                "userNamespaces.idsPerPod: it must be a multiple of 65536, not 65537",
            ),
            (
                json!({"userNamespaces": {"idsPerPod": 0}}),
                "userNamespaces.idsPerPod: it must be a number from 65536 to 4294967295, not 0",
            ),
            (json!({"oomScoreAdj": 1001}), "oomScoreAdj: it must be a number from -1000 to 1000, not 1001"),
            (
                json!({"nodeLeaseDurationSeconds": 0}),
                "nodeLeaseDurationSeconds: it must be a number from 1 to 2147483647, not 0",
            ),
        ] {
            let why = read(value).unwrap_err();
            assert!(why.starts_with(expected), "{why}");
        }
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpus("0-2,7,1").unwrap(), [0, 1, 2, 7]);
        for text in ["", "a", "1-", "0-99999", "-1"] {
            assert!(cpus(text).is_err(), "{text}");
        }
    }
}
