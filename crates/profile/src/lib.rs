//! Profiles of this process that `go tool pprof` opens: where its processor time goes, where its threads are now, and who asks for
//! memory.
//!
//! `page` answers for servers, `sampler` looks at the stacks, `waits` at those that wait, `heap` records allocations, `symbols` finds the
//! functions in the files that the process runs, `message` writes it down. Only one profile of stacks is made at a time. Nothing costs
//! anything while none is, but for the record of memory, which goes on once it was begun.

pub mod heap;
mod message;
pub mod page;
mod sampler;
mod symbols;
mod waits;

use std::{collections::BTreeMap, time::Duration};

pub use symbols::lookup;
pub use waits::Waits;

/// Samples per second of processor time.
const PER_SECOND: u32 = 100;
/// No profile takes longer.
pub const LONGEST: Duration = Duration::from_secs(300);

/// Why there is no profile.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another one is being made.
    Busy,
    /// This machine's processor or system is not known here.
    Unsupported,
    /// The allocator of this process records nothing.
    Unrecorded,
}

/// Where the processor time of the whole process goes in the given time, as a gzipped `Profile`. When the future is dropped, sampling
/// ends.
pub async fn cpu(time: Duration) -> Result<Vec<u8>, Refusal> {
    let time = time.min(LONGEST);
    let (began, sampling) = (clock::now(), sampler::Sampling::begin(PER_SECOND)?);
    clock::sleep(time).await;
    let stacks = sampling.end();
    let period = 1_000_000_000 / i64::from(PER_SECOND);
    let about = message::About {
        types: &[("samples", "count"), ("cpu", "nanoseconds")],
        period: ("cpu", "nanoseconds", period),
        shown: "",
        without: "",
        began_nanoseconds: i64::try_from(began.as_nanosecond()).unwrap_or(0),
        took: time,
    };
    Ok(written(counted(&stacks, |count| vec![count, count * period]), about).await)
}

/// Where each thread is now, as a gzipped `Profile`.
pub async fn threads() -> Result<Vec<u8>, Refusal> {
    let stacks = threads_now().await?;
    let about = message::About {
        types: &[("threads", "count")],
        period: ("threads", "count", 1),
        shown: "",
        without: "",
        began_nanoseconds: i64::try_from(clock::now().as_nanosecond()).unwrap_or(0),
        took: Duration::ZERO,
    };
    Ok(written(counted(&stacks, |count| vec![count]), about).await)
}

/// Where threads wait in the given time, as a gzipped `Profile`. A wait is counted as often as it was seen.
pub async fn waits(time: Duration, of: Waits) -> Result<Vec<u8>, Refusal> {
    let (time, began) = (time.min(LONGEST), clock::now());
    let (stacks, each) = waits::seen(time, of).await?;
    let each = i64::try_from(each.as_nanos()).unwrap_or(i64::MAX);
    let about = message::About {
        types: &[("contentions", "count"), ("delay", "nanoseconds")],
        period: ("contentions", "count", 1),
        shown: "",
        without: "",
        began_nanoseconds: i64::try_from(began.as_nanosecond()).unwrap_or(0),
        took: time,
    };
    Ok(written(counted(&stacks, |count| vec![count, count.saturating_mul(each)]), about).await)
}

/// The type of a profile of memory that is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Held,
    Asked,
}

/// The memory that was asked for, and what of it is held, as a gzipped `Profile`: since the record began, or in the given time, in which
/// more may be given back than is asked for. The record begins with the first question, unless it was begun before.
pub async fn memory(time: Option<Duration>, first: Memory) -> Result<Vec<u8>, Refusal> {
    heap::record()?;
    let (began, mut before) = (clock::now(), BTreeMap::new());
    if let Some(time) = time {
        before = heap::recorded();
        clock::sleep(time.min(LONGEST)).await;
    }
    let about = message::About {
        types: &[
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ],
        period: ("space", "bytes", heap::RATE as i64),
        shown: if first == Memory::Held { "inuse_space" } else { "alloc_space" },
        without: ALLOCATOR,
        began_nanoseconds: i64::try_from(began.as_nanosecond()).unwrap_or(0),
        took: time.unwrap_or_default().min(LONGEST),
    };
    let sample = |(places, totals): (Vec<u64>, heap::Totals)| {
        let before = amounts(before.get(&places).copied().unwrap_or_default());
        let more: Vec<i64> = amounts(totals).iter().zip(before).map(|(now, before)| now - before).collect();
        more.iter().any(|amount| *amount != 0).then_some((places, more))
    };
    Ok(written(heap::recorded().into_iter().filter_map(sample).collect(), about).await)
}

