//! `hosts`: names with addresses, as a hosts file writes them. Pure.

use std::{collections::HashMap, net::IpAddr};

use super::{Around, Directive, Error, values};

/// How many names one table has at the most.
const MAX_NAMES: usize = 10_000;
/// The folder in which CoreDNS would have the ConfigMap mounted.
const FOLDER: &str = "/etc/coredns/";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts {
    pub zones: Vec<String>,
    pub ttl: u32,
    pub through: Option<Vec<String>>,
    /// Whether types other than addresses go on to the next plugin too.
    pub through_unsupported: bool,
    pub addresses: HashMap<String, Vec<IpAddr>>,
    /// Names by the reverse name of their address.
    pub names: HashMap<String, Vec<String>>,
}

impl Hosts {
    pub fn read(directive: &Directive, block: &[String], around: &Around) -> Result<Self, Error> {
        let mut hosts = Hosts { ttl: 3600, ..Hosts::default() };
        let (mut inline, mut reverse) = (Vec::new(), true);
        let (file, zones) = match directive.args.split_first() {
            Some((file, zones)) => (Some(file), zones),
            None => (None, directive.args.as_slice()),
        };
        hosts.zones = directive.zones(zones, block)?;
        for line in &directive.body {
            match line.property() {
                "ttl" => hosts.ttl = line.read(|w| values::number(w, 1, 65_535))?,
                "no_reverse" => (reverse, _) = (false, line.bare()?),
                // Its file is a value of the ConfigMap, which is followed.
                "reload" => drop(line.read(values::duration)?),
                "fallthrough" => hosts.through = Some(line.zones(&hosts.zones)?),
                "fallthrough_unsupported" => (hosts.through_unsupported, _) = (true, line.bare()?),
                first if api::rules::ip::parse(first).is_some() => inline.push(line.words.join(" ")),
                _ => return Err(line.unknown()),
            }
        }
        if hosts.through_unsupported && hosts.through.is_none() {
            return Err(directive.error("fallthrough_unsupported requires fallthrough"));
        }
        let from_file = match file.map(String::as_str) {
            // A CoreDNS in a Pod has the Pod's own file there, with the Pod's own name.
            None | Some("/etc/hosts") => "",
            Some(path) => {
                let key = path.strip_prefix(FOLDER).unwrap_or_default();
                around.files.get(key).map(String::as_str).ok_or_else(|| {
                    directive.error(format!("{path} is not there: files are the values of the ConfigMap, in {FOLDER}"))
                })?
            }
        };
        for line in from_file.lines().chain(inline.iter().map(String::as_str)) {
            hosts.add(line, reverse);
        }
        if hosts.addresses.len() > MAX_NAMES {
            return Err(directive.error(format!("more than {MAX_NAMES} names")));
        }
        Ok(hosts)
    }

    /// One line of a hosts file. What is no address or no name is passed over, as everywhere in such files.
    fn add(&mut self, line: &str, reverse: bool) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(ip) = words.next().and_then(api::rules::ip::parse) else { return };
        for name in words.filter_map(|w| values::name(w).ok()) {
            let addresses = self.addresses.entry(name.clone()).or_default();
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
            if reverse {
                let names = self.names.entry(values::reverse_name(ip)).or_default();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
}
