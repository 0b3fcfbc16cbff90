//! Names of a table in the Corefile. Pure.

use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, PTR},
    },
};
use std::net::IpAddr;

use crate::{
    corefile::hosts::Hosts,
    question::{Answer, Question, within, zone_of},
};

/// The table's answer; `None` means that the next plugin is asked.
pub fn answer(question: &Question, hosts: &Hosts) -> Option<Answer> {
    zone_of(&question.text, &hosts.zones)?;
    let record = |data| Record::from_rdata(question.name.clone(), hosts.ttl, data);
    let addresses = hosts.addresses.get(&question.text);
    let records: Vec<Record> = match question.kind {
        RecordType::A | RecordType::AAAA => {
            let data = addresses.into_iter().flatten().map(|ip| match ip {
                IpAddr::V4(ip) => RData::A(A(*ip)),
                IpAddr::V6(ip) => RData::AAAA(AAAA(*ip)),
            });
            data.filter(|data| data.record_type() == question.kind).map(record).collect()
        }
        RecordType::PTR => {
            let names = hosts.names.get(&question.text).into_iter().flatten();
            let names = names.filter_map(|name| Name::from_ascii(format!("{name}.")).ok());
            names.map(|name| record(RData::PTR(PTR(name)))).collect()
        }
        _ if addresses.is_none() || hosts.through_unsupported => Vec::new(),
        // The name is there, of another type.
        _ => return Some(Answer::own(Vec::new())),
    };
    if !records.is_empty() {
        return Some(Answer::own(records));
    }
    if hosts.through.iter().flatten().any(|zone| within(&question.text, zone)) {
        return None;
    }
    let code = if addresses.is_some() { ResponseCode::NoError } else { ResponseCode::NXDomain };
    Some(Answer { code, ..Answer::own(Vec::new()) })
}
