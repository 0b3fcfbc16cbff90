//! Leader election on a Lease: of several processes that want to do the same work, one does it.
//!
//! Times of other processes are never compared with ours: a holder counts as gone when its Lease did not change for
//! its duration as measured here.
//!
//! A candidate is either coordinated or not. One that is not takes a Lease that is free. One that is coordinated says of itself
//! what it is, in a LeaseCandidate; the API server writes into the Lease who holds it and who shall hold it next, and the
//! holder renews it.
//! Upstream counterpart: k8s.io/client-go/tools/leaderelection.

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
    candidacy::{Candidacy, Versions, stand},
    events::{EventKind, EventRecorder},
    metrics::Leads,
};

/// A process that wants to lead, and the Lease that decides about it. Durations are upstream's defaults for
/// control-plane components.
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
    /// The API server chooses among the candidates, by these.
    pub coordinated: Option<Versions>,
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
            coordinated: None,
        }
    }

    /// How long others wait longer than the leader works, so that what it had sent comes to an end.
    fn margin(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline)
    }
}

/// The Lease as it was last seen, and when it last changed.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    spec: LeaseSpec,
    changed: Instant,
    /// Where it was written by ourselves: what a renewal need not read again.
    written: Option<ObjectMeta>,
}

/// Keeps `seen` when the Lease is as before, else notes that it changed now.
fn observe(seen: Option<Seen>, spec: &LeaseSpec, now: Instant) -> Seen {
    match seen {
        Some(seen) if seen.spec == *spec => seen,
        _ => Seen { spec: spec.clone(), changed: now, written: None },
    }
}

impl Seen {
    fn written(lease: Lease, now: Instant) -> Self {
        Seen { spec: lease.spec.unwrap_or_default(), changed: now, written: Some(lease.metadata) }
    }

    fn holder(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or("")
    }

    fn is_over(&self, now: Instant) -> bool {
        let lasts = Duration::from_secs(self.spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
        now >= self.changed + lasts
    }
}

/// The state of a Lease for one candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Turn {
    /// Its own, until the next renewal has to come.
    Mine,
    /// Its own, and somebody else shall have it next.
    Ending,
    /// Somebody else's.
    Theirs,
}

/// The Lease as `me` would renew it where the API server chooses: only while it is ours.
fn keep(me: &Candidate, seen: &Seen, now: Instant, wall: clock::Timestamp) -> Result<LeaseSpec, Turn> {
    if seen.holder() != me.identity || seen.is_over(now) {
        return Err(Turn::Theirs);
    }
    if seen.spec.preferred_holder.as_deref().is_some_and(|next| !next.is_empty()) {
        return Err(Turn::Ending);
    }
    Ok(LeaseSpec {
        lease_duration_seconds: Some(me.lease_duration.as_secs() as i32),
        renew_time: Some(MicroTime(wall)),
        lease_transitions: Some(seen.spec.lease_transitions.unwrap_or(0)),
        ..seen.spec.clone()
    })
}

