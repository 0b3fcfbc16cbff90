//! Deletes certificate signing requests that are over: decided or failed an hour ago, waiting for a day, or with a
//! certificate that is no longer valid.
//! Reads: CertificateSigningRequest. Writes: CertificateSigningRequest (delete).
//! Upstream counterpart: pkg/controller/certificates/cleaner.

use std::time::Duration;

use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::{certificate, condition, conditions};

pub struct Cleaner;

const DECIDED_SECONDS: i64 = 3600;
const PENDING_SECONDS: i64 = 24 * 3600;

/// When the request is over, in seconds since the epoch; `None` when nothing says so.
fn end(csr: &CertificateSigningRequest) -> Option<i64> {
    let created = csr.metadata.creation_timestamp.as_ref().map(|t| t.0.as_second());
    let since = |kind: &str| {
        let condition = condition(csr, kind)?;
        condition.last_update_time.as_ref().map(|t| t.0.as_second()).or(created)
    };
    let issued = certificate(csr).and_then(|c| std::str::from_utf8(c).ok());
    let mut ends = Vec::new();
    if let Some(facts) = issued.and_then(|pem| pki::inspect::facts(pem).ok()) {
        ends.push(facts.not_after);
        ends.extend(since("Approved").map(|at| at + DECIDED_SECONDS));
    }
    ends.extend(["Denied", "Failed"].into_iter().filter_map(since).map(|at| at + DECIDED_SECONDS));
    if conditions(csr).is_empty() && issued.is_none() {
        ends.extend(created.map(|at| at + PENDING_SECONDS));
    }
    ends.into_iter().min()
}

impl Controller for Cleaner {
    const NAME: &'static str = "certificatesigningrequest-cleaner-controller";
    type Object = CertificateSigningRequest;
    type Observed = ();

    fn watches(&self, _: &mut Watches<CertificateSigningRequest>) {}

    fn observe(&self, _: &CertificateSigningRequest, _: &Listers) {}

    fn plan(&self, csr: &CertificateSigningRequest, (): &(), now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match end(csr).map(|end| end - now.as_second()) {
            Some(left) if left <= 0 => {
                plan.step(Write::delete(csr));
            }
            Some(left) => {
                plan.again_after(Duration::from_secs(left.unsigned_abs()));
            }
            None => {}
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::Time};

    use super::*;
    use crate::certificates::{CLIENT, tests::csr, with_condition};

    #[test]
    fn requests_go_when_they_are_over() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut pending = csr(CLIENT, "u", "n", &[]);
        pending.metadata.creation_timestamp = Some(Time(at(0)));
        let check = |csr: &CertificateSigningRequest, now: i64, expected: &str| {
            assert_eq!(Cleaner.plan(csr, &(), at(now)).to_string(), expected, "at {now}");
        };
        let gone = "delete certificatesigningrequests csr-1";
        check(&pending, PENDING_SECONDS - 1, "");
        check(&pending, PENDING_SECONDS, gone);
        let approved = with_condition(&pending, "Approved", "r", "", at(100));
        check(&approved, 10 * PENDING_SECONDS, "");
        let denied = with_condition(&pending, "Denied", "r", "", at(100));
        check(&denied, 100 + DECIDED_SECONDS - 1, "");
        check(&denied, 100 + DECIDED_SECONDS, gone);
        let mut issued = approved.clone();
        let now = clock::now().as_second();
        let authority = pki::Authority::create("test").unwrap();
        issued.status.as_mut().unwrap().certificate = Some(ByteString(authority.certificate().as_bytes().to_vec()));
        issued.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].last_update_time = Some(Time(at(now)));
        check(&issued, now + DECIDED_SECONDS - 1, "");
        check(&issued, now + DECIDED_SECONDS, gone);
        issued.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].last_update_time = Some(Time(at(now * 2)));
        check(&issued, now + pki::authority::AUTHORITY_SECONDS + 1, gone);
    }
}
