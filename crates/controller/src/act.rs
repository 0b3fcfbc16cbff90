//! Carries a plan out. This is the only place where a controller writes.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::Arc,
    time::Duration,
};

use client::{
    Cache, Client, Error, EventRecorder, Key, Kind,
    rest::{self, Verb, Written},
};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use parking_lot::Mutex;

use crate::{
    losses::{self, Made},
    plan::{Failure, Note, Plan, Step, Write},
};

/// The part of a cache that the runner needs without knowing the kind.
pub(crate) trait Progress: Send + Sync {
    fn reached(self: Arc<Self>, revision: u64) -> BoxFuture<'static, ()>;
    /// Whether the cache holds this object as one that lives.
    fn holds(&self, key: &Key, uid: &str) -> bool;
    /// Whether the cache holds this object as a Pod that failed.
    fn holds_failed(&self, key: &Key, uid: &str) -> bool;
    /// Ready when the cache does not hold this object as one that lives.
    fn left(self: Arc<Self>, key: Key, uid: String) -> BoxFuture<'static, ()>;
}

impl<K: Kind> Progress for Cache<K> {
    fn reached(self: Arc<Self>, revision: u64) -> BoxFuture<'static, ()> {
        async move { Cache::reached(&self, revision).await }.boxed()
    }

    fn holds(&self, key: &Key, uid: &str) -> bool {
        self.get(key).is_some_and(|held| {
            held.metadata().uid.as_deref() == Some(uid) && held.metadata().deletion_timestamp.is_none()
        })
    }

    fn holds_failed(&self, key: &Key, uid: &str) -> bool {
        let failed = |held: Arc<K>| {
            let pod = (&*held as &dyn Any).downcast_ref::<Pod>();
            held.metadata().uid.as_deref() == Some(uid)
                && pod.is_some_and(|pod| api::rules::pod::phase(pod) == "Failed")
        };
        self.get(key).is_some_and(failed)
    }

    fn left(self: Arc<Self>, key: Key, uid: String) -> BoxFuture<'static, ()> {
        async move {
            let mut changes = self.subscribe();
            while self.holds(&key, &uid) {
                let _ = changes.recv().await;
            }
        }
        .boxed()
    }
}

pub(crate) type Progresses = HashMap<TypeId, Arc<dyn Progress>>;

/// How long a key waits for its own status to show up before it is planned anyway: a watch that lags that far is being
/// re-established, and a status from old data is refused, as it has a revision.
const SETTLE: Duration = Duration::from_secs(60);

/// The same for what its steps did, which is upstream's `ExpectationsTimeout`. A plan that cannot see that may do it once more, or
/// make what no longer fits: Pods over the surge beside a ReplicaSet that has grown unseen. The bound is for a store that came back
/// older than it was, in which it never shows up.
const EXPECTED: Duration = Duration::from_secs(300);

/// The first pause before the store's revision is asked for once more, which doubles, and the longest.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How many writes of one step are under way at once.
const PARALLEL: usize = 32;

/// The outcome of a plan.
pub(crate) struct Acted {
    pub settled: Option<BoxFuture<'static, ()>>,
    pub failure: Option<Failure>,
    /// Some of what was made, of kinds that the controller reads.
    pub made: Vec<Made>,
}

/// Carries out a plan that no runner made. Its notes say themselves what they are about.
pub async fn carry_out(plan: &Plan, client: &Client, recorder: &EventRecorder) -> Result<(), Failure> {
    let progresses = &HashMap::new();
    let actor = Actor { client, recorder, progresses, object: None, made: Mutex::default(), doubts: Mutex::default() };
    actor.act(plan).await.failure.map_or(Ok(()), Err)
}

