//! The search domains of the asking Pod, tried here instead of by its resolver question by question. Pure.

use hickory_proto::rr::{RData, Record, rdata::CNAME};

use crate::{
    cluster::Cluster,
    corefile::settings::{Autopath, Settings},
    question::{Answer, Question, within, zone_of},
};

/// The names to try, in the order in which the Pod's resolver would; `None` where the question does not come from a Pod or
/// is not the first that its resolver asks.
pub fn path(question: &Question, autopath: &Autopath, settings: &Settings, cluster: &Cluster) -> Option<Vec<String>> {
    zone_of(&question.text, &autopath.zones)?;
    let domain = settings.kubernetes.as_ref()?.domain()?;
    // The first search domain of a Pod ends with the cluster's.
    within(&question.text, domain).then_some(())?;
    let pod = cluster.pods_at(question.packet.from.ip()).next()?;
    let first = format!("{}.svc.{domain}", pod.namespace);
    let base = question.text.strip_suffix(&first)?.strip_suffix('.')?;
    let own = [first.clone(), format!("svc.{domain}"), domain.clone()];
    let domains = own.iter().chain(&autopath.search);
    let mut path: Vec<String> = domains.map(|domain| format!("{base}.{domain}")).collect();
    path.push(base.to_owned());
    Some(path)
}

/// Makes the answer one to the name that was asked for: an alias of the one that was found.
pub fn alias(asked: &Question, found: &Question, answer: &mut Answer) {
    if asked.text == found.text || answer.answers.is_empty() {
        return;
    }
    let ttl = answer.answers.iter().map(|r| r.ttl).min().unwrap_or(0);
    answer.answers.insert(0, Record::from_rdata(asked.name.clone(), ttl, RData::CNAME(CNAME(found.name.clone()))));
}