fn amounts(totals: heap::Totals) -> [i64; 4] {
    let (asked, held) = (scaled(totals.asked, totals.asked_bytes), scaled(totals.held, totals.held_bytes));
    [asked.0, asked.1, held.0, held.1]
}

/// The functions between who asks for memory and the record.
const ALLOCATOR: &str =
    "profile::heap::.*|<profile::heap::.*|__rust_.*|__rustc.*|alloc::alloc::.*|<alloc::alloc::.*|alloc::raw_vec::.*";

/// The number and size of the allocations that the recorded ones stand for: the chance of each was 1 - exp(-size / rate).
fn scaled(count: usize, bytes: usize) -> (i64, i64) {
    if count == 0 {
        return (0, 0);
    }
    let (count, bytes) = (count as f64, bytes as f64);
    let scale = 1.0 / (1.0 - (-(bytes / count).max(1.0) / heap::RATE as f64).exp());
    ((count * scale) as i64, (bytes * scale) as i64)
}

/// Puts equal stacks together. `values` says what a number of them is worth.
fn counted(stacks: &[sampler::Stack], values: impl Fn(i64) -> Vec<i64>) -> Vec<message::Sample> {
    let mut counts: BTreeMap<Vec<u64>, i64> = BTreeMap::new();
    for stack in stacks {
        *counts.entry(stack.places()).or_default() += 1;
    }
    counts.into_iter().map(|(places, count)| (places, values(count))).collect()
}

