//! Turns for asking whoever has the keys of tokens anew: a token of a key that nobody knows may be signed by one of a moment ago, as
//! well as by a forger. So a few questions may follow each other at once, and further ones come no faster than is bearable.

use clock::{Duration, Instant};

/// Questions that may follow each other at once.
pub const AT_ONCE: u32 = 10;

pub struct Turns {
    /// A turn comes back after this time.
    pause: Duration,
    /// When all turns will be there again.
    whole: Instant,
}

impl Turns {
    pub fn new(pause: Duration) -> Self {
        Turns { pause, whole: Instant::now() }
    }

    /// Takes a turn; false where there is none.
    pub fn take(&mut self) -> bool {
        let now = Instant::now();
        let next = self.whole.max(now) + self.pause;
        let is_there = next.saturating_duration_since(now) <= self.pause * AT_ONCE;
        if is_there {
            self.whole = next;
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_at_once_and_then_one_in_a_while() {
        let pause = Duration::from_secs(2);
        let mut turns = Turns::new(pause);
        let mut taken = || std::iter::from_fn(|| turns.take().then_some(())).take(100).count();
        assert_eq!(taken(), AT_ONCE as usize);
        clock::sleep(pause / 2).await;
        assert_eq!(taken(), 0);
        clock::sleep(pause / 2).await;
        assert_eq!(taken(), 1);
        clock::sleep(pause * 100).await;
        assert_eq!(taken(), AT_ONCE as usize, "no more are saved up");
    }
}
