//! The scheduler at work: watch events go from the client's caches into the engine, its decisions to the API.
//!
//! One task owns the engine. Writes go out many at a time and only report back when they fail, so that deciding never
//! waits for the server.
//! Reads: the kinds in `sources`. Writes: Pod/binding, Pod/status, Pod (delete), Event.
//! Upstream counterpart: pkg/scheduler (ScheduleOne, eventhandlers).

use std::sync::Arc;

use client::{Caches, events::ActRecorder};
use clock::Instant;
use k8s_openapi::api::core::v1::Pod;
use tokio::task::{JoinError, JoinSet};

use crate::{
    bind::{self, Binding, Eviction, Nomination, Outcome, Reason},
    device_writes::{delete, give_up},
    engine::{Decision, Engine, Settings},
    extender::Extenders,
    failure::{Failure, Preemption, Release, Victims},
    metrics::Metrics,
    queue::Waiting,
    sources::Sources,
};

/// How many writes may be under way. The engine pauses while there are as many.
const WRITES: usize = 256;
/// After how long something that happened shows in the sizes that the metrics tell.
const FOLLOW: clock::Duration = clock::Duration::from_secs(1);
/// How many Pods are decided before events are read and other tasks get their turn.
const BATCH: usize = 32;

/// One profile's part in what follows a decision.
struct Writer {
    scheduler: Arc<str>,
    recorder: ActRecorder,
}

fn writers(caches: &Caches, settings: &Settings) -> Vec<Writer> {
    let profiles = settings.profiles.iter();
    profiles
        .map(|profile| Writer {
            scheduler: Arc::from(&*profile.scheduler_name),
            recorder: ActRecorder::new(caches.client().clone(), &profile.scheduler_name),
        })
        .collect()
}

/// Schedules until the future is dropped.
pub async fn run(caches: Caches, settings: Settings, metrics: Arc<Metrics>) {
    let writers = writers(&caches, &settings);
    let extenders = Extenders::new(&settings.extenders);
    let mut engine = Engine::new(settings);
    engine.stopwatch = Some(Instant::now);
    let mut sources = Sources::start(&caches, &mut engine).await;
    let mut writes: JoinSet<Outcome> = JoinSet::new();
    // Pods whose volumes or devices are being prepared can take minutes, and keep no other Pod from its write.
    let mut preparing: JoinSet<Outcome> = JoinSet::new();
    let mut follow_at = None;
    loop {
        sources.drain(&mut engine);
        let mut decided = 0;
        while decided < BATCH && writes.len() < WRITES {
            let began = Instant::now();
            engine.tell_time(clock::now());
            let Some(mut decision) = engine.schedule_one(began) else { break };
            // Nothing else is decided meanwhile, since that could take what the extenders are asked about.
            while let Decision::Consult(question) = &decision {
                let answer = extenders.answer(question, &caches).await;
                decision = engine.consulted(answer, Instant::now());
            }
            decided += 1;
            let batching = engine.batching.take();
            let scheduler = engine.scheduler_of(&decision);
            metrics.decided(&decision, scheduler, began.elapsed());
            batching.into_iter().for_each(|cycle| metrics.batched(cycle, scheduler));
            let writer = writers.iter().find(|writer| *writer.scheduler == *scheduler).unwrap_or(&writers[0]);
            let binder = engine.binder(&decision).map(|index| (extenders.clone(), index));
            let waits = matches!(&decision, Decision::Bind { prepare, .. } if !prepare.is_empty());
            let counting = Counting { metrics: metrics.clone(), began };
            start_write(
                if waits { &mut preparing } else { &mut writes },
                &caches,
                writer,
                (decision, binder, counting),
            );
        }
        if decided == BATCH {
            while let Some(outcome) = writes.try_join_next().or_else(|| preparing.try_join_next()) {
                settle(&mut engine, outcome);
            }
            tokio::task::yield_now().await;
            continue;
        }
        let wake = engine.wake_at();
        let follow = *follow_at.get_or_insert_with(|| Instant::now() + FOLLOW);
        let in_time = tokio::select! {
            biased;
            outcome = woken((&mut writes, &mut preparing), &mut sources, wake) => Some(outcome),
            () = clock::sleep_until(follow) => None,
        };
        let outcome = match in_time {
            Some(outcome) => outcome,
            // The figures of now stay true until something happens.
            None => {
                metrics.follow(&mut engine);
                follow_at = None;
                woken((&mut writes, &mut preparing), &mut sources, wake).await
            }
        };
        if let Some(outcome) = outcome {
            settle(&mut engine, outcome);
        }
    }
}

type Written = Result<Outcome, JoinError>;

