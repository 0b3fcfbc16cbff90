//! Validation of probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kinds::rollout::not_negative;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

/// Which of a container's probes it is: they differ in what they may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Liveness,
    Readiness,
    Startup,
}

pub(crate) fn validate(probe: &Probe, which: Which, path: &Path) -> Errors {
    let handler = Handler {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref().map(|g| g.port),
        sleep: None,
    };
    let mut errors = handler.validate(None, path);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        errors.extend(not_negative(path, field, value));
    }
    let grace = "terminationGracePeriodSeconds";
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|s| *s <= 0) {
        errors.push(FieldError::invalid(&path.child(grace), seconds, "must be greater than 0"));
    }
    match which {
        Which::Readiness => {
            if let Some(seconds) = probe.termination_grace_period_seconds {
                let detail = "must not be set for readinessProbes";
                errors.push(FieldError::invalid(&path.child(grace), seconds, detail));
            }
        }
        Which::Liveness | Which::Startup => {
            if let Some(threshold) = probe.success_threshold.filter(|t| *t != 1) {
                errors.push(FieldError::invalid(&path.child("successThreshold"), threshold, "must be 1"));
            }
        }
    }
    errors
}

/// The signals that can end a container, by operating system.
const SIGNALS_WINDOWS: &[&str] = &["SIGKILL", "SIGTERM"];
const SIGNALS_LINUX: &str = "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL \
    SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMAX-1 SIGRTMAX-10 SIGRTMAX-11 SIGRTMAX-12 \
    SIGRTMAX-13 SIGRTMAX-14 SIGRTMAX-2 SIGRTMAX-3 SIGRTMAX-4 SIGRTMAX-5 SIGRTMAX-6 SIGRTMAX-7 \
    SIGRTMAX-8 SIGRTMAX-9 SIGRTMIN SIGRTMIN+1 SIGRTMIN+10 SIGRTMIN+11 SIGRTMIN+12 SIGRTMIN+13 \
    SIGRTMIN+14 SIGRTMIN+15 SIGRTMIN+2 SIGRTMIN+3 SIGRTMIN+4 SIGRTMIN+5 SIGRTMIN+6 SIGRTMIN+7 \
    SIGRTMIN+8 SIGRTMIN+9 SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU \
    SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ";

/// `grace` is the Pod's grace period, `os` the operating system that it names.
pub(crate) fn lifecycle(lifecycle: &Lifecycle, grace: Option<i64>, os: Option<&str>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        errors.extend(hook.iter().flat_map(|hook| Handler::of_hook(hook).validate(grace, &path.child(field))));
    }
    if let Some(signal) = lifecycle.stop_signal.as_deref() {
        let path = path.child("stopSignal");
        match os {
            None => {
                let detail = "may not be set for containers with empty `spec.os.name`";
                errors.push(FieldError::forbidden(&path, detail));
            }
            Some("windows") if !SIGNALS_WINDOWS.contains(&signal) => {
                errors.push(FieldError::not_supported(&path, signal, SIGNALS_WINDOWS));
            }
            Some("linux") if !SIGNALS_LINUX.split(' ').any(|known| known == signal) => {
                let known: Vec<&str> = SIGNALS_LINUX.split(' ').collect();
                errors.push(FieldError::not_supported(&path, signal, &known));
            }
            Some(_) => {}
        }
    }
    errors
}

/// Probes and hooks share one rule: exactly one way to ask.
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<i32>,
    sleep: Option<&'a SleepAction>,
}

impl<'a> Handler<'a> {
    fn of_hook(hook: &'a LifecycleHandler) -> Self {
        Handler {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref(),
            tcp_socket: hook.tcp_socket.as_ref(),
            grpc: None,
            sleep: hook.sleep.as_ref(),
        }
    }

    fn validate(&self, grace: Option<i64>, path: &Path) -> Errors {
        let mut errors = Errors::new();
        let mut given = 0;
        let mut check = |field: &str, found: Option<Errors>| {
            let Some(found) = found else { return };
            given += 1;
            if given == 1 {
                errors.extend(found);
            } else {
                errors.push(FieldError::forbidden(&path.child(field), "may not specify more than 1 handler type"));
            }
        };
        check("exec", self.exec.map(|exec| command(exec, &path.child("exec"))));
        check("httpGet", self.http_get.map(|get| http_get(get, &path.child("httpGet"))));
        check("tcpSocket", self.tcp_socket.map(|socket| port(&socket.port, &path.child("tcpSocket").child("port"))));
        check("grpc", self.grpc.map(|n| port(&IntOrString::Int(n), &path.child("grpc").child("port"))));
        check("sleep", self.sleep.map(|sleep| nap(sleep, grace, &path.child("sleep"))));
        if given == 0 {
            errors.push(FieldError::required(path, "must specify a handler type"));
        }
        errors
    }
}

fn command(exec: &ExecAction, path: &Path) -> Errors {
    let empty = exec.command.as_ref().is_none_or(Vec::is_empty);
    if empty { vec![FieldError::required(&path.child("command"), "")] } else { Errors::new() }
}

fn http_get(get: &HTTPGetAction, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if get.path.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    errors.extend(port(&get.port, &path.child("port")));
    let scheme = get.scheme.as_deref().unwrap_or_default();
    if !matches!(scheme, "HTTP" | "HTTPS") {
        errors.push(FieldError::not_supported(&path.child("scheme"), scheme, &["HTTP", "HTTPS"]));
    }
    for header in get.http_headers.iter().flatten() {
        errors.extend(invalid(&path.child("httpHeaders"), &header.name, names::http_header(&header.name)));
    }
    errors
}

/// A number or the name of a port.
pub(crate) fn port(port: &IntOrString, path: &Path) -> Errors {
    match port {
        IntOrString::Int(n) => names::port_number(*n).iter().map(|w| FieldError::invalid(path, n, w)).collect(),
        IntOrString::String(name) => invalid(path, name, names::port_name(name)).collect(),
    }
}

fn nap(sleep: &SleepAction, grace: Option<i64>, path: &Path) -> Errors {
    let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&sleep.seconds)) else { return Errors::new() };
    let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
    vec![FieldError::invalid(path, sleep.seconds, &detail)]
}
