//! Leader election on a Lease: of several processes that want to do the same work, one does it.
//!
//! Times of other processes are never compared with ours: a holder counts as gone when its Lease did not change for
//! its duration as measured here.

use std::time::Duration;

use clock::Instant;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};

use crate::{
    Api, Client,
    events::{EventKind, EventRecorder},
};

/// Who wants to lead what. Durations are upstream's defaults for control-plane components.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub namespace: String,
    pub lease: String,
    /// Unique among the candidates.
    pub identity: String,
    /// How long others wait after the last renewal that they saw.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl Candidate {
    pub fn new(namespace: &str, lease: &str, identity: &str) -> Self {
        Candidate {
            namespace: namespace.to_owned(),
            lease: lease.to_owned(),
            identity: identity.to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// What was last seen of the Lease, and when it last changed.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    spec: LeaseSpec,
    changed: Instant,
}

/// Keeps `seen` when the Lease is as before, else notes that it changed now.
fn observe(seen: Option<Seen>, spec: &LeaseSpec, now: Instant) -> Seen {
    match seen {
        Some(seen) if seen.spec == *spec => seen,
        _ => Seen { spec: spec.clone(), changed: now },
    }
}

/// The Lease as `me` would write it, or `None` when somebody else holds it.
fn claim(me: &Candidate, seen: &Seen, now: Instant, wall: clock::Timestamp) -> Option<LeaseSpec> {
    let holder = seen.spec.holder_identity.as_deref().unwrap_or("");
    let mine = holder == me.identity;
    let lasts = Duration::from_secs(seen.spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    if !mine && !holder.is_empty() && now < seen.changed + lasts {
        return None;
    }
    let transitions = seen.spec.lease_transitions.unwrap_or(0);
    Some(LeaseSpec {
        holder_identity: Some(me.identity.clone()),
        lease_duration_seconds: Some(me.lease_duration.as_secs() as i32),
        acquire_time: if mine { seen.spec.acquire_time.clone() } else { Some(MicroTime(wall)) },
        renew_time: Some(MicroTime(wall)),
        lease_transitions: Some(if mine { transitions } else { transitions + 1 }),
        ..seen.spec.clone()
    })
}

/// Waits until `me` leads, then runs `work` while renewing. Returns what `work` returned (the Lease is then given up),
/// or `None` when leadership was lost: `work` was dropped at an `.await` and the process should start afresh.
///
/// No two candidates work at once, whatever answers come late or not at all. The leader stops `renew_deadline` after it *began*
/// its last renewal that succeeded; a renewal changes the Lease after it began, and the others wait `lease_duration` from
/// when they *saw* that change. So the old leader has stopped for their difference (five seconds) at least, in which a write that
/// it had sent comes to an end, before the next one starts. Nothing is lost: who starts reads everything that is there.
pub async fn lead<T>(client: &Client, me: &Candidate, work: impl Future<Output = T>) -> Option<T> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &me.namespace);
    let recorder = EventRecorder::new(client.clone(), &me.lease, None);
    let mut seen = None;
    let since = loop {
        let began = Instant::now();
        match clock::timeout(me.renew_deadline, attempt(&api, me, &mut seen)).await {
            Ok(Ok(true)) => break began,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::debug!(lease = %me.lease, %error, "cannot take the lease"),
            Err(_) => tracing::debug!(lease = %me.lease, "the lease cannot be taken in time"),
        }
        // Upstream's jitter: up to 1.2 times longer, so that candidates do not collide for ever.
        let jitter = clock::random_range(0..me.retry_period.as_millis() as u64 * 12 / 10 + 1);
        clock::sleep(me.retry_period + Duration::from_millis(jitter)).await;
    };
    tracing::info!(lease = %me.lease, identity = %me.identity, "became leader");
    tell(&recorder, me, "became leader");
    tokio::select! {
        biased;
        // First, so that what never waits cannot outlive its leadership.
        () = renew(&api, me, seen, since) => {
            tracing::warn!(lease = %me.lease, identity = %me.identity, "lost leadership");
            tell(&recorder, me, "stopped leading");
            None
        }
        done = work => {
            release(&api, me).await;
            tell(&recorder, me, "stopped leading");
            Some(done)
        }
    }
}

