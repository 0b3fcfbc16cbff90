//! Tells somebody who waits for certain names which addresses they lead to, before the one who asked learns it. Network policies do,
//! which are about names of domains.

use std::{fmt, future::Future, net::IpAddr, pin::Pin, time::Duration};

use hickory_proto::{op::ResponseCode, rr::RData};

use crate::question::{Answer, Question, text};

/// Somebody who has to know the addresses of some names.
pub trait Learner: fmt::Debug + Send + Sync {
    /// Whether this name, in lower case and without a dot at its end, is one of them.
    fn wants(&self, name: &str) -> bool;

    /// The addresses that an answer gives to a name, with the time that each is good for. The answer waits for the end.
    fn learn(&self, name: String, addresses: Vec<(IpAddr, Duration)>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

pub async fn tell(learner: &dyn Learner, question: &Question, answer: &Answer) {
    if answer.code != ResponseCode::NoError || !learner.wants(&question.text) {
        return;
    }
    let addresses = addresses(&question.text, answer);
    if !addresses.is_empty() {
        learner.learn(question.text.clone(), addresses).await;
    }
}

/// The addresses that a name leads to by way of its own aliases; an alias may end before they do. What an answer says of other names
/// says nothing of this one.
fn addresses(name: &str, answer: &Answer) -> Vec<(IpAddr, Duration)> {
    let (mut name, mut seconds, mut found) = (name.to_owned(), u32::MAX, Vec::new());
    // A chain has no more links than there are records, and so aliases in a circle end.
    for _ in &answer.answers {
        let (mut alias, mut until) = (None, seconds);
        for record in answer.answers.iter().filter(|record| text(&record.name) == name) {
            let time = |seconds: u32| Duration::from_secs(seconds.min(record.ttl).into());
            match &record.data {
                RData::A(address) => found.push((address.0.into(), time(seconds))),
                RData::AAAA(address) => found.push((address.0.into(), time(seconds))),
                RData::CNAME(target) => (alias, until) = (Some(text(&target.0)), seconds.min(record.ttl)),
                _ => {}
            }
        }
        let Some(target) = alias.filter(|_| found.is_empty()) else { break };
        (name, seconds) = (target, until);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::rr::{
        Name, Record,
        rdata::{A, AAAA, CNAME},
    };

    use super::*;

    #[test]
    fn an_answer_gives_addresses_to_the_name_that_was_asked_for_alone() {
        let record = |name: &str, ttl: u32, data: RData| Record::from_rdata(Name::from_str(name).unwrap(), ttl, data);
        let alias = |name: &str, ttl, to: &str| record(name, ttl, RData::CNAME(CNAME(Name::from_str(to).unwrap())));
        let v4 = |name: &str, ttl, last| record(name, ttl, RData::A(A([192, 0, 2, last].into())));
        let v6 = |name: &str, ttl| record(name, ttl, RData::AAAA(AAAA("2001:db8::1".parse().unwrap())));
        let check = |records: Vec<Record>, expected: &[(&str, u64)]| {
            let expected: Vec<(IpAddr, Duration)> =
                expected.iter().map(|(a, s)| (a.parse().unwrap(), Duration::from_secs(*s))).collect();
            assert_eq!(addresses("www.a.org", &Answer::own(records.clone())), expected, "{records:?}");
        };
        check(vec![], &[]);
        check(
            vec![v4("www.a.org.", 60, 1), v6("WWW.A.org.", 30), v4("b.org.", 60, 9)],
            &[("192.0.2.1", 60), ("2001:db8::1", 30)],
        );
        let chain = vec![v4("c.net.", 60, 1), alias("www.a.org.", 20, "b.net."), alias("b.net.", 300, "C.net.")];
        check(chain, &[("192.0.2.1", 20)]);
        check(vec![alias("www.a.org.", 20, "b.net.")], &[]);
        check(vec![alias("www.a.org.", 20, "b.net."), alias("b.net.", 20, "www.a.org.")], &[]);
        check(vec![alias("b.net.", 20, "c.net."), v4("c.net.", 60, 1)], &[]);
    }
}
