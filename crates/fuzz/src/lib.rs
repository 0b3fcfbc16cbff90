//! A loop for tests of parsers: good inputs, changed in every way that breaks parsers, for a second or two.
//!
//! Every input follows from a seed, which is fresh in each run and told when something goes wrong: `FUZZ_SEED=… cargo test`
//! gives the same inputs again, and `FUZZ_SECONDS=600` gives more of them. An input that was found once is kept as a file
//! and tried first. Inputs that bring out an answer that none before did are changed further.

mod mutate;

use std::{
    collections::HashSet,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    path::Path,
    time::{Duration, Instant},
};

use mutate::Random;

const SECONDS: u64 = 2;
/// The longest time for one input, in a test build. It is the processor's time that counts: a machine may be
/// busy with other things.
const PATIENCE: Duration = Duration::from_secs(10);
/// The process that parses takes no more than this, all its tests together.
const MEMORY_MAX: u64 = 3 << 30;
/// Inputs that are changed further.
const POOL: usize = 500;

/// The parser under test, with the inputs to begin from.
pub struct Target<'a> {
    pub name: &'a str,
    /// Good inputs, or such as were nearly good.
    pub seeds: Vec<Vec<u8>>,
    /// Words that the format gives a meaning.
    pub words: &'a [&'a str],
    /// The folder of what was found once, in one of the target's name.
    pub found: &'a Path,
}

/// Tells of the input if it is at fault.
struct Tried<'a> {
    name: &'a str,
    seed: u64,
    count: u64,
    input: &'a [u8],
}

impl Drop for Tried<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Tried { name, seed, count, .. } = self;
            eprintln!("{name}: FUZZ_SEED={seed}, input {count}: b\"{}\"", self.input.escape_ascii());
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Tries inputs until the time is over. `check` fails by a panic; what it returns says in a few words what came of the
/// input.
pub fn run(target: &Target<'_>, mut check: impl FnMut(&[u8]) -> String) {
    let seed = number("FUZZ_SEED").unwrap_or_else(|| clock::random_range(0..u64::MAX));
    let time = Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(SECONDS));
    let mut random = Random::new(seed);
    let mut pool = target.seeds.clone();
    pool.extend(kept(&target.found.join(target.name)));
    let (begun, mut known, mut count) = (Instant::now(), HashSet::new(), 0);
    let mut all = (0..pool.len()).collect::<Vec<_>>().into_iter();
    while begun.elapsed() < time || all.len() > 0 {
        let input = match all.next() {
            Some(at) => pool[at].clone(),
            None => mutate::changed(&mut random, &pool, target.words),
        };
        let tried = Tried { name: target.name, seed, count, input: &input };
        let began = Instant::now();
        let outcome = check(&input);
        if began.elapsed() > PATIENCE {
            let before = processor_time();
            check(&input);
            let took = processor_time() - before;
            assert!(took < PATIENCE, "an input takes {took:?}");
        }
        drop(tried);
        if known.insert(kind_of(&outcome)) && pool.len() < POOL {
            pool.push(input);
        }
        count += 1;
    }
    let highest = memory();
    assert!(highest < MEMORY_MAX, "{}: the tests took {highest} bytes of memory (FUZZ_SEED={seed})", target.name);
    println!("{}: {count} inputs, {} answers, FUZZ_SEED={seed}", target.name, known.len());
}

/// Answers that differ in numbers and far behind are of one kind.
fn kind_of(outcome: &str) -> u64 {
    let text: String = outcome.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}

fn kept(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// The processor time that this thread has used so far.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // The kernel counts in ticks of a hundredth of a second.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// The most memory that the process ever had.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(found: &Path) -> Target<'_> {
        Target { name: "test", seeds: vec![b"{\"a\": [1, 2]}".to_vec()], words: &["magic"], found }
    }

    #[test]
    fn a_parser_with_a_flaw_is_found_out() {
        let folder = std::env::temp_dir().join("no-such-folder");
        let flawed = |input: &[u8]| {
            assert!(!input.windows(5).any(|w| w == b"magic") || !input.contains(&0xff), "the flaw");
            input.len().to_string()
        };
        let found = std::panic::catch_unwind(|| run(&target(&folder), flawed));
        assert!(found.is_err());
    }

    #[test]
    fn the_time_of_the_processor_goes_on() {
        let (before, mut random) = (processor_time(), Random::new(1));
        while processor_time() == before {
            std::hint::black_box(mutate::changed(&mut random, &[vec![0; 1000]], &[]));
        }
        assert!(processor_time() > before);
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let inputs = |seed| {
            let (mut random, pool) = (Random::new(seed), vec![b"abcdef".to_vec(), b"12345".to_vec()]);
            (0..1000).map(|_| mutate::changed(&mut random, &pool, &["word"])).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(3).iter().all(|input| input.len() <= mutate::LONGEST));
    }
}