fn tell(recorder: &EventRecorder, me: &Candidate, what: &str) {
    let lease = ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        namespace: Some(me.namespace.clone()),
        name: Some(me.lease.clone()),
        ..ObjectReference::default()
    };
    recorder.event(&lease, EventKind::Normal, "LeaderElection", &format!("{} {what}", me.identity));
}

/// Returns when the Lease could not be renewed in time: `renew_deadline` after the last success began.
async fn renew(api: &Api<Lease>, me: &Candidate, mut seen: Option<Seen>, since: Instant) {
    let mut deadline = since + me.renew_deadline;
    loop {
        clock::sleep_until(deadline.min(Instant::now() + me.retry_period)).await;
        let began = Instant::now();
        let left = deadline.saturating_duration_since(began);
        if left.is_zero() {
            return;
        }
        match clock::timeout(left, attempt(api, me, &mut seen)).await {
            Ok(Ok(true)) => deadline = began + me.renew_deadline,
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(error)) => tracing::debug!(lease = %me.lease, %error, "cannot renew the lease"),
        }
    }
}

/// One try to take or renew. `Ok(false)`: somebody else leads.
async fn attempt(api: &Api<Lease>, me: &Candidate, seen: &mut Option<Seen>) -> Result<bool, kube::Error> {
    let (now, wall) = (Instant::now(), clock::now());
    let Some(mut lease) = api.find(&me.lease).await? else {
        let metadata = ObjectMeta { name: Some(me.lease.clone()), ..Default::default() };
        let free = Seen { spec: LeaseSpec { lease_transitions: Some(-1), ..Default::default() }, changed: now };
        let lease = Lease { metadata, spec: claim(me, &free, now, wall) };
        let made = api.create(&lease).await?;
        *seen = Some(Seen { spec: made.spec.unwrap_or_default(), changed: now });
        return Ok(true);
    };
    let noted = observe(seen.take(), &lease.spec.unwrap_or_default(), now);
    let claimed = claim(me, &noted, now, wall);
    *seen = Some(noted);
    let Some(spec) = claimed else { return Ok(false) };
    lease.spec = Some(spec);
    match api.replace(&me.lease, "", &lease).await {
        Ok(written) => {
            *seen = Some(Seen { spec: written.spec.unwrap_or_default(), changed: now });
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Gives the Lease up, so that the next leader need not wait.
async fn release(api: &Api<Lease>, me: &Candidate) {
    let Ok(Some(mut lease)) = api.find(&me.lease).await else { return };
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() != Some(&me.identity) {
        return;
    }
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    if let Err(error) = api.replace(&me.lease, "", &lease).await {
        tracing::debug!(lease = %me.lease, %error, "cannot give up the lease");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(by: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(by.into()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            ..Default::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_only_when_it_stood_still_for_its_duration() {
        let me = Candidate::new("kube-system", "c", "me");
        let wall = clock::Timestamp::UNIX_EPOCH;
        let start = Instant::now();
        let seen = observe(None, &held("other"), start);
        let later = |s| start + Duration::from_secs(s);
        assert_eq!(claim(&me, &seen, later(14), wall), None);
        let taken = claim(&me, &seen, later(15), wall).expect("expired");
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("me"), Some(4)));
        // A renewal by the other one starts the wait anew.
        let mut renewed = held("other");
        renewed.renew_time = Some(MicroTime(wall));
        let seen = observe(Some(seen), &renewed, later(10));
        assert_eq!(claim(&me, &seen, later(20), wall), None);
        // Our own, and one that was given up, can be written at once.
        assert_eq!(claim(&me, &observe(None, &held("me"), start), start, wall).unwrap().lease_transitions, Some(3));
        assert!(claim(&me, &observe(None, &held(""), start), start, wall).is_some());
    }
}
