//! The answers that are remembered, each for its time. There is a bound on their number and on the size of each, so that neither
//! requests nor a webhook fill the memory.

use std::collections::{HashMap, VecDeque};

use clock::{Duration, Instant};
use parking_lot::Mutex;

use super::review::Said;

/// With one more, the one that is remembered longest is forgotten.
const MOST: usize = 8192;
/// An answer with a longer reason is not remembered.
const LONGEST_REASON: usize = 4096;

#[derive(Default)]
pub(super) struct Remembered(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    by_question: HashMap<[u8; 32], (Instant, Said)>,
    /// The questions, those that came first in front.
    order: VecDeque<[u8; 32]>,
}

impl Remembered {
    pub fn get(&self, question: &[u8; 32]) -> Option<Said> {
        let answers = self.0.lock();
        let (until, said) = answers.by_question.get(question)?;
        (*until > Instant::now()).then(|| said.clone())
    }

    pub fn keep(&self, question: [u8; 32], said: &Said, time: Duration) {
        if time.is_zero() || said.reason.len() > LONGEST_REASON {
            return;
        }
        let mut answers = self.0.lock();
        // A time that no clock can say is for ever.
        let now = Instant::now();
        let until = now.checked_add(time).unwrap_or(now + Duration::from_secs(86400 * 365));
        if answers.by_question.insert(question, (until, said.clone())).is_none() {
            answers.order.push_back(question);
        }
        if answers.order.len() > MOST
            && let Some(first) = answers.order.pop_front()
        {
            answers.by_question.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_are_remembered_for_their_time_and_within_bounds() {
        let remembered = Remembered::default();
        let key = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            key
        };
        let said = Said { allowed: true, ..Said::default() };
        remembered.keep(key(0), &said, Duration::ZERO);
        remembered.keep(
            key(1),
            &Said { reason: "a".repeat(LONGEST_REASON + 1), ..said.clone() },
            Duration::from_secs(9),
        );
        assert!(remembered.get(&key(0)).is_none() && remembered.get(&key(1)).is_none());
        remembered.keep(key(0), &said, Duration::from_secs(9));
        assert_eq!(remembered.get(&key(0)), Some(said.clone()));
        clock::sleep(Duration::from_secs(9)).await;
        assert!(remembered.get(&key(0)).is_none());
        for number in 0..=MOST {
            remembered.keep(key(number), &said, Duration::MAX);
        }
        assert!(remembered.get(&key(0)).is_none() && remembered.get(&key(MOST)).is_some());
        let answers = remembered.0.lock();
        assert_eq!((answers.order.len(), answers.by_question.len()), (MOST, MOST));
    }
}
