//! Time and randomness: the one place where they enter the program.
//!
//! In production `now` is the wall clock. Under simulation the thread calls [`simulate`] once; from then on
//! wall time is an anchor plus the runtime's (pausable) monotonic time and every random number comes from
//! the seed, so that a whole cluster in one thread repeats exactly.

mod go_time;
mod micros;
mod progress;
mod seldom;

use std::cell::RefCell;

pub use go_time::go_time;
pub use jiff::Timestamp;
pub use micros::append_micros;
pub use progress::Progress;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};
pub use seldom::Seldom;
pub use tokio::time::{Duration, Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until, timeout};

struct Simulated {
    wall: Timestamp,
    anchor: Instant,
    rng: StdRng,
}

thread_local! {
    static SIMULATED: RefCell<Option<Simulated>> = const { RefCell::new(None) };
}

/// Puts this thread under simulated time that starts at `wall` now, with all randomness drawn from `seed`.
/// Call it inside the runtime whose time is paused.
pub fn simulate(wall: Timestamp, seed: u64) {
    SIMULATED.with(|s| {
        *s.borrow_mut() = Some(Simulated { wall, anchor: Instant::now(), rng: StdRng::seed_from_u64(seed) });
    });
}

/// The wall clock.
pub fn now() -> Timestamp {
    SIMULATED.with(|s| match &*s.borrow() {
        Some(sim) => {
            let elapsed = jiff::SignedDuration::try_from(sim.anchor.elapsed()).unwrap_or(jiff::SignedDuration::ZERO);
            sim.wall.checked_add(elapsed).unwrap_or(sim.wall)
        }
        None => Timestamp::now(),
    })
}

/// The wall clock cut to whole seconds, as `metav1.Time` is stored.
pub fn now_seconds() -> Timestamp {
    Timestamp::from_second(now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Fills `bytes` with random data: from the operating system's generator, or from the seed under simulation.
/// Outside simulation it is fit for keys, tokens and UIDs.
pub fn fill_random(bytes: &mut [u8]) {
    SIMULATED.with(|s| match &mut *s.borrow_mut() {
        Some(sim) => sim.rng.fill_bytes(bytes),
        None => rand::rng().fill_bytes(bytes),
    });
}

/// A random number in `range`.
pub fn random_range(range: std::ops::Range<u64>) -> u64 {
    SIMULATED.with(|s| match &mut *s.borrow_mut() {
        Some(sim) => sim.rng.random_range(range),
        None => rand::rng().random_range(range),
    })
}

/// A random (version 4) UUID in its usual text form, as `metadata.uid` has it.
pub fn uuid() -> String {
    let mut b = [0u8; 16];
    fill_random(&mut b);
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    let mut text = String::with_capacity(36);
    for (at, byte) in b.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0x0f));
    }
    text
}

/// The alphabet that upstream draws generated name suffixes from: no vowels, no easily confused characters.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A random suffix of `length` characters for a generated name.
pub fn name_suffix(length: usize) -> String {
    (0..length).map(|_| NAME_ALPHABET[random_range(0..NAME_ALPHABET.len() as u64) as usize] as char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn simulated_time_and_randomness_repeat() {
        let start = Timestamp::from_second(1_700_000_000).unwrap();
        simulate(start, 7);
        let first = (uuid(), name_suffix(5));
        sleep(Duration::from_secs(90)).await;
        assert_eq!(now(), Timestamp::from_second(1_700_000_090).unwrap());
        simulate(start, 7);
        assert_eq!((uuid(), name_suffix(5)), first);
    }
}
