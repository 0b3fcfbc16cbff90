//! The rows of the network: what one TCP connection carries, and how long a byte takes there and back, between Pods of one node
//! and of two, through a Service and past a NetworkPolicy, beside two network namespaces with nothing but a veth between them.
//! Both ends are this program, which enters the Pods' network namespaces: no image, and the same work on every way. For the
//! echoes both stay on one core: what a virtual machine takes to wake an idle core is ten times what the ways differ by.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{report::Report, subject::output};

/// The first words by which this program is called as an end of a connection.
const SERVER: &str = "network-server";
const CLIENT: &str = "network-client";
const PORT: u16 = 5201;

const ROUNDS: usize = 2000;
const SENDING: Duration = Duration::from_secs(2);

/// Whether this process is an end of a connection, and not the one that measures; then it is done.
pub fn is_end() -> anyhow::Result<bool> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some(SERVER), None) => serve()?,
        (Some(CLIENT), Some(address)) => call(&address)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A connection says by its first byte whether it is asked for echoes or wants to be counted.
fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    println!("ready");
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || -> std::io::Result<()> {
            let (mut first, mut room, mut sum) = ([0], vec![0; 1 << 17], 0_u64);
            stream.read_exact(&mut first)?;
            if first == *b"e" {
                stay(&one_core()?)?;
            }
            loop {
                match stream.read(&mut room)? {
                    0 => return stream.write_all(&sum.to_be_bytes()),
                    read if first == *b"e" => stream.write_all(&room[..read])?,
                    read => sum += read as u64,
                }
            }
        });
    }
    Ok(())
}

/// The first core that this process may use.
fn one_core() -> nix::Result<CpuSet> {
    let (mine, mut one) = (sched_getaffinity(Pid::from_raw(0))?, CpuSet::new());
    let first = (0..CpuSet::count()).find(|&core| mine.is_set(core).unwrap_or(false));
    one.set(first.unwrap_or(0))?;
    Ok(one)
}

/// Keeps the calling thread on the cores.
fn stay(cores: &CpuSet) -> nix::Result<()> {
    sched_setaffinity(Pid::from_raw(0), cores)
}

fn call(address: &str) -> anyhow::Result<()> {
    let connect = |sort: &[u8]| -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect((address, PORT)).with_context(|| format!("{address}:{PORT}"))?;
        stream.set_nodelay(true)?;
        stream.write_all(sort)?;
        Ok(stream)
    };
    let all = sched_getaffinity(Pid::from_raw(0))?;
    stay(&one_core()?)?;
    let mut echo = connect(b"e")?;
    let mut micros = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        echo.write_all(b"x")?;
        echo.read_exact(&mut [0])?;
        micros.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    micros.sort_by(f64::total_cmp);
    stay(&all)?;
    let mut counted = connect(b"c")?;
    let (chunk, begun) = (vec![0; 1 << 17], Instant::now());
    while begun.elapsed() < SENDING {
        counted.write_all(&chunk)?;
    }
    counted.shutdown(Shutdown::Write)?;
    let mut sum = [0; 8];
    counted.read_exact(&mut sum)?;
    let gigabits = u64::from_be_bytes(sum) as f64 * 8.0 / begun.elapsed().as_secs_f64() / 1e9;
    println!("{gigabits} {}", micros[ROUNDS / 2]);
    Ok(())
}

/// A process that ends with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program in the network namespace of a process, or in one with a name.
fn inside(namespace: &str) -> anyhow::Result<Command> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={namespace}")).arg(std::env::current_exe()?);
    Ok(command)
}

fn server(namespace: &str) -> anyhow::Result<Ended> {
    let child = inside(namespace)?.arg(SERVER).stdout(Stdio::piped()).spawn().context("cannot run nsenter")?;
    let mut child = Ended(child);
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().context("its output")?).read_line(&mut said)?;
    if said.trim() != "ready" {
        bail!("the server in {namespace} did not start");
    }
    Ok(child)
}

