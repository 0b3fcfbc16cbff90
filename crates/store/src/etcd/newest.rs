//! Questions for the newest revision, which those who ask at the same time share.
//!
//! One question is under way at a time. Whoever comes meanwhile is part of the next, which is sent for all of them as soon
//! as the answer is there: under load etcd is asked once for many, and nobody waits for more than the rest of one question
//! and a whole one.
//!
//! This is why reads are linearizable. A reader joins the question while that is not sent; so etcd, which answers with a
//! linearizable read of its own, sees it after the reader came, and the revision in the answer is at least that of every
//! write that was acknowledged before, by whichever server. The answer says nothing to those who come once it is sent:
//! they may have seen a write that it has not. The copy then has to reach that revision; what a reader finds in it later is
//! at least as new.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{Result, StoreError};

/// Those who wait for one question.
type Waiting = Vec<oneshot::Sender<Result<()>>>;

#[derive(Default)]
pub(super) struct Questions {
    /// They wait for the question that was not sent yet. `None` when no such question is there.
    next: Mutex<Option<Waiting>>,
    /// Held by the question that is under way.
    turn: tokio::sync::Mutex<()>,
}

impl Questions {
    /// Joins the question that was not sent yet, and returns when `arrive` is done with its answer. The first who joins
    /// brings `ask` and `arrive` along. Both run in a task of their own: it wakes each of those who wait once, and goes on
    /// when the first does not wait any more. The next question is sent once `ask` has ended.
    pub async fn share<T, Ask, Arrive>(
        self: &Arc<Self>,
        ask: impl FnOnce() -> Ask + Send + 'static,
        arrive: impl FnOnce(T) -> Arrive + Send + 'static,
    ) -> Result<()>
    where
        T: Send + 'static,
        Ask: Future<Output = Result<T>> + Send + 'static,
        Arrive: Future<Output = Result<()>> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut next = self.next.lock();
            let is_first = next.is_none();
            next.get_or_insert_default().push(answer);
            is_first
        };
        if is_first {
            tokio::spawn(self.clone().put(ask, arrive));
        }
        let gone = |_| Err(StoreError::Unavailable("the question for etcd's newest revision was given up".to_owned()));
        answered.await.unwrap_or_else(gone)
    }

    async fn put<T, Ask, Arrive>(self: Arc<Self>, ask: impl FnOnce() -> Ask, arrive: impl FnOnce(T) -> Arrive)
    where
        Ask: Future<Output = Result<T>>,
        Arrive: Future<Output = Result<()>>,
    {
        let turn = self.turn.lock().await;
        // Readers that are about to run join this question instead of waiting for the next.
        tokio::task::yield_now().await;
        let waiting = self.next.lock().take().unwrap_or_default();
        let outcome = ask().await;
        drop(turn);
        let outcome = match outcome {
            Ok(told) => arrive(told).await,
            Err(error) => Err(error),
        };
        for answer in waiting {
            let _ = answer.send(outcome.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::{sync::mpsc, task::JoinHandle};

    use super::*;

    type Answer = oneshot::Sender<Result<u64>>;

    /// An etcd that answers when the test has it.
    struct Slow {
        questions: Arc<Questions>,
        asked: mpsc::UnboundedSender<Answer>,
        arriving: mpsc::UnboundedReceiver<Answer>,
        /// The revisions that answers had, in their order.
        reached: Arc<Mutex<VecDeque<u64>>>,
    }

    impl Slow {
        fn new() -> Slow {
            let (asked, arriving) = mpsc::unbounded_channel();
            Slow { questions: Arc::default(), asked, arriving, reached: Arc::default() }
        }

        /// A reader, who has come when this returns.
        async fn reader(&self) -> JoinHandle<Result<()>> {
            let (questions, asked, reached) = (self.questions.clone(), self.asked.clone(), self.reached.clone());
            let ask = move || async move {
                let (answer, answered) = oneshot::channel();
                asked.send(answer).unwrap();
                answered.await.unwrap()
            };
            let arrive = move |revision| async move {
                reached.lock().push_back(revision);
                Ok(())
            };
            let (come, came) = oneshot::channel();
            let reader = tokio::spawn(async move {
                let mut share = std::pin::pin!(questions.share(ask, arrive));
                let early = futures::poll!(&mut share);
                come.send(()).unwrap();
                match early {
                    std::task::Poll::Ready(done) => done,
                    std::task::Poll::Pending => share.await,
                }
            });
            came.await.unwrap();
            reader
        }

        async fn readers(&self, count: usize) -> Vec<JoinHandle<Result<()>>> {
            let mut readers = Vec::new();
            for _ in 0..count {
                readers.push(self.reader().await);
            }
            readers
        }

        async fn question(&mut self) -> Answer {
            self.arriving.recv().await.unwrap()
        }
    }

    #[tokio::test]
    async fn readers_share_the_next_question() {
        let mut etcd = Slow::new();
        let first = etcd.reader().await;
        let under_way = etcd.question().await;
        let many = etcd.readers(32).await;
        assert!(etcd.arriving.is_empty(), "one question is under way at a time");
        under_way.send(Ok(1)).unwrap();
        first.await.unwrap().unwrap();
        let next = etcd.question().await;
        assert!(many.iter().all(|reader| !reader.is_finished()), "the first answer is not theirs");
        next.send(Ok(2)).unwrap();
        for reader in many {
            reader.await.unwrap().unwrap();
        }
        assert!(etcd.arriving.is_empty(), "one question is enough for all of them");
        assert_eq!(*etcd.reached.lock(), [1, 2]);
    }

    /// The question under way may have read the revision already: the answer has not what was written after that.
    #[tokio::test]
    async fn a_reader_waits_for_a_question_that_was_asked_after_it_came() {
        let mut etcd = Slow::new();
        let mut newest = 1;
        let early = etcd.reader().await;
        let (question, read) = (etcd.question().await, newest);
        newest += 1;
        let late = etcd.reader().await;
        question.send(Ok(read)).unwrap();
        early.await.unwrap().unwrap();
        let question = etcd.question().await;
        assert!(!late.is_finished());
        question.send(Ok(newest)).unwrap();
        late.await.unwrap().unwrap();
        assert_eq!(etcd.reached.lock().back(), Some(&newest));
    }

    #[tokio::test]
    async fn a_failure_is_told_to_those_who_shared_the_question() {
        let mut etcd = Slow::new();
        let first = etcd.reader().await;
        let under_way = etcd.question().await;
        let many = etcd.readers(3).await;
        let away = || StoreError::Unavailable("away".to_owned());
        under_way.send(Err(away())).unwrap();
        assert!(first.await.unwrap().is_err());
        etcd.question().await.send(Ok(5)).unwrap();
        for reader in many {
            reader.await.unwrap().unwrap();
        }
        assert_eq!(*etcd.reached.lock(), [5]);
    }

    /// Those who wait behind a reader that is gone are not forgotten with it.
    #[tokio::test]
    async fn a_question_outlives_the_reader_that_brought_it_up() {
        let mut etcd = Slow::new();
        let before = etcd.reader().await;
        let under_way = etcd.question().await;
        let (first, second) = (etcd.reader().await, etcd.reader().await);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        under_way.send(Ok(2)).unwrap();
        before.await.unwrap().unwrap();
        etcd.question().await.send(Ok(3)).unwrap();
        second.await.unwrap().unwrap();
    }
}
