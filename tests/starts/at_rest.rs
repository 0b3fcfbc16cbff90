//! Secrets in the store: encrypted without being asked, also in etcd, rotated while the server runs, and missed when their
//! keys are gone.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    etcd::Etcd,
    skiff::{Server, command, free_port, refused, text},
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// In base64 and plain.
const VALUE: &str = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";
const PLAIN: &str = "correct-horse-battery-staple";

fn create(server: &Server, data: &Path, name: &str) {
    let object =
        format!(r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"{name}"}},"data":{{"k":"{VALUE}"}}}}"#);
    let (code, body) = server.ask(data, "POST", SECRETS, &object);
    assert_eq!(code, 201, "{body}");
}

#[track_caller]
fn reads(server: &Server, data: &Path, name: &str) {
    let (code, body) = server.ask(data, "GET", &format!("{SECRETS}/{name}"), "");
    assert!(code == 200 && body.contains(VALUE), "{code} {body}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// How many files of the folder hold a text.
fn holding(folder: &Path, text: &str) -> usize {
    let holds = |path: &PathBuf| fs::read(path).is_ok_and(|c| c.windows(text.len()).any(|w| w == text.as_bytes()));
    files(folder).iter().filter(|path| holds(path)).count()
}

fn configuration(providers: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{providers}]\n"
    )
}

/// A provider with one key of AES-GCM.
fn key(name: &str) -> String {
    format!("{{aesgcm: {{keys: [{{name: {name}, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}}]}}}}")
}

/// `skiff store encrypt` with more arguments succeeds; returns what it said.
#[track_caller]
fn encrypt(data: &Path, more: &[&str]) -> String {
    let place = text(data);
    let output = command(&[&["store", "encrypt", "--data-dir", &place], more].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn secrets_are_encrypted_without_being_asked_and_their_keys_are_missed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let keys = data.join("pki/encryption.key");
    let server = Server::start(&data, &log);
    create(&server, &data, "x");
    reads(&server, &data, "x");
    assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o600);
    server.stop();
    let made = fs::read(&keys).unwrap();
    let server = Server::start(&data, &log);
    reads(&server, &data, "x");
    server.stop();
    assert_eq!(fs::read(&keys).unwrap(), made);
    assert!(holding(&data, "/registry/secrets/default/x") > 0);
    assert_eq!((holding(&data, VALUE), holding(&data, PLAIN)), (0, 0));
    assert!(!fs::read_to_string(&log).unwrap().contains(VALUE));

    let (place, port) = (text(&data), free_port().to_string());
    let start = ["server", "--bind-address=127.0.0.1", "--data-dir", &place, "--secure-port", &port];
    fs::remove_file(&keys).unwrap();
    let words = ["/registry/secrets/", "is encrypted", &text(&keys), "put it back", "--encryption-provider-config"];
    refused(&start, &words);
    assert!(!keys.exists(), "no new keys are made where others were used");
    refused(&["store", "encrypt", "--data-dir", &place], &words);
    let other = folder.path().join("other.yaml");
    fs::write(&other, configuration(&key("other"))).unwrap();
    let given = text(&other);
    let with_other = [&start[..], &["--encryption-provider-config", &given]].concat();
    refused(&with_other, &[&given, "names none of the keys", "/registry/secrets/"]);
    fs::write(&other, configuration("{}")).unwrap();
    refused(&with_other, &[&given, "does not contain any of the expected providers"]);
    refused(
        &[&start[..], &["--encryption-provider-config-automatic-reload"]].concat(),
        &["must be set with --encryption-provider-config"],
    );
    fs::write(&keys, "rubbish: [").unwrap();
    refused(&start, &[&text(&keys), "not valid YAML"]);
    fs::write(&keys, made).unwrap();
    let server = Server::start(&data, &log);
    reads(&server, &data, "x");
    server.stop();
}

