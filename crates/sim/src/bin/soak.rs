//! Tells stories of all sorts with fresh seeds until the wanted number of simulated hours has passed, and says what happened
//! in them: `make soak HOURS=1000`. A story that goes wrong is told of with its seed, and the others go on; `soak SORT SEED`
//! tells it again, with every change in the store when SIM_TRACE is set.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{Mutex, MutexGuard},
};

use sim::{
    cluster::simulate,
    stories::{ALL, Told, tell},
};

/// A fifth of the time goes into memory with libc's allocator, and what each thread leaves behind stays taken.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: soak HOURS [THREADS], or soak SORT SEED";

#[derive(Default)]
struct Sum {
    stories: usize,
    seconds: i64,
    told: Told,
    failures: Vec<String>,
}

impl Sum {
    fn print(&self, began: clock::Instant) {
        let (hours, minutes) = (self.seconds as f64 / 3600.0, began.elapsed().as_secs_f64() / 60.0);
        println!(
            "{} stories, {hours:.1} hours in {minutes:.1} minutes: {}; {} went wrong",
            self.stories,
            self.told,
            self.failures.len()
        );
    }
}

/// Nothing that holds the lock panics.
fn locked(sum: &Mutex<Sum>) -> MutexGuard<'_, Sum> {
    sum.lock().expect("no holder panics")
}

/// Tells one story, and returns whether there shall be more.
fn one(sum: &Mutex<Sum>, began: clock::Instant, hours: f64) -> bool {
    let (sort, seed) = (ALL[clock::random_range(0..ALL.len() as u64) as usize], clock::random_range(1_000..1 << 32));
    let story = || {
        simulate(seed, async |seed| {
            let start = clock::now();
            let told = tell(sort, seed).await;
            (told, clock::now().as_second() - start.as_second())
        })
    };
    // One that never ends can be told again, too.
    eprintln!("{sort:?} {seed} begins");
    let outcome = catch_unwind(AssertUnwindSafe(story));
    let mut sum = locked(sum);
    sum.stories += 1;
    match outcome {
        Ok((told, seconds)) => {
            sum.seconds += seconds;
            sum.told += told;
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("no message", String::as_str);
            println!("{sort:?} went wrong: {text}\n");
            sum.failures.push(format!("{sort:?} {seed}"));
        }
    }
    if sum.stories.is_multiple_of(20) {
        sum.print(began);
    }
    (sum.seconds as f64) < hours * 3600.0
}

fn main() -> ExitCode {
    let (first, second) = (std::env::args().nth(1), std::env::args().nth(2));
    let sort = ALL.into_iter().find(|sort| Some(format!("{sort:?}")) == first);
    if let (Some(sort), Some(seed)) = (sort, second.as_ref().and_then(|text| text.parse().ok())) {
        simulate(seed, async |seed| tell(sort, seed).await);
        return ExitCode::SUCCESS;
    }
    let hours: Option<f64> = first.and_then(|text| text.parse().ok());
    let threads: Option<usize> = second.map_or(Some(1), |text| text.parse().ok());
    let (Some(hours), Some(threads)) = (hours, threads) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let (sum, began) = (Mutex::new(Sum::default()), clock::Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| while one(&sum, began, hours) {});
        }
    });
    let sum = locked(&sum);
    sum.print(began);
    sum.failures.iter().for_each(|failure| println!("went wrong: {failure}"));
    if sum.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
