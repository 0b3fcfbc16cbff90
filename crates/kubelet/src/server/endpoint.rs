//! Resolves a request to the kubelet once: the check of rights and the answer both follow from the result.

use http::Method;
use profile::page;

/// The endpoints of the kubelet's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint<'a> {
    Health,
    Pods,
    /// The Pods that the engine has containers of.
    RunningPods,
    Metrics,
    /// The counts that the kernel keeps of each container.
    Cadvisor,
    ProbeMetrics,
    /// The usage of the node, its Pods and containers.
    ResourceMetrics,
    Config,
    Summary,
    Logs {
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
    },
    /// Files of the machine's logs, by their path.
    SystemLogs(&'a str),
    Checkpoint {
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
    },
    /// A profile, by its name.
    Profile(&'a str),
    /// `/debug/flags` and what is below it.
    DebugFlags(&'a str),
    /// exec, attach and port-forward.
    Stream(&'a str),
    /// Content of images, for nodes alone.
    Images,
    /// No endpoint has this path.
    Unknown,
}

impl Endpoint<'_> {
    /// The path as upstream writes it down, with names for the parts that differ.
    pub fn route(&self) -> &'static str {
        use Endpoint::*;
        match self {
            Health => "/healthz",
            Pods => "/pods",
            RunningPods => "/runningpods/",
            Metrics => "/metrics",
            Cadvisor => "/metrics/cadvisor",
            ProbeMetrics => "/metrics/probes",
            ResourceMetrics => "/metrics/resource",
            Config => "/configz",
            Summary => "/stats/summary",
            Logs { .. } => "/containerLogs/{podNamespace}/{podID}/{containerName}",
            SystemLogs(_) => "/logs/{logpath:*}",
            Checkpoint { .. } => "/checkpoint/{podNamespace}/{podID}/{containerName}",
            Profile(_) => "/debug/pprof/{subpath:*}",
            DebugFlags(_) => "/debug/flags/v",
            Stream(path) if path.starts_with("/exec/") => "/exec/{podNamespace}/{podID}/{containerName}",
            Stream(path) if path.starts_with("/attach/") => "/attach/{podNamespace}/{podID}/{containerName}",
            Stream(_) => "/portForward/{podNamespace}/{podID}",
            Images => "/v2/{path:*}",
            Unknown => "",
        }
    }

    /// The beginning of the path, which says what is asked for.
    pub fn root(&self) -> &'static str {
        let path = self.route().trim_matches('/');
        match path.split_once('/') {
            _ if path.is_empty() => "other",
            Some(("metrics", _)) | None => path,
            Some((root, _)) => root,
        }
    }

    /// Those that a node can do without: upstream turns them off together.
    pub fn is_for_debugging(&self) -> bool {
        use Endpoint::{DebugFlags, Logs, Profile, RunningPods, Stream, SystemLogs};
        matches!(self, RunningPods | Logs { .. } | SystemLogs(_) | Profile(_) | DebugFlags(_) | Stream(_))
    }
}

/// A request: what it is for, and the rights of which one is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    pub endpoint: Endpoint<'a>,
    pub verb: &'static str,
    /// Subresources of the node, in upstream's order (KubeletFineGrainedAuthz): the particular right, then the general one.
    pub subresources: &'static [&'static str],
}

/// The parts of a path that is written in the one plain way. A path that could be read in two ways (empty parts, dots,
/// escapes) has no endpoint.
fn parts(path: &str) -> Option<Vec<&str>> {
    let inner = path.strip_prefix('/')?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let plain = |p: &&str| !(p.is_empty() || *p == "." || *p == ".." || p.contains(['%', '\\']));
    let parts: Vec<&str> = inner.split('/').collect();
    parts.iter().all(plain).then_some(parts)
}

