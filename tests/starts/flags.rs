//! Flags that take a file, a URL, an address, a range or a socket: a wrong value is told before anything is made.

use crate::skiff::{refused, text};

/// A value that a flag of `skiff server` refuses, and some words of why.
#[track_caller]
fn server(flag: &str, value: &str, why: &str) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    refused(&["server", "--data-dir", &text(&data), &format!("{flag}={value}")], &[flag, why]);
    assert!(!data.exists(), "{flag}={value} made the data folder");
}

#[test]
fn files() {
    for flag in [
        "--token-auth-file",
        "--etcd-cafile",
        "--admission-control-config-file",
        "--scheduler-config",
        "--requestheader-client-ca-file",
    ] {
        server(flag, "/no/such/file", "No such file");
        server(flag, "/", "is a folder");
    }
    for flag in ["--kubeconfig", "--client-ca-file", "--resolv-conf"] {
        refused(&["agent", "--data-dir=/no/such", &format!("{flag}=/no/such/file")], &[flag, "No such file"]);
    }
    refused(
        &["agent", "--data-dir=/no/such", "--server=https://h", "--token=x", "--certificate-authority=/no/such/file"],
        &["--certificate-authority", "No such file"],
    );
}

#[test]
fn urls() {
    for wrong in ["not-a-url", "127.0.0.1:2379", "ftp://h:1", "http://", "http://h:port", "http://h:2379/v3"] {
        server("--etcd-servers", wrong, "such as https://10.0.0.1:2379");
    }
    for wrong in ["not-a-url", "10.0.0.1:6443", "http://10.0.0.1:6443", "https://"] {
        let flag = format!("--server={wrong}");
        refused(&["agent", "--data-dir=/no/such", "--token=x", &flag], &["--server", "such as https://10.0.0.1:6443"]);
    }
    for wrong in ["tcp://h:1", "containerd.sock", "unix://"] {
        let flag = format!("--container-runtime-endpoint={wrong}");
        refused(&["check", &flag], &["--container-runtime-endpoint", "such as unix:///run/"]);
    }
}

#[test]
fn addresses_and_ranges() {
    for wrong in ["x", "10.0.0.0/8"] {
        server("--advertise-address", wrong, "such as 10.0.0.1");
    }
    for wrong in ["127.0.0.1", "0.0.0.0", "224.0.0.1"] {
        server("--advertise-address", wrong, "others cannot reach");
    }
    server("--bind-address", "x", "invalid IP address");
    server("--service-cluster-ip-range", "banana", "such as 10.96.0.0/12");
    server("--cluster-cidr", "banana", "such as 10.244.0.0/16");
    for (flag, why) in [("--node-ip", "others cannot reach"), ("--cluster-dns", "Pods reach no server there")] {
        refused(&["agent", "--data-dir=/no/such", &format!("{flag}=127.0.0.1")], &[flag, why]);
    }
    refused(&["agent", "--data-dir=/no/such", "--eviction-hard=x"], &["--eviction-hard", "threshold"]);
    refused(
        &["agent", "--data-dir=/no/such", "--server=https://h", "--token=x", "--discovery-token-ca-cert-hash=abc"],
        &["--discovery-token-ca-cert-hash", "64 hexadecimal digits"],
    );
}

#[test]
fn flags_that_do_not_go_together() {
    let folder = tempfile::tempdir().unwrap();
    let (data, ca) = (text(&folder.path().join("data")), folder.path().join("ca.crt"));
    std::fs::write(&ca, pki::Authority::create("etcd").unwrap().certificate()).unwrap();
    let ca = text(&ca);
    let server = ["server", "--data-dir", &data];
    let check = |more: &[&str], words: &[&str]| drop(refused(&[&server, more].concat(), words));
    check(&["--etcd-servers=https://h:2379"], &["https://h:2379", "--etcd-cafile"]);
    check(&["--etcd-servers=http://h:2379", "--etcd-cafile", &ca], &["http://h:2379", "without TLS"]);
    check(&["--etcd-cafile", &ca], &["--etcd-servers"]);
    check(&["--proxy-client-cert-file", &ca], &["--proxy-client-key-file"]);
    check(&["--requestheader-username-headers=X-Remote-User,"], &["empty value in", "requestheader-username-headers"]);
    check(&["--requestheader-group-headers=X Team"], &["--requestheader-group-headers", "X Team"]);
    check(&["--service-account-issuer=a", "--service-account-issuer=a"], &["is already specified"]);
    check(&["--service-account-key-file", "/dev/null"], &["--service-account-key-file /dev/null"]);
    check(&["--service-account-signing-key-file", &ca], &["--service-account-signing-key-file", "ca.crt"]);
}
