//! The plugin against the real kernel: two sandboxes reach each other and the node, and `DEL` leaves nothing.
//! Everything happens inside a network namespace that stands for the node.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

struct Namespaces(Vec<String>);

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            run("ip", &["netns", "del", name]);
        }
    }
}

/// Calls the plugin as the engine would. The test binary itself plays the plugin (see `plugin_process`).
fn plugin(node: &str, command: &str, sandbox: &str, state: &Path, extra: &str) -> Output {
    let config = format!(
        r#"{{"cniVersion":"1.0.0","name":"skiff","type":"skiff-cni","subnet":"10.244.7.0/24","stateDir":"{}"{extra}}}"#,
        state.display()
    );
    let mut child = Command::new("ip")
        .args(["netns", "exec", node])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "plugin_process", "--nocapture", "--include-ignored"])
        .env("SKIFF_TEST_PLUGIN", "1")
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", sandbox)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_NETNS", format!("/var/run/netns/{sandbox}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), config.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A route to a Pod that somebody removes is back, also when nobody watched.
fn keeps_routes(node: &str, addresses: &Path) {
    let route = |command: &str| run("ip", &["-n", node, "route", command, "10.244.7.2"]);
    assert!(route("del").status.success());
    let (namespace, addresses) = (std::fs::File::open(format!("/var/run/netns/{node}")).unwrap(), addresses.to_owned());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let keeper = std::thread::spawn(move || {
        nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                () = network::pod_routes::keep(addresses, "10.244.7.0/24".parse().unwrap()) => {}
                _ = stopped => {}
            }
        });
    });
    for _ in 0..3 {
        let mut tries = 0..200;
        while !String::from_utf8_lossy(&route("show").stdout).contains("dev skf") {
            assert!(tries.next().is_some(), "the route is not back");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(route("del").status.success());
    }
    drop(stop);
    keeper.join().unwrap();
}

/// Only does something when the other test runs this binary as the plugin.
#[test]
fn plugin_process() {
    if std::env::var_os("SKIFF_TEST_PLUGIN").is_some() {
        let code = network::cni::main();
        std::process::exit(if format!("{code:?}").contains("(0)") { 0 } else { 1 });
    }
}

#[test]
fn sandboxes_reach_each_other_and_nothing_is_left() {
    let id = std::process::id();
    let names = [format!("skn{id}"), format!("ska{id}"), format!("skb{id}")];
    if !Command::new("ip").args(["netns", "add", &names[0]]).output().is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED: network namespaces need root and iproute2");
        return;
    }
    let _guard = Namespaces(names.to_vec());
    let [node, a, b] = &names;
    run("ip", &["netns", "add", a]);
    run("ip", &["netns", "add", b]);
    run("ip", &["netns", "exec", node, "sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    let state = tempfile::tempdir().unwrap();

    let table = network::rules::table("10.244.7.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
    let rules = state.path().join("rules.nft");
    std::fs::write(&rules, table).unwrap();
    let out = run("ip", &["netns", "exec", node, "nft", "-f", rules.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));

    let addresses = state.path().join("addresses");
    let ports = r#","runtimeConfig":{"portMappings":[{"hostPort":8081,"containerPort":80,"protocol":"tcp"}]}"#;
    let added = plugin(node, "ADD", a, &addresses, ports);
    let text = String::from_utf8_lossy(&added.stdout).into_owned();
    assert!(added.status.success() && text.contains("10.244.7.2/32"), "{text}");
    // As containerd spells it.
    let ports =
        r#","runtimeConfig":{"portMappings":[{"HostPort":8081,"ContainerPort":80,"Protocol":"tcp","HostIP":""}]}"#;
    let conflict = plugin(node, "ADD", b, &addresses, ports);
    assert!(!conflict.status.success(), "a host port belongs to one sandbox");
    let open = String::from_utf8_lossy(
        &run("ip", &["netns", "exec", node, "nft", "list", "table", "ip", "skiff-network"]).stdout,
    )
    .into_owned();
    assert!(open.contains("tcp . 8081 : 10.244.7.2 . 80"), "who has the port keeps it: {open}");
    let added = plugin(node, "ADD", b, &addresses, "");
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stdout));
    assert!(plugin(node, "CHECK", b, &addresses, "").status.success());

    let address =
        String::from_utf8_lossy(&added.stdout).split("/32").next().unwrap().rsplit('"').next().unwrap().to_owned();
    for (from, to) in [(a.as_str(), address.as_str()), (b, "10.244.7.2"), (node, "10.244.7.2"), (a, "10.244.7.1")] {
        // A TCP connection to a closed port is refused at once when there is a way, and times out when there is none.
        let probe = format!("exec 3<>/dev/tcp/{to}/9");
        let out = run("ip", &["netns", "exec", from, "timeout", "5", "bash", "-c", &probe]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("refused"), "{from} to {to}: {said}");
    }

    keeps_routes(node, &addresses);

    for sandbox in [a, b] {
        assert!(plugin(node, "DEL", sandbox, &addresses, ports).status.success());
        assert!(plugin(node, "DEL", sandbox, &addresses, ports).status.success(), "DEL succeeds again");
    }
    let links = String::from_utf8_lossy(&run("ip", &["-n", node, "-br", "link"]).stdout).into_owned();
    assert!(!links.contains("skf"), "{links}");
    let left: Vec<_> =
        std::fs::read_dir(&addresses).unwrap().flatten().map(|e| e.file_name()).filter(|n| n != "last").collect();
    assert!(left.is_empty(), "{left:?}");
}