fn row(what: &str, from: &str, to: &str, report: &mut Report) -> anyhow::Result<()> {
    let said = output(inside(from)?.args([CLIENT, to]))?;
    let (gigabits, micros) = said.trim().split_once(' ').context("two figures")?;
    report.add(&format!("network, {what}"), gigabits.parse()?, "Gbit/s", None, "one TCP connection");
    report.add("the same: a byte there and back", micros.parse()?, "µs", None, "median");
    Ok(())
}

/// Two network namespaces with a veth between them, which go whatever happens.
struct Bare;

const BARE: [(&str, &str); 2] = [("skiff-bench-a", "198.18.0.1"), ("skiff-bench-b", "198.18.0.2")];

impl Bare {
    fn make() -> anyhow::Result<Bare> {
        let bare = Bare;
        let ip = |text: &str| output(Command::new("ip").args(text.split(' '))).map(drop);
        for (name, _) in BARE {
            ip(&format!("netns add {name}"))?;
        }
        let [(a, _), (b, _)] = BARE;
        ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"))?;
        for (name, address) in BARE {
            ip(&format!("-n {name} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(bare)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        for (name, _) in BARE {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// The Pods, each known by the time that it sleeps.
const PODS: [(&str, &str, u32); 3] = [("a", "first", 100_001), ("b", "first", 100_002), ("c", "first-2", 100_003)];

fn manifest() -> String {
    let pods = PODS.map(|(name, node, seconds)| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{bench: {name}}}}}\nspec:\n  nodeName: {node}\n  \
             terminationGracePeriodSeconds: 0\n  containers:\n  - {{name: c, image: 'skiff.local/busybox:1', \
             command: [sleep, '{seconds}']}}\n---\n"
        )
    });
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {selector: {bench: b}, ports: [{port: 5201}]}\n";
    pods.concat() + service
}

const POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: b}\nspec:\n  \
    podSelector: {matchLabels: {bench: b}}\n  ingress: [{from: [{podSelector: {matchLabels: {bench: a}}}]}]\n";

/// The network namespace of the process that sleeps so long.
fn namespace(seconds: u32) -> anyhow::Result<String> {
    let wanted = format!("sleep\0{seconds}\0");
    for entry in std::fs::read_dir("/proc")?.flatten() {
        if std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes()) {
            return Ok(entry.path().join("ns/net").display().to_string());
        }
    }
    bail!("no Pod sleeps for {seconds} s")
}

/// Measures a cluster of two nodes, `first` and `first-2`, on this machine.
pub fn measure(folder: &Path, report: &mut Report) -> anyhow::Result<()> {
    let [(bare, _), (other, address)] = BARE.map(|(name, address)| (format!("/run/netns/{name}"), address));
    {
        let _bare = Bare::make()?;
        let _server = server(&other)?;
        row("over a bare veth", &bare, address, report)?;
    }
    let kubectl = |arguments: &[&str]| {
        let kubeconfig = folder.join("admin.kubeconfig");
        output(Command::new("kubectl").arg("--kubeconfig").arg(kubeconfig).args(arguments))
    };
    let apply = |text: &str| -> anyhow::Result<()> {
        let file = folder.join("bench.yaml");
        std::fs::write(&file, text)?;
        kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    };
    apply(&manifest())?;
    kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"])?;
    let [a, b, c] = PODS.map(|(_, _, seconds)| namespace(seconds));
    let (a, b, c) = (a?, b?, c?);
    let address = |kind: &str, path: &str| kubectl(&["get", kind, "-o", &format!("jsonpath={{{path}}}")]);
    let (_near, _far) = (server(&b)?, server(&c)?);
    let near = address("pod/b", ".status.podIP")?;
    row("between Pods of one node", &a, &near, report)?;
    let service = address("service/b", ".spec.clusterIP")?;
    kubectl(&[
        "wait",
        "--for=jsonpath={.endpoints[0].conditions.ready}=true",
        "endpointslice",
        "-l",
        "kubernetes.io/service-name=b",
    ])?;
    row("through a Service", &a, &service, report)?;
    row("between Pods of two nodes", &a, &address("pod/c", ".status.podIP")?, report)?;
    apply(POLICY)?;
    row("past a NetworkPolicy", &a, &near, report)?;
    Ok(())
}
