//! Section 1.2 and 3: how the API server was told to work.

use apiserver::auth::modes::configuration::Mode;

use super::{Control, Subject, Verdict, apart, fail, manual, pass};
use crate::flags::options::ControlPlane;

pub(super) const CONTROLS: &[Control] = &[
    Control { id: "1.2.1", about: "strangers are let in", look: |s| of(s, strangers) },
    Control { id: "1.2.2", about: "static tokens", look: |s| of(s, static_tokens) },
    Control {
        id: "1.2.3",
        about: "DenyServiceExternalIPs",
        look: |s| of(s, |o| wanted(o, "DenyServiceExternalIPs", "Services that use external addresses")),
    },
    Control { id: "1.2.4", about: "certificate shown to kubelets", look: |s| file(s, "apiserver-kubelet-client.crt") },
    Control { id: "1.2.5", about: "authority of kubelets", look: |s| file(s, "ca.crt") },
    Control { id: "1.2.6", about: "not everything is allowed", look: |s| of(s, not_everything) },
    Control { id: "1.2.7", about: "Node authorizer", look: |s| of(s, |o| authorizer(o, Mode::Node)) },
    Control { id: "1.2.8", about: "RBAC authorizer", look: |s| of(s, |o| authorizer(o, Mode::Rbac)) },
    Control {
        id: "1.2.9",
        about: "EventRateLimit",
        look: |s| of(s, |o| wanted(o, "EventRateLimit", "limits of the administrator's choice")),
    },
    Control { id: "1.2.10", about: "AlwaysAdmit is off", look: |s| of(s, always_admit) },
    Control {
        id: "1.2.11",
        about: "AlwaysPullImages",
        look: |s| of(s, |o| wanted(o, "AlwaysPullImages", "a registry that always answers")),
    },
    Control { id: "1.2.12", about: "ServiceAccount", look: |s| of(s, |o| on(o, "ServiceAccount")) },
    Control { id: "1.2.13", about: "NamespaceLifecycle", look: |s| of(s, |o| on(o, "NamespaceLifecycle")) },
    Control { id: "1.2.14", about: "NodeRestriction", look: |s| of(s, |o| on(o, "NodeRestriction")) },
    Control { id: "1.2.15", about: "profiling is off", look: profiling },
    Control { id: "1.2.16", about: "audit log", look: |s| audit(s, |_| true, "") },
    Control {
        id: "1.2.17",
        about: "audit log: days",
        look: |s| audit(s, |(days, ..)| days == 0 || days >= 30, "--audit-log-maxage=30"),
    },
    Control {
        id: "1.2.18",
        about: "audit log: files",
        look: |s| audit(s, |(_, files, _)| files == 0 || files >= 10, "--audit-log-maxbackup=10"),
    },
    Control {
        id: "1.2.19",
        about: "audit log: megabytes",
        look: |s| audit(s, |(.., megabytes)| megabytes == 0 || megabytes >= 100, "--audit-log-maxsize=100"),
    },
    Control { id: "1.2.20", about: "requests end", look: |s| of(s, requests_end) },
    Control { id: "1.2.21", about: "accounts of tokens are looked up", look: |s| of(s, |_| pass("always")) },
    Control { id: "1.2.22", about: "key of service accounts", look: |s| file(s, "sa.pub") },
    Control {
        id: "1.2.23",
        about: "certificate shown to etcd",
        look: |s| of(s, |o| etcd(o, o.etcd.etcd_certfile.is_some(), "--etcd-certfile and --etcd-keyfile")),
    },
    Control { id: "1.2.24", about: "TLS", look: |s| file(s, "apiserver.crt") },
    Control { id: "1.2.25", about: "authority of clients", look: |s| file(s, "ca.crt") },
    Control {
        id: "1.2.26",
        about: "authority of etcd",
        look: |s| of(s, |o| etcd(o, o.etcd.etcd_cafile.is_some(), "--etcd-cafile")),
    },
    Control { id: "1.2.27", about: "encryption at rest", look: |s| of(s, encryption) },
    Control { id: "1.2.28", about: "encryption at rest: providers", look: |s| of(s, providers) },
    Control {
        id: "1.2.29",
        about: "strong ciphers",
        look: |s| of(s, |_| pass("TLS 1.2 and 1.3 with forward secrecy and AEAD, nothing else")),
    },
    Control { id: "1.2.30", about: "tokens do not live longer", look: |s| of(s, tokens) },
    Control { id: "3.1.1", about: "users: not by client certificate", look: |s| of(s, users) },
    Control { id: "3.1.2", about: "users: not by service account", look: |s| of(s, users) },
    Control { id: "3.1.3", about: "users: not by bootstrap token", look: |s| of(s, users) },
    Control { id: "3.2.1", about: "an audit policy", look: |s| of(s, audit_policy) },
    Control { id: "3.2.2", about: "the audit policy covers what matters", look: |s| of(s, audit_policy) },
];

/// One process is API server, controllers and scheduler, and one flag is for all.
pub(super) fn profiling(subject: &Subject) -> Verdict {
    of(subject, |options| match options.profiling {
        true => fail("--profiling; leave it out when the profile is made"),
        false => pass("off"),
    })
}

fn of(subject: &Subject, look: impl Fn(&ControlPlane) -> Verdict) -> Verdict {
    subject.control_plane.as_ref().map_or_else(|| apart("this machine runs no control plane"), look)
}

