//! The plugins at work: a question goes from top to bottom through those of its server block, in CoreDNS' order, and its
//! answer back up.

mod autopath;
pub mod cache;
pub mod forward;
mod hosts;
pub mod kubernetes;
mod learning;
mod log;
mod looping;
mod rewrite;
mod template;
mod upstream;

use std::{future::Future, net::IpAddr, pin::Pin, sync::Arc};

use clock::Instant;
use hickory_proto::{
    op::ResponseCode,
    rr::{Record, RecordType},
};
use parking_lot::RwLock;

pub use self::learning::Learner;
use self::{cache::Cache, forward::Forward, kubernetes::Found, looping::Probe};
use crate::{
    cluster::Cluster,
    corefile::{Block, kubernetes::PodMode, settings::Settings},
    figures::Figures,
    question::{Answer, Question, zone_of},
};

/// All server blocks of a Corefile, as they run.
pub struct Chains {
    blocks: Vec<Chain>,
    around: Around,
}

/// The surroundings that every block needs.
#[derive(Clone)]
pub struct Around {
    pub cluster: Arc<RwLock<Cluster>>,
    /// The addresses by which Pods know cluster DNS.
    pub own: Vec<IpAddr>,
    pub figures: Arc<Figures>,
    /// Whoever waits for the addresses of some names.
    pub learner: Option<Arc<dyn Learner>>,
}

struct Chain {
    zones: Vec<String>,
    settings: Settings,
    cache: Option<Cache>,
    forwards: Vec<Arc<Forward>>,
    probe: Option<Probe>,
}

