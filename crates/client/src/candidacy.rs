//! A process's LeaseCandidate, where the API server chooses who leads: what the process says of itself, and its answers
//! when it is asked whether it is still there.
//! Upstream counterpart: k8s.io/client-go/tools/leaderelection/leasecandidate.go.

use std::time::Duration;

use clock::Timestamp;
use k8s_openapi::{
    api::coordination::v1beta1::{LeaseCandidate, LeaseCandidateSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::sync::watch;

use crate::{
    Api, Client,
    reflector::{One, reflect},
    rest::{Collection, Resource},
};

/// By what a process is compared with others that would do the same work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// The version that it is, such as `1.35.0`.
    pub binary: String,
    /// The version that it behaves as.
    pub emulation: String,
}

/// How the best candidate is found: whoever behaves as the oldest version leads.
pub const STRATEGY: &str = "OldestEmulationVersion";

/// How often a candidate says unasked that it is there.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// How long there is between two times at least. A candidate that is asked has five seconds.
const SHORTEST: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name of a candidate, the Lease that it wants, and its versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidacy<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub lease: &'a str,
    pub versions: &'a Versions,
}

/// The candidate as it was last seen; `None` before the first look, `Some(None)` when it is gone.
type Seen = Option<Option<LeaseCandidate>>;

/// Keeps the candidate there and answers for it. Never returns.
pub(crate) async fn stand(client: &Client, me: Candidacy<'_>) {
    let api: Api<LeaseCandidate> = Api::namespaced(client.clone(), me.namespace);
    let collection = Collection::one(Resource::of::<LeaseCandidate>(), me.namespace, me.name);
    let (found, mut seen) = watch::channel::<Seen>(None);
    let sink = One::new(move |object| drop(found.send(Some(object))));
    let answering = async {
        loop {
            let renewed = clock::timeout(PATIENCE, renew(&api, me)).await;
            clock::sleep(SHORTEST).await;
            match renewed {
                Ok(Ok(at)) => drop(clock::timeout(INTERVAL, seen.wait_for(|seen| is_asked(seen, at))).await),
                Ok(Err(error)) => tracing::debug!(candidate = me.name, %error, "cannot renew the lease candidate"),
                Err(_) => tracing::debug!(candidate = me.name, "the lease candidate cannot be renewed in time"),
            }
        }
    };
    tokio::join!(reflect(client, &collection, &sink), answering);
}

/// Whether something is to be said since it was last renewed: the election asks, or somebody has deleted the candidate.
fn is_asked(seen: &Seen, renewed: Timestamp) -> bool {
    match seen {
        None => false,
        Some(None) => true,
        Some(Some(candidate)) => asked(candidate).is_some_and(|asked| asked > renewed),
    }
}

fn asked(candidate: &LeaseCandidate) -> Option<Timestamp> {
    candidate.spec.as_ref()?.ping_time.as_ref().map(|time| time.0)
}

/// Says that the candidate is there, and returns when it said so. An answer is later than its question also where the clock
/// of who asks goes ahead of ours.
async fn renew(api: &Api<LeaseCandidate>, me: Candidacy<'_>) -> Result<Timestamp, crate::Error> {
    let now = clock::now();
    let Some(mut candidate) = api.find(me.name).await? else {
        let metadata = ObjectMeta { name: Some(me.name.to_owned()), ..ObjectMeta::default() };
        let spec = LeaseCandidateSpec {
            lease_name: me.lease.to_owned(),
            binary_version: me.versions.binary.clone(),
            emulation_version: Some(me.versions.emulation.clone()),
            strategy: STRATEGY.to_owned(),
            renew_time: Some(MicroTime(now)),
            ping_time: None,
        };
        api.create(&LeaseCandidate { metadata, spec: Some(spec) }).await?;
        return Ok(now);
    };
    let after = asked(&candidate).and_then(|asked| asked.checked_add(Duration::from_micros(1)).ok());
    let at = after.map_or(now, |after| after.max(now));
    candidate.spec.get_or_insert_default().renew_time = Some(MicroTime(at));
    api.replace(me.name, "", &candidate).await?;
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_answers_once() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let asked_at = |second: Option<i64>| {
            let spec = LeaseCandidateSpec { ping_time: second.map(|s| MicroTime(at(s))), ..Default::default() };
            Some(Some(LeaseCandidate { spec: Some(spec), ..Default::default() }))
        };
        let check = |seen: Seen, renewed: i64, expected: bool| assert_eq!(is_asked(&seen, at(renewed)), expected);
        check(None, 10, false);
        check(Some(None), 10, true);
        check(asked_at(None), 10, false);
        check(asked_at(Some(9)), 10, false);
        check(asked_at(Some(10)), 10, false);
        check(asked_at(Some(11)), 10, true);
    }
}
