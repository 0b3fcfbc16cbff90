//! A question and its answer, as the plugins see them: no packets, and names in lower case.

use std::net::SocketAddr;

use hickory_proto::{
    op::ResponseCode,
    rr::{DNSClass, Name, Record, RecordType},
};

/// How often the search for an alias's target begins anew; more is a circle.
const DEPTH: u8 = 8;

/// The facts about a packet that a log entry tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    pub id: u16,
    pub size: usize,
    pub payload: u16,
    pub from: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// In lower case.
    pub name: Name,
    /// The same without the last dot.
    pub text: String,
    pub kind: RecordType,
    pub class: DNSClass,
    pub dnssec_ok: bool,
    pub checking_disabled: bool,
    pub recursion_desired: bool,
    pub over_tcp: bool,
    pub packet: Packet,
    depth: u8,
}

impl Question {
    pub fn new(name: &Name, kind: RecordType, packet: Packet) -> Self {
        let name = name.to_lowercase();
        Question {
            text: text(&name),
            name,
            kind,
            class: DNSClass::IN,
            dnssec_ok: false,
            checking_disabled: false,
            recursion_desired: true,
            over_tcp: false,
            packet,
            depth: 0,
        }
    }

    /// The same question about another name; `None` where that is no name.
    pub fn about(&self, name: &str) -> Option<Self> {
        let name = Name::from_ascii(format!("{}.", name.trim_end_matches('.'))).ok()?.to_lowercase();
        Some(Question { text: text(&name), name, ..self.clone() })
    }

    /// The question about the target of an alias; `None` when the aliases lead in a circle.
    pub fn onward(&self, target: &str) -> Option<Self> {
        let next = self.about(target)?;
        (next.depth < DEPTH).then(|| Question { depth: next.depth + 1, ..next })
    }
}

/// A name in lower case without its last dot.
pub fn text(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub code: ResponseCode,
    pub authoritative: bool,
    pub recursion_available: bool,
    pub authentic: bool,
    pub truncated: bool,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
}

impl Answer {
    pub fn new(code: ResponseCode) -> Self {
        Answer {
            code,
            authoritative: false,
            recursion_available: true,
            authentic: false,
            truncated: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }

    /// Records from this server's own knowledge.
    pub fn own(answers: Vec<Record>) -> Self {
        Answer { authoritative: true, answers, ..Answer::new(ResponseCode::NoError) }
    }

    pub fn failed() -> Self {
        Answer::new(ResponseCode::ServFail)
    }

    /// All records, of every section.
    pub fn records_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.answers.iter_mut().chain(&mut self.authorities).chain(&mut self.additionals)
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.answers.iter().chain(&self.authorities).chain(&self.additionals)
    }
}

/// Whether a name is the zone or below it, both as [`text`]; the root has all.
pub fn within(name: &str, zone: &str) -> bool {
    zone.is_empty()
        || name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.') && !rest.ends_with("\\."))
}

/// The longest zone that has the name.
pub fn zone_of<'a>(name: &str, zones: &'a [String]) -> Option<&'a String> {
    zones.iter().filter(|zone| within(name, zone)).max_by_key(|zone| zone.len())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::str::FromStr;

    use super::*;

    pub fn question(name: &str, kind: RecordType) -> Question {
        let packet = Packet { id: 7, size: 40, payload: 512, from: "10.244.0.9:40000".parse().unwrap() };
        Question::new(&Name::from_str(name).unwrap(), kind, packet)
    }

    #[test]
    fn zones_have_whole_labels() {
        for (name, zone, expected) in [
            ("a.b", "b", true),
            ("b", "b", true),
            ("ab", "b", false),
            ("a\\.b", "b", false),
            ("anything", "", true),
            ("b", "a.b", false),
        ] {
            assert_eq!(within(name, zone), expected, "{name} {zone}");
        }
        let zones = ["".to_owned(), "b".to_owned(), "a.b".to_owned()];
        assert_eq!(zone_of("x.a.b", &zones).unwrap(), "a.b");
        assert_eq!(zone_of("x.y", &zones).unwrap(), "");
    }

    #[test]
    fn circles_end() {
        let mut asked = question("A.example.", RecordType::A);
        assert_eq!(asked.text, "a.example");
        for _ in 0..DEPTH {
            asked = asked.onward("b.example").unwrap();
        }
        assert!(asked.onward("b.example").is_none());
    }
}
