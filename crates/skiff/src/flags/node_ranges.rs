//! How large the part of the Pods' addresses is that each node gets: upstream's flags.

use clap::Args;
use ipnet::IpNet;

use crate::flags::ranges::Ranges;

/// As upstream's controller counts: a range of the cluster has at most two to the power of this many of nodes.
const NODES: u8 = 16;

#[derive(Args, Clone, Debug, Default)]
pub struct NodeRanges {
    /// How many bits of a node's range of Pod addresses are fixed, in a cluster of one family: 24 of IPv4 where nothing is said, 64 of IPv6
    #[arg(long, default_value_t = 0, value_name = "BITS", hide_default_value = true)]
    pub node_cidr_mask_size: u8,
    /// The same for the range of IPv4, in a cluster of both families too
    #[arg(long, default_value_t = 0, value_name = "BITS", hide_default_value = true)]
    pub node_cidr_mask_size_ipv4: u8,
    /// The same for the range of IPv6
    #[arg(long, default_value_t = 0, value_name = "BITS", hide_default_value = true)]
    pub node_cidr_mask_size_ipv6: u8,
}

impl NodeRanges {
    /// Each range of the cluster with the length of the prefix of a node's part of it.
    pub fn of(&self, clusters: &Ranges) -> Result<Vec<(IpNet, u8)>, String> {
        let (one, v4, v6) = (self.node_cidr_mask_size, self.node_cidr_mask_size_ipv4, self.node_cidr_mask_size_ipv6);
        if one != 0 && clusters.all().len() > 1 {
            return Err("--node-cidr-mask-size is for clusters of one family; say --node-cidr-mask-size-ipv4 and \
                        --node-cidr-mask-size-ipv6"
                .to_owned());
        }
        if one != 0 && (v4, v6) != (0, 0) {
            return Err("--node-cidr-mask-size says it for both families; leave --node-cidr-mask-size-ipv4 and \
                        --node-cidr-mask-size-ipv6 out"
                .to_owned());
        }
        for (family, wanted, has) in [
            ("ipv4", v4, clusters.all().iter().any(|range| range.addr().is_ipv4())),
            ("ipv6", v6, clusters.all().iter().any(|range| range.addr().is_ipv6())),
        ] {
            if wanted != 0 && !has {
                return Err(format!(
                    "--node-cidr-mask-size-{family} is about a family that --cluster-cidr {clusters} has no range of"
                ));
            }
        }
        let of = |cluster: &IpNet| {
            let (usual, of_family) = if cluster.addr().is_ipv4() { (24, v4) } else { (64, v6) };
            let wanted = [one, of_family].into_iter().find(|bits| *bits != 0).unwrap_or(usual);
            fits(cluster, wanted).map(|()| (*cluster, wanted))
        };
        clusters.all().iter().map(of).collect()
    }
}

fn fits(cluster: &IpNet, of_node: u8) -> Result<(), String> {
    // A node has an address of its own and those of its Pods.
    let most = cluster.max_prefix_len() - 2;
    if of_node > most {
        return Err(format!("--node-cidr-mask-size: a /{of_node} has no room for Pods; /{most} is the smallest"));
    }
    match of_node.checked_sub(cluster.prefix_len()) {
        None => Err(format!(
            "--cluster-cidr {cluster} is too small: each node gets a /{of_node} of it (--node-cidr-mask-size)"
        )),
        Some(bits) if bits > NODES => Err(format!(
            "--cluster-cidr {cluster} has more than {} parts for nodes of /{of_node}; make either of them smaller \
             (--node-cidr-mask-size)",
            1_u32 << NODES
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::ranges;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        ranges: NodeRanges,
    }

    #[test]
    fn nodes_get_parts_of_the_size_that_is_asked_for() {
        let check = |clusters: &str, flags: &[&str], expected: Result<&[u8], &str>| {
            let flags = Flags::parse_from([&["test"][..], flags].concat());
            let found = flags.ranges.of(&ranges::of_pods(clusters).unwrap());
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(found.iter().map(|(_, bits)| *bits).collect::<Vec<_>>(), expected, "{clusters}");
                }
                (Err(error), Err(words)) => assert!(error.contains(words), "{clusters}: {error}"),
                (found, _) => panic!("{clusters}: {found:?}"),
            }
        };
        let (both, v6) = ("10.244.0.0/16,fd00::/56", "fd00::/48");
        check("10.244.0.0/16", &[], Ok(&[24]));
        check(both, &[], Ok(&[24, 64]));
        check("10.244.0.0/16", &["--node-cidr-mask-size=22"], Ok(&[22]));
        check("10.244.0.0/16", &["--node-cidr-mask-size-ipv4=23"], Ok(&[23]));
        check(both, &["--node-cidr-mask-size-ipv4=20", "--node-cidr-mask-size-ipv6=62"], Ok(&[20, 62]));
        check(v6, &["--node-cidr-mask-size-ipv6=56"], Ok(&[56]));
        check("10.244.0.0/25", &["--node-cidr-mask-size=26"], Ok(&[26]));
        check(both, &["--node-cidr-mask-size=22"], Err("for clusters of one family"));
        check("10.0.0.0/8", &["--node-cidr-mask-size=22", "--node-cidr-mask-size-ipv4=22"], Err("leave"));
        check("10.0.0.0/8", &["--node-cidr-mask-size-ipv6=64"], Err("has no range of"));
        check("10.244.0.0/25", &[], Err("each node gets a /24 of it"));
        check("10.0.0.0/8", &["--node-cidr-mask-size=25"], Err("more than 65536 parts"));
        check("10.0.0.0/24", &["--node-cidr-mask-size=31"], Err("has no room for Pods; /30"));
    }
}
