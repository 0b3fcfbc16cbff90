//! The cluster's names, after the Kubernetes DNS specification (1.1.0) and as CoreDNS' kubernetes plugin answers them.
//! Pure.

use std::net::IpAddr;

use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT},
    },
};

use crate::{
    cluster::{Address, Cluster, Entry, Port, Sort},
    corefile::kubernetes::{Kubernetes, PodMode, is_reverse},
    question::{Answer, Question, within, zone_of},
};

/// The version of the DNS specification, served under `dns-version`, and how long that may be remembered.
const SPECIFICATION: (&str, u32) = ("1.1.0", 28_800);

/// The result of looking for a name in the cluster.
#[derive(Debug, PartialEq)]
pub enum Found {
    Answer(Answer),
    /// The name is an alias; its target has to be looked up. Where that leads nowhere in the cluster's own zones, `nothing` is the answer.
    Alias {
        record: Box<Record>,
        target: String,
        nothing: Answer,
    },
    /// No such name. Where it is not asked elsewhere, this is the answer.
    Missing {
        answer: Answer,
        through: bool,
    },
    /// The question is about no zone of the cluster.
    Elsewhere,
}

/// One thing that a name leads to: an address, its port, and its own name under the zone.
struct Target {
    ip: IpAddr,
    port: Option<u16>,
    name: String,
}

/// The records of a name, or that there is no such name.
type Looked<T> = Option<T>;

struct View<'a> {
    cluster: &'a Cluster,
    settings: &'a Kubernetes,
    zone: &'a str,
    /// The addresses by which Pods know cluster DNS.
    own: &'a [IpAddr],
}

/// Answers a question.
pub fn answer(question: &Question, settings: &Kubernetes, cluster: &Cluster, own: &[IpAddr]) -> Found {
    let Some(zone) = zone_of(&question.text, &settings.zones) else { return Found::Elsewhere };
    let view = View { cluster, settings, zone, own };
    let relative = question.text.strip_suffix(zone.as_str()).unwrap_or_default().trim_end_matches('.');
    let found = if relative.is_empty() {
        Some(view.apex(question))
    } else if is_reverse(zone) {
        view.reverse(question)
    } else {
        view.forward(question, relative)
    };
    found.unwrap_or_else(|| view.missing(question))
}

