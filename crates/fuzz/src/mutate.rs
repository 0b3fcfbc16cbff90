//! Changes to bytes, drawn from a seed.

/// An input is no longer than this.
pub const LONGEST: usize = 64 << 10;
/// The texts that break parsers of most formats.
const USUAL: &[&str] = &[
    "\"",
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ":",
    ",",
    ".",
    "/",
    "-",
    "=",
    "!",
    "\0",
    "\n",
    "\t",
    " ",
    "null",
    "true",
    "{}",
    "[]",
    "\"\"",
    "0",
    "-1",
    "1e999",
    "0.1",
    "-0",
    "2147483648",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "\u{feff}",
    "\u{202e}",
    "\u{1f600}",
    "\\u0000",
    "\\ud800",
    "%00",
    "\u{7f}",
];

/// Numbers that follow from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A stretch of something so long, mostly a short one.
    fn stretch(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = if self.below(4) == 0 { length - start } else { (length - start).min(16) };
        start..start + self.below(most + 1)
    }
}

/// One of the pool, with a few changes.
pub fn changed(random: &mut Random, pool: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = random.pick(pool).clone();
    for _ in 0..=random.below(5) {
        change(random, &mut bytes, pool, words);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str]) {
    let stretch = random.stretch(bytes.len());
    let word = |random: &mut Random| {
        let usual = words.is_empty() || random.below(2) == 0;
        random.pick(if usual { USUAL } else { words }).as_bytes().to_vec()
    };
    match random.below(10) {
        0 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        1 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            bytes[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'a', b' ']);
        }
        2 => drop(bytes.drain(stretch)),
        3 => {
            let times = if random.below(8) == 0 { random.below(2000) } else { random.below(5) };
            let piece = bytes[stretch.clone()].repeat(times.min(LONGEST / stretch.len().max(1)));
            drop(bytes.splice(stretch.end..stretch.end, piece));
        }
        4 | 5 => {
            let word = word(random);
            drop(bytes.splice(stretch.start..stretch.start, word));
        }
        6 => {
            let word = word(random);
            drop(bytes.splice(stretch, word));
        }
        7 => {
            let other = random.pick(pool);
            let from = random.stretch(other.len());
            drop(bytes.splice(stretch, other[from].iter().copied()));
        }
        8 => bytes.truncate(stretch.start),
        _ => {
            // Two stretches change places.
            let piece: Vec<u8> = bytes.drain(stretch).collect();
            let at = random.below(bytes.len() + 1);
            drop(bytes.splice(at..at, piece));
        }
    }
}