/// The same as text: for each thread its number, its name and its functions, from the innermost on.
pub async fn threads_text() -> Result<String, Refusal> {
    let stacks = threads_now().await?;
    let text = move || {
        let mut addresses: Vec<u64> = stacks.iter().flat_map(|stack| stack.frames.iter().copied()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let found = symbols::Found::of(&addresses);
        let of = |stack: &sampler::Stack| {
            let frames = stack
                .frames
                .iter()
                .map(|at| format!("\t{at:#x} {}\n", found.name(*at).unwrap_or_else(|| "?".to_owned())));
            format!("thread {} [{}]:\n{}\n", stack.thread, sampler::name_of(stack.thread), frames.collect::<String>())
        };
        stacks.iter().map(of).collect::<String>()
    };
    Ok(tokio::task::spawn_blocking(text).await.unwrap_or_default())
}

async fn threads_now() -> Result<Vec<sampler::Stack>, Refusal> {
    let sampling = sampler::Sampling::threads()?;
    let wanted = sampling.ask_threads();
    // A thread answers as soon as it runs. One that the system keeps from running for so long is left out.
    for _ in 0..100 {
        if sampling.taken() >= wanted {
            break;
        }
        clock::sleep(Duration::from_millis(2)).await;
    }
    Ok(sampling.end())
}

async fn written(samples: Vec<message::Sample>, about: message::About) -> Vec<u8> {
    // Reading the tables of functions takes its time.
    tokio::task::spawn_blocking(move || message::write(&samples, &about)).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only one profile of stacks is made at a time.
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// Something to be found in a profile.
    #[inline(never)]
    fn burn_for_the_profile(stop: &std::sync::atomic::AtomicBool) -> u64 {
        let mut number = 1u64;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        number
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_works_is_in_the_profile() {
        let _turn = TURN.lock().await;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let work = {
            let stop = stop.clone();
            std::thread::Builder::new().name("burner".to_owned()).spawn(move || burn_for_the_profile(&stop)).unwrap()
        };
        // A busy machine may give the thread no time in which it could be seen.
        let mut text = String::new();
        while !text.contains("burn_for_the_profile") {
            text = String::from_utf8_lossy(&unzipped(&cpu(Duration::from_millis(200)).await.unwrap())).into_owned();
        }
        assert!(text.contains("nanoseconds"));
        let held = sampler::Sampling::threads().unwrap();
        assert_eq!(cpu(Duration::ZERO).await, Err(Refusal::Busy));
        drop(held);
        let mut threads = String::new();
        while !threads.contains("burn_for_the_profile") {
            threads = threads_text().await.unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        work.join().unwrap();
        assert!(threads.contains("[burner]:"), "{threads}");
    }

    #[inline(never)]
    fn wait_for_the_lock_in_the_profile(lock: &std::sync::Mutex<u32>) -> u32 {
        *std::hint::black_box(lock.lock().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_wait_for_a_lock_is_in_the_profile() {
        let _turn = TURN.lock().await;
        let lock = std::sync::Arc::new(std::sync::Mutex::new(1));
        let held = lock.clone();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let _held = held.lock().unwrap();
            tell.send(()).unwrap();
            let _ = released.recv();
        });
        told.recv().unwrap();
        let waiter = std::thread::spawn(move || wait_for_the_lock_in_the_profile(&lock));
        for (of, expected) in [(Waits::Locks, 1), (Waits::All, 2)] {
            let mut text = String::new();
            // The thread may not have come so far.
            while !text.contains("wait_for_the_lock_in_the_profile") {
                let made = waits(Duration::from_millis(100), of).await.unwrap();
                text = String::from_utf8_lossy(&unzipped(&made)).into_owned();
            }
            assert!(text.contains("contentions") && text.contains("delay"));
            // The holder waits as well, though for no lock.
            assert_eq!(1 + usize::from(text.contains("mpsc")), expected, "{text}");
        }
        drop(release);
        holder.join().unwrap();
        assert_eq!(waiter.join().unwrap(), 1);
    }

    #[inline(never)]
    fn ask_for_memory_in_the_profile() -> Vec<Vec<u8>> {
        (0..16).map(|_| std::hint::black_box(vec![0; heap::RATE])).collect()
    }

    #[tokio::test]
    async fn memory_that_is_asked_for_is_in_the_profile() {
        let profile = memory(Some(Duration::from_millis(200)), Memory::Held);
        tokio::pin!(profile);
        let made = loop {
            tokio::select! {
                made = &mut profile => break made.unwrap(),
                () = tokio::task::yield_now() => drop(ask_for_memory_in_the_profile()),
            }
        };
        let text = String::from_utf8_lossy(&unzipped(&made)).into_owned();
        for name in ["ask_for_memory_in_the_profile", "inuse_space", "alloc_objects"] {
            assert!(text.contains(name), "{name}");
        }
    }

    #[tokio::test]
    async fn memory_that_was_asked_for_before_is_told_at_once() {
        #[inline(never)]
        fn ask_before_the_profile() -> Vec<Vec<u8>> {
            (0..64).map(|_| std::hint::black_box(vec![0; heap::RATE])).collect()
        }
        heap::record().unwrap();
        let held = ask_before_the_profile();
        let told = async |time| {
            let made = memory(time, Memory::Held).await.unwrap();
            String::from_utf8_lossy(&unzipped(&made)).contains("ask_before_the_profile")
        };
        assert!(told(None).await, "it is held");
        assert!(!told(Some(Duration::ZERO)).await, "nothing is asked for or given back meanwhile");
        drop(held);
    }

    #[test]
    fn what_was_recorded_stands_for_what_was_not() {
        assert_eq!(scaled(0, 0), (0, 0));
        assert_eq!(scaled(1, 64 * heap::RATE), (1, 64 * heap::RATE as i64));
        let (count, bytes) = scaled(3, 3 * 1024);
        assert!((1530..1540).contains(&count) && bytes / count == 1024, "{count} {bytes}");
    }

    fn unzipped(bytes: &[u8]) -> Vec<u8> {
        use std::io::Read;
        let mut whole = Vec::new();
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut whole).unwrap();
        whole
    }
}
