//! Lines in the log about questions.

use std::fmt::Write;

use clock::{Instant, Seldom};
use hickory_proto::op::ResponseCode;

use crate::{
    corefile::{
        log::{Class, Field, Log, Part},
        values::code_name,
    },
    question::{Answer, Question, within},
};

/// A line for the question, where the rule is about it.
pub fn write(rule: &Log, question: &Question, answer: &Answer, begun: Instant) {
    let about = rule.zones.iter().any(|zone| within(&question.text, zone));
    if about && (rule.classes.is_empty() || rule.classes.contains(&class(answer))) {
        tracing::info!(target: "dns::log", "{}", line(rule, question, answer, begun.elapsed()));
    }
}

/// Failures are told once a second at the most: anyone can cause them.
pub fn error(question: &Question) {
    static TOLD: Seldom = Seldom::new();
    if let Some(others) = TOLD.turn() {
        tracing::warn!(name = question.text, kind = %question.kind, others, "no answer to a DNS question");
    }
}

fn class(answer: &Answer) -> Class {
    match answer.code {
        ResponseCode::NoError if answer.answers.is_empty() => Class::Denial,
        ResponseCode::NoError => Class::Success,
        ResponseCode::NXDomain => Class::Denial,
        _ => Class::Error,
    }
}

fn line(rule: &Log, question: &Question, answer: &Answer, took: clock::Duration) -> String {
    let mut line = String::new();
    for part in &rule.format {
        match part {
            Part::Text(text) => line.push_str(text),
            Part::Field(field) => show(&mut line, *field, question, answer, took),
        }
    }
    line
}

fn show(line: &mut String, field: Field, question: &Question, answer: &Answer, took: clock::Duration) {
    let packet = &question.packet;
    // Writing to a string does not fail.
    let _ = match field {
        Field::Type => write!(line, "{}", question.kind),
        Field::Name => write!(line, "{}.", question.text),
        Field::Class => write!(line, "{}", question.class),
        Field::Proto => write!(line, "{}", if question.over_tcp { "tcp" } else { "udp" }),
        Field::Remote if packet.from.is_ipv6() => write!(line, "[{}]", packet.from.ip()),
        Field::Remote => write!(line, "{}", packet.from.ip()),
        Field::Port => write!(line, "{}", packet.from.port()),
        Field::Size => write!(line, "{}", packet.size),
        Field::Duration => write!(line, "{:.9}s", took.as_secs_f64()),
        Field::Rcode => write!(line, "{}", code_name(answer.code)),
        Field::ResponseSize => write!(line, "{}", crate::reply::size(question, answer)),
        Field::ResponseFlags => write!(line, "{}", flags(question, answer)),
        Field::BufferSize => write!(line, "{}", packet.payload),
        Field::DnssecOk => write!(line, "{}", question.dnssec_ok),
        Field::Id => write!(line, "{}", packet.id),
        Field::Opcode => write!(line, "0"),
    };
}

fn flags(question: &Question, answer: &Answer) -> String {
    let flags = [
        (true, "qr"),
        (answer.authoritative, "aa"),
        (answer.truncated, "tc"),
        (question.recursion_desired, "rd"),
        (answer.recursion_available, "ra"),
        (answer.authentic, "ad"),
        (question.checking_disabled, "cd"),
    ];
    flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}