type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Chains {
    pub fn new(blocks: Vec<Block>, around: Around) -> Arc<Self> {
        let blocks = blocks.into_iter().map(Chain::new).collect();
        let chains = Arc::new(Chains { blocks, around });
        for chain in &chains.blocks {
            chain.look_for_loops();
        }
        chains
    }

    /// Whether somebody asks for the addresses of all Pods.
    pub fn verifies_pods(&self) -> bool {
        self.blocks.iter().any(|b| b.settings.kubernetes.as_ref().is_some_and(|k| k.pods == PodMode::Verified))
    }

    /// The pages that the blocks ask for.
    pub fn settings(&self) -> impl Iterator<Item = &Settings> {
        self.blocks.iter().map(|b| &b.settings)
    }

    /// How many answers and denials are kept.
    pub fn kept(&self) -> (usize, usize) {
        let sizes = self.blocks.iter().filter_map(|b| b.cache.as_ref()).map(Cache::len);
        sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Answers a question. The target of an alias is a question of its own, so this has a box that it can be called from.
    pub fn answer(self: &Arc<Self>, question: Question) -> Answering {
        let Some(place) = self.block(&question.text) else {
            return Box::pin(std::future::ready(Answer::new(ResponseCode::Refused)));
        };
        let all = self.clone();
        Box::pin(async move { all.blocks[place].answer(&question, &all).await })
    }

    /// Tells whoever waits for them the addresses of a name.
    async fn tell(&self, question: &Question, answer: &Answer) {
        if let Some(learner) = &self.around.learner {
            learning::tell(&**learner, question, answer).await;
        }
    }

    /// The block with the longest zone that has the name.
    fn block(&self, name: &str) -> Option<usize> {
        let longest = |b: &Chain| zone_of(name, &b.zones).map(String::len);
        let of_name = self.blocks.iter().enumerate().filter_map(|(place, b)| Some((longest(b)?, place)));
        of_name.max_by_key(|(length, _)| *length).map(|(_, place)| place)
    }
}

impl Chain {
    fn new(mut block: Block) -> Self {
        let cache = block.settings.cache.take().map(Cache::new);
        let forwards = std::mem::take(&mut block.settings.forwards).into_iter().map(Forward::new).collect();
        let probe = block.settings.looping.then(|| Probe::new(block.zones.first().map_or("", String::as_str)));
        Chain { zones: block.zones, settings: block.settings, cache, forwards, probe }
    }

    fn look_for_loops(&self) {
        if let Some(probe) = &self.probe
            && let Some(forward) = self.forwards.iter().find(|f| f.is_about(probe.name()))
        {
            probe.send(forward.clone());
        }
    }

    async fn answer(&self, question: &Question, all: &Arc<Chains>) -> Answer {
        let begun = Instant::now();
        let mut answer = match rewrite::question(&self.settings.rewrites, question) {
            Some((rewritten, done)) => {
                let mut answer = self.search(&rewritten, all).await;
                done.undo(&mut answer);
                answer
            }
            None => Answer::failed(),
        };
        if self.settings.loadbalance {
            shuffle(&mut answer.answers);
        }
        all.tell(question, &answer).await;
        for rule in &self.settings.log {
            log::write(rule, question, &answer, begun);
        }
        if self.settings.errors && answer.code == ResponseCode::ServFail {
            log::error(question);
        }
        answer
    }

    /// The answer to the name, or to what the asking Pod's search domains would make of it.
    async fn search(&self, question: &Question, all: &Arc<Chains>) -> Answer {
        let Some(autopath) = &self.settings.autopath else { return self.cached(question, all).await };
        let Some(path) = autopath::path(question, autopath, &self.settings, &all.around.cluster.read()) else {
            return self.cached(question, all).await;
        };
        let mut first = None;
        for name in path {
            let Some(candidate) = question.about(&name) else { continue };
            let mut answer = self.cached(&candidate, all).await;
            if answer.code != ResponseCode::NXDomain {
                // Its addresses are this name's, and only by an alias of this server's making the one's that was asked for.
                all.tell(&candidate, &answer).await;
                autopath::alias(question, &candidate, &mut answer);
                return answer;
            }
            first.get_or_insert(answer);
        }
        first.unwrap_or_else(Answer::failed)
    }

    async fn cached(&self, question: &Question, all: &Arc<Chains>) -> Answer {
        let Some(cache) = self.cache.as_ref().filter(|c| c.is_about(question)) else {
            return self.found(question, all).await;
        };
        if let Some(answer) = cache.get(question, Instant::now()) {
            all.around.figures.hit();
            return answer;
        }
        all.around.figures.miss();
        let answer = self.found(question, all).await;
        cache.keep(question, &answer, Instant::now());
        answer
    }

    /// The answer of the first plugin that has one.
    async fn found(&self, question: &Question, all: &Arc<Chains>) -> Answer {
        if let Some(answer) = template::answer(question, &self.settings.templates) {
            return answer;
        }
        if let Some(answer) = self.settings.hosts.as_ref().and_then(|h| hosts::answer(question, h)) {
            return answer;
        }
        if let Some(settings) = &self.settings.kubernetes {
            let found = kubernetes::answer(question, settings, &all.around.cluster.read(), &all.around.own);
            match found {
                Found::Answer(answer) | Found::Missing { answer, through: false } => return answer,
                Found::Alias { record, target, nothing } => {
                    let Some(onward) = question.onward(&target) else { return nothing };
                    let is_own = zone_of(&onward.text, &settings.zones).is_some();
                    let there = all.answer(onward).await;
                    return alias(*record, there, Some(nothing).filter(|_| is_own));
                }
                Found::Missing { .. } | Found::Elsewhere => {}
            }
        }
        self.forwarded(question).await
    }

    async fn forwarded(&self, question: &Question) -> Answer {
        if let Some(probe) = &self.probe
            && (probe.is_back(question) || probe.found_a_loop())
        {
            return Answer::failed();
        }
        let mut last = Answer::failed();
        for forward in &self.forwards {
            if !forward.is_about(&question.text) {
                continue;
            }
            last = forward.ask(question).await;
            if !forward.settings.next.contains(&last.code) {
                break;
            }
        }
        last
    }
}

/// An alias with what its target leads to. As with CoreDNS the name itself is there, whatever the target is; but of a target that leads to
/// `nothing` in the cluster's own zones not even the alias is told.
fn alias(record: Record, there: Answer, nothing: Option<Answer>) -> Answer {
    if there.code == ResponseCode::ServFail {
        return Answer::failed();
    }
    if let Some(nothing) = nothing.filter(|_| there.answers.is_empty()) {
        return nothing;
    }
    let mut answer = Answer { code: ResponseCode::NoError, authoritative: true, authorities: Vec::new(), ..there };
    answer.answers.insert(0, record);
    answer
}

/// Clients take the first address: each gets another first. Aliases stay in front, in their order.
fn shuffle(answers: &mut [Record]) {
    let turns = |r: &Record| matches!(r.record_type(), RecordType::A | RecordType::AAAA | RecordType::MX);
    answers.sort_by_key(|r| (r.record_type() != RecordType::CNAME, !turns(r)));
    let first = answers.iter().take_while(|r| !turns(r)).count();
    let last = first + answers[first..].iter().take_while(|r| turns(r)).count();
    let part = &mut answers[first..last];
    for i in (1..part.len()).rev() {
        let other = usize::try_from(clock::random_range(0..i as u64 + 1)).unwrap_or(i);
        part.swap(i, other);
    }
}