pub(crate) struct Actor<'a> {
    pub client: &'a Client,
    pub recorder: &'a EventRecorder,
    pub progresses: &'a Progresses,
    pub object: Option<&'a ObjectReference>,
    pub made: Mutex<Vec<Made>>,
    /// The waits for caches that may lack the result of a write without an answer.
    pub doubts: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Actor<'_> {
    pub async fn act(&self, plan: &Plan) -> Acted {
        let mut waits = Vec::new();
        let mut failure = None;
        for step in &plan.steps {
            let outcome = match step {
                Step::One(write) => self.write(write).await.map(|wait| waits.extend(wait)),
                Step::All(writes) => self.together(writes, &mut waits).await,
                Step::SlowStart(writes) => self.slow_start(writes, &mut waits).await,
                Step::Tell(note) => {
                    self.tell(note, "", "");
                    Ok(())
                }
            };
            if let Err(failed) = outcome {
                failure = Some(failed);
                break;
            }
        }
        let mut status_shown = None;
        if let Some(status) = &plan.status {
            match self.write(status).await {
                Ok(wait) => status_shown = wait,
                Err(failed) => failure = failure.or(Some(failed)),
            }
        }
        if let Some(counted) = &plan.counted {
            (counted.count)(&counted.of, failure.is_some());
        }
        waits.append(&mut self.doubts.lock());
        let settled = (!waits.is_empty() || status_shown.is_some()).then(|| {
            let done = clock::timeout(EXPECTED, futures::future::join_all(waits));
            let shown = clock::timeout(SETTLE, futures::future::OptionFuture::from(status_shown));
            futures::future::join(done, shown).map(drop).boxed()
        });
        Acted { settled, failure, made: std::mem::take(&mut *self.made.lock()) }
    }

    async fn together(&self, writes: &[Write], waits: &mut Vec<BoxFuture<'static, ()>>) -> Result<(), Failure> {
        // Collected first: a borrowed iterator of futures inside a stream is more than the compiler can follow.
        let futures: Vec<_> = writes.iter().map(|write| self.write(write).boxed()).collect();
        let outcomes: Vec<_> = futures::stream::iter(futures).buffered(PARALLEL).collect().await;
        let mut failure = Ok(());
        for outcome in outcomes {
            match outcome {
                Ok(wait) => waits.extend(wait),
                Err(failed) if failure.is_ok() => failure = Err(failed),
                Err(_) => {}
            }
        }
        failure
    }

    async fn slow_start(&self, writes: &[Write], waits: &mut Vec<BoxFuture<'static, ()>>) -> Result<(), Failure> {
        let (mut rest, mut size) = (writes, 1);
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(size.min(rest.len()));
            self.together(batch, waits).await?;
            (rest, size) = (later, size * 2);
        }
        Ok(())
    }

    async fn write(&self, write: &Write) -> Result<Option<BoxFuture<'static, ()>>, Failure> {
        waypoint::controller::act(&write.name);
        let Write { resource, namespace, name, subresource, verb, .. } = write;
        match rest::write(self.client, resource, namespace, name, subresource, verb).await {
            Ok(written) => {
                let shown = if written.name.is_empty() { name } else { &written.name };
                if let Some(note) = &write.on_success {
                    self.tell(note, shown, "");
                }
                Ok(self.wait_for(write, &written))
            }
            Err(error) if write.tolerated.contains(&rest::reason(&error)) => Ok(None),
            Err(error) if rest::is_namespace_terminating(&error) => Ok(None),
            Err(error) => {
                let message = rest::message(&error);
                tracing::debug!(%write, error = message, "a write failed");
                self.doubts.lock().extend(self.doubt(write, &error));
                if let Some(note) = &write.on_failure {
                    self.tell(note, name, &message);
                }
                let (code, reason) = (rest::code(&error), rest::reason(&error).to_owned());
                Err(Failure { verb: write.verb_name(), plural: resource.plural.clone(), code, reason, message })
            }
        }
    }

    /// A creation without an answer may have been carried out. A plan from caches that cannot tell yet would make the object
    /// once more, so the key waits until they are as new as the store is when it can be asked again. A write that a server
    /// carries out only after that cannot be waited for.
    fn doubt(&self, write: &Write, error: &Error) -> Option<BoxFuture<'static, ()>> {
        let is_open = match error {
            Error::Transport(_) | Error::Decode(_) => true,
            Error::Api(status) => status.reason == "Timeout",
        };
        if !is_open || !matches!(write.verb, Verb::Create(_)) {
            return None;
        }
        let progress = self.progresses.get(&write.type_id?)?.clone();
        let (client, resource, namespace) = (self.client.clone(), write.resource.clone(), write.namespace.clone());
        let doubt = async move {
            let mut pause = ASK_AGAIN.0;
            let newest = loop {
                match rest::newest(&client, &resource, &namespace).await {
                    Ok(newest) => break newest,
                    Err(_) => clock::sleep(pause).await,
                }
                pause = (pause * 2).min(ASK_AGAIN.1);
            };
            progress.reached(newest).await;
        };
        Some(doubt.boxed())
    }

    fn wait_for(&self, write: &Write, written: &Written) -> Option<BoxFuture<'static, ()>> {
        let progress = self.progresses.get(&write.type_id?)?.clone();
        match &write.verb {
            // The answer may be the object as it was, or a `Status` without revision.
            Verb::Delete(options) => {
                let uid = options.uid.clone().unwrap_or_else(|| written.uid.clone());
                Some(progress.left(Key::new(&write.namespace, &write.name), uid))
            }
            Verb::Create(_) => {
                let mut made = self.made.lock();
                if made.len() < losses::SAMPLE {
                    let key = Key::new(&write.namespace, &written.name);
                    made.push(Made { type_id: write.type_id?, key, uid: written.uid.clone() });
                }
                Some(progress.reached(written.revision))
            }
            _ => Some(progress.reached(written.revision)),
        }
    }

    fn tell(&self, note: &Note, name: &str, error: &str) {
        let Some(about) = note.about.as_ref().or(self.object) else { return };
        let message = note.message.replace("{name}", name).replace("{error}", error);
        self.recorder.event(about, note.kind, &note.reason, &message);
    }
}
