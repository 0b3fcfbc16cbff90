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
            // A domain counts once, with a dot at its end or without.
            Some("search") => {
                let bare =
                    |word: &str| if word == "." { word.to_owned() } else { word.trim_end_matches('.').to_owned() };
                dns.searches = words.map(bare).collect();
            }
            Some("options") => words.for_each(|word| dns.option(word.to_owned())),
            _ => {}
        }
    }
    dns
}

impl Dns {
    /// Sets an option, which takes the place of an earlier one of its name.
    fn option(&mut self, option: String) {
        let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
        self.options.retain(|held| name(held) != name(&option));
        self.options.push(option);
    }
}

/// A fact that a user should know of a Pod's resolver: the reason of the event, and its text.
pub type Complaint = (&'static str, String);

/// The resolver of a Pod: its policy over the cluster's and the host's settings, then its own additions. What resolvers do not take
/// is left out, and complained of.
pub fn dns(desired: &DesiredPod, cluster: &[String], domain: &str, host: &Dns) -> (Dns, Vec<Complaint>) {
    let mut complaints = Vec::new();
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
        _ if cluster_first => {
            let text = format!(
                "pod: \"{}\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
                desired.name_in_messages()
            );
            complaints.push(("MissingClusterDNS", text));
            host.clone()
        }
        _ => host.clone(),
    };
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            dns.option(option.value.as_ref().map_or(name.clone(), |v| format!("{name}:{v}")));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    dns.searches.retain(|s| seen.insert(s.clone()));
    seen.clear();
    dns.servers.retain(|s| seen.insert(s.clone()));
    if dns.servers.len() > MOST_SERVERS {
        dns.servers.truncate(MOST_SERVERS);
        let line = dns.servers.join(" ");
        let text =
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is";
        complaints.push(("DNSConfigForming", format!("{text}: {line}")));
    }
    if fit(&mut dns.searches) {
        let line = dns.searches.join(" ");
        let text = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is";
        complaints.push(("DNSConfigForming", format!("{text}: {line}")));
    }
    (dns, complaints)
}

/// As many as resolvers read.
const MOST_SERVERS: usize = 3;
const MOST_SEARCHES: usize = 32;
const LONGEST_SEARCHES: usize = 2048;
/// Some resolvers do not survive a longer domain.
const LONGEST_DOMAIN: usize = 253;

/// Leaves out the domains that are too many or too long; whether there were any.
fn fit(searches: &mut Vec<String>) -> bool {
    let before = searches.len();
    searches.truncate(MOST_SEARCHES);
    searches.retain(|domain| domain.len() <= LONGEST_DOMAIN);
    let line = |searches: &[String]| searches.iter().map(|domain| domain.len() + 1).sum::<usize>().saturating_sub(1);
    while line(searches) > LONGEST_SEARCHES {
        searches.pop();
    }
    searches.len() < before
}

/// The kernel takes no longer name of a machine.
const MOST: usize = 64;

/// Whether the name that a Pod wants to call itself is one that the kernel takes; the words are upstream's.
pub fn fits(desired: &DesiredPod, domain: &str) -> Result<(), String> {
    let full = hostname(desired, domain).1.filter(|_| desired.spec().set_hostname_as_fqdn == Some(true));
    match full.filter(|full| full.len() > MOST) {
        Some(full) => Err(format!(
            "Failed to construct FQDN from Pod hostname and cluster domain, FQDN {full} is too long ({MOST} characters is the max, {} characters requested)",
            full.len()
        )),
        None => Ok(()),
    }
}

