//! Telling the user what is going on while the cluster starts: one line for each step, with its duration.
//!
//! The steps happen in the process that stays; the command that the user sees reads them from a pipe.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::Duration,
};

use clock::Instant;
use serde::{Deserialize, Serialize};

/// The messages in the pipe, a line of JSON each.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Message {
    Step {
        what: String,
        millis: u64,
    },
    /// Something that the user should know.
    Note {
        what: String,
    },
    Ready,
    Failed {
        why: String,
    },
}

/// The writing end. Cloning shares it; without a pipe the steps go to the log only.
#[derive(Clone, Default)]
pub struct Progress(Arc<Mutex<Option<File>>>);

impl Progress {
    pub fn to(pipe: OwnedFd) -> Self {
        Progress(Arc::new(Mutex::new(Some(pipe.into()))))
    }

    /// Carries a step out and reports how long it took.
    pub async fn step<T, E>(&self, what: &str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let start = Instant::now();
        let result = work.await;
        if result.is_ok() {
            self.done(what, start.elapsed());
        }
        result
    }

    pub fn done(&self, what: &str, took: Duration) {
        tracing::info!(millis = took.as_millis() as u64, "{what}");
        self.send(&Message::Step { what: what.to_owned(), millis: took.as_millis() as u64 });
    }

    pub fn note(&self, what: &str) {
        tracing::warn!("{what}");
        self.send(&Message::Note { what: what.to_owned() });
    }

    /// The cluster is ready: nobody reads any more.
    pub fn ready(&self) {
        self.send(&Message::Ready);
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = None;
    }

    pub fn failed(&self, why: &anyhow::Error) {
        self.send(&Message::Failed { why: crate::sentence::sentence(why) });
    }

    fn send(&self, message: &Message) {
        if let Some(pipe) = &mut *self.0.lock().unwrap_or_else(|e| e.into_inner())
            && let Ok(line) = serde_json::to_string(message)
        {
            // The process that started us may be gone; the cluster does not depend on it.
            let _ = writeln!(pipe, "{line}");
        }
    }
}

/// Reads messages until the pipe is closed.
pub fn read(pipe: OwnedFd) -> impl Iterator<Item = Message> {
    BufReader::new(File::from(pipe)).lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok())
}

/// `1.24 s` or `85 ms`.
pub fn duration(millis: u64) -> String {
    if millis >= 1000 { format!("{:.2} s", millis as f64 / 1000.0) } else { format!("{millis} ms") }
}