/// A file of the folder of keys, which is made with the first start.
fn file(subject: &Subject, name: &str) -> Verdict {
    of(subject, |_| match (subject.layout.pki().join(name), subject.running) {
        (path, _) if path.is_file() => pass(path.display().to_string()),
        (path, true) => fail(format!("{} is gone; put it back, or restart", path.display())),
        (path, false) => pass(format!("{}, made with the first start", path.display())),
    })
}

fn strangers(options: &ControlPlane) -> Verdict {
    match options.authentication.anonymous_auth {
        Some(false) => pass("--anonymous-auth=false"),
        _ => manual(
            "health checks and joining nodes use it, and RBAC lets strangers do nothing else; where no node joins any more: \
             --anonymous-auth=false",
        ),
    }
}

fn static_tokens(options: &ControlPlane) -> Verdict {
    match &options.token_auth_file {
        None => pass("none"),
        Some(file) => {
            fail(format!("--token-auth-file={}; use certificates, an issuer of tokens or a webhook", file.display()))
        }
    }
}

/// A plugin that is on unless a flag says otherwise.
fn on(options: &ControlPlane, plugin: &str) -> Verdict {
    match options.admission.choice().is_ok_and(|choice| choice.disable.iter().any(|name| name == plugin)) {
        false => pass("on"),
        true => fail(format!("--disable-admission-plugins has {plugin}; take it out")),
    }
}

/// A plugin that is off unless a flag says otherwise.
fn wanted(options: &ControlPlane, plugin: &str, needs: &str) -> Verdict {
    match options.admission.choice().is_ok_and(|choice| choice.enable.iter().any(|name| name == plugin)) {
        true => pass("on"),
        false => manual(format!("off, for it is about {needs}: --enable-admission-plugins={plugin}")),
    }
}

fn always_admit(options: &ControlPlane) -> Verdict {
    match options.admission.choice().is_ok_and(|choice| choice.enable.iter().any(|name| name == "AlwaysAdmit")) {
        false => pass("off"),
        true => fail("--enable-admission-plugins has AlwaysAdmit; take it out"),
    }
}

fn not_everything(options: &ControlPlane) -> Verdict {
    match options.authorization.settings() {
        Err(error) => fail(format!("{error:#}")),
        Ok(settings) if settings.configuration.allows_everything() => {
            fail("AlwaysAllow is among the authorizers; take it out")
        }
        Ok(_) => pass("AlwaysAllow is not among the authorizers"),
    }
}

fn authorizer(options: &ControlPlane, mode: Mode) -> Verdict {
    match options.authorization.settings() {
        Err(error) => fail(format!("{error:#}")),
        Ok(settings) if settings.configuration.authorizers.iter().any(|entry| entry.mode == mode) => pass("on"),
        Ok(_) => fail(format!("{} is not among the authorizers; add it", mode.name())),
    }
}

/// Whether there is an audit log of which enough is kept: for days, in files of a size in megabytes. Zero is no bound.
fn audit(subject: &Subject, enough: impl Fn((u32, usize, u64)) -> bool, flag: &str) -> Verdict {
    of(subject, |options| match options.audit.log(&subject.layout.audit_log()) {
        None => fail("--audit-log-path is empty; leave it out, or name a file"),
        Some((log, ..)) if enough((log.days, log.files, log.megabytes)) => pass(log.path.display().to_string()),
        Some(_) => fail(format!("give {flag}, or more")),
    })
}

fn audit_policy(options: &ControlPlane) -> Verdict {
    match &options.audit.audit_policy_file {
        Some(file) => manual(format!("read whether {} covers what matters to you", file.display())),
        None => pass("changes, reads of Secrets and ConfigMaps, commands in containers"),
    }
}

fn requests_end(options: &ControlPlane) -> Verdict {
    pass(format!("after {} s", options.in_flight.limits().request_timeout.as_secs()))
}

fn etcd(options: &ControlPlane, given: bool, flags: &str) -> Verdict {
    match (options.etcd.etcd_servers.is_empty(), given) {
        (true, _) => apart("the store is in this process"),
        (false, true) => pass(flags),
        (false, false) => fail(format!("give {flags}")),
    }
}

fn encryption(options: &ControlPlane) -> Verdict {
    match &options.encryption.encryption_provider_config {
        None => pass("on, with a key of the cluster's own"),
        Some(file) => pass(file.display().to_string()),
    }
}

/// The provider that writes says how Secrets are kept.
fn providers(options: &ControlPlane) -> Verdict {
    let Some(file) = &options.encryption.encryption_provider_config else {
        return pass("aesgcm or stronger for Secrets");
    };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return fail(format!("cannot read {}: {error}", file.display())),
    };
    match ["aescbc", "kms", "secretbox", "aesgcm"].into_iter().find(|name| text.contains(&format!("{name}:"))) {
        Some(provider) => pass(provider),
        None => fail(format!("{} has no provider that encrypts", file.display())),
    }
}

fn tokens(options: &ControlPlane) -> Verdict {
    match options.service_accounts.extends() {
        false => pass("an hour, as Pods are told"),
        true => fail(
            "--service-account-extend-token-expiration; leave it out when serviceaccount_stale_tokens_total stays 0",
        ),
    }
}

fn users(_: &ControlPlane) -> Verdict {
    apart("it is about people: give them an issuer of tokens, --oidc-issuer-url or --authentication-config")
}
