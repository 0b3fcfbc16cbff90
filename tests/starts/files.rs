//! Files that are broken, gone or open to others.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::skiff::{Server, command, free_port, refused, text};

/// A data folder that a server has made and left.
fn made() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data, &folder.path().join("log"));
    for n in 0..20 {
        let object = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c{n}"}}}}"#);
        let (code, body) = server.ask(&data, "POST", "/api/v1/namespaces/default/configmaps", &object);
        assert_eq!(code, 201, "{body}");
    }
    server.stop();
    (folder, data)
}

#[track_caller]
fn no_start(data: &Path, more: &[&str], words: &[&str]) {
    let (data, port) = (text(data), free_port().to_string());
    let server = ["server", "--bind-address=127.0.0.1", "--data-dir", &data, "--secure-port", &port];
    refused(&[&server, more].concat(), words);
}

#[test]
fn a_data_folder_may_be_a_name_where_skiff_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let (log, port) = (folder.path().join("log"), free_port());
    let number = port.to_string();
    let flags = ["--bind-address=127.0.0.1", "--data-dir=data", "--secure-port", &number, "--disable=scheduler,dns"];
    let mut server = command(&[&["server"][..], &flags].concat());
    server.current_dir(folder.path());
    let server = Server::run(server, &log, port);
    let (code, body) = server.ask(&folder.path().join("data"), "GET", "/api/v1/namespaces/default", "");
    assert_eq!(code, 200, "{body}");
    server.stop();
}

#[test]
fn each_broken_file_is_named() {
    let (folder, data) = made();
    for name in ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub"] {
        let path = data.join("pki").join(name);
        let good = fs::read(&path).unwrap();
        for broken in ["", "rubbish"] {
            fs::write(&path, broken).unwrap();
            no_start(&data, &[], &[&text(&path), "is broken"]);
        }
        fs::write(&path, good).unwrap();
    }
    let key = data.join("pki/ca.key");
    let good = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    no_start(&data, &[], &["ca.crt is broken", &text(&key), "is missing"]);
    fs::write(&key, good).unwrap();

    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        text(&path)
    };
    let tokens = file("tokens", b"a,b\n");
    no_start(&data, &["--token-auth-file", &tokens], &[&tokens, "at least 3 columns"]);
    let tokens = file("tokens", b"a,b,c,\"d\n");
    no_start(&data, &["--token-auth-file", &tokens], &[&tokens, "a quote is out of place"]);
    let tokens = file("tokens", b"a,\xff,c\n");
    no_start(&data, &["--token-auth-file", &tokens], &[&tokens, "UTF-8"]);
    let (rubbish, etcd) = (file("rubbish", b"x"), "--etcd-servers=https://127.0.0.1:1");
    no_start(&data, &[etcd, "--etcd-cafile", &rubbish], &[&rubbish, "it holds no certificate"]);
    let ca = text(&data.join("pki/ca.crt"));
    let pair = ["--etcd-certfile", &ca, "--etcd-keyfile", &rubbish];
    no_start(&data, &[&[etcd, "--etcd-cafile", &ca], &pair[..]].concat(), &[&rubbish, "private key"]);
    no_start(
        &data,
        &["--etcd-servers=http://127.0.0.1:1"],
        &["http://127.0.0.1:1 cannot be used", "nothing listens there"],
    );
    let agent = ["agent", "--data-dir", &text(&folder.path().join("agent")), "--kubeconfig", &rubbish];
    refused(&agent, &[]);
    // And all of it untouched starts.
    Server::start(&data, &folder.path().join("log")).stop();
}

#[test]
fn keys_that_others_can_open_are_closed_and_told() {
    let (folder, data) = made();
    let (pki, key) = (data.join("pki"), data.join("pki/ca.key"));
    for path in [&pki, &key] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let server = Server::start(&data, &folder.path().join("log"));
    for path in [&pki, &key] {
        assert!(server.log().contains(&format!("could open {} (mode 755)", path.display())), "{}", server.log());
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o077, 0);
    }
    server.stop();
    if std::os::unix::fs::chown(&key, Some(12345), None).is_err() {
        eprintln!("SKIPPED: only root can give a file away");
        return;
    }
    no_start(&data, &[], &[&text(&key), "belongs to user 12345", "chown"]);
}

#[test]
fn a_lost_log_is_missed_and_the_loss_can_be_accepted() {
    let (folder, data) = made();
    let place = text(&data);
    let compacted = command(&["store", "compact", "--data-dir", &place]).status().unwrap();
    assert!(compacted.success());
    let log = fs::read_dir(data.join("store")).unwrap().map(|e| e.unwrap().path());
    let log = log.into_iter().find(|p| p.file_name().unwrap().to_string_lossy().starts_with("log-")).unwrap();
    let whole = fs::read(&log).unwrap();
    let ways = ["nothing was changed", "skiff store restore", "skiff store accept-loss"];
    for cut in [0, 1, 27, 28, 35] {
        fs::write(&log, &whole[..cut]).unwrap();
        no_start(&data, &[], &[&[text(&log).as_str()], &ways[..]].concat());
    }
    fs::remove_file(&log).unwrap();
    no_start(&data, &[], &[&[text(&log).as_str(), "is missing"], &ways[..]].concat());
    for command in ["status", "verify", "compact"] {
        refused(&["store", command, "--data-dir", &place], &[&text(&log), "is missing"]);
    }
    let accepted = command(&["store", "accept-loss", "--data-dir", &place]).output().unwrap();
    let said = String::from_utf8_lossy(&accepted.stdout).into_owned();
    assert!(accepted.status.success() && said.contains("the store goes on at revision"), "{said}");
    let server = Server::start(&data, &folder.path().join("log"));
    let (code, body) = server.ask(&data, "GET", "/api/v1/namespaces/default/configmaps/c19", "");
    assert_eq!(code, 200, "what the snapshot held is there: {body}");
}