/// Waits for something to do: a write that ended, an event, or the time at which a Pod is to be tried again.
async fn woken(
    (writes, preparing): (&mut JoinSet<Outcome>, &mut JoinSet<Outcome>),
    sources: &mut Sources,
    wake: Option<Instant>,
) -> Option<Written> {
    tokio::select! {
        biased;
        Some(outcome) = writes.join_next() => Some(outcome),
        Some(outcome) = preparing.join_next() => Some(outcome),
        () = sources.wait() => None,
        () = clock::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => None,
    }
}

/// The metrics that a binding is counted in, and when it began.
struct Counting {
    metrics: Arc<Metrics>,
    began: Instant,
}

fn start_write(
    writes: &mut JoinSet<Outcome>,
    caches: &Caches,
    writer: &Writer,
    (decision, binder, counting): (Decision, Option<(Extenders, usize)>, Counting),
) {
    match decision {
        Decision::Bind { pod, node, prepare } => {
            let (counted, scheduler) = (pod.clone(), writer.scheduler.clone());
            let made = counting.metrics.made.clone();
            let binding = Binding { prepare, pod, node, binder, made };
            let bound = bind::bind(caches.clone(), writer.recorder.clone(), binding);
            writes.spawn(async move {
                let outcome = bound.await;
                let worked = matches!(outcome, Outcome::Bound { .. });
                counting.metrics.bound(&counted, &scheduler, worked, counting.began.elapsed());
                outcome
            });
        }
        Decision::Unschedulable { pod, failure, preemption } => {
            tell(writes, caches, writer, (pod, failure, preemption));
        }
        Decision::Failed { pod, why } => {
            tracing::info!(pod = %pod.key, error = why, "cannot decide about a Pod");
            if let Some(object) = caches.of::<Pod>().get(&pod.key) {
                let said = (Reason::SchedulerError, why);
                let (client, recorder) = (caches.client().clone(), writer.recorder.clone());
                writes.spawn(bind::report(client, recorder, object, said, Nomination::AsBefore));
            }
        }
        // Those were asked before, and these are told of when they go on.
        Decision::Consult(_) | Decision::Waits { .. } => {}
    }
}

/// Tells why a Pod has no node, and makes room for it.
fn tell(
    writes: &mut JoinSet<Outcome>,
    caches: &Caches,
    writer: &Writer,
    (pod, failure, preemption): (Waiting, Arc<Failure>, Preemption),
) {
    let (client, pods) = (caches.client().clone(), caches.of::<Pod>());
    let Some(object) = pods.get(&pod.key) else {
        // Nobody needs the room any more.
        if let Preemption::Victims(Victims { pods: victims, .. }) = preemption {
            writes.spawn(async move { Outcome::NotPreempted { preemptor: pod.key, victims } });
        }
        return;
    };
    let message = failure.message(&preemption);
    if let release @ (Release::Devices(claim) | Release::Claim(claim)) = &failure.release {
        let (caches, claim, pod) = (caches.clone(), claim.clone(), pod.clone());
        let whole = matches!(release, Release::Claim(_));
        writes.spawn(async move {
            let given_up = if whole { delete(&caches, &claim).await } else { give_up(caches, claim, &pod).await };
            match given_up {
                true => Outcome::Done,
                // The Pod tries again, as if this had been an attempt to preempt.
                false => Outcome::NotPreempted { preemptor: pod.key, victims: Vec::new() },
            }
        });
    }
    let nominated = match preemption {
        Preemption::Victims(Victims { node, pods: victims, sent_back, displaced }) => {
            for victim in sent_back.iter().filter_map(|key| pods.get(key)) {
                bind::tell_preempted(&writer.recorder, &victim, (&pod, &node));
            }
            for other in displaced.iter().filter_map(|key| pods.get(key)) {
                writes.spawn(bind::clear_nomination(client.clone(), other));
            }
            let victims: Vec<_> = victims.iter().filter_map(|key| pods.get(key)).collect();
            if !victims.is_empty() {
                let (scheduler, node) = (writer.scheduler.clone(), node.clone());
                let eviction = Eviction { scheduler, preemptor: pod, node, victims };
                writes.spawn(bind::evict(client.clone(), writer.recorder.clone(), eviction));
            }
            Nomination::Node(node)
        }
        Preemption::Fruitless(_) | Preemption::NotTried => Nomination::None,
        Preemption::Off | Preemption::NotEligible(_) => Nomination::AsBefore,
    };
    let recorder = writer.recorder.clone();
    writes.spawn(bind::report(client, recorder, object, (Reason::Unschedulable, message), nominated));
}

fn settle(engine: &mut Engine, outcome: Written) {
    match outcome {
        Ok(Outcome::NotBound { key, uid }) => engine.bind_failed(&key, &uid, Instant::now()),
        Ok(Outcome::NotPreempted { preemptor, victims }) => {
            engine.preemption_failed(&preemptor, &victims, Instant::now());
        }
        Ok(Outcome::Bound { key, uid }) => engine.prepared(&key, &uid),
        Ok(Outcome::Done) => {}
        Err(error) => tracing::error!(%error, "a write of the scheduler panicked"),
    }
}
