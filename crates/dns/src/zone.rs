//! The cluster's zone: all records by name, and the answer to a question. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    str::FromStr,
};

use client::Key;
use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name as DnsName, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT},
    },
};

use crate::records::{Data, Name};

/// How long clients may remember an answer, in seconds (kubeadm's CoreDNS uses the same).
const TTL: u32 = 30;
/// The version of the DNS specification, served under `dns-version`.
const SPECIFICATION: &str = "1.1.0";

pub struct Zone {
    domain: String,
    records: HashMap<Name, Vec<Data>>,
    by_owner: BTreeMap<Key, Vec<(Name, Data)>>,
    /// How many records are below each name: a name without records of its own is there because of them (RFC 8020).
    below: HashMap<String, usize>,
    /// Grows with every change: the SOA's serial number.
    serial: u32,
}

/// An answer, or that the question is not about this zone.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Here {
        code: ResponseCode,
        answers: Vec<Record>,
        additionals: Vec<Record>,
        authorities: Vec<Record>,
    },
    /// The name is an alias for one outside; its addresses must be looked up there.
    Alias {
        record: Box<Record>,
        target: DnsName,
    },
    Elsewhere,
}

impl Zone {
    /// A zone without records; `None` when the domain is not a DNS name.
    pub fn new(domain: &str) -> Option<Self> {
        let domain = domain.trim_matches('.').to_ascii_lowercase();
        DnsName::from_str(&format!("{domain}.")).ok()?;
        Some(Zone { domain, records: HashMap::new(), by_owner: BTreeMap::new(), below: HashMap::new(), serial: 1 })
    }

