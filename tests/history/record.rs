//! The records of clients and watchers: what they asked for and when, and what came back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

pub type Revision = u64;

/// An object as some answer or event showed it. Every write that a client sends has a value of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub name: String,
    pub uid: String,
    pub revision: Revision,
    pub value: String,
}

/// How new a list has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// It has everything that was acknowledged before.
    Newest,
    /// Any state will do (`resourceVersion=0`).
    Any,
    /// It is the state at this revision.
    Exactly(Revision),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Create {
        name: String,
        value: String,
    },
    /// With a revision only over the object as it was written then.
    Replace {
        name: String,
        value: String,
        over: Option<Revision>,
    },
    Patch {
        name: String,
        value: String,
    },
    Delete {
        name: String,
        over: Option<Revision>,
    },
    Get {
        name: String,
    },
    List(Fresh),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Written(Object),
    /// The incarnation that is gone.
    Deleted {
        uid: String,
    },
    Found(Object),
    Listed(Revision, Vec<Object>),
    /// 404.
    Absent,
    /// 409: there is one already.
    Exists,
    /// 409: it is another one than the caller expected.
    Changed,
    /// 410: the past that was asked for is forgotten.
    Forgotten,
    /// Nothing, or nothing that tells whether it was done.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub began: Duration,
    pub ended: Duration,
    pub call: Call,
    pub answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Added,
    Modified,
    Deleted,
}

/// One thing that a watcher was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The state that it begins from, or begins anew from when it heard that the past is forgotten.
    Listed(Revision, Vec<Object>),
    Event(Kind, Object),
    Bookmark(Revision),
}

/// Everything that happened.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    /// The events that each watcher saw, in its order.
    pub watchers: Vec<Vec<Seen>>,
}

/// Where clients write down what they do, by one clock.
#[derive(Clone)]
pub struct Recorder {
    since: Instant,
    operations: Arc<Mutex<Vec<Operation>>>,
}

impl Recorder {
    pub fn new() -> Self {
        Recorder { since: Instant::now(), operations: Arc::default() }
    }

    pub async fn record(&self, call: Call, answer: impl Future<Output = Answer>) -> Answer {
        let began = self.since.elapsed();
        let answer = answer.await;
        let ended = self.since.elapsed();
        self.operations.lock().push(Operation { began, ended, call, answer: answer.clone() });
        answer
    }

    /// How many operations had an answer that says something.
    pub fn answered(&self) -> usize {
        self.operations.lock().iter().filter(|operation| operation.answer != Answer::Unknown).count()
    }

    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().clone()
    }
}
