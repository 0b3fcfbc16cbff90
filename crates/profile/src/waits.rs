//! Where threads wait: the stacks of those that do not run, looked at again and again.
//!
//! A thread that waits for a lock stands in that lock's slow path, whoever wrote the lock; so nothing has to be counted while
//! nobody asks. Threads without work wait too, for something to do; these are left out.

use std::time::Duration;

use clock::Instant;

use crate::{
    Refusal,
    sampler::{SAMPLES, Sampling, Stack},
    symbols::Found,
};

/// The shortest time between two looks.
const PERIOD: Duration = Duration::from_millis(10);
/// The functions in which threads wait for locks: of parking_lot, and of the standard library.
const LOCKS: [&str; 6] = [
    "::lock_slow",
    "::lock_contended",
    "::lock_shared_slow",
    "::lock_exclusive_slow",
    "::read_contended",
    "::write_contended",
];
/// The functions in which threads of the runtime wait for work, and the one that stands between these and work that waits.
const IDLE: [&str; 3] = ["::Context::park", "blocking::pool::Inner::run", "CachedParkThread"];
const WORK: &str = "tokio::runtime::task::";

/// The waits that are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    All,
    Locks,
}

/// The stacks of threads that were seen waiting, and how much time one of them stands for.
pub async fn seen(time: Duration, waits: Waits) -> Result<(Vec<Stack>, Duration), Refusal> {
    let sampling = Sampling::waits()?;
    // There is room for a number of stacks: a long profile looks less often.
    let threads = u32::try_from(sampling.threads_now()).unwrap_or(u32::MAX);
    let period = PERIOD.max(time.saturating_mul(threads) / SAMPLES as u32);
    let (mut turns, end) = (clock::interval(period), Instant::now() + time);
    turns.set_missed_tick_behavior(clock::MissedTickBehavior::Delay);
    while Instant::now() < end {
        turns.tick().await;
        sampling.ask_waiting();
    }
    let stacks = sampling.end();
    let wanted = move || wanted(stacks, waits);
    Ok((tokio::task::spawn_blocking(wanted).await.unwrap_or_default(), period))
}

fn wanted(mut stacks: Vec<Stack>, waits: Waits) -> Vec<Stack> {
    let mut addresses: Vec<u64> = stacks.iter().flat_map(Stack::places).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let found = Found::of(&addresses);
    stacks.retain(|stack| {
        let names: Vec<String> = stack.places().into_iter().filter_map(|at| found.name(at)).collect();
        is_wanted(&names, waits)
    });
    stacks
}

/// Whether a stack is one of those, by its functions from the innermost on.
fn is_wanted(names: &[String], waits: Waits) -> bool {
    let any = |name: &str, of: &[&str]| of.iter().any(|part| name.contains(part));
    match waits {
        Waits::Locks => names.iter().any(|name| any(name, &LOCKS)),
        Waits::All => {
            let what = names.iter().find(|name| name.contains(WORK) || any(name, &IDLE));
            !names.is_empty() && what.is_none_or(|name| name.contains(WORK))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_without_work_are_left_out() {
        let check = |names: &[&str], all: bool, locks: bool| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = (is_wanted(&names, Waits::All), is_wanted(&names, Waits::Locks));
            assert_eq!(found, (all, locks), "{names:?}");
        };
        let worker = "tokio::runtime::scheduler::multi_thread::worker::Context::park_internal";
        let pool = "tokio::runtime::blocking::pool::Inner::run";
        let task = "tokio::runtime::task::raw::poll";
        let lock = "parking_lot::raw_mutex::RawMutex::lock_slow";
        check(&["epoll_wait", worker, task, pool], false, false);
        check(&["syscall", pool, "thread_start"], false, false);
        check(&["syscall", "tokio::runtime::park::CachedParkThread::block_on", "main"], false, false);
        check(&["syscall", lock, "mine", task, worker, pool], true, true);
        check(&["fdatasync", "mine", "thread_start"], true, false);
        check(&["std::sys::sync::mutex::futex::Mutex::lock_contended", "mine"], true, true);
        check(&[], false, false);
    }
}
