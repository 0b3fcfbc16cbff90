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
        r#"{{"cniVersion":"1.0.0","name":"skiff","type":"skiff-cni","subnets":["10.244.7.0/24","fd00:7::/64"],"stateDir":"{}"{extra}}}"#,
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

const RANGES: [&str; 2] = ["10.244.7.0/24", "fd00:7::/64"];

/// A route to a Pod that somebody removes is back, also when nobody watched.
fn keeps_routes(node: &str, addresses: &Path) {
    let family = |pod: &str| if pod.contains(':') { "-6" } else { "-4" };
    let route = |command: &str, pod: &str| run("ip", &[family(pod), "-n", node, "route", command, pod]);
    assert!(route("del", "10.244.7.2").status.success() && route("del", "fd00:7::2").status.success());
    let (namespace, addresses) = (std::fs::File::open(format!("/var/run/netns/{node}")).unwrap(), addresses.to_owned());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let keeper = std::thread::spawn(move || {
        nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                () = network::pod_routes::keep(addresses, RANGES.map(|r| r.parse().unwrap()).to_vec()) => {}
                _ = stopped => {}
            }
        });
    });
    for pod in ["10.244.7.2", "fd00:7::2", "10.244.7.2", "fd00:7::2"] {
        let mut tries = 0..200;
        while !String::from_utf8_lossy(&route("show", pod).stdout).contains("dev skf") {
            assert!(tries.next().is_some(), "the route to {pod} is not back");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(route("del", pod).status.success());
    }
    drop(stop);
    keeper.join().unwrap();
}

/// The node leads from its loopback address to the Pod's host port; the Pod still does not come to what listens there.
fn guards_loopback(node: &str, pod: &str) {
    for command in [
        "sysctl -qw net.ipv4.conf.all.route_localnet=1",
        "ip route del local 127.0.0.0/8 dev lo table local",
        "ip route add 127.0.0.2 via 10.244.7.1 dev eth0 src 10.244.7.2",
    ] {
        let args: Vec<&str> = ["netns", "exec", pod].into_iter().chain(command.split(' ')).collect();
        let out = run("ip", &args);
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let comes_in = || {
        let out = run("ip", &["netns", "exec", pod, "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.2/9"]);
        String::from_utf8_lossy(&out.stderr).contains("refused")
    };
    assert!(!comes_in(), "a Pod came to the node's loopback address");
    let rules = run("ip", &["netns", "exec", node, "nft", "flush", "chain", "ip", "skiff-network", "loopback"]);
    assert!(rules.status.success() && comes_in(), "without the rule it would");
}

/// Only does something when the other test runs this binary as the plugin.
#[test]
fn plugin_process() {
    if std::env::var_os("SKIFF_TEST_PLUGIN").is_some() {
        let code = network::cni::main();
        std::process::exit(if format!("{code:?}").contains("(0)") { 0 } else { 1 });
    }
}

/// The resets that a namespace has sent.
fn resets(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' '));
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    values.nth(names.position(|name| name == "OutRsts").unwrap()).unwrap().parse().unwrap()
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

    run("ip", &["netns", "exec", node, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1"]);
    run("ip", &["-n", node, "link", "set", "lo", "up"]);
    let table = RANGES.map(|range| network::rules::table(range.parse().unwrap(), range.parse().unwrap())).concat();
    let rules = state.path().join("rules.nft");
    std::fs::write(&rules, table).unwrap();
    let out = run("ip", &["netns", "exec", node, "nft", "-f", rules.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));

    let addresses = state.path().join("addresses");
    let ports = r#","runtimeConfig":{"portMappings":[{"hostPort":8081,"containerPort":80,"protocol":"tcp"}]}"#;
    let added = plugin(node, "ADD", a, &addresses, ports);
    let text = String::from_utf8_lossy(&added.stdout).into_owned();
    assert!(added.status.success() && text.contains("10.244.7.2/32") && text.contains("fd00:7::2/128"), "{text}");
    // As containerd spells it.
    let ports =
        r#","runtimeConfig":{"portMappings":[{"HostPort":8081,"ContainerPort":80,"Protocol":"tcp","HostIP":""}]}"#;
    // The node reaches it at its loopback address too: nobody listens in the Pod, which says so at once.
    let probe = "exec 3<>/dev/tcp/127.0.0.1/8081";
    let out = run("ip", &["netns", "exec", node, "timeout", "3", "bash", "-c", probe]);
    let counted = run("ip", &["netns", "exec", a, "cat", "/proc/net/snmp"]);
    let counted = String::from_utf8_lossy(&counted.stdout).into_owned();
    assert!(String::from_utf8_lossy(&out.stderr).contains("refused"), "{out:?}");
    assert_eq!(resets(&counted), 1, "the Pod refused it: {counted}");
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
    for (from, to) in [
        (a.as_str(), address.as_str()),
        (b, "10.244.7.2"),
        (node, "10.244.7.2"),
        (a, "10.244.7.1"),
        // The second attempt's: an address is not given again at once.
        (a, "fd00:7::4"),
        (b, "fd00:7::2"),
        (node, "fd00:7::2"),
        (a, "fd00:7::1"),
    ] {
        // A TCP connection to a closed port is refused at once when there is a way, and times out when there is none.
        let probe = format!("exec 3<>/dev/tcp/{to}/9");
        let out = run("ip", &["netns", "exec", from, "timeout", "5", "bash", "-c", &probe]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("refused"), "{from} to {to}: {said}");
    }

    guards_loopback(node, a);
    keeps_routes(node, &addresses);

    for sandbox in [a, b] {
        assert!(plugin(node, "DEL", sandbox, &addresses, ports).status.success());
        assert!(plugin(node, "DEL", sandbox, &addresses, ports).status.success(), "DEL succeeds again");
    }
    let links = String::from_utf8_lossy(&run("ip", &["-n", node, "-br", "link"]).stdout).into_owned();
    assert!(!links.contains("skf"), "{links}");
    let left: Vec<_> = std::fs::read_dir(&addresses)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .filter(|n| !n.to_string_lossy().starts_with("last"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
