//! The `Profile` message of pprof, gzipped. Its fields: github.com/google/pprof/proto/profile.proto.

use std::{collections::BTreeMap, io::Write, time::Duration};

use flate2::{Compression, write::GzEncoder};

use crate::symbols::Found;

/// The meaning of the numbers in a profile.
pub struct About {
    pub types: &'static [(&'static str, &'static str)],
    pub period: (&'static str, &'static str, i64),
    /// The type that is shown when none is asked for; the last one when empty.
    pub shown: &'static str,
    /// Functions that are left out with all that they call: an expression that has to match the whole name.
    pub without: &'static str,
    pub began_nanoseconds: i64,
    pub took: Duration,
}

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A number; zero is what is meant when nothing is written.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn packed(&mut self, field: u64, values: impl Iterator<Item = u64>) {
        let mut inner = Message::default();
        values.for_each(|value| inner.varint(value));
        self.bytes(field, &inner.0);
    }
}

/// The table of texts. The first is empty.
#[derive(Default)]
struct Texts {
    places: BTreeMap<String, u64>,
    all: Vec<String>,
}

impl Texts {
    fn place(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        *self.places.entry(text.to_owned()).or_insert_with(|| {
            self.all.push(text.to_owned());
            self.all.len() as u64
        })
    }
}

/// The places in code of a stack, from the innermost on, and a value of each type.
pub type Sample = (Vec<u64>, Vec<i64>);

/// Writes the samples down.
pub fn write(samples: &[Sample], about: &About) -> Vec<u8> {
    let mut addresses: Vec<u64> = samples.iter().flat_map(|(places, _)| places.iter().copied()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let found = Found::of(&addresses);
    let (mut texts, mut profile) = (Texts::default(), Message::default());
    for (sort, unit) in about.types {
        let (sort, unit) = (texts.place(sort), texts.place(unit));
        profile.message(1, |value| {
            value.number(1, sort);
            value.number(2, unit);
        });
    }
    let number = |at: u64| addresses.partition_point(|other| *other < at) as u64 + 1;
    for (places, values) in samples {
        profile.message(2, |sample| {
            sample.packed(1, places.iter().copied().map(number));
            sample.packed(2, values.iter().map(|value| *value as u64));
        });
    }
    for (index, mapping) in found.mappings.iter().enumerate() {
        let file = texts.place(&mapping.file);
        profile.message(3, |message| {
            message.number(1, index as u64 + 1);
            message.number(2, mapping.start);
            message.number(3, mapping.end);
            message.number(4, mapping.offset);
            message.number(5, file);
            message.number(7, 1);
        });
    }
    functions(&mut profile, &mut texts, &addresses, &found);
    let (sort, unit, every) = about.period;
    let (sort, unit) = (texts.place(sort), texts.place(unit));
    let (shown, without) = (texts.place(about.shown), texts.place(about.without));
    profile.number(7, without);
    profile.bytes(6, b"");
    texts.all.iter().for_each(|text| profile.bytes(6, text.as_bytes()));
    profile.number(9, about.began_nanoseconds as u64);
    profile.number(10, about.took.as_nanos() as u64);
    profile.message(11, |value| {
        value.number(1, sort);
        value.number(2, unit);
    });
    profile.number(12, every as u64);
    profile.number(14, shown);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = zipped.write_all(&profile.0);
    zipped.finish().unwrap_or_default()
}

/// The places in code, and the functions that they are in.
fn functions(profile: &mut Message, texts: &mut Texts, addresses: &[u64], found: &Found) {
    let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
    for (index, at) in addresses.iter().enumerate() {
        let symbol = found.symbol(*at);
        let next = numbers.len() as u64 + 1;
        let function = symbol.map(|symbol| *numbers.entry(symbol).or_insert(next));
        let mapping = found.mappings.iter().position(|mapping| (mapping.start..mapping.end).contains(at));
        profile.message(4, |location| {
            location.number(1, index as u64 + 1);
            location.number(2, mapping.map_or(0, |index| index as u64 + 1));
            location.number(3, *at);
            if let Some(function) = function {
                location.message(4, |line| line.number(1, function));
            }
        });
    }
    for (symbol, number) in numbers {
        let name = texts.place(&format!("{:#}", rustc_demangle::demangle(symbol)));
        let symbol = texts.place(symbol);
        profile.message(5, |function| {
            function.number(1, number);
            function.number(2, name);
            function.number(3, symbol);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_have_the_forms_of_protobuf() {
        let mut message = Message::default();
        message.number(1, 300);
        message.number(2, 0);
        message.bytes(6, b"ab");
        message.packed(1, [1, 128].into_iter());
        assert_eq!(message.0, [0x08, 0xac, 0x02, 0x32, 2, b'a', b'b', 0x0a, 3, 1, 0x80, 1]);
        let mut texts = Texts::default();
        assert_eq!(["", "a", "b", "a"].map(|text| texts.place(text)), [0, 1, 2, 1]);
    }
}
