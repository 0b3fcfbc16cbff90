//! Sections 1.3, 1.4 and 2: controllers, scheduler and etcd.

use super::{Control, Subject, Verdict, apart, api_server::profiling, pass};

pub(super) const CONTROLS: &[Control] = &[
    Control { id: "1.3.1", about: "Pods that ended are forgotten", look: |_| pass("with the 12,500th") },
    Control { id: "1.3.2", about: "controller manager: profiling is off", look: profiling },
    Control {
        id: "1.3.3",
        about: "each controller has its own rights",
        look: |_| pass("each is its own service account"),
    },
    Control {
        id: "1.3.4",
        about: "key of service accounts",
        look: |_| pass("the API server's, or an external signer's"),
    },
    Control { id: "1.3.5", about: "Pods are told the authority", look: |_| pass("the cluster's own") },
    Control { id: "1.3.6", about: "kubelets renew serving certificates", look: |_| pass("always") },
    Control { id: "1.3.7", about: "controller manager listens locally", look: no_listener },
    Control { id: "1.4.1", about: "scheduler: profiling is off", look: profiling },
    Control { id: "1.4.2", about: "scheduler listens locally", look: no_listener },
    Control { id: "2.1", about: "etcd: TLS towards clients", look: etcd },
    Control { id: "2.2", about: "etcd: clients show certificates", look: etcd },
    Control { id: "2.3", about: "etcd: no certificates of its own", look: etcd },
    Control { id: "2.4", about: "etcd: TLS between peers", look: etcd },
    Control { id: "2.5", about: "etcd: peers show certificates", look: etcd },
    Control { id: "2.6", about: "etcd: no certificates of its own for peers", look: etcd },
    Control { id: "2.7", about: "etcd: an authority of its own", look: etcd },
];

fn no_listener(_: &Subject) -> Verdict {
    apart("it does not listen at all")
}

fn etcd(subject: &Subject) -> Verdict {
    match &subject.control_plane {
        Some(options) if !options.etcd.etcd_servers.is_empty() => {
            apart(format!("{} is not this program's to look at", options.etcd.etcd_servers.join(", ")))
        }
        _ => apart("the store is in this process"),
    }
}