/// The name that a Pod calls itself, and its full one if it has a subdomain. Whoever overrides the name names it whole.
pub fn hostname(desired: &DesiredPod, domain: &str) -> (String, Option<String>) {
    let spec = desired.spec();
    if let Some(name) = &spec.hostname_override {
        let short = &name[..name.floor_char_boundary(63)];
        return (short.trim_end_matches(['-', '.']).to_owned(), None);
    }
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
    fn a_name_that_overrides_stands_alone_and_a_long_one_is_refused() {
        let of = |spec: &str| hostname(&pod(spec), "c.l");
        assert_eq!(of(r#"{"containers": [], "subdomain": "s"}"#), ("p".into(), Some("p.s.d.svc.c.l".into())));
        let over = r#"{"containers": [], "subdomain": "s", "hostname": "h", "hostnameOverride": "db-1.example.org"}"#;
        assert_eq!(of(over), ("db-1.example.org".into(), None));
        let long = "x".repeat(62) + "-y";
        assert_eq!(of(&format!(r#"{{"containers": [], "hostnameOverride": "{long}"}}"#)).0, "x".repeat(62));
        let full =
            |sub: &str| pod(&format!(r#"{{"containers": [], "subdomain": "{sub}", "setHostnameAsFQDN": true}}"#));
        assert_eq!(fits(&full(&"s".repeat(52)), "c.l"), Ok(()));
        let why = fits(&full(&"s".repeat(53)), "c.l").unwrap_err();
        assert!(why.ends_with("is too long (64 characters is the max, 65 characters requested)"), "{why}");
    }

    #[test]
    fn a_domain_and_an_option_of_the_node_count_once() {
        let text =
            "# said\nsearch a.\nsearch b. c b .\nnameserver 1.1.1.1 # one\noptions ndots:1 rotate\noptions ndots:2\n";
        let dns = parse_resolv_conf(text);
        assert_eq!(
            (dns.servers, dns.searches),
            (vec!["1.1.1.1".to_owned()], ["b", "c", "b", "."].map(str::to_owned).to_vec())
        );
        assert_eq!(dns.options, ["rotate", "ndots:2"]);
    }

    #[test]
    fn what_resolvers_do_not_take_is_left_out_and_complained_of() {
        let check =
            |policy: &str, config: json::Value, cluster: &[&str], servers: usize, searches: usize, told: &[&str]| {
                let desired = crate::pod::fixture::pod_of(
                    json::json!({"spec": {"containers": [], "dnsPolicy": policy, "dnsConfig": config}}),
                );
                let cluster: Vec<String> = cluster.iter().map(|server| (*server).to_owned()).collect();
                let (got, complaints) = dns(&desired, &cluster, "c.l", &Dns::default());
                assert_eq!((got.servers.len(), got.searches.len()), (servers, searches), "{config}");
                let texts: Vec<String> = complaints.iter().map(|(reason, text)| format!("{reason}: {text}")).collect();
                assert_eq!(texts.len(), told.len(), "{texts:?}");
                texts.iter().zip(told).for_each(|(text, start)| assert!(text.starts_with(start), "{text}"));
            };
        let list =
            |count: usize, length: usize| -> Vec<String> { (0..count).map(|n| format!("{n:0length$}")).collect() };
        let servers = json::json!({"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.1"]});
        check("None", servers, &[], 3, 0, &[]);
        let servers = json::json!({"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3"]});
        let line = "DNSConfigForming: Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 9.9.9.9 1.1.1.1 1.1.1.2";
        check("ClusterFirst", servers, &["9.9.9.9"], 3, 3, &[line]);
        let line = "DNSConfigForming: Search Line limits were exceeded, some search paths have been omitted, the applied search line is: 0";
        check("None", json::json!({"searches": list(32, 3)}), &[], 0, 32, &[]);
        check("None", json::json!({"searches": list(33, 3)}), &[], 0, 32, &[line]);
        check("None", json::json!({"searches": list(3, 254)}), &[], 0, 0, &["DNSConfigForming: Search"]);
        // 9 domains of 227 letters and the spaces between them are 2,051 bytes.
        check("None", json::json!({"searches": list(9, 227)}), &[], 0, 8, &[line]);
        check("None", json::json!({"searches": list(9, 226)}), &[], 0, 9, &[]);
        let missing = "MissingClusterDNS: pod: \"p_d(u)\". kubelet does not have ClusterDNS IP configured";
        check("ClusterFirst", json::json!({}), &[], 0, 0, &[missing]);
        check("Default", json::json!({}), &[], 0, 0, &[]);
    }

    #[test]
    fn resolvers_follow_the_policy() {
        let host =
            Dns { servers: vec!["9.9.9.9".into()], searches: vec!["corp".into()], options: vec!["rotate".into()] };
        let check = |spec: &str, expected: (&[&str], &[&str], &[&str])| {
            let desired = pod(spec);
            let (got, complaints) = dns(&desired, &["10.96.0.10".to_owned()], "c.l", &host);
            assert_eq!(complaints, []);
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
        let own = r#""dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.1"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}, {"name": "debug"}]}"#;
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
