//! The outcome of a batch, on its way from the writer's thread to the tasks that wait for it.
//!
//! Of a task that is woken from another thread the runtime makes work for whichever worker comes first, and that one wakes one
//! more to look for the rest; two tasks, one that waited for a commit and one that watches, wake two at once. A commit alone on a
//! quiet server pays these switches of threads. So the writer rings a bell that the runtime listens to as to its sockets, and the
//! worker that hears it goes on with those who waited itself, then with those who watch.

use std::{
    io::{self, PipeWriter, Write},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::oneshot};

use crate::{Entry, Event, Refused, Result, Revision, StoreError, hub::Hub, index::Index};

/// The answer to a transaction.
pub(crate) type Transacted = Result<Vec<Entry>, Refused>;

/// The answers to the commits of one batch.
#[derive(Default)]
pub(super) struct Answers {
    pub commits: Vec<(oneshot::Sender<Result<Entry>>, Result<Entry>)>,
    pub transactions: Vec<(oneshot::Sender<Transacted>, Transacted)>,
}

impl Answers {
    /// Nothing of the batch happened: what would have been, and conflicts with it, become the error. `before` is the revision
    /// that the batch was built on.
    pub fn refuse(&mut self, before: Revision, error: &StoreError) {
        // A refusal that told of nothing in the batch stands.
        let stands = |refusal: &StoreError| match refusal {
            StoreError::Conflict { revision, .. } => *revision <= before,
            _ => true,
        };
        for (_, outcome) in &mut self.commits {
            *outcome = Err(outcome.as_ref().err().filter(|refusal| stands(refusal)).unwrap_or(error).clone());
        }
        for (_, outcome) in &mut self.transactions {
            let refused = outcome.as_ref().err().filter(|refused| stands(&refused.error));
            *outcome = Err(refused.cloned().unwrap_or_else(|| Refused { at: 0, error: error.clone() }));
        }
    }

    /// Tells those who wait for a commit. A caller may have gone; the commit stands anyway.
    fn give(self) {
        for (reply, outcome) in self.commits {
            let _ = reply.send(outcome);
        }
        for (reply, outcome) in self.transactions {
            let _ = reply.send(outcome);
        }
    }
}

/// The part of a batch that watchers are to see.
pub(super) struct News {
    pub events: Vec<Event>,
    pub revision: Revision,
}

/// Where the writer leaves what became of batches, in their order. While nobody comes for it the writer tells of it itself.
pub(crate) struct Outbox {
    hub: Arc<Hub>,
    index: Arc<RwLock<Index>>,
    watch_queue_events: usize,
    history_bytes: usize,
    left: Mutex<Left>,
    /// Held while watchers are told, so that they are told in order.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Left {
    answers: Vec<Answers>,
    news: Vec<News>,
    /// There is one while somebody comes.
    bell: Option<PipeWriter>,
}

impl Left {
    /// It cannot fail while the reading end is there, whose end takes the bell away before.
    fn ring(&mut self) {
        if let Some(bell) = &mut self.bell {
            let _ = bell.write(&[1]);
        }
    }
}

impl Outbox {
    pub fn new(hub: Arc<Hub>, index: Arc<RwLock<Index>>, watch_queue_events: usize, history_bytes: usize) -> Arc<Self> {
        let (left, telling) = (Mutex::default(), Mutex::default());
        Arc::new(Outbox { hub, index, watch_queue_events, history_bytes, left, telling })
    }

    /// The work that tells of what is left here from now on. It is begun in a runtime, and runs there; when it is dropped, the writer
    /// does it again.
    pub fn visit(self: &Arc<Self>) -> io::Result<impl Future<Output = ()> + Send + use<>> {
        let (heard, bell) = io::pipe()?;
        let mut heard = pipe::Receiver::from_owned_fd(heard.into())?;
        let visitor = Visitor(self.clone());
        self.left.lock().bell = Some(bell);
        Ok(async move {
            let Visitor(outbox) = &visitor;
            let (mut rings, mut behind) = ([0; 8], false);
            while heard.read(&mut rings).await.is_ok_and(|count| count > 0) {
                if behind {
                    outbox.tell_watchers();
                }
                behind = outbox.give();
                if behind {
                    // Those who have an answer now go first; watchers are told when this is heard.
                    outbox.left.lock().ring();
                }
            }
        })
    }

    /// Leaves what became of a batch. Only the first that waits rings: whoever comes takes all, and what is left after that is the
    /// first again. So the pipe is never full.
    pub(super) fn leave(&self, answers: Answers, news: Option<News>) {
        let mut left = self.left.lock();
        left.answers.push(answers);
        left.news.extend(news);
        if left.bell.is_none() {
            drop(left);
            self.give();
            self.tell_watchers();
        } else if left.answers.len() == 1 {
            left.ring();
        }
    }

    /// Gives the answers that were left. True when watchers were not told of all.
    fn give(&self) -> bool {
        let (answers, untold) = {
            let mut left = self.left.lock();
            (std::mem::take(&mut left.answers), !left.news.is_empty())
        };
        answers.into_iter().for_each(Answers::give);
        untold
    }

    /// Tells watchers of everything that was left so far. The history that they are told from is cut after that: what was not
    /// told is never forgotten.
    pub(super) fn tell_watchers(&self) {
        let _turn = self.telling.lock();
        let news = std::mem::take(&mut self.left.lock().news);
        for News { events, revision } in &news {
            self.hub.publish(events, *revision, self.watch_queue_events);
        }
        if let Some(News { revision, .. }) = news.last() {
            self.index.write().bound_history(self.history_bytes, *revision);
        }
    }

    /// Nobody comes any more: what was left is told now. Whoever came hears that the bell is gone, and ends.
    pub fn close(&self) {
        self.left.lock().bell = None;
        self.give();
        self.tell_watchers();
    }
}

/// The one that comes when the bell rings.
struct Visitor(Arc<Outbox>);

impl Drop for Visitor {
    fn drop(&mut self) {
        self.0.close();
    }
}
