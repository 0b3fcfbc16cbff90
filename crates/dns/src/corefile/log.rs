//! `log`: which questions are told of, and in which form. Pure.

use super::{Directive, Error};

/// CoreDNS' forms.
const COMMON: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" {rcode} {>rflags} {rsize} {duration}";
const COMBINED: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" {rcode} {>rflags} {rsize} {duration} {>opcode}";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    pub zones: Vec<String>,
    pub format: Vec<Part>,
    /// None means all.
    pub classes: Vec<Class>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Success,
    Denial,
    Error,
}

/// A piece of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Field(Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Type,
    Name,
    Class,
    Proto,
    Remote,
    Port,
    Size,
    Duration,
    Rcode,
    ResponseSize,
    ResponseFlags,
    BufferSize,
    DnssecOk,
    Id,
    Opcode,
}

impl Log {
    pub fn read(directive: &Directive) -> Result<Self, Error> {
        let is_format = |word: &String| word.contains('{');
        let (format, zones) = match directive.args.split_last() {
            Some((last, zones)) if is_format(last) => (Some(last.as_str()), zones),
            _ => (None, directive.args.as_slice()),
        };
        let format = format.unwrap_or("{common}").replace("{common}", COMMON).replace("{combined}", COMBINED);
        let mut log = Log {
            zones: directive.zones(zones, &[String::new()])?,
            format: parts(&format).map_err(|what| directive.error(what))?,
            classes: Vec::new(),
        };
        let mut all = false;
        for line in &directive.body {
            if line.property() != "class" {
                return Err(line.unknown());
            }
            for class in line.read_all(|word| match word {
                "success" => Ok(Some(Class::Success)),
                "denial" => Ok(Some(Class::Denial)),
                "error" => Ok(Some(Class::Error)),
                "all" => Ok(None),
                _ => Err(format!("unknown class: {word}")),
            })? {
                all |= class.is_none();
                log.classes.extend(class);
            }
        }
        if all {
            log.classes.clear();
        }
        Ok(log)
    }
}

fn parts(format: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut rest) = (Vec::new(), format);
    while let Some((text, behind)) = rest.split_once('{') {
        let (field, after) = behind.split_once('}').ok_or_else(|| "a `{` without its `}`".to_owned())?;
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        parts.push(Part::Field(match field {
            "type" => Field::Type,
            "name" => Field::Name,
            "class" => Field::Class,
            "proto" => Field::Proto,
            "remote" => Field::Remote,
            "port" => Field::Port,
            "size" => Field::Size,
            "duration" => Field::Duration,
            "rcode" => Field::Rcode,
            "rsize" => Field::ResponseSize,
            ">rflags" => Field::ResponseFlags,
            ">bufsize" => Field::BufferSize,
            ">do" => Field::DnssecOk,
            ">id" => Field::Id,
            ">opcode" => Field::Opcode,
            other => return Err(format!("unknown place holder {{{other}}}")),
        }));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}
