//! `template`: answers made of the question by a pattern. Of Go's templates, the fields of the question and what the
//! pattern caught are filled in; anything else in braces is refused. Pure.

use hickory_proto::{
    op::ResponseCode,
    rr::{DNSClass, RData, Record, RecordType},
};
use regex::{Captures, Regex};

use super::{Directive, Error, Line, values};

/// The longest record of a template, filled in.
const MAX_RECORD: usize = 4096;

#[derive(Debug, Clone)]
pub struct Template {
    pub zones: Vec<String>,
    /// None means any.
    pub class: Option<DNSClass>,
    pub kind: Option<RecordType>,
    pub patterns: Vec<Regex>,
    pub answers: Vec<Text>,
    pub additionals: Vec<Text>,
    pub authorities: Vec<Text>,
    pub code: ResponseCode,
    pub through: Option<Vec<String>>,
}

/// A text with places to fill in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Name,
    Zone,
    Class,
    Type,
    Remote,
    Match(usize),
    Group(String),
}

/// The values that a text is filled in with.
pub struct Given<'a> {
    pub name: &'a str,
    pub zone: &'a str,
    pub class: DNSClass,
    pub kind: RecordType,
    pub remote: std::net::IpAddr,
    pub caught: Captures<'a>,
}

impl Template {
    pub fn read(directive: &Directive, block: &[String]) -> Result<Self, Error> {
        let [class, kind, zones @ ..] = directive.args.as_slice() else { return Err(directive.wrong()) };
        let class = match class.to_ascii_uppercase().as_str() {
            "ANY" => None,
            "IN" => Some(DNSClass::IN),
            _ => return Err(directive.error(format!("invalid query class {class}"))),
        };
        let kind = values::record_type(&kind.to_ascii_uppercase()).map_err(|what| directive.error(what))?;
        let mut template = Template {
            zones: directive.zones(zones, block)?,
            class,
            kind: (kind != RecordType::ANY).then_some(kind),
            patterns: Vec::new(),
            answers: Vec::new(),
            additionals: Vec::new(),
            authorities: Vec::new(),
            code: ResponseCode::NoError,
            through: None,
        };
        for line in &directive.body {
            template.set(line)?;
        }
        if template.patterns.is_empty() {
            template.patterns.push(values::pattern(".*").map_err(|what| directive.error(what))?);
        }
        Ok(template)
    }

    fn set(&mut self, line: &Line) -> Result<(), Error> {
        match line.property() {
            "match" => self.patterns.extend(line.read_all(values::pattern)?),
            "answer" => self.answers.extend(line.read_all(Text::read)?),
            "additional" => self.additionals.extend(line.read_all(Text::read)?),
            "authority" => self.authorities.extend(line.read_all(Text::read)?),
            "rcode" => self.code = line.read(values::response_code)?,
            "fallthrough" => self.through = Some(line.zones(&self.zones)?),
            "ederror" | "var" | "expr" | "upstream" => {
                return Err(line.error(format!("{} is not supported", line.property())));
            }
            _ => return Err(line.unknown()),
        }
        Ok(())
    }
}

impl Text {
    fn read(text: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once("{{") {
            let (inside, after) = behind.split_once("}}").ok_or("a `{{` without its `}}`")?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(part(inside.trim()).ok_or_else(|| format!("{{{{{inside}}}}} cannot be filled in"))?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Text(parts))
    }

    /// The record that the text says, filled in.
    pub fn record(&self, given: &Given<'_>) -> Result<Record, String> {
        let mut filled = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Name => filled.extend([given.name, "."]),
                Part::Zone => filled.extend([given.zone, "."]),
                Part::Class => filled.push_str(&given.class.to_string()),
                Part::Type => filled.push_str(&given.kind.to_string()),
                Part::Remote => filled.push_str(&given.remote.to_string()),
                Part::Match(n) => filled.push_str(given.caught.get(*n).map_or("", |m| m.as_str())),
                Part::Group(name) => filled.push_str(given.caught.name(name).map_or("", |m| m.as_str())),
            }
            if filled.len() > MAX_RECORD {
                return Err("the record is too long".to_owned());
            }
        }
        record(&filled)
    }
}

fn part(inside: &str) -> Option<Part> {
    Some(match inside {
        ".Name" => Part::Name,
        ".Zone" => Part::Zone,
        ".Class" => Part::Class,
        ".Type" => Part::Type,
        ".Remote" => Part::Remote,
        other => {
            let words: Vec<&str> = other.split_whitespace().collect();
            match words.as_slice() {
                ["index", ".Match", n] => Part::Match(n.parse().ok()?),
                [one] => {
                    let group = one.strip_prefix(".Group.")?;
                    let plain = !group.is_empty() && group.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                    plain.then(|| Part::Group(group.to_owned()))?
                }
                _ => return None,
            }
        }
    })
}

/// A record as a zone file writes it: name, time, class, type and data; time and class may be missing.
fn record(text: &str) -> Result<Record, String> {
    let mut rest = text.trim();
    let mut next = || {
        let (word, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = behind.trim_start();
        word
    };
    let name = values::name(next())?;
    let (mut ttl, mut word) = (3600, next());
    loop {
        if let Ok(time) = word.parse::<u32>() {
            ttl = time;
        } else if !word.eq_ignore_ascii_case("IN") {
            break;
        }
        word = next();
    }
    let kind = values::record_type(&word.to_ascii_uppercase())?;
    let data = RData::try_from_str(kind, rest).map_err(|error| format!("{text:?} is no record: {error}"))?;
    let name = hickory_proto::rr::Name::from_ascii(format!("{name}.")).map_err(|error| error.to_string())?;
    Ok(Record::from_rdata(name, ttl, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let pattern = values::pattern(r"^ip-(?P<a>\d+)-(?P<b>\d+)\.example$").unwrap();
        let show = |text: &str| {
            let given = Given {
                name: "ip-1-2.example",
                zone: "example",
                class: DNSClass::IN,
                kind: RecordType::A,
                remote: "10.0.0.1".parse().unwrap(),
                caught: pattern.captures("ip-1-2.example").unwrap(),
            };
            Text::read(text).and_then(|t| t.record(&given)).map_or_else(|e| e, |r| r.to_string())
        };
        for (text, expected) in [
            ("{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}", "ip-1-2.example. 60 IN A 10.0.1.2"),
            ("{{.Name}} 60 {{.Class}} {{.Type}} 10.{{ index .Match 1 }}.0.1", "ip-1-2.example. 60 IN A 10.1.0.1"),
            ("x.{{ .Zone }} CNAME web.{{ .Zone }}", "x.example. 3600 IN CNAME web.example."),
            ("{{ .Meta \"x\" }} A 1.2.3.4", "{{ .Meta \"x\" }} cannot be filled in"),
            ("{{ .Name A 1.2.3.4", "a `{{` without its `}}`"),
        ] {
            assert_eq!(show(text), expected, "{text}");
        }
        assert!(show("{{ .Name }} A 300.1.1.1").contains("is no record"));
    }
}
