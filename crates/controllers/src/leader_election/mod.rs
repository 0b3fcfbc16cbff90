//! Coordinated leader election, where the feature is on: of the candidates for a Lease the API server chooses the holder,
//! asks them before whether they are still there, and lets a better one that comes follow the one that leads.
//! Reads: Lease, LeaseCandidate. Writes: Lease (create, update), LeaseCandidate (update: the question; delete).
//! Upstream counterpart: pkg/controlplane/controller/leaderelection.
//!
//! It belongs to the API server, not to the controller manager, which is itself a candidate. Of several API servers one runs
//! it, by a Lease of its own.

mod choose;
mod expired;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::features::{Feature, Features, RuntimeConfig};
use client::{
    Caches, Change, Client, EventRecorder, Key,
    candidacy::{STRATEGY, Versions},
    election,
};
use clock::{Instant, Timestamp};
use controller::{Controller, Listers, Plan, Setup, Step, Watches, Write};
use k8s_openapi::{
    api::coordination::{
        v1::{Lease, LeaseSpec},
        v1beta1::LeaseCandidate,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use parking_lot::Mutex;

use choose::{Strategy, best, strategy};
use expired::ExpiredCandidates;

pub const NAME: &str = "leader-election-controller";

/// How long candidates have to answer, and for how long an answer counts.
const ANSWER: Duration = Duration::from_secs(5);
/// The duration that a Lease gets with its holder, who has to renew it until then.
const FIRST_TERM_SECONDS: i32 = 5;
/// After so long without a word candidates are asked.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// After so long without a word they are candidates no longer.
const CANDIDACY: Duration = Duration::from_secs(30 * 60);
/// How many candidates for a Lease are asked at once; the others are asked afterwards.
const QUESTIONS: usize = 100;

/// The versions that skiff's components announce as candidates, where their election is coordinated. The reason why it is
/// not, though it was asked for, is logged.
pub fn versions(features: &Features, served: &RuntimeConfig) -> Option<Versions> {
    is_on(features, served).then(|| {
        let version = api::KUBERNETES_VERSION.trim_start_matches('v').to_owned();
        Versions { binary: version.clone(), emulation: version }
    })
}

/// Whether leaders are chosen here.
pub fn is_on(features: &Features, served: &RuntimeConfig) -> bool {
    let on = features.enabled(Feature::CoordinatedLeaderElection);
    let is_served = served.serves("coordination.k8s.io", "v1beta1", "leasecandidates", false);
    if on && !is_served {
        tracing::warn!(
            "leaders are not chosen: leasecandidates of coordination.k8s.io/v1beta1 are not served; --runtime-config switches \
             them on"
        );
    }
    on && is_served
}

/// Chooses leaders whenever this API server holds the Lease for it. Never returns.
pub async fn run(client: Client, identity: &str) {
    let me = election::Candidate::new("kube-system", NAME, identity);
    let work = || async {
        let caches = Caches::new(client.clone());
        let recorder = EventRecorder::new(client.clone(), NAME, None);
        let setup = Setup { caches, client: client.clone(), recorder, backs_off: true };
        tokio::join!(
            controller::run(Elections::default(), setup.clone()),
            controller::run(ExpiredCandidates, setup.clone())
        );
    };
    loop {
        election::lead(&client, &me, work()).await;
    }
}

/// The revision of each Lease that has candidates, and when it was first seen. The clocks of holders may be wrong, so that a
/// Lease counts as over when it has stood still for its duration as measured here.
type Seen = Mutex<HashMap<Key, (String, Instant)>>;

#[derive(Default)]
pub struct Elections {
    seen: Seen,
}

pub struct Observed {
    candidates: Vec<Arc<LeaseCandidate>>,
    /// For how long the Lease has not changed.
    still: Duration,
}

/// The name of the index of candidates by the Lease that they are for.
const BY_LEASE: &str = "lease";

fn lease_of(candidate: &LeaseCandidate) -> Key {
    let lease = candidate.spec.as_ref().map(|spec| spec.lease_name.as_str()).unwrap_or_default();
    Key::new(candidate.metadata.namespace.as_deref().unwrap_or_default(), lease)
}

fn candidates_for(key: &Key, listers: &Listers) -> Vec<Arc<LeaseCandidate>> {
    listers.caches.of::<LeaseCandidate>().by_index(BY_LEASE, &key.to_string())
}

impl Controller for Elections {
    const NAME: &'static str = NAME;
    const LONGEST_DELAY: Duration = Duration::from_secs(60);
    type Object = Lease;
    type Observed = Observed;

    /// The Leases of nodes change all the time and have no candidates. One that has some before it has a strategy is looked at
    /// when its candidates change, and when it could be over.
    fn concerns(change: &Change<Lease>) -> bool {
        let coordinated = |lease: &Option<Arc<Lease>>| {
            lease.as_ref().and_then(|lease| lease.spec.as_ref()).is_some_and(|spec| spec.strategy.is_some())
        };
        change.old.is_none() || change.new.is_none() || coordinated(&change.old) || coordinated(&change.new)
    }

    fn watches(&self, watches: &mut Watches<Lease>) {
        watches.caches().of::<LeaseCandidate>().add_index(BY_LEASE, |candidate| vec![lease_of(candidate).to_string()]);
        watches.mapped::<LeaseCandidate>(|candidate, _| vec![lease_of(candidate)]);
    }

    fn observe(&self, lease: &Lease, listers: &Listers) -> Observed {
        let key = Key::of(lease);
        let candidates = candidates_for(&key, listers);
        let mut seen = self.seen.lock();
        if candidates.is_empty() {
            seen.remove(&key);
            return Observed { candidates, still: Duration::ZERO };
        }
        let (revision, now) = (lease.metadata.resource_version.clone().unwrap_or_default(), Instant::now());
        let held = seen.entry(key).or_insert_with(|| (revision.clone(), now));
        if held.0 != revision {
            *held = (revision, now);
        }
        Observed { candidates, still: now.duration_since(held.1) }
    }

    fn plan(&self, lease: &Lease, observed: &Observed, now: Timestamp) -> Plan {
        elect(&Key::of(lease), Some(lease), observed, now)
    }

    fn plan_gone(&self, key: &Key, listers: &Listers, now: Timestamp) -> Plan {
        self.seen.lock().remove(key);
        elect(key, None, &Observed { candidates: candidates_for(key, listers), still: Duration::ZERO }, now)
    }
}

/// How long ago something was, by the clock of who wrote it; of what is to come, zero.
fn age(time: Option<&MicroTime>, now: Timestamp) -> Option<Duration> {
    time.map(|time| Duration::try_from(now.duration_since(time.0)).unwrap_or_default())
}

fn asked(candidate: &LeaseCandidate) -> Option<&MicroTime> {
    candidate.spec.as_ref()?.ping_time.as_ref()
}

fn answered(candidate: &LeaseCandidate) -> Option<&MicroTime> {
    candidate.spec.as_ref()?.renew_time.as_ref()
}

/// Whether a candidate was not heard of for half an hour: it has no say any more.
fn is_expired(candidate: &LeaseCandidate, now: Timestamp) -> bool {
    age(answered(candidate), now).is_none_or(|age| age > CANDIDACY)
}

/// The state of a candidate in an election.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Voice {
    /// It has said just now that it is there.
    Heard,
    /// It was asked and has time to answer.
    Asked,
    /// It was asked and has not answered. It is not asked again: it speaks up when it can.
    Silent,
    /// It spoke some time ago.
    Quiet,
}

fn voice(candidate: &LeaseCandidate, now: Timestamp) -> Voice {
    let (asked, answered) = (asked(candidate), answered(candidate));
    let owes = asked.is_some_and(|asked| answered.is_none_or(|answered| answered.0 < asked.0));
    // A question from far in the future was not ours.
    let recent = |time: Option<&MicroTime>| time.is_some_and(|time| now.duration_since(time.0).unsigned_abs() < ANSWER);
    match owes {
        true if recent(asked) => Voice::Asked,
        true => Voice::Silent,
        false if age(answered, now).is_some_and(|age| age < ANSWER) => Voice::Heard,
        false => Voice::Quiet,
    }
}

/// One step of an election. All that it goes by stands in the Lease and in the candidates, so that it goes on whoever
/// takes it next.
fn elect(key: &Key, lease: Option<&Lease>, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let candidates: Vec<&LeaseCandidate> = observed
        .candidates
        .iter()
        .map(|candidate| &**candidate)
        .filter(|candidate| !is_expired(candidate, now))
        .collect();
    if candidates.is_empty() {
        return plan;
    }
    let present: Vec<&LeaseCandidate> =
        candidates.iter().copied().filter(|candidate| voice(candidate, now) != Voice::Silent).collect();
    let term = Term::of(lease, observed.still);
    if !term.is_election_needed(&present, now) {
        if let Some(left) = term.left.into_iter().chain(quiet_for(&present, now)).min() {
            plan.again_after(left.max(Duration::from_secs(1)));
        }
        return plan;
    }
    let quiet = present.iter().filter(|candidate| voice(candidate, now) == Voice::Quiet).take(QUESTIONS);
    let questions: Vec<Write> = quiet.map(|candidate| question(candidate, now)).collect();
    let waits = present.iter().any(|candidate| voice(candidate, now) == Voice::Asked);
    if waits || !questions.is_empty() {
        plan.again_after(ANSWER);
    }
    if !questions.is_empty() {
        plan.steps.push(Step::All(questions));
        return plan;
    }
    let heard: Vec<&LeaseCandidate> =
        present.iter().copied().filter(|candidate| voice(candidate, now) == Voice::Heard).collect();
    let Some(strategy) = strategy(&heard).filter(|_| !waits) else { return plan };
    let holder = match strategy {
        Strategy::OldestEmulationVersion => match best(&heard) {
            Some(best) => best.metadata.name.as_deref(),
            None => return plan,
        },
        Strategy::Foreign(_) => None,
    };
    // A candidate that was chosen may not come, and the leader may not go.
    plan.again_after(ANSWER);
    if let Some(write) = term.decide(key, strategy, holder, now) {
        plan.step(write);
    }
    plan
}

/// When the first of them will have been quiet for too long.
fn quiet_for(candidates: &[&LeaseCandidate], now: Timestamp) -> Option<Duration> {
    let ages = candidates.iter().filter_map(|candidate| age(answered(candidate), now));
    ages.map(|age| SILENCE.saturating_sub(age)).min()
}

/// Asks a candidate whether it is there.
fn question(candidate: &LeaseCandidate, now: Timestamp) -> Write {
    let mut asked = candidate.clone();
    asked.spec.get_or_insert_default().ping_time = Some(MicroTime(now));
    Write::update(&asked)
}

/// The Lease as it stands.
struct Term<'l> {
    lease: Option<&'l Lease>,
    holder: &'l str,
    strategy: &'l str,
    /// How long it still lasts, unless it is renewed; `None` when it is over.
    left: Option<Duration>,
}

