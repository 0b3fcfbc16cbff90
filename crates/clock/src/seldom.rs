//! Log lines that appear at most once a second, however often there is reason for them.

use std::sync::Mutex;

use crate::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// One kind of message that strangers can cause: a `static` beside the place that says it.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    last: Option<Instant>,
    passed_over: u64,
}

impl Seldom {
    pub const fn new() -> Self {
        Seldom(Mutex::new(Turns { last: None, passed_over: 0 }))
    }

    /// Whether it may be said now; the number tells how often it was not since the last time.
    pub fn turn(&self) -> Option<u64> {
        let mut turns = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        let now = Instant::now();
        if turns.last.is_some_and(|last| now < last + PAUSE) {
            turns.passed_over += 1;
            return None;
        }
        turns.last = Some(now);
        Some(std::mem::take(&mut turns.passed_over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn once_a_second_with_the_number_of_those_passed_over() {
        let seldom = Seldom::new();
        assert_eq!([seldom.turn(), seldom.turn(), seldom.turn()], [Some(0), None, None]);
        tokio::time::advance(PAUSE).await;
        assert_eq!([seldom.turn(), seldom.turn()], [Some(2), None]);
        tokio::time::advance(PAUSE).await;
        assert_eq!(seldom.turn(), Some(1));
    }
}
