//! Section 4.2 and 4.3: kubelet and proxy.

use std::net::SocketAddr;

use kubelet::configuration::settings::Settings;

use super::{Control, Subject, Verdict, apart, fail, manual, pass};
use crate::flags::{kubelet_config, options::Node};

pub(super) const CONTROLS: &[Control] = &[
    Control { id: "4.2.1", about: "kubelet: strangers are not let in", look: |s| of(s, |_| pass("never")) },
    Control {
        id: "4.2.2",
        about: "kubelet: not everything is allowed",
        look: |s| of(s, |_| pass("the API server is asked")),
    },
    Control { id: "4.2.3", about: "kubelet: authority of clients", look: |s| of(s, |_| pass("the cluster's own")) },
    Control { id: "4.2.4", about: "kubelet: no port without TLS", look: |s| of(s, |_| pass("there is none")) },
    Control { id: "4.2.5", about: "kubelet: idle streams end", look: |s| of(s, |_| pass("always")) },
    Control {
        id: "4.2.6",
        about: "kubelet: chains of iptables",
        look: |s| of(s, |_| apart("rules are nftables' and the proxy's")),
    },
    Control { id: "4.2.7", about: "kubelet: its name is the machine's", look: |s| of(s, name) },
    Control {
        id: "4.2.8",
        about: "kubelet: events are not lost",
        look: |s| of(s, |_| pass("they are sent as they happen")),
    },
    Control { id: "4.2.9", about: "kubelet: TLS", look: |s| of(s, |_| pass("always")) },
    Control { id: "4.2.10", about: "kubelet: renews its client certificate", look: |s| of(s, |_| pass("always")) },
    Control { id: "4.2.11", about: "kubelet: renews its serving certificate", look: |s| of(s, |_| pass("always")) },
    Control {
        id: "4.2.12",
        about: "kubelet: strong ciphers",
        look: |s| of(s, |_| pass("TLS 1.2 and 1.3 with forward secrecy and AEAD, nothing else")),
    },
    Control { id: "4.2.13", about: "kubelet: processes of a Pod", look: |s| of(s, processes) },
    Control { id: "4.2.14", about: "kubelet: seccomp by default", look: |s| of(s, seccomp) },
    Control { id: "4.3.1", about: "proxy: metrics are local", look: |s| of(s, metrics) },
];

fn of(subject: &Subject, look: impl Fn(&Node) -> Verdict) -> Verdict {
    subject.node.as_ref().map_or_else(|| apart("this machine runs no node"), look)
}

/// The verdict on the settings of the kubelet's configuration, where that can be read.
fn settings(node: &Node, look: impl Fn(&Settings) -> Verdict) -> Verdict {
    let read = node.kubelet_config.document().and_then(|document| kubelet_config::settings(document.as_ref()));
    read.map_or_else(|error| fail(format!("{error:#}")), |settings| look(&settings))
}

fn processes(node: &Node) -> Verdict {
    settings(node, |settings| match settings.pod_pids {
        Some(most) => pass(format!("{most} in a Pod")),
        None => manual("how many your Pods need is for you to say: podPidsLimit in the file of --kubelet-config"),
    })
}

fn seccomp(node: &Node) -> Verdict {
    settings(node, |settings| match settings.seccomp_default {
        true => pass("seccompDefault: true"),
        false => manual(
            "images may need calls that it refuses: seccompDefault in the file of --kubelet-config, or a Pod's \
             securityContext.seccompProfile",
        ),
    })
}

fn metrics(node: &Node) -> Verdict {
    match node.proxy_metrics_bind_address.as_str() {
        "" => pass("nowhere"),
        text if text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback()) => pass(text),
        text => fail(format!("they are at {text}; --proxy-metrics-bind-address=127.0.0.1:10249")),
    }
}

fn name(node: &Node) -> Verdict {
    match &node.node_name {
        None => pass("the host name"),
        Some(name) => manual(format!("--node-name={name}; leave it out where the host name would do")),
    }
}
