//! How a real control plane stands to the CIS benchmark: nothing fails as it is started, and what somebody opened is found.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::skiff::{Server, command, text};

/// The lines, and whether the command calls that good.
fn look(data: &Path) -> (Vec<String>, bool) {
    let output = command(&["check", "--cis", "--data-dir", &text(data)]).output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    (lines, output.status.success())
}

/// The mark of a check, and what is said of it.
#[track_caller]
fn of(lines: &[String], id: &str) -> (String, String) {
    let found = lines.iter().find(|line| line.split_whitespace().nth(1) == Some(id));
    let line = found.unwrap_or_else(|| panic!("{id} is not in {lines:#?}"));
    (line.split_whitespace().next().unwrap().to_owned(), line.clone())
}

#[test]
fn a_control_plane_fails_no_check_until_somebody_opens_it() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: who owns files is looked at as root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = Server::start(&data, &log);
    let (lines, good) = look(&data);
    assert!(good && !lines.iter().any(|line| line.starts_with("FAIL")), "{lines:#?}");
    assert_eq!(lines.len(), 98, "97 checks and what they come to");
    for id in [
        "1.1.11", "1.1.13", "1.1.19", "1.1.20", "1.1.21", "1.2.4", "1.2.7", "1.2.8", "1.2.14", "1.2.15", "1.2.16",
        "1.2.17", "1.2.18", "1.2.19", "1.2.22", "1.2.27", "1.2.30", "1.3.2", "1.4.1", "3.2.1", "3.2.2",
    ] {
        assert_eq!(of(&lines, id).0, "pass", "{id}");
    }
    let manual: Vec<&str> = lines
        .iter()
        .filter(|line| line.starts_with("manual"))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(manual, ["1.2.1", "1.2.3", "1.2.9", "1.2.11"], "what the benchmark leaves to people");
    let mode = |path: &str| fs::metadata(data.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("audit"), mode("audit/audit.log")), (0o700, 0o600));
    // The flags are those of the process that runs: it has no node.
    assert!(of(&lines, "4.2.1").1.contains("this machine runs no node"));
    fs::set_permissions(data.join("pki/sa.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let (lines, good) = look(&data);
    let (mark, line) = of(&lines, "1.1.21");
    assert!(!good && mark == "FAIL" && line.contains("sa.key has the mode 644; chmod 600 it"), "{line}");
    fs::set_permissions(data.join("pki/sa.key"), fs::Permissions::from_mode(0o600)).unwrap();
    server.stop();

    let tokens = folder.path().join("tokens.csv");
    fs::write(&tokens, "t,jane,1\n").unwrap();
    let flags = [
        format!("--token-auth-file={}", tokens.display()),
        "--disable-admission-plugins=NodeRestriction".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--anonymous-auth=false".to_owned(),
        "--profiling".to_owned(),
        "--audit-log-path=".to_owned(),
        "--service-account-extend-token-expiration".to_owned(),
    ];
    let server = Server::start_with(&data, &log, &flags.each_ref().map(String::as_str));
    let (lines, good) = look(&data);
    assert!(!good);
    for id in ["1.2.2", "1.2.7", "1.2.14", "1.2.15", "1.2.16", "1.2.19", "1.2.30", "1.3.2", "1.4.1"] {
        assert_eq!(of(&lines, id).0, "FAIL", "{id}");
    }
    for id in ["1.2.1", "1.2.8"] {
        assert_eq!(of(&lines, id).0, "pass", "{id}");
    }
    server.stop();
}