pub fn resolve<'a>(method: &Method, path: &'a str) -> Asked<'a> {
    let reading = matches!(*method, Method::GET | Method::HEAD);
    let found = parts(path);
    let endpoint = match found.as_deref() {
        Some(
            ["exec" | "attach", _, _, _]
            | ["exec" | "attach", _, _, _, _]
            | ["portForward", _, _]
            | ["portForward", _, _, _],
        ) if reading || *method == Method::POST => Endpoint::Stream(path),
        Some(["healthz", ..]) if reading => Endpoint::Health,
        Some(["pods"]) if reading => Endpoint::Pods,
        Some(["runningpods"]) if reading => Endpoint::RunningPods,
        Some(["metrics", "cadvisor"]) if reading => Endpoint::Cadvisor,
        Some(["metrics", "probes"]) if reading => Endpoint::ProbeMetrics,
        Some(["metrics", "resource"]) if reading => Endpoint::ResourceMetrics,
        Some(["metrics"]) if reading => Endpoint::Metrics,
        Some(["configz"]) if reading => Endpoint::Config,
        Some(["stats", "summary"]) if reading => Endpoint::Summary,
        Some(["containerLogs", namespace, pod, container]) if reading => Endpoint::Logs { namespace, pod, container },
        Some(["logs", ..]) if reading => Endpoint::SystemLogs(path.strip_prefix("/logs").unwrap_or_default()),
        Some(["debug", "pprof"]) if reading => Endpoint::Profile(""),
        Some(["debug", "pprof", name]) if reading => Endpoint::Profile(name),
        Some(["debug", "pprof", name @ page::SYMBOL]) if *method == Method::POST => Endpoint::Profile(name),
        Some(["checkpoint", namespace, pod, container]) if *method == Method::POST => {
            Endpoint::Checkpoint { namespace, pod, container }
        }
        Some(["v2", ..]) if reading => Endpoint::Images,
        Some(["debug", "flags"] | ["debug", "flags", "v"]) => {
            Endpoint::DebugFlags(path.strip_prefix("/debug/flags").unwrap_or_default().trim_end_matches('/'))
        }
        _ => Endpoint::Unknown,
    };
    let subresources: &[&str] = match endpoint {
        Endpoint::Health => &["healthz", "proxy"],
        Endpoint::Pods | Endpoint::RunningPods => &["pods", "proxy"],
        Endpoint::Config => &["configz", "proxy"],
        Endpoint::Metrics | Endpoint::Cadvisor | Endpoint::ProbeMetrics | Endpoint::ResourceMetrics => &["metrics"],
        Endpoint::SystemLogs(_) => &["log"],
        Endpoint::Checkpoint { .. } => &["checkpoint"],
        Endpoint::Summary => &["stats"],
        Endpoint::Logs { .. }
        | Endpoint::Profile(_)
        | Endpoint::DebugFlags(_)
        | Endpoint::Stream(_)
        | Endpoint::Images
        | Endpoint::Unknown => &["proxy"],
    };
    let verb = match (endpoint, method.as_str()) {
        // A WebSocket begins with GET, but to run a command is not to read.
        (Endpoint::Stream(_), _) | (_, "POST") => "create",
        (_, "PUT") => "update",
        (_, "PATCH") => "patch",
        (_, "DELETE") => "delete",
        (_, "GET" | "HEAD") => "get",
        // No rule grants what has no name.
        _ => "",
    };
    Asked { endpoint, verb, subresources }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str, endpoint: Endpoint<'_>, verb: &str, subresources: &[&str]) {
        let got = resolve(&method.parse().unwrap(), path);
        assert_eq!((got.endpoint, got.verb, got.subresources), (endpoint, verb, subresources), "{method} {path}");
    }

    #[test]
    fn each_endpoint_needs_a_right_of_its_own_or_the_general_one() {
        check("GET", "/healthz", Endpoint::Health, "get", &["healthz", "proxy"]);
        check("GET", "/healthz/ping", Endpoint::Health, "get", &["healthz", "proxy"]);
        check("GET", "/pods", Endpoint::Pods, "get", &["pods", "proxy"]);
        check("HEAD", "/runningpods/", Endpoint::RunningPods, "get", &["pods", "proxy"]);
        check("GET", "/logs/", Endpoint::SystemLogs("/"), "get", &["log"]);
        check("GET", "/logs/apt/term.log", Endpoint::SystemLogs("/apt/term.log"), "get", &["log"]);
        check("POST", "/logs/x", Endpoint::Unknown, "create", &["proxy"]);
        let checkpoint = Endpoint::Checkpoint { namespace: "n", pod: "p", container: "c" };
        check("POST", "/checkpoint/n/p/c", checkpoint, "create", &["checkpoint"]);
        check("GET", "/checkpoint/n/p/c", Endpoint::Unknown, "get", &["proxy"]);
        check("GET", "/configz", Endpoint::Config, "get", &["configz", "proxy"]);
        check("GET", "/metrics", Endpoint::Metrics, "get", &["metrics"]);
        check("GET", "/metrics/cadvisor", Endpoint::Cadvisor, "get", &["metrics"]);
        check("GET", "/metrics/probes", Endpoint::ProbeMetrics, "get", &["metrics"]);
        check("GET", "/metrics/resource", Endpoint::ResourceMetrics, "get", &["metrics"]);
        check("GET", "/stats/summary", Endpoint::Summary, "get", &["stats"]);
        for (path, name) in
            [("/debug/pprof/", ""), ("/debug/pprof/profile", "profile"), ("/debug/pprof/symbol", "symbol")]
        {
            check("GET", path, Endpoint::Profile(name), "get", &["proxy"]);
        }
        check("POST", "/debug/pprof/symbol", Endpoint::Profile("symbol"), "create", &["proxy"]);
        check("POST", "/debug/pprof/profile", Endpoint::Unknown, "create", &["proxy"]);
        let logs = Endpoint::Logs { namespace: "n", pod: "p", container: "c" };
        check("GET", "/containerLogs/n/p/c", logs, "get", &["proxy"]);
        check("PUT", "/debug/flags/v", Endpoint::DebugFlags("/v"), "update", &["proxy"]);
        check("GET", "/debug/flags/", Endpoint::DebugFlags(""), "get", &["proxy"]);
        check("HEAD", "/v2/team/app/blobs/sha256:0", Endpoint::Images, "get", &["proxy"]);
        check("GET", "/v2/", Endpoint::Images, "get", &["proxy"]);
        check("POST", "/v2/team/app/blobs/uploads/", Endpoint::Unknown, "create", &["proxy"]);
    }

    #[test]
    fn routes_do_not_tell_which_pod_is_meant() {
        let pod = "/{podNamespace}/{podID}";
        for (path, route) in [
            ("/exec/n/p/c", format!("/exec{pod}/{{containerName}}")),
            ("/attach/n/p/u/c", format!("/attach{pod}/{{containerName}}")),
            ("/portForward/n/p", format!("/portForward{pod}")),
            ("/containerLogs/n/p/c", format!("/containerLogs{pod}/{{containerName}}")),
            ("/stats/summary", "/stats/summary".to_owned()),
            ("/x", String::new()),
        ] {
            assert_eq!(resolve(&Method::GET, path).endpoint.route(), route);
        }
    }

    #[test]
    fn to_run_something_is_never_reading() {
        for path in ["/exec/n/p/c", "/exec/n/p/u/c", "/attach/n/p/c", "/portForward/n/p", "/portForward/n/p/u"] {
            for method in ["GET", "POST"] {
                check(method, path, Endpoint::Stream(path), "create", &["proxy"]);
            }
            check("PATCH", path, Endpoint::Unknown, "patch", &["proxy"]);
            check("BREW", path, Endpoint::Unknown, "", &["proxy"]);
        }
    }

    #[test]
    fn a_path_that_could_be_read_in_two_ways_is_none() {
        for path in [
            "/metrics/../exec/n/p/c",
            "/metrics/..",
            "//metrics",
            "/metrics//",
            "/pods/./x",
            "/%6detrics",
            "/metrics/%2e%2e/pods",
            "metrics",
            "",
            "/",
            "*",
            "/exec//n/p/c",
            "/podsx",
            "/pods/x",
            "/METRICS",
            "/stats",
            "/stats/summary/x",
            "/configz/x",
            "/containerLogs/n/p",
            "/containerLogs/n/p/c/d",
            "/exec",
            "/exec/n/p",
            "/run/n/p/c",
            "/metrics/x",
            "/logs/../etc/shadow",
            "/logs/%2e%2e/x",
            "/logsx",
            "/debug/pprof/../../metrics",
            "/debug/pprof/profile/x",
            "/debug/flags/w",
            "/debug/flags/v/x",
            "/debug/flags//v",
            "/metrics\\x",
        ] {
            check("GET", path, Endpoint::Unknown, "get", &["proxy"]);
        }
        check("DELETE", "/pods", Endpoint::Unknown, "delete", &["proxy"]);
        check("PUT", "/metrics", Endpoint::Unknown, "update", &["proxy"]);
    }
}
