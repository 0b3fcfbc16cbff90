//! The names that a Pod has for itself and how it resolves others. Pure.

use crate::pod::desired::DesiredPod;

/// Where to resolve names: servers, searches, options.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// Reads the parts of a `resolv.conf`.
pub fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
            Some("search") => dns.searches = words.map(str::to_owned).collect(),
            Some("options") => dns.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    dns
}

/// The resolver of a Pod: its policy over the cluster's and the host's settings, then its own additions.
pub fn dns(desired: &DesiredPod, cluster: &[String], domain: &str, host: &Dns) -> Dns {
    let spec = desired.spec();
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster_first = policy == "ClusterFirstWithHostNet" || policy == "ClusterFirst" && !desired.host_network();
    let mut dns = match policy {
        "None" => Dns::default(),
        _ if cluster_first && !cluster.is_empty() => {
            let mut searches =
                vec![format!("{}.svc.{domain}", desired.namespace()), format!("svc.{domain}"), domain.to_owned()];
            searches.extend(host.searches.clone());
            Dns { servers: cluster.to_vec(), searches, options: vec!["ndots:5".to_owned()] }
        }
        _ => host.clone(),
    };
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            dns.options.retain(|o| o.split(':').next() != Some(&name));
            dns.options.push(option.value.as_ref().map_or(name.clone(), |v| format!("{name}:{v}")));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    dns.searches.retain(|s| seen.insert(s.clone()));
    dns.servers.truncate(3);
    dns
}

/// The name that a Pod calls itself, and its full one if it has a subdomain.
pub fn hostname(desired: &DesiredPod, domain: &str) -> (String, Option<String>) {
    let spec = desired.spec();
    let mut name = spec.hostname.clone().unwrap_or_else(|| desired.name().to_owned());
    name.truncate(63);
    let name = name.trim_end_matches(['-', '.']).to_owned();
    let full = spec.subdomain.as_ref().map(|sub| format!("{name}.{sub}.{}.svc.{domain}", desired.namespace()));
    (name, full)
}

/// The `/etc/hosts` that a Pod sees.
pub fn hosts(desired: &DesiredPod, domain: &str, ips: &[String], of_node: &str) -> String {
    let mut text = if desired.host_network() {
        format!("# Kubernetes-managed hosts file (host network).\n{of_node}")
    } else {
        let (short, full) = hostname(desired, domain);
        let names = full.map_or(short.clone(), |full| format!("{full}\t{short}"));
        let own: String = ips.iter().map(|ip| format!("{ip}\t{names}\n")).collect();
        format!(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n{own}"
        )
    };
    let aliases = desired.spec().host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
            text.push_str(&format!("{}\t{names}\n", alias.ip));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    #[test]
    fn resolvers_follow_the_policy() {
        let host =
            Dns { servers: vec!["9.9.9.9".into()], searches: vec!["corp".into()], options: vec!["rotate".into()] };
        let check = |spec: &str, expected: (&[&str], &[&str], &[&str])| {
            let desired = pod(spec);
            let got = dns(&desired, &["10.96.0.10".to_owned()], "c.l", &host);
            let list = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            assert_eq!(
                (got.servers, got.searches, got.options),
                (list(expected.0), list(expected.1), list(expected.2)),
                "{spec}"
            );
        };
        let cluster: (&[&str], &[&str], &[&str]) =
            (&["10.96.0.10"], &["d.svc.c.l", "svc.c.l", "c.l", "corp"], &["ndots:5"]);
        let of_host: (&[&str], &[&str], &[&str]) = (&["9.9.9.9"], &["corp"], &["rotate"]);
        check(r#"{"containers": []}"#, cluster);
        check(r#"{"containers": [], "hostNetwork": true}"#, of_host);
        check(r#"{"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}"#, cluster);
        check(r#"{"containers": [], "dnsPolicy": "Default"}"#, of_host);
        let own = r#""dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}, {"name": "debug"}]}"#;
        check(
            &format!(r#"{{"containers": [], "dnsPolicy": "None", {own}}}"#),
            (&["1.1.1.1"], &["x"], &["ndots:2", "debug"]),
        );
        check(
            &format!(r#"{{"containers": [], {own}}}"#),
            (&["10.96.0.10", "1.1.1.1"], &["d.svc.c.l", "svc.c.l", "c.l", "corp", "x"], &["ndots:2", "debug"]),
        );
    }
}
