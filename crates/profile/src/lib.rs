//! Profiles of this process that `go tool pprof` opens: where its processor time goes, and where its threads are now.
//!
//! `page` answers for servers, `sampler` looks at the stacks, `symbols` finds the functions in the files that the process runs, `message` writes it down. Only
//! one profile is made at a time, and nothing costs anything while none is.

mod message;
pub mod page;
mod sampler;
mod symbols;

use std::time::Duration;

pub use symbols::lookup;

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
        began_nanoseconds: i64::try_from(began.as_nanosecond()).unwrap_or(0),
        took: time,
    };
    Ok(written(stacks, about, move |count| vec![count, count * period]).await)
}

/// Where each thread is now, as a gzipped `Profile`.
pub async fn threads() -> Result<Vec<u8>, Refusal> {
    let stacks = threads_now().await?;
    let about = message::About {
        types: &[("threads", "count")],
        period: ("threads", "count", 1),
        began_nanoseconds: i64::try_from(clock::now().as_nanosecond()).unwrap_or(0),
        took: Duration::ZERO,
    };
    Ok(written(stacks, about, |count| vec![count]).await)
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

async fn written(
    stacks: Vec<sampler::Stack>,
    about: message::About,
    values: impl Fn(i64) -> Vec<i64> + Send + 'static,
) -> Vec<u8> {
    // Reading the tables of functions takes its time.
    tokio::task::spawn_blocking(move || message::write(&stacks, &about, values)).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn unzipped(bytes: &[u8]) -> Vec<u8> {
        use std::io::Read;
        let mut whole = Vec::new();
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut whole).unwrap();
        whole
    }
}
