//! An etcd as the store, by the flags that a user gives: with certificates on both sides, and for a cluster that moves there and
//! back.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use json::{Value, json};
use pki::{Authority, Subject, Usage};

use crate::skiff::{PATIENCE, Server, command, free_port, refused, text};

/// An etcd, gone when this is dropped.
pub struct Etcd {
    process: Child,
    pub url: String,
}

impl Etcd {
    /// With its data in the folder; `None`, and a word about it, where there is no etcd.
    pub fn start(folder: &Path, tls: Option<&Certificates>) -> Option<Etcd> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (place, peer) = (format!("127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
        let url = format!("{scheme}://{place}");
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir")
            .arg(folder)
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(tls) = tls {
            etcd.args(["--cert-file", &tls.path("server.crt"), "--key-file", &tls.path("server.key")]).args([
                "--trusted-ca-file",
                &tls.path("ca.crt"),
                "--client-cert-auth",
            ]);
        }
        let started = etcd.spawn();
        if started.is_err() {
            eprintln!("SKIPPED: no etcd on the path (Debian: etcd-server)");
        }
        let etcd = Etcd { process: started.ok()?, url };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(&place).is_err() {
            assert!(Instant::now() < deadline, "etcd does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Some(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Certificates and keys of an etcd and of its client, as files.
pub struct Certificates(PathBuf);

impl Certificates {
    fn make(folder: &Path) -> Certificates {
        let authority = Authority::create("etcd-ca").unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("ca.crt", authority.certificate());
        // etcd's own gateway shows the server's certificate as a client.
        let server = Subject { usage: Usage::Both, ..Subject::server("etcd", vec!["127.0.0.1".to_owned()]) };
        for (name, subject) in [("server", server), ("client", Subject::client("apiserver", None))] {
            let issued = authority.issue(&subject).unwrap();
            write(&format!("{name}.crt"), &issued.certificate);
            write(&format!("{name}.key"), &issued.key);
        }
        write("other.crt", Authority::create("other").unwrap().certificate());
        Certificates(folder.to_owned())
    }

    fn path(&self, name: &str) -> String {
        text(&self.0.join(name))
    }
}

#[test]
fn certificates_are_shown_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let tls = Certificates::make(folder.path());
    let Some(etcd) = Etcd::start(&folder.path().join("etcd"), Some(&tls)) else { return };
    let servers = format!("--etcd-servers={}", etcd.url);
    let flag = |name: &str, file: &str| format!("--etcd-{name}={}", tls.path(file));
    let (ca, certificate, key) =
        (flag("cafile", "ca.crt"), flag("certfile", "client.crt"), flag("keyfile", "client.key"));
    let server = Server::start_with(&data, &log, &[&servers, &ca, &certificate, &key]);
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept"}}"#;
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(server.ask(&data, "POST", maps, object).0, 201);
    server.stop();
    let server = Server::start_with(&data, &log, &[&servers, &ca, &certificate, &key]);
    assert_eq!(server.ask(&data, "GET", &format!("{maps}/kept"), "").0, 200);
    server.stop();

    let (place, port) = (text(&data), free_port().to_string());
    let start = ["server", "--bind-address=127.0.0.1", "--data-dir", &place, "--secure-port", &port];
    let check = |flags: &[&str], words: &[&str]| drop(refused(&[&start, flags].concat(), words));
    let other = flag("cafile", "other.crt");
    check(&[&servers, &other, &certificate, &key], &[&etcd.url, "another authority than the one of --etcd-cafile"]);
    check(&[&servers, &ca], &[&etcd.url, "demand", "a client certificate", "--etcd-certfile and --etcd-keyfile"]);
    let plain = servers.replace("https:", "http:");
    check(&[&plain], &["is its address an https:// one"]);
    let by_name = format!("--etcd-servers={}", etcd.url.replace("127.0.0.1", "localhost"));
    check(&[&by_name, &ca, &certificate, &key], &["its certificate is for other names than the one in --etcd-servers"]);
}

/// Everything that a client sees of the cluster but revisions, and leases, which go on by themselves.
fn looks(server: &Server, data: &Path) -> BTreeMap<String, Value> {
    let read = |path: &str| {
        let (code, body) = server.ask(data, "GET", path, "");
        assert_eq!(code, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let groups = array(&read("/apis")["groups"]);
    let versions = groups.iter().map(|group| format!("/apis/{}", text(&group["preferredVersion"]["groupVersion"])));
    let mut all = BTreeMap::new();
    for version in versions.chain(["/api/v1".to_owned()]) {
        for resource in array(&read(&version)["resources"]) {
            let (name, verbs) = (text(&resource["name"]), array(&resource["verbs"]));
            if name == "leases" || name.contains('/') || !verbs.iter().any(|verb| verb == "watch") {
                continue;
            }
            let path = format!("{version}/{name}");
            let mut items = array(&read(&path)["items"]);
            for item in &mut items {
                item["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            }
            all.insert(path, json!(items));
        }
    }
    all
}

/// The same once nothing changes by itself any more.
fn settled(server: &Server, data: &Path) -> BTreeMap<String, Value> {
    let deadline = Instant::now() + PATIENCE;
    let mut before = looks(server, data);
    loop {
        let now = looks(server, data);
        if now == before {
            return now;
        }
        assert!(Instant::now() < deadline, "a cluster without controllers goes on changing");
        before = now;
    }
}

#[track_caller]
fn same(now: &BTreeMap<String, Value>, before: &BTreeMap<String, Value>) {
    assert!(now.keys().eq(before.keys()), "{:?} after {:?}", now.keys(), before.keys());
    for (path, list) in before {
        assert_eq!(&now[path], list, "{path}");
    }
}

fn until_made(server: &Server, data: &Path, path: &str, object: &Value) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match server.ask(data, "POST", path, &object.to_string()) {
            (201, _) => return,
            // A new kind is served in a moment.
            (404, said) => assert!(Instant::now() < deadline, "{path}: {said}"),
            (code, said) => panic!("{path}: {code} {said}"),
        }
    }
}

fn fill(server: &Server, data: &Path) {
    let make = |path: &str, object: Value| until_made(server, data, path, &object);
    make("/api/v1/namespaces", json!({"metadata": {"name": "a"}}));
    make("/api/v1/namespaces/a/secrets", json!({"metadata": {"name": "s"}, "stringData": {"k": "v<&>é"}}));
    make(
        "/api/v1/namespaces/a/services",
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "type": "NodePort"}}),
    );
    make(
        "/api/v1/namespaces/a/events",
        json!({"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "a"}}),
    );
    make("/api/v1/nodes", json!({"metadata": {"name": "n"}}));
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"metadata": {"name": "boxes.a.io"}, "spec": {"group": "a.io", "scope": "Namespaced",
        "names": {"kind": "Box", "plural": "boxes", "singular": "box"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition);
    let boxed =
        json!({"apiVersion": "a.io/v1", "kind": "Box", "metadata": {"name": "b"}, "spec": {"n": [1, null, 2.5]}});
    make("/apis/a.io/v1/namespaces/a/boxes", boxed);
}

/// `skiff store` with these arguments succeeds.
#[track_caller]
fn store(args: &[&str]) {
    let output = command(&[&["store"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_cluster_looks_the_same_in_etcd_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let Some(etcd) = Etcd::start(&folder.path().join("etcd"), None) else { return };
    let (place, servers) = (text(&data), format!("--etcd-servers={}", etcd.url));
    let quiet = "--disable=scheduler,controllers,dns";
    // Objects tell where the server is.
    let port = free_port();
    let server = Server::start_at(port, &data, &log, &[quiet]);
    fill(&server, &data);
    let at_first = settled(&server, &data);
    let count = |all: &BTreeMap<String, Value>| all.values().map(|list| list.as_array().unwrap().len()).sum::<usize>();
    assert!(at_first.len() > 40 && count(&at_first) > 100, "{} kinds, {} objects", at_first.len(), count(&at_first));
    server.stop();

    store(&["to-etcd", "--data-dir", &place, &servers]);
    let server = Server::start_at(port, &data, &log, &[quiet, &servers]);
    same(&settled(&server, &data), &at_first);
    // It goes on there: what is written now is not in the folder's store.
    let more = json!({"metadata": {"name": "more"}, "data": {"a": "b"}});
    until_made(&server, &data, "/api/v1/namespaces/a/configmaps", &more);
    assert_eq!(server.ask(&data, "DELETE", "/apis/a.io/v1/namespaces/a/boxes/b", "").0, 200);
    let in_etcd = settled(&server, &data);
    server.stop();

    let into_full = ["store", "from-etcd", "--data-dir", &place, &servers];
    refused(&into_full, &["there are keys below /registry/ already"]);
    fs::remove_dir_all(data.join("store")).unwrap();
    store(&["from-etcd", "--data-dir", &place, &servers]);
    drop(etcd);
    let server = Server::start_at(port, &data, &log, &[quiet]);
    same(&settled(&server, &data), &in_etcd);
    assert_eq!(server.ask(&data, "GET", "/api/v1/namespaces/a/configmaps/more", "").0, 200);
    assert_eq!(server.ask(&data, "GET", "/apis/a.io/v1/namespaces/a/boxes/b", "").0, 404);
    server.stop();
}