impl View<'_> {
    fn missing(&self, question: &Question) -> Found {
        // Before everything is known, nothing is known to be missing.
        let code = if self.cluster.synced { ResponseCode::NXDomain } else { ResponseCode::ServFail };
        let through = self.settings.through.iter().any(|zone| within(&question.text, zone));
        Found::Missing { answer: self.empty(code), through }
    }

    /// No records: with the SOA, so that resolvers know how long to remember that.
    fn empty(&self, code: ResponseCode) -> Answer {
        let soa = Record::from_rdata(name(self.zone), self.settings.ttl, self.soa());
        Answer { code, authorities: vec![soa], ..Answer::own(Vec::new()) }
    }

    fn nothing(&self) -> Found {
        Found::Answer(self.empty(ResponseCode::NoError))
    }

    fn soa(&self) -> RData {
        let (server, mailbox) = (self.absolute("ns.dns"), self.absolute("hostmaster"));
        RData::SOA(SOA::new(server, mailbox, self.cluster.serial, 7200, 1800, 86400, self.settings.ttl))
    }

    fn absolute(&self, relative: &str) -> Name {
        name(&format!("{relative}.{}", self.zone))
    }

    fn record(&self, owner: &Name, data: RData) -> Record {
        Record::from_rdata(owner.clone(), self.settings.ttl, data)
    }

    fn records(&self, answers: Vec<Record>, additionals: Vec<Record>) -> Found {
        if answers.is_empty() { self.nothing() } else { Found::Answer(Answer { additionals, ..Answer::own(answers) }) }
    }

    /// The zone itself.
    fn apex(&self, question: &Question) -> Found {
        match question.kind {
            RecordType::SOA => self.records(vec![self.record(&question.name, self.soa())], Vec::new()),
            RecordType::NS => {
                let server = self.absolute("ns.dns");
                let glue = self.own.iter().map(|ip| self.record(&server, address(*ip))).collect();
                self.records(vec![self.record(&question.name, RData::NS(NS(server.clone())))], glue)
            }
            _ => self.nothing(),
        }
    }

    /// The names of an address.
    fn reverse(&self, question: &Question) -> Looked<Found> {
        let ip = address_of(&question.text)?;
        let domain = self.settings.domain()?;
        let exposed = |namespace: &str| self.exposes(namespace);
        let mut names: Vec<String> = Vec::new();
        let own = self.cluster.services_at(ip).filter(|key| exposed(&key.namespace));
        names.extend(own.take(1).map(|key| format!("{}.{}.svc.{domain}", key.name, key.namespace)));
        if names.is_empty() && self.settings.endpoints {
            for (key, address) in self.cluster.endpoints_at(ip).filter(|(key, _)| exposed(&key.namespace)) {
                let label = address.label(self.settings.endpoint_pod_names);
                let name = format!("{label}.{}.{}.svc.{domain}", key.name, key.namespace);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        if names.is_empty() {
            return None;
        }
        let wanted = question.kind == RecordType::PTR;
        let pointer = |target: &String| self.record(&question.name, RData::PTR(PTR(name(target))));
        Some(self.records(names.iter().filter(|_| wanted).map(pointer).collect(), Vec::new()))
    }

    /// Whether names of a namespace are answered.
    fn exposes(&self, namespace: &str) -> bool {
        let listed = self.settings.namespaces.is_empty() || self.settings.namespaces.contains(namespace);
        listed && self.cluster.has_namespace(namespace)
    }

    fn forward(&self, question: &Question, relative: &str) -> Looked<Found> {
        let labels: Vec<&str> = relative.split('.').collect();
        match labels.as_slice() {
            ["svc" | "pod"] | ["dns"] => Some(self.nothing()),
            ["dns-version"] => Some(self.version(question)),
            ["ns", "dns"] => {
                let servers = self.own.iter().map(|ip| Target { ip: *ip, port: None, name: "ns.dns".to_owned() });
                Some(self.of(question, &servers.collect::<Vec<_>>()))
            }
            [rest @ .., namespace, sort @ ("svc" | "pod")] => {
                if !self.exposes(namespace) {
                    return None;
                }
                match (rest, *sort) {
                    ([], _) => Some(self.nothing()),
                    ([pod], "pod") => self.pod(question, pod, namespace),
                    ([above @ .., service], "svc") => self.service(question, above, service, namespace),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn version(&self, question: &Question) -> Found {
        if question.kind != RecordType::TXT {
            return self.nothing();
        }
        let text = RData::TXT(TXT::new(vec![SPECIFICATION.0.to_owned()]));
        Found::Answer(Answer::own(vec![Record::from_rdata(question.name.clone(), SPECIFICATION.1, text)]))
    }

    /// `10-244-0-5.default.pod` stands for that address, and `fd00--5.default.pod` for one of IPv6.
    fn pod(&self, question: &Question, label: &str, namespace: &str) -> Looked<Found> {
        let dashes = label.bytes().filter(|b| *b == b'-').count();
        let text = label.replace('-', if dashes == 3 && !label.contains("--") { "." } else { ":" });
        let ip = api::rules::ip::parse(&text)?;
        match self.settings.pods {
            PodMode::Disabled => return None,
            PodMode::Insecure => {}
            PodMode::Verified => drop(self.cluster.pods_at(ip).find(|key| key.namespace == namespace)?),
        }
        Some(self.of(question, &[Target { ip, port: None, name: format!("{label}.{namespace}.pod") }]))
    }

    fn service(&self, question: &Question, above: &[&str], service: &str, namespace: &str) -> Looked<Found> {
        let entry = self.cluster.service(namespace, service)?;
        let has_endpoints = entry.endpoints.iter().any(|e| !e.addresses.is_empty());
        if self.settings.ignore_empty && matches!(entry.sort, Sort::Addresses(_)) && !has_endpoints {
            return None;
        }
        if let Sort::External(target) = &entry.sort {
            return above.is_empty().then(|| self.external(question, target));
        }
        let base = format!("{service}.{namespace}.svc");
        let targets = match above {
            [] => self.targets(entry, &base, None, "", ""),
            [protocol] if protocol.starts_with('_') => {
                // The names of ports are below it.
                let targets = self.targets(entry, &base, None, "", plain(protocol));
                return (!targets.is_empty()).then(|| self.nothing());
            }
            [endpoint] => self.targets(entry, &base, Some(endpoint), "", ""),
            [port, protocol] => self.targets(entry, &base, None, plain(port), plain(protocol)),
            _ => return None,
        };
        (!targets.is_empty()).then(|| self.of(question, &targets))
    }

    fn external(&self, question: &Question, target: &str) -> Found {
        let Ok(alias) = Name::from_ascii(format!("{target}.")) else { return Found::Answer(Answer::failed()) };
        let record = self.record(&question.name, RData::CNAME(CNAME(alias)));
        match question.kind {
            RecordType::CNAME => Found::Answer(Answer::own(vec![record])),
            RecordType::A | RecordType::AAAA | RecordType::TXT => {
                let nothing = self.empty(ResponseCode::NoError);
                Found::Alias { record: Box::new(record), target: target.to_owned(), nothing }
            }
            _ => self.nothing(),
        }
    }

    /// The targets of a Service's name: its own addresses, or its endpoints, those of one name where one is asked for.
    fn targets(&self, entry: &Entry, base: &str, endpoint: Option<&str>, port: &str, protocol: &str) -> Vec<Target> {
        let fits = |p: &&Port| (port.is_empty() || p.name == port) && (protocol.is_empty() || p.protocol == protocol);
        if let (Sort::Addresses(ips), None) = (&entry.sort, endpoint) {
            let of_port = |p: &Port| {
                let port = p.number;
                ips.iter().map(move |ip| Target { ip: *ip, port, name: base.to_owned() })
            };
            return entry.ports.iter().filter(fits).flat_map(of_port).collect();
        }
        let mut targets = Vec::new();
        for slice in entry.endpoints.iter().filter(|_| self.settings.endpoints) {
            let label = |a: &Address| a.label(self.settings.endpoint_pod_names);
            for address in slice.addresses.iter().filter(|a| endpoint.is_none_or(|wanted| label(a) == wanted)) {
                let name = format!("{}.{base}", label(address));
                let of_port = |p: &Port| Target { ip: address.ip, port: p.number, name: name.clone() };
                targets.extend(slice.ports.iter().filter(fits).map(of_port));
            }
        }
        targets
    }

    /// The records of the kind asked for.
    fn of(&self, question: &Question, targets: &[Target]) -> Found {
        match question.kind {
            RecordType::A | RecordType::AAAA => {
                let v4 = question.kind == RecordType::A;
                let mut seen = std::collections::HashSet::new();
                let wanted = targets.iter().map(|t| t.ip).filter(|ip| ip.is_ipv4() == v4 && seen.insert(*ip));
                self.records(wanted.map(|ip| self.record(&question.name, address(ip))).collect(), Vec::new())
            }
            RecordType::SRV => self.srv(question, targets),
            _ => self.nothing(),
        }
    }

    fn srv(&self, question: &Question, targets: &[Target]) -> Found {
        // Together the records of one name weigh 100.
        let weight = u16::try_from(100 / targets.len().max(1)).unwrap_or(1).max(1);
        let (mut answers, mut additionals) = (Vec::new(), Vec::new());
        let (mut seen, mut shown) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        for target in targets {
            let Some(port) = target.port else { continue };
            let owner = self.absolute(&target.name);
            if seen.insert((target.name.as_str(), port)) {
                answers.push(self.record(&question.name, RData::SRV(SRV::new(0, weight, port, owner.clone()))));
            }
            if shown.insert((target.name.as_str(), target.ip)) {
                additionals.push(self.record(&owner, address(target.ip)));
            }
        }
        self.records(answers, additionals)
    }
}

/// A port or protocol without its underscore.
fn plain(label: &str) -> &str {
    label.strip_prefix('_').unwrap_or(label)
}

fn address(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    }
}

/// A name made of parts that come from validated objects and a question, so this parses; the root is the harmless answer
/// if not.
fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap_or_else(|_| Name::root())
}

/// The address that a reverse name is about.
fn address_of(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_suffix(".in-addr.arpa") {
        let octets: Vec<u8> = rest.split('.').rev().map(|o| o.parse().ok()).collect::<Option<_>>()?;
        return <[u8; 4]>::try_from(octets).ok().map(IpAddr::from);
    }
    let rest = text.strip_suffix(".ip6.arpa")?;
    let digit = |d: &str| u128::from_str_radix(d, 16).ok().filter(|_| d.len() == 1);
    let digits: Vec<u128> = rest.split('.').rev().map(digit).collect::<Option<_>>()?;
    (digits.len() == 32).then(|| IpAddr::from(digits.iter().fold(0_u128, |all, d| all << 4 | d).to_be_bytes()))
}
