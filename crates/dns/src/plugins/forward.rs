//! Questions that others answer. Of equal ones, one is on its way and the rest wait for its answer, so that a crowd costs
//! nothing, and a server that asks us back waits for itself until its time is over.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use clock::{Duration, Instant};
use hickory_proto::{
    op::ResponseCode,
    rr::{DNSClass, RecordType},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::upstream::Upstream;
use crate::{
    corefile::forward::{Forward as Settings, Policy},
    question::{Answer, Question, within},
};

/// How long all servers together have, as CoreDNS gives them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Questions are equal when their answers are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Same {
    name: String,
    kind: RecordType,
    class: DNSClass,
    flags: [bool; 4],
}

type Waiting = watch::Receiver<Option<Answer>>;

pub struct Forward {
    pub settings: Settings,
    servers: Vec<Arc<Upstream>>,
    under_way: Mutex<HashMap<Same, Waiting>>,
    turn: AtomicUsize,
}

/// Takes a question off the list when its task ends, however that ends.
struct OffTheList {
    forward: Arc<Forward>,
    same: Same,
}

impl Drop for OffTheList {
    fn drop(&mut self) {
        self.forward.under_way.lock().remove(&self.same);
    }
}

impl Forward {
    pub fn new(settings: Settings) -> Arc<Self> {
        let servers = settings.servers.iter().map(|address| Arc::new(Upstream::new(*address))).collect();
        Arc::new(Forward { settings, servers, under_way: Mutex::default(), turn: AtomicUsize::new(0) })
    }

    /// Whether the name is one of those that are asked here.
    pub fn is_about(&self, name: &str) -> bool {
        within(name, &self.settings.from) && !self.settings.except.iter().any(|zone| within(name, zone))
    }

    /// The answer of the first server that gives one; SERVFAIL when none does, REFUSED when too many questions are under
    /// way.
    pub async fn ask(self: &Arc<Self>, question: &Question) -> Answer {
        let same = Same {
            name: question.text.clone(),
            kind: question.kind,
            class: question.class,
            flags: [question.dnssec_ok, question.checking_disabled, question.recursion_desired, question.over_tcp],
        };
        let Some(mut waiting) = self.enter(same, question) else { return Answer::new(ResponseCode::Refused) };
        match waiting.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or_else(Answer::failed),
            Err(_) => Answer::failed(),
        }
    }

    fn enter(self: &Arc<Self>, same: Same, question: &Question) -> Option<Waiting> {
        let mut under_way = self.under_way.lock();
        if let Some(waiting) = under_way.get(&same) {
            return Some(waiting.clone());
        }
        if under_way.len() >= self.settings.max_concurrent {
            return None;
        }
        let (tell, waiting) = watch::channel(None);
        under_way.insert(same.clone(), waiting.clone());
        let (forward, question) = (self.clone(), question.clone());
        let off = OffTheList { forward: self.clone(), same };
        // A task of its own: those who wait must not depend on who came first.
        tokio::spawn(async move {
            let answer = forward.exchange(&question).await;
            drop(off);
            let _ = tell.send(Some(answer));
        });
        Some(waiting)
    }

    async fn exchange(&self, question: &Question) -> Answer {
        let begun = Instant::now();
        let mut last = None;
        for server in self.order() {
            let Some(left) = PATIENCE.checked_sub(begun.elapsed()) else { break };
            match clock::timeout(left.min(self.settings.read_timeout), self.attempt(&server, question)).await {
                Ok(Ok(answer)) => {
                    server.answered();
                    if !self.settings.failover.contains(&answer.code) {
                        return answer;
                    }
                    last = Some(answer);
                }
                failed => {
                    let why = failed.map_or("no answer in time".to_owned(), |f| {
                        f.map_or_else(|e| e.to_string(), |_| String::new())
                    });
                    tracing::debug!(server = %server.address, why, "another DNS server failed");
                    server.failed(&self.settings.check, self.settings.read_timeout);
                }
            }
        }
        last.unwrap_or_else(Answer::failed)
    }

    async fn attempt(&self, server: &Upstream, question: &Question) -> std::io::Result<Answer> {
        let settings = &self.settings;
        if settings.prefer_udp && question.over_tcp && !settings.force_tcp {
            let answer = server.ask(question, false).await?;
            return if answer.truncated { server.ask(question, true).await } else { Ok(answer) };
        }
        server.ask(question, settings.force_tcp || question.over_tcp).await
    }

    /// The servers that are up, in the order in which they are asked; when none is, one of them, which may be back.
    fn order(&self) -> Vec<Arc<Upstream>> {
        if self.servers.is_empty() {
            return Vec::new();
        }
        let first = match self.settings.policy {
            Policy::Sequential => 0,
            Policy::RoundRobin => self.turn.fetch_add(1, Relaxed) % self.servers.len(),
            Policy::Random => usize::try_from(clock::random_range(0..self.servers.len() as u64)).unwrap_or(0),
        };
        let turned = || self.servers[first..].iter().chain(&self.servers[..first]);
        let up: Vec<_> = turned().filter(|s| !s.is_down(self.settings.max_fails)).cloned().collect();
        if up.is_empty() && !self.settings.failfast { turned().take(1).cloned().collect() } else { up }
    }
}