impl<'l> Term<'l> {
    fn of(lease: Option<&'l Lease>, still: Duration) -> Self {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let lasts = spec.filter(|spec| spec.renew_time.is_some()).and_then(|spec| spec.lease_duration_seconds);
        let lasts = Duration::from_secs(u64::try_from(lasts.unwrap_or(0)).unwrap_or(0));
        Term {
            lease,
            holder: spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default(),
            strategy: spec.and_then(|spec| spec.strategy.as_deref()).unwrap_or_default(),
            left: lasts.checked_sub(still).filter(|left| !left.is_zero()),
        }
    }

    /// Whether the Lease should have another holder, or the candidates were not heard of for long.
    fn is_election_needed(&self, present: &[&LeaseCandidate], now: Timestamp) -> bool {
        let strategy = strategy(present);
        // The holder is somebody else's to choose, and the Lease says so already.
        if strategy.is_some_and(|strategy| strategy.name() == self.strategy && strategy.name() != STRATEGY) {
            return false;
        }
        if self.holder.is_empty() || self.left.is_none() || quiet_for(present, now) == Some(Duration::ZERO) {
            return true;
        }
        strategy == Some(Strategy::OldestEmulationVersion)
            && best(present).is_some_and(|best| best.metadata.name.as_deref() != Some(self.holder))
    }

