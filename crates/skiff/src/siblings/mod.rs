//! The further nodes of `skiff up --nodes`: where they are and what is theirs. Each is a `skiff agent` in a network namespace,
//! with a data folder and an engine of its own, and joins as an agent on another machine does.

pub mod end;
pub mod join;
pub mod process;

use std::{fs, net::IpAddr, path::Path};

use anyhow::{Context, bail};
use files::modes;
use network::local_nodes::{self, Meeting};

use crate::{flags::options::Up, holder, layout::Layout};

/// A further node of this machine.
#[derive(Debug, Clone)]
pub struct Sibling {
    /// The machine's own node is the first.
    pub number: u8,
    pub layout: Layout,
}

impl Sibling {
    fn new(cluster: &Layout, number: u8) -> Self {
        Sibling { number, layout: Layout::new(&cluster.siblings().join(number.to_string())) }
    }

    pub fn name(&self, first: &str) -> String {
        format!("{first}-{}", self.number)
    }

    /// Two kubelets in one cgroup would take each other's Pods for their own.
    fn cgroup(&self) -> String {
        format!("/skiff-node-{}", self.number)
    }
}

/// Those that the cluster's folder knows, in their order.
pub fn known(cluster: &Layout) -> Vec<Sibling> {
    let entries = fs::read_dir(cluster.siblings()).into_iter().flatten().flatten();
    let mut numbers: Vec<u8> =
        entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|n| *n > 1).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| Sibling::new(cluster, number)).collect()
}

/// The further nodes of one start.
#[derive(Default)]
pub struct Siblings {
    pub all: Vec<Sibling>,
    /// Those of an earlier start that are no more.
    pub gone: Vec<Sibling>,
    /// Where they meet, if there are any.
    pub meeting: Option<Meeting>,
}

/// Says what does not go with several nodes.
pub fn check(options: &Up) -> anyhow::Result<()> {
    if options.nodes == 1 {
        return Ok(());
    }
    let (node, server) = (&options.node, &options.control_plane);
    if node.container_runtime_endpoint.is_some() {
        bail!("--nodes {} needs an engine for each node; leave --container-runtime-endpoint out", options.nodes);
    }
    if !node.node_ip.is_empty() {
        bail!("--nodes {} gives the nodes their addresses; leave --node-ip out", options.nodes);
    }
    if server.bind_address.is_loopback() || server.bind_address.is_ipv6() && !server.bind_address.is_unspecified() {
        bail!(
            "the other nodes cannot reach the API server at {}; choose another --bind-address, or --nodes 1",
            server.bind_address
        );
    }
    if !server.bind_address.is_unspecified() && !server.cluster_cidr.has_family_of(server.bind_address) {
        bail!(
            "the other nodes have no address of the family of --bind-address {}; choose another, or --nodes 1",
            server.bind_address
        );
    }
    if !server.runs("network") {
        return Ok(());
    }
    // Each node takes a part of the Pods' addresses of each family.
    for (cluster, of_node) in server.node_ranges.of(&server.cluster_cidr).map_err(anyhow::Error::msg)? {
        let ranges = 1_u32 << of_node.saturating_sub(cluster.prefix_len());
        if u32::from(options.nodes) > ranges {
            bail!("--cluster-cidr {cluster} has room for {ranges} nodes, not for {}", options.nodes);
        }
    }
    Ok(())
}

/// Makes the network of the nodes, and has the first one take part in it. The parts that an earlier start left are used
/// again; nodes of which there are to be no more are ended.
pub async fn prepare(options: &mut Up, layout: &Layout) -> anyhow::Result<Siblings> {
    let gone: Vec<Sibling> = known(layout).into_iter().filter(|sibling| sibling.number > options.nodes).collect();
    for sibling in &gone {
        holder::end(&sibling.layout).await?;
        end::one(sibling, false).await?;
    }
    if options.nodes == 1 {
        if !gone.is_empty() {
            local_nodes::remove().await.context("cannot remove the network of this machine's nodes")?;
        }
        return Ok(Siblings { gone, ..Siblings::default() });
    }
    let all: Vec<Sibling> = (2..=options.nodes).map(|number| Sibling::new(layout, number)).collect();
    let meeting = match wire(options, layout, &all).await {
        Ok(meeting) => meeting,
        Err(error) => {
            end::undo_start(&all).await;
            return Err(error);
        }
    };
    let own = meeting.addresses(1);
    options.control_plane.tls_san.extend(own.iter().map(IpAddr::to_string));
    options.node.node_ip = own;
    options.node.number_on_machine = Some(1);
    Ok(Siblings { all, gone, meeting: Some(meeting) })
}

async fn wire(options: &Up, layout: &Layout, all: &[Sibling]) -> anyhow::Result<Meeting> {
    modes::passage(&layout.siblings()).context("cannot make the folder of the other nodes")?;
    let server = &options.control_plane;
    let meeting = local_nodes::meet(server.cluster_cidr.all(), server.service_cluster_ip_range.all());
    let meeting = meeting.await.context("cannot make the network of this machine's nodes")?;
    for sibling in all {
        sibling.layout.open()?;
        // One that outlived its parent by a moment would hold the folder.
        holder::end(&sibling.layout).await?;
        let run = sibling.layout.run();
        modes::passage(&run).with_context(|| format!("cannot make {}", run.display()))?;
        local_nodes::join(&sibling.layout.network_namespace(), sibling.number, &meeting)
            .await
            .with_context(|| format!("cannot make the network of node {}", sibling.number))?;
    }
    Ok(meeting)
}

