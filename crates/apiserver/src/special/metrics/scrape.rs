//! Asks all kubelets what is used on their nodes, as long as somebody wants to know.
//!
//! A cluster in which nobody asks costs nothing: no node is asked, and nothing is kept. The first question begins rounds
//! of readings, and they end a few minutes after the last one. An autoscaler asks all the time, so where there is one the
//! rounds go on. A rate needs two readings; so that `kubectl top` is answered soon also in a quiet cluster, the second
//! round follows the first after two seconds, and the first questions wait for it. The counters behind the readings are
//! exact, and each answer says how long its interval was.

use std::{collections::HashMap, sync::Arc};

use api::{Value, meta, status::StatusError};
use bytes::Bytes;
use clock::{Duration, Instant};
use futures::{StreamExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use super::samples::{self, NodeSamples, ROUND, Samples};
use crate::storage::object_store::ObjectStore;

/// The time from the first round to the second.
const FIRST_WINDOW: Duration = Duration::from_secs(2);
/// Rounds end when nobody has asked for this time.
const IDLE: Duration = Duration::from_secs(180);
/// A question waits no longer for the first rounds.
const PATIENCE: Duration = Duration::from_secs(30);
/// A kubelet that answers later is left out of a round.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// This many kubelets are asked at once.
const AT_ONCE: usize = 32;

/// Reads a node's `/metrics/resource`.
pub type Ask = Arc<dyn Fn(Value) -> BoxFuture<'static, Result<Bytes, StatusError>> + Send + Sync>;

/// The samples of the nodes' use, and the task that takes them. Clones are the same one.
#[derive(Clone)]
pub struct Scraper(Arc<Shared>);

struct Shared {
    /// Without it no kubelet can be reached.
    ask: Option<Ask>,
    samples: watch::Sender<Arc<Samples>>,
    interest: Mutex<Interest>,
}

struct Interest {
    asked: Instant,
    rounds: Option<JoinHandle<()>>,
}

impl Scraper {
    pub fn new(ask: Option<Ask>) -> Self {
        let interest = Mutex::new(Interest { asked: Instant::now(), rounds: None });
        Scraper(Arc::new(Shared { ask, samples: watch::Sender::default(), interest }))
    }

    /// The samples of now. Begins the rounds if there are none, and waits for the first two.
    pub async fn samples(&self, objects: &Arc<ObjectStore>) -> Result<Arc<Samples>, StatusError> {
        let Some(ask) = self.0.ask.clone() else {
            return Err(StatusError::unavailable("this server reaches no kubelets"));
        };
        let mut seen = self.wanted(ask, objects);
        // Nodes that answer late or never must not keep those back that have answered.
        let _ = clock::timeout(PATIENCE, seen.wait_for(|samples| samples.rounds > 1)).await;
        let samples = seen.borrow().clone();
        Ok(samples)
    }

    fn wanted(&self, ask: Ask, objects: &Arc<ObjectStore>) -> watch::Receiver<Arc<Samples>> {
        let mut interest = self.0.interest.lock();
        interest.asked = Instant::now();
        if interest.rounds.as_ref().is_none_or(JoinHandle::is_finished) {
            self.0.samples.send_replace(Arc::default());
            interest.rounds = Some(tokio::spawn(rounds(self.0.clone(), ask, objects.clone())));
        }
        self.0.samples.subscribe()
    }
}

async fn rounds(shared: Arc<Shared>, ask: Ask, objects: Arc<ObjectStore>) {
    loop {
        let known = shared.samples.borrow().clone();
        let samples = round(&known, &ask, &objects).await;
        let pause = if samples.rounds > 1 { ROUND } else { FIRST_WINDOW };
        shared.samples.send_replace(Arc::new(samples));
        clock::sleep(pause).await;
        let mut interest = shared.interest.lock();
        if interest.asked.elapsed() > IDLE {
            // Whoever asks from here on begins anew: the lock is held until nothing is left.
            interest.rounds = None;
            shared.samples.send_replace(Arc::default());
            return;
        }
    }
}

/// Asks every node once. A node that does not answer is unknown until it does.
async fn round(known: &Samples, ask: &Ask, objects: &ObjectStore) -> Samples {
    let nodes = match objects.definition("", "nodes") {
        Ok(definition) => objects.list(&definition, "").await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let answers = futures::stream::iter(nodes.into_iter().filter(is_heard_of)).map(|node| async move {
        let name = meta::name(&node).to_owned();
        let answer = clock::timeout(NODE_TIMEOUT, ask(node)).await;
        let answer = answer.unwrap_or_else(|_| Err(StatusError::timeout("the kubelet does not answer")));
        (name, answer)
    });
    let mut nodes = HashMap::new();
    let mut answers = std::pin::pin!(answers.buffer_unordered(AT_ONCE));
    while let Some((name, answer)) = answers.next().await {
        let told = answer.and_then(|bytes| String::from_utf8(bytes.into()).map_err(StatusError::internal));
        match told {
            Ok(text) => {
                let batch = samples::read(&text, clock::now().as_millisecond());
                let samples = NodeSamples::following(known.nodes.get(&name), batch);
                nodes.insert(name, samples);
            }
            Err(error) => tracing::debug!(node = name, %error, "the kubelet does not tell what is used"),
        }
    }
    Samples { rounds: known.rounds.saturating_add(1), nodes }
}

/// Not a node that the control plane has lost: it would only be waited for.
fn is_heard_of(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    !conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "Unknown")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use json::json;

    use super::*;
    use crate::tests::objects;

    /// Nodes `up`, `mute` that never answers, and `lost`; how often `up` and `lost` were asked.
    async fn cluster() -> (Arc<ObjectStore>, Scraper, Arc<[AtomicUsize; 2]>) {
        let node = |name: &str| {
            let status = if name == "lost" { "Unknown" } else { "True" };
            let conditions = json!([{"type": "Ready", "status": status}]);
            ("nodes", json!({"metadata": {"name": name}, "status": {"conditions": conditions}}))
        };
        let objects = objects::store(["up", "mute", "lost"].map(node).to_vec()).await;
        let counts: Arc<[AtomicUsize; 2]> = Arc::default();
        let counted = counts.clone();
        let ask: Ask = Arc::new(move |node| {
            let counts = counted.clone();
            Box::pin(async move {
                match meta::name(&node) {
                    "up" => {
                        let (count, millis) =
                            (counts[0].fetch_add(1, Ordering::Relaxed) + 1, clock::now().as_millisecond());
                        let text = format!(
                            "node_cpu_usage_seconds_total {count} {millis}\nnode_memory_working_set_bytes 5 {millis}\n"
                        );
                        Ok(Bytes::from(text))
                    }
                    "mute" => std::future::pending().await,
                    _ => {
                        counts[1].fetch_add(1, Ordering::Relaxed);
                        Err(StatusError::timeout(""))
                    }
                }
            })
        });
        (objects, Scraper::new(Some(ask)), counts)
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_asked_only_while_somebody_wants_to_know() {
        clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
        let (objects, scraper, counts) = cluster().await;
        let asked = |at: usize| counts[at].load(Ordering::Relaxed);
        clock::sleep(Duration::from_secs(3600)).await;
        assert_eq!(asked(0), 0);
        // The node that does not answer holds up neither question, and the first one waits for two readings.
        for _ in 0..2 {
            let samples = scraper.samples(&objects).await.unwrap();
            assert!(samples.of_node("up").is_some() && samples.of_node("mute").is_none());
        }
        assert_eq!(asked(0), 2, "both questions are answered from the same rounds");
        clock::sleep(Duration::from_secs(3600)).await;
        let until_idle = asked(0);
        assert!((3..20).contains(&until_idle), "{until_idle}");
        clock::sleep(Duration::from_secs(3600)).await;
        assert_eq!((asked(0), asked(1)), (until_idle, 0));
        let samples = scraper.samples(&objects).await.unwrap();
        assert_eq!(samples.rounds, 2, "old readings are forgotten");
    }

    #[tokio::test]
    async fn a_server_that_reaches_no_kubelet_says_so() {
        let (objects, ..) = cluster().await;
        assert_eq!(Scraper::new(None).samples(&objects).await.unwrap_err().code, 503);
    }
}