    /// The Lease with this holder: at once where it is free, else when who has it gives it up.
    fn decide(&self, key: &Key, strategy: Strategy<'_>, holder: Option<&str>, now: Timestamp) -> Option<Write> {
        let first = |spec: LeaseSpec| LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            preferred_holder: None,
            renew_time: Some(MicroTime(now)),
            lease_duration_seconds: Some(FIRST_TERM_SECONDS),
            acquire_time: None,
            ..spec
        };
        let strategy = Some(strategy.name().to_owned());
        let Some(lease) = self.lease else {
            let metadata = ObjectMeta {
                namespace: Some(key.namespace.clone()),
                name: Some(key.name.clone()),
                ..ObjectMeta::default()
            };
            let spec = Some(first(LeaseSpec { strategy, ..LeaseSpec::default() }));
            return Some(Write::create(&Lease { metadata, spec }));
        };
        let mut decided = LeaseSpec { strategy, ..lease.spec.clone().unwrap_or_default() };
        if let Some(holder) = holder {
            if self.holder.is_empty() || self.left.is_none() {
                decided = first(decided);
            } else if self.holder != holder {
                decided.preferred_holder = Some(holder.to_owned());
            }
        }
        let changed = lease.spec.as_ref() != Some(&decided);
        changed.then(|| Write::update(&Lease { spec: Some(decided), ..lease.clone() }))
    }
}

#[cfg(test)]
mod tests;
