//! Questions become others before anyone sees them, and their answers go back the same way. Pure.

use hickory_proto::rr::{Name, RData, Record};

use crate::{
    corefile::rewrite::{Replace, Rewrite, Rule, replaced},
    question::{Answer, Question},
};

/// A change of an answer before the client sees it.
#[derive(Debug)]
enum Back<'a> {
    /// One name stands for another again, also as the end of longer ones.
    Name {
        from: String,
        to: String,
        whole_labels: bool,
    },
    Replace(&'a Replace),
    Ttl(u32, u32),
    Code(&'a Rule),
}

/// The changes of a question, to be undone in its answer.
#[derive(Debug, Default)]
pub struct Done<'a>(Vec<Vec<Back<'a>>>);

/// Rewrites a question by the rules in their order; `None` where a rule makes something of a name that is none.
pub fn question<'a>(rules: &'a [Rewrite], question: &Question) -> Option<(Question, Done<'a>)> {
    let (mut question, mut done) = (question.clone(), Done::default());
    for Rewrite { goes_on, rule } in rules {
        let name = format!("{}.", question.text);
        match rule {
            Rule::Name { from, to, auto, answers } => {
                let Some(renamed) = from.rename(&name, to) else { continue };
                let mut back = Vec::new();
                if *auto {
                    back.push(match from {
                        crate::corefile::rewrite::Matcher::Suffix(suffix) => {
                            Back::Name { from: to.clone(), to: suffix.clone(), whole_labels: false }
                        }
                        _ => Back::Name { from: renamed.to_ascii_lowercase(), to: name, whole_labels: true },
                    });
                }
                back.extend(answers.iter().map(Back::Replace));
                done.0.push(back);
                question = question.about(&renamed)?;
            }
            Rule::Type { from, to } if question.kind == *from => question.kind = *to,
            Rule::Ttl { from, least, most } if from.matches(&name) => done.0.push(vec![Back::Ttl(*least, *most)]),
            Rule::Code { name: of, .. } if of.matches(&name) => done.0.push(vec![Back::Code(rule)]),
            _ => continue,
        }
        if !goes_on {
            break;
        }
    }
    Some((question, done))
}

impl Done<'_> {
    /// Brings an answer back, the last rule's part first.
    pub fn undo(&self, answer: &mut Answer) {
        for back in self.0.iter().rev().flatten() {
            if let Back::Code(Rule::Code { from, to, .. }) = back
                && from.is_none_or(|from| from == answer.code)
            {
                answer.code = *to;
            }
            for record in answer.records_mut() {
                back.apply(record);
            }
        }
    }
}

impl Back<'_> {
    fn apply(&self, record: &mut Record) {
        match self {
            Back::Ttl(least, most) => record.ttl = record.ttl.clamp(*least, *most),
            Back::Code(_) => {}
            Back::Name { .. } => {
                change(&mut record.name, |name| self.renamed(name));
                in_data(&mut record.data, |name| self.renamed(name));
            }
            Back::Replace(rule) if rule.in_data => {
                in_data(&mut record.data, |name| replaced(&rule.from, &rule.to, name));
            }
            Back::Replace(rule) => change(&mut record.name, |name| replaced(&rule.from, &rule.to, name)),
        }
    }

    fn renamed(&self, name: &str) -> Option<String> {
        let Back::Name { from, to, whole_labels } = self else { return None };
        let rest = name.strip_suffix(from.as_str())?;
        (!whole_labels || rest.is_empty() || rest.ends_with('.')).then(|| format!("{rest}{to}"))
    }
}

/// Changes a name, where what it becomes is one.
fn change(name: &mut Name, with: impl Fn(&str) -> Option<String>) {
    let text = name.to_ascii().to_ascii_lowercase();
    if let Some(new) = with(&text).and_then(|new| Name::from_ascii(new).ok()) {
        *name = new;
    }
}

/// Changes the names in a record's data.
fn in_data(data: &mut RData, with: impl Fn(&str) -> Option<String>) {
    match data {
        RData::CNAME(cname) => change(&mut cname.0, with),
        RData::NS(ns) => change(&mut ns.0, with),
        RData::PTR(ptr) => change(&mut ptr.0, with),
        RData::MX(mx) => change(&mut mx.exchange, with),
        RData::SRV(srv) => change(&mut srv.target, with),
        RData::SOA(soa) => change(&mut soa.mname, with),
        _ => {}
    }
}