/// The Lease as `me` would write it, or `None` when somebody else holds it.
fn claim(me: &Candidate, seen: &Seen, now: Instant, wall: clock::Timestamp) -> Option<LeaseSpec> {
    let holder = seen.holder();
    let mine = holder == me.identity;
    if !mine && !holder.is_empty() && !seen.is_over(now) {
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

/// The Lease as its holder renews it without reading it: nobody has written it since, or the write is refused, and it is
/// read after all. Where the API server chooses, it says in the Lease who is next.
fn unread(me: &Candidate, seen: &mut Seen, now: Instant, wall: clock::Timestamp) -> Option<Lease> {
    let metadata = seen.written.take()?;
    let holds = me.coordinated.is_none() && seen.holder() == me.identity && !seen.is_over(now);
    let spec = claim(me, seen, now, wall).filter(|_| holds)?;
    Some(Lease { metadata, spec: Some(spec) })
}

/// Waits until `me` leads, then runs `work` while renewing. Returns what `work` returned (the Lease is then given up),
/// or `None` when leadership was lost: `work` was dropped at an `.await` and the process should start afresh.
///
/// No two candidates work at once, whatever answers come late or not at all. The leader stops `renew_deadline` after it *began*
/// its last renewal that succeeded; a renewal changes the Lease after it began, and the others wait `lease_duration` from
/// when they *saw* that change. So the old leader has stopped for their difference (five seconds) at least, in which a write that
/// it had sent comes to an end, before the next one starts. Nothing is lost: who starts reads everything that is there.
///
/// A leader that is coordinated stops as soon as it sees that somebody else shall lead, and gives the Lease up when what it had
/// sent has come to an end.
pub async fn lead<T>(client: &Client, me: &Candidate, work: impl Future<Output = T>) -> Option<T> {
    let Some(versions) = &me.coordinated else { return compete(client, me, work).await };
    let candidacy = Candidacy { namespace: &me.namespace, name: &me.identity, lease: &me.lease, versions };
    tokio::select! {
        biased;
        done = compete(client, me, work) => done,
        () = stand(client, candidacy) => None,
    }
}

async fn compete<T>(client: &Client, me: &Candidate, work: impl Future<Output = T>) -> Option<T> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &me.namespace);
    let recorder = EventRecorder::new(client.clone(), &me.lease, None);
    let leads = Leads::not_yet(&me.lease);
    let mut seen = None;
    let since = loop {
        let began = Instant::now();
        match clock::timeout(me.renew_deadline, attempt(&api, me, &mut seen)).await {
            Ok(Ok(Turn::Mine)) => break began,
            Ok(Ok(Turn::Ending | Turn::Theirs)) => {}
            Ok(Err(error)) => tracing::debug!(lease = %me.lease, %error, "cannot take the lease"),
            Err(_) => tracing::debug!(lease = %me.lease, "the lease cannot be taken in time"),
        }
        // Upstream's jitter: up to 1.2 times longer, so that candidates do not collide for ever.
        let jitter = clock::random_range(0..me.retry_period.as_millis() as u64 * 12 / 10 + 1);
        clock::sleep(me.retry_period + Duration::from_millis(jitter)).await;
    };
    leads.now();
    tracing::info!(lease = %me.lease, identity = %me.identity, "became leader");
    tell(&recorder, me, "became leader");
    tokio::select! {
        biased;
        // First, so that what never waits cannot outlive its leadership.
        turn = renew(&api, me, seen, since) => {
            tell(&recorder, me, "stopped leading");
            if turn == Turn::Ending {
                tracing::info!(lease = %me.lease, identity = %me.identity, "hands leadership over");
                clock::sleep(me.margin()).await;
                release(&api, me).await;
            } else {
                tracing::warn!(lease = %me.lease, identity = %me.identity, "lost leadership");
            }
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

/// Returns when the Lease could not be renewed in time, `renew_deadline` after the last success began, or is not ours any more.
async fn renew(api: &Api<Lease>, me: &Candidate, mut seen: Option<Seen>, since: Instant) -> Turn {
    let mut deadline = since + me.renew_deadline;
    loop {
        clock::sleep_until(deadline.min(Instant::now() + me.retry_period)).await;
        let began = Instant::now();
        let left = deadline.saturating_duration_since(began);
        if left.is_zero() {
            return Turn::Theirs;
        }
        match clock::timeout(left, attempt(api, me, &mut seen)).await {
            Ok(Ok(Turn::Mine)) => deadline = began + me.renew_deadline,
            Ok(Ok(turn)) => return turn,
            Err(_) => return Turn::Theirs,
            Ok(Err(error)) => tracing::debug!(lease = %me.lease, %error, "cannot renew the lease"),
        }
    }
}

/// One try to take or renew.
async fn attempt(api: &Api<Lease>, me: &Candidate, seen: &mut Option<Seen>) -> Result<Turn, crate::Error> {
    let (now, wall) = (Instant::now(), clock::now());
    if let Some(lease) = seen.as_mut().and_then(|seen| unread(me, seen, now, wall))
        && let Ok(renewed) = api.replace(&me.lease, "", &lease).await
    {
        *seen = Some(Seen::written(renewed, now));
        return Ok(Turn::Mine);
    }
    let Some(mut lease) = api.find(&me.lease).await? else {
        if me.coordinated.is_some() {
            return Ok(Turn::Theirs);
        }
        let metadata = ObjectMeta { name: Some(me.lease.clone()), ..Default::default() };
        let spec = LeaseSpec { lease_transitions: Some(-1), ..Default::default() };
        let free = Seen { spec, changed: now, written: None };
        let lease = Lease { metadata, spec: claim(me, &free, now, wall) };
        let made = api.create(&lease).await?;
        *seen = Some(Seen::written(made, now));
        return Ok(Turn::Mine);
    };
    let noted = observe(seen.take(), &lease.spec.unwrap_or_default(), now);
    let claimed = match me.coordinated {
        Some(_) => keep(me, &noted, now, wall),
        None => claim(me, &noted, now, wall).ok_or(Turn::Theirs),
    };
    *seen = Some(noted);
    match claimed {
        Ok(spec) => lease.spec = Some(spec),
        Err(turn) => return Ok(turn),
    }
    let written = api.replace(&me.lease, "", &lease).await?;
    *seen = Some(Seen::written(written, now));
    Ok(Turn::Mine)
}

/// Gives the Lease up, so that the next leader need not wait. Where that fails the Lease runs out by itself.
async fn release(api: &Api<Lease>, me: &Candidate) {
    let freed = async {
        let Some(mut lease) = api.find(&me.lease).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&me.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.preferred_holder = None;
        spec.lease_duration_seconds = Some(1);
        api.replace(&me.lease, "", &lease).await.map(drop)
    };
    match clock::timeout(me.renew_deadline, freed).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(lease = %me.lease, %error, "cannot give up the lease"),
        Err(_) => tracing::debug!(lease = %me.lease, "the lease cannot be given up in time"),
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

    #[tokio::test(start_paused = true)]
    async fn what_the_holder_wrote_itself_need_not_be_read() {
        let me = Candidate::new("kube-system", "c", "me");
        let (start, wall) = (Instant::now(), clock::Timestamp::UNIX_EPOCH);
        let metadata = ObjectMeta { resource_version: Some("7".into()), ..Default::default() };
        let check = |me: &Candidate, by: &str, age: u64, expected: bool| {
            let lease = Lease { metadata: metadata.clone(), spec: Some(held(by)) };
            let mut seen = Seen::written(lease, start);
            let now = start + Duration::from_secs(age);
            let renewal = unread(me, &mut seen, now, wall);
            assert_eq!(renewal.is_some(), expected, "{by} {age}");
            assert!(renewal.is_none_or(|lease| lease.metadata == metadata));
            assert_eq!(unread(me, &mut seen, now, wall), None, "only once");
        };
        check(&me, "me", 2, true);
        check(&me, "me", 15, false);
        check(&me, "other", 2, false);
        let versions = Versions { binary: "1.35.0".into(), emulation: "1.35.0".into() };
        check(&Candidate { coordinated: Some(versions), ..me.clone() }, "me", 2, false);
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinated_leader_keeps_what_it_was_given_until_somebody_else_is_preferred() {
        let versions = Versions { binary: "1.35.0".into(), emulation: "1.35.0".into() };
        let me = Candidate { coordinated: Some(versions), ..Candidate::new("kube-system", "c", "me") };
        let (start, wall) = (Instant::now(), clock::Timestamp::UNIX_EPOCH);
        let check = |spec: &LeaseSpec, age: u64, expected: Turn| {
            let now = start + Duration::from_secs(age);
            let turn = keep(&me, &observe(None, spec, start), now, wall).map(|kept| {
                assert_eq!((&kept.holder_identity, &kept.strategy), (&spec.holder_identity, &spec.strategy));
                assert_eq!((kept.lease_transitions, kept.acquire_time), (Some(3), None));
                Turn::Mine
            });
            assert_eq!(turn.unwrap_or_else(|turn| turn), expected, "{spec:?} after {age} s");
        };
        let given = LeaseSpec { strategy: Some("OldestEmulationVersion".into()), ..held("me") };
        check(&given, 0, Turn::Mine);
        check(&given, 14, Turn::Mine);
        check(&given, 15, Turn::Theirs);
        // A free one is not taken, nor is one that has run out: the API server says whose it is.
        check(&held(""), 0, Turn::Theirs);
        check(&held("other"), 20, Turn::Theirs);
        check(&LeaseSpec { preferred_holder: Some("other".into()), ..given.clone() }, 1, Turn::Ending);
        check(&LeaseSpec { preferred_holder: Some(String::new()), ..given }, 1, Turn::Mine);
    }
}