    /// Replaces the records of one Service.
    pub fn set(&mut self, owner: &Key, records: Vec<(Name, Data)>) {
        if self.by_owner.get(owner) == Some(&records) {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        for (name, data) in self.by_owner.remove(owner).unwrap_or_default() {
            for above in above(&name) {
                let count = self.below.get_mut(above).map_or(0, |n| {
                    *n -= 1;
                    *n
                });
                if count == 0 {
                    self.below.remove(above);
                }
            }
            if let Some(list) = self.records.get_mut(&name) {
                if let Some(i) = list.iter().position(|d| *d == data) {
                    list.remove(i);
                }
                if list.is_empty() {
                    self.records.remove(&name);
                }
            }
        }
        if records.is_empty() {
            return;
        }
        for (name, data) in &records {
            self.records.entry(name.clone()).or_default().push(data.clone());
            for above in above(name) {
                *self.below.entry(above.to_owned()).or_default() += 1;
            }
        }
        self.by_owner.insert(owner.clone(), records);
    }

    /// The Services that have records.
    pub fn owners(&self) -> Vec<Key> {
        self.by_owner.keys().cloned().collect()
    }

    fn absolute(&self, relative: &str) -> DnsName {
        // Every label comes from a validated object name, so this parses; the root is the harmless answer if not.
        DnsName::from_str(&format!("{relative}.{}.", self.domain)).unwrap_or_else(|_| DnsName::root())
    }

    /// Answers a question about `name`.
    pub fn answer(&self, name: &DnsName, kind: RecordType) -> Answer {
        let text = name.to_ascii().to_ascii_lowercase();
        let text = text.trim_end_matches('.');
        if text.ends_with(".in-addr.arpa") || text.ends_with(".ip6.arpa") {
            return match self.records.get(&Name::Reverse(text.to_owned())) {
                Some(data) => self.here(name, kind, data),
                None => Answer::Elsewhere,
            };
        }
        if text == self.domain {
            return self.apex(name, kind);
        }
        let Some(relative) = text.strip_suffix(&self.domain).and_then(|t| t.strip_suffix('.')) else {
            return Answer::Elsewhere;
        };
        if let Some(data) = self.records.get(&Name::Relative(relative.to_owned())) {
            return self.here(name, kind, data);
        }
        if let Some(address) = pod_address(relative) {
            return self.here(name, kind, &[Data::Address(address)]);
        }
        match relative {
            "dns-version" if matches!(kind, RecordType::TXT | RecordType::ANY) => {
                let text = RData::TXT(TXT::new(vec![SPECIFICATION.to_owned()]));
                self.found(vec![Record::from_rdata(name.clone(), TTL, text)], Vec::new())
            }
            "svc" | "pod" | "dns-version" => self.empty(ResponseCode::NoError),
            _ if self.below.contains_key(relative) => self.empty(ResponseCode::NoError),
            _ => self.empty(ResponseCode::NXDomain),
        }
    }

    /// The zone itself.
    fn apex(&self, name: &DnsName, kind: RecordType) -> Answer {
        let content = match kind {
            RecordType::SOA => self.soa(),
            RecordType::NS => RData::NS(NS(self.absolute("ns.dns"))),
            _ => return self.empty(ResponseCode::NoError),
        };
        self.found(vec![Record::from_rdata(name.clone(), TTL, content)], Vec::new())
    }

    fn here(&self, name: &DnsName, kind: RecordType, data: &[Data]) -> Answer {
        if let [Data::Alias(target)] = data {
            let Ok(target) = DnsName::from_str(&format!("{}.", target.trim_end_matches('.'))) else {
                return self.empty(ResponseCode::ServFail);
            };
            let record = Record::from_rdata(name.clone(), TTL, RData::CNAME(CNAME(target.clone())));
            return Answer::Alias { record: Box::new(record), target };
        }
        let services = data.iter().filter(|d| matches!(d, Data::Service { .. })).count();
        // Together the records of one name weigh 100.
        let weight = u16::try_from(100 / services.max(1)).unwrap_or(1);
        let answers: Vec<Record> = data.iter().filter_map(|d| self.record(name, kind, d, weight)).collect();
        if answers.is_empty() {
            return self.empty(ResponseCode::NoError);
        }
        let mut additionals = Vec::new();
        for target in data.iter().filter_map(|d| if let Data::Service { target, .. } = d { Some(target) } else { None })
        {
            let addresses = self.records.get(&Name::Relative(target.clone())).into_iter().flatten();
            let target = self.absolute(target);
            additionals.extend(addresses.filter_map(|d| match d {
                Data::Address(_) => self.record(&target, RecordType::ANY, d, weight),
                _ => None,
            }));
        }
        additionals.dedup();
        self.found(answers, additionals)
    }

    fn record(&self, name: &DnsName, kind: RecordType, data: &Data, weight: u16) -> Option<Record> {
        let content = match data {
            Data::Address(IpAddr::V4(ip)) => RData::A(A(*ip)),
            Data::Address(IpAddr::V6(ip)) => RData::AAAA(AAAA(*ip)),
            Data::Service { port, target } => RData::SRV(SRV::new(0, weight, *port, self.absolute(target))),
            Data::Pointer(target) => RData::PTR(PTR(self.absolute(target))),
            Data::Alias(_) => return None,
        };
        let wanted = kind == RecordType::ANY || content.record_type() == kind;
        wanted.then(|| Record::from_rdata(name.clone(), TTL, content))
    }

    fn found(&self, answers: Vec<Record>, additionals: Vec<Record>) -> Answer {
        Answer::Here { code: ResponseCode::NoError, answers, additionals, authorities: Vec::new() }
    }

    fn soa(&self) -> RData {
        let (server, mailbox) = (self.absolute("ns.dns"), self.absolute("hostmaster"));
        RData::SOA(SOA::new(server, mailbox, self.serial, 7200, 1800, 86400, TTL))
    }

    /// No records: with the SOA, so that resolvers know how long to remember that.
    fn empty(&self, code: ResponseCode) -> Answer {
        let domain = DnsName::from_str(&format!("{}.", self.domain)).unwrap_or_else(|_| DnsName::root());
        let authorities = vec![Record::from_rdata(domain, TTL, self.soa())];
        Answer::Here { code, answers: Vec::new(), additionals: Vec::new(), authorities }
    }
}

/// The names above one in the zone: `svc` and `default.svc` for `web.default.svc`.
fn above(name: &Name) -> impl Iterator<Item = &str> {
    let mut rest = if let Name::Relative(name) = name { name.as_str() } else { "" };
    std::iter::from_fn(move || {
        rest = rest.split_once('.')?.1;
        Some(rest)
    })
}

/// `10-244-0-5.default.pod` stands for that address, and `fd00--5.default.pod` for one of IPv6.
fn pod_address(relative: &str) -> Option<IpAddr> {
    let mut labels = relative.split('.');
    let (address, _namespace) = (labels.next()?, labels.next()?);
    if labels.next() != Some("pod") || labels.next().is_some() {
        return None;
    }
    let v4 = address.replace('-', ".").parse::<std::net::Ipv4Addr>().map(IpAddr::V4);
    v4.or_else(|_| address.replace('-', ":").parse::<std::net::Ipv6Addr>().map(IpAddr::V6)).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::records;

    pub fn zone() -> Zone {
        let mut zone = Zone::new("cluster.local").unwrap();
        let add = |zone: &mut Zone, name: &str, spec: json::Value, slices: Vec<json::Value>| {
            let service = json::json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
            let slices: Vec<_> = slices.into_iter().map(|s| Arc::new(json::from_value(s).unwrap())).collect();
            zone.set(&Key::new("default", name), records::of(&json::from_value(service).unwrap(), &slices));
        };
        let ports = json::json!([{"name": "http", "port": 80}]);
        add(&mut zone, "web", json::json!({"clusterIP": "10.96.0.7", "ports": ports}), vec![]);
        let slice = json::json!({"metadata": {}, "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.244.0.5"], "hostname": "db-0"}, {"addresses": ["10.244.0.6"]},
                          {"addresses": ["10.244.0.7"], "conditions": {"ready": false}}]});
        add(&mut zone, "db", json::json!({"clusterIP": "None"}), vec![slice]);
        let many: Vec<_> = (0..100).map(|n| json::json!({"addresses": [format!("10.245.0.{n}")]})).collect();
        let many = json::json!({"metadata": {}, "addressType": "IPv4", "ports": [], "endpoints": many});
        add(&mut zone, "many", json::json!({"clusterIP": "None"}), vec![many]);
        for (name, target) in
            [("inside", "web.default.svc.cluster.local"), ("circle", "circle.default.svc.cluster.local")]
        {
            add(&mut zone, name, json::json!({"type": "ExternalName", "externalName": target}), vec![]);
        }
        add(&mut zone, "out", json::json!({"type": "ExternalName", "externalName": "example.org"}), vec![]);
        zone
    }

    fn ask(zone: &Zone, name: &str, kind: RecordType) -> String {
        match zone.answer(&DnsName::from_str(name).unwrap(), kind) {
            Answer::Elsewhere => "elsewhere".to_owned(),
            Answer::Alias { target, .. } => format!("alias {target}"),
            Answer::Here { code, answers, .. } => {
                let list: Vec<String> = answers.iter().map(|r| r.data.to_string()).collect();
                if list.is_empty() { format!("{code:?}") } else { list.join(", ") }
            }
        }
    }

    #[test]
    fn answers() {
        use RecordType as T;
        let zone = zone();
        for (name, kind, expected) in [
            ("web.default.svc.cluster.local.", T::A, "10.96.0.7"),
            ("WEB.default.svc.cluster.local.", T::A, "10.96.0.7"),
            ("web.default.svc.cluster.local.", T::AAAA, "NoError"),
            ("_http._tcp.web.default.svc.cluster.local.", T::SRV, "0 100 80 web.default.svc.cluster.local."),
            ("7.0.96.10.in-addr.arpa.", T::PTR, "web.default.svc.cluster.local."),
            ("db.default.svc.cluster.local.", T::A, "10.244.0.5, 10.244.0.6"),
            ("db-0.db.default.svc.cluster.local.", T::A, "10.244.0.5"),
            ("10-244-0-6.db.default.svc.cluster.local.", T::A, "10.244.0.6"),
            ("out.default.svc.cluster.local.", T::A, "alias example.org."),
            ("10-244-0-9.default.pod.cluster.local.", T::A, "10.244.0.9"),
            ("fd00--9.default.pod.cluster.local.", T::AAAA, "fd00::9"),
            ("fd00--9.default.pod.cluster.local.", T::A, "NoError"),
            ("web.default.pod.cluster.local.", T::A, "NXDomain"),
            (
                "_http._tcp.db.default.svc.cluster.local.",
                T::SRV,
                "0 50 8080 10-244-0-6.db.default.svc.cluster.local., 0 50 8080 db-0.db.default.svc.cluster.local.",
            ),
            ("5.0.244.10.in-addr.arpa.", T::PTR, "db-0.db.default.svc.cluster.local."),
            ("dns-version.cluster.local.", T::TXT, "1.1.0"),
            ("_tcp.web.default.svc.cluster.local.", T::A, "NoError"),
            ("default.svc.cluster.local.", T::A, "NoError"),
            ("svc.cluster.local.", T::A, "NoError"),
            ("other.svc.cluster.local.", T::A, "NXDomain"),
            ("web.default.svc.cluster.local.default.svc.cluster.local.", T::A, "NXDomain"),
            ("x.web.default.svc.cluster.local.", T::A, "NXDomain"),
            ("cluster.local.", T::NS, "ns.dns.cluster.local."),
            ("nothing.default.svc.cluster.local.", T::A, "NXDomain"),
            ("web.default.svc.cluster.local.example.org.", T::A, "elsewhere"),
            ("1.0.0.127.in-addr.arpa.", T::PTR, "elsewhere"),
            ("cluster.local.", T::A, "NoError"),
        ] {
            assert_eq!(ask(&zone, name, kind), expected, "{name} {kind}");
        }
    }

    #[test]
    fn a_removed_service_leaves_nothing() {
        let mut zone = zone();
        zone.set(&Key::new("default", "web"), Vec::new());
        assert_eq!(ask(&zone, "web.default.svc.cluster.local.", RecordType::A), "NXDomain");
        assert_eq!(ask(&zone, "7.0.96.10.in-addr.arpa.", RecordType::PTR), "elsewhere");
        assert_eq!(ask(&zone, "_tcp.web.default.svc.cluster.local.", RecordType::A), "NXDomain");
        assert_eq!(ask(&zone, "db.default.svc.cluster.local.", RecordType::A), "10.244.0.5, 10.244.0.6");
    }

    #[test]
    fn nothing_found_says_for_how_long() {
        let zone = zone();
        for name in ["nothing.default.svc.cluster.local.", "default.svc.cluster.local."] {
            let Answer::Here { authorities, .. } = zone.answer(&DnsName::from_str(name).unwrap(), RecordType::A) else {
                panic!("{name} is ours")
            };
            assert!(matches!(&authorities[0].data, RData::SOA(soa) if soa.minimum == TTL), "{name}");
        }
    }
}
