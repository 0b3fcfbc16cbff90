//! The counters, and the page that shows them, under CoreDNS' names.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use hickory_proto::{op::ResponseCode, rr::RecordType};

use crate::{
    corefile::values::code_name,
    question::{Answer, Question},
};

const KINDS: [&str; 12] = ["A", "AAAA", "CNAME", "HTTPS", "MX", "NS", "PTR", "SOA", "SRV", "SVCB", "TXT", "other"];
const CODES: [ResponseCode; 6] = [
    ResponseCode::NoError,
    ResponseCode::FormErr,
    ResponseCode::ServFail,
    ResponseCode::NXDomain,
    ResponseCode::NotImp,
    ResponseCode::Refused,
];

#[derive(Debug, Default)]
pub struct Figures {
    /// By transport and kind.
    requests: [[AtomicU64; KINDS.len()]; 2],
    responses: [AtomicU64; CODES.len()],
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Figures {
    pub fn hit(&self) {
        self.hits.fetch_add(1, Relaxed);
    }

    pub fn miss(&self) {
        self.misses.fetch_add(1, Relaxed);
    }

    pub fn answered(&self, question: &Question, answer: &Answer) {
        self.requests[usize::from(question.over_tcp)][place(question.kind)].fetch_add(1, Relaxed);
        if let Some(place) = CODES.iter().position(|code| *code == answer.code) {
            self.responses[place].fetch_add(1, Relaxed);
        }
    }

    /// The page in Prometheus' text form; `kept` are the answers and denials in caches.
    pub fn page(&self, kept: (usize, usize)) -> String {
        let mut page = String::new();
        let mut row = |name: &str, labels: &str, value: u64| {
            // Writing to a string does not fail.
            let _ = writeln!(page, "{name}{{{labels}}} {value}");
        };
        for (proto, kinds) in ["udp", "tcp"].iter().zip(&self.requests) {
            for (kind, count) in KINDS.iter().zip(kinds) {
                row("coredns_dns_requests_total", &format!("proto=\"{proto}\",type=\"{kind}\""), count.load(Relaxed));
            }
        }
        for (code, count) in CODES.iter().zip(&self.responses) {
            row("coredns_dns_responses_total", &format!("rcode=\"{}\"", code_name(*code)), count.load(Relaxed));
        }
        row("coredns_cache_hits_total", "", self.hits.load(Relaxed));
        row("coredns_cache_misses_total", "", self.misses.load(Relaxed));
        row("coredns_cache_entries", "type=\"success\"", kept.0 as u64);
        row("coredns_cache_entries", "type=\"denial\"", kept.1 as u64);
        page
    }
}

fn place(kind: RecordType) -> usize {
    let name = kind.to_string();
    KINDS.iter().position(|k| *k == name).unwrap_or(KINDS.len() - 1)
}