/// Where the other nodes reach the API server: at the machine's address of the family of Services, which it listens at.
fn server_address(options: &Up, own: &[IpAddr]) -> anyhow::Result<String> {
    let server = &options.control_plane;
    let host = if server.bind_address.is_unspecified() {
        let wanted = server.service_cluster_ip_range.first().addr().is_ipv4();
        let found = own.iter().copied().find(|address| address.is_ipv4() == wanted);
        found.context("this machine has no address of the family of --service-cluster-ip-range")?
    } else {
        server.bind_address
    };
    Ok(format!("https://{}", std::net::SocketAddr::new(host, server.secure_port)))
}

/// Enters the namespace of a node, before any thread is started.
pub fn enter(namespace: Option<&Path>) -> anyhow::Result<()> {
    let Some(file) = namespace else { return Ok(()) };
    network::namespace::enter(file).with_context(|| {
        format!(
            "cannot enter the network namespace {}; end the cluster with `skiff down` and start it again",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::options::{Cli, Command};

    fn up(flags: &[&str]) -> Up {
        let parsed = Cli::try_parse_from(["skiff", "up"].iter().chain(flags));
        let Ok(Cli { command: Command::Up(options) }) = parsed else { panic!("{flags:?} is no `skiff up`") };
        options
    }

    #[test]
    fn several_nodes_take_what_they_need_and_refuse_the_rest() {
        let check = |flags: &[&str], expected: Result<(), &str>| match (super::check(&up(flags)), expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{flags:?}: {error}"),
            (got, _) => panic!("{flags:?}: {got:?}"),
        };
        check(&["--node-ip=10.0.0.1"], Ok(()));
        check(&["--nodes=50"], Ok(()));
        check(&["--nodes=2", "--node-ip=10.0.0.1"], Err("leave --node-ip out"));
        check(&["--nodes=2", "--bind-address=::1"], Err("cannot reach the API server at ::1"));
        check(&["--nodes=2", "--bind-address=::"], Ok(()));
        check(
            &["--nodes=2", "--bind-address=10.0.0.7", "--cluster-cidr=fd00::/56"],
            Err("of the family of --bind-address"),
        );
        check(&["--nodes=2", "--container-runtime-endpoint=unix:///x"], Err("an engine for each node"));
        check(&["--nodes=4", "--cluster-cidr=10.0.0.0/22"], Ok(()));
        check(&["--nodes=5", "--cluster-cidr=10.0.0.0/22"], Err("has room for 4 nodes, not for 5"));
        check(&["--nodes=5", "--cluster-cidr=10.0.0.0/22", "--disable=network"], Ok(()));
        check(&["--nodes=4", "--cluster-cidr=10.0.0.0/22,fd00::/60"], Ok(()));
        check(&["--nodes=3", "--cluster-cidr=fd00::/63"], Err("fd00::/63 has room for 2 nodes, not for 3"));
        check(&["--nodes=5", "--cluster-cidr=fd00::/56,10.0.0.0/22"], Err("10.0.0.0/22 has room for 4 nodes"));
    }

    #[test]
    fn each_node_of_a_machine_has_its_part_of_the_ids_of_users() {
        let part = |flags: &[&str]| up(flags).node.users_part();
        assert_eq!(part(&[]), None);
        assert_eq!(part(&["--number-on-machine=2"]), Some(kubelet::UsersPart { number: 2, of: 50 }));
    }

    #[test]
    fn the_nodes_of_an_earlier_start_are_found_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Layout::new(folder.path());
        assert!(known(&cluster).is_empty());
        for name in ["10", "2", "1", "x", "300"] {
            fs::create_dir_all(cluster.siblings().join(name)).unwrap();
        }
        let names: Vec<String> = known(&cluster).iter().map(|sibling| sibling.name("host")).collect();
        assert_eq!(names, ["host-2", "host-10"]);
    }

    #[test]
    fn the_others_come_to_where_the_server_listens() {
        let own: Vec<IpAddr> = ["192.168.254.1", "fd00::1"].map(|text| text.parse().unwrap()).to_vec();
        let check = |flags: &[&str], expected: &str| {
            assert_eq!(server_address(&up(flags), &own).unwrap(), expected, "{flags:?}");
        };
        check(&[], "https://192.168.254.1:6443");
        check(&["--bind-address=10.0.0.7", "--secure-port=7443"], "https://10.0.0.7:7443");
        check(&["--service-cluster-ip-range=fd00:96::/112,10.96.0.0/16"], "https://[fd00::1]:6443");
        assert!(server_address(&up(&["--service-cluster-ip-range=fd00:96::/112"]), &own[..1]).is_err());
    }
}