#[test]
fn keys_are_rotated_while_the_server_runs_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log, file) = (folder.path().join("data"), folder.path().join("log"), folder.path().join("keys.yaml"));
    let (given, identity) = (text(&file), "{identity: {}}");
    let flags = ["--encryption-provider-config", &given];
    let follows = [&flags[..], &["--encryption-provider-config-automatic-reload"]].concat();
    fs::write(&file, configuration(identity)).unwrap();
    let server = Server::start_with(&data, &log, &follows);
    create(&server, &data, "x");
    create(&server, &data, "y");
    assert!(holding(&data.join("store"), VALUE) > 0);
    let step = |providers: &[&str], said: &str| {
        fs::write(&file, configuration(&providers.join(", "))).unwrap();
        let output = encrypt(&data, &flags);
        assert!(output.contains(said), "{providers:?}: {output}");
        reads(&server, &data, "x");
        reads(&server, &data, "y");
    };
    let (one, two) = (key("one"), key("two"));
    step(&[&one, identity], "2 values written once more, 0 were right already");
    step(&[&one, &two], "0 values written once more, 2 were right already");
    step(&[&two, &one], "2 values written once more");
    step(&[&two], "0 values written once more, 2 were right already");
    // A wrong file changes nothing, and is told of.
    fs::write(&file, configuration("{}")).unwrap();
    let place = text(&data);
    let encrypt_again = [&["store", "encrypt", "--data-dir", &place][..], &flags].concat();
    refused(&encrypt_again, &["does not contain any of the expected providers"]);
    reads(&server, &data, "x");
    // Nor does another file than the server's.
    let (other, server_s) = (folder.path().join("other.yaml"), configuration(&[&*two, identity].join(", ")));
    fs::write(&other, configuration(&one)).unwrap();
    fs::write(&file, server_s).unwrap();
    refused(
        &["store", "encrypt", "--data-dir", &place, flags[0], &text(&other)],
        &["encrypts as another file says than"],
    );
    // Nobody else may ask for it.
    let (code, _) = server.ask(&data, "GET", "/skiff/store/encrypt", "");
    assert_eq!(code, 404);
    server.stop();

    // And back to the cluster's own key, while nothing runs.
    fs::write(&file, configuration(&[identity, &two].join(", "))).unwrap();
    assert!(encrypt(&data, &flags).contains("2 values written once more"));
    let server = Server::start(&data, &log);
    reads(&server, &data, "x");
    server.stop();
    assert!(encrypt(&data, &[]).contains("2 values written once more"));
    let compacted = command(&["store", "compact", "--data-dir", &place]).status().unwrap();
    assert!(compacted.success());
    assert_eq!(holding(&data, VALUE), 0);
    let server = Server::start(&data, &log);
    reads(&server, &data, "y");
    server.stop();
}

#[test]
fn secrets_in_etcd_are_encrypted_and_rewritten_beside_servers() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log, file) = (folder.path().join("data"), folder.path().join("log"), folder.path().join("keys.yaml"));
    let kept = folder.path().join("etcd");
    let Some(etcd) = Etcd::start(&kept, None) else { return };
    let (given, servers) = (text(&file), format!("--etcd-servers={}", etcd.url));
    let flags = [servers.as_str(), "--encryption-provider-config", &given];
    let follows = [&flags[..], &["--encryption-provider-config-automatic-reload"]].concat();
    let (one, two) = (key("one"), key("two"));
    fs::write(&file, configuration(&[one.as_str(), &two].join(", "))).unwrap();
    let server = Server::start_with(&data, &log, &follows);
    create(&server, &data, "x");
    assert!(holding(&kept, "k8s:enc:aesgcm:v1:one:") > 0);
    fs::write(&file, configuration(&[two.as_str(), &one].join(", "))).unwrap();
    assert!(encrypt(&data, &flags).contains("1 values written once more"));
    reads(&server, &data, "x");
    server.stop();
    assert!(holding(&kept, "k8s:enc:aesgcm:v1:two:") > 0);
    assert_eq!((holding(&kept, VALUE), holding(&kept, PLAIN)), (0, 0));
    // Without the old key, and without any.
    fs::write(&file, configuration(&two)).unwrap();
    let server = Server::start_with(&data, &log, &follows);
    reads(&server, &data, "x");
    server.stop();
    let (place, port) = (text(&data), free_port().to_string());
    let own = ["server", "--bind-address=127.0.0.1", "--data-dir", &place, "--secure-port", &port, &servers];
    refused(
        &own,
        &["/registry/secrets/default/x is encrypted", "encryption.key", "from another server of the cluster"],
    );
}
