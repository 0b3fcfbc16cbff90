//! The bounds of the costs of calls, by the sizes of their operands. The rules are those of cel-go's `checker/cost.go` and
//! of Kubernetes's `library/cost.go`; which definitions are accepted depends on them, so that their oddities stay too.

use super::{Operand, Operands, Range};
use crate::budget::LIST_COST;
use crate::typing::Type;

/// The cost of a call without its operands', and the size of its result where the rule knows it.
#[derive(Debug, Clone, Copy)]
pub struct Guess {
    pub cost: Range,
    pub size: Option<Range>,
}

pub type Estimate = fn(&Operands<'_>) -> Guess;

/// For each character of a text that is walked over.
const WALK: f64 = 0.1;
/// For each character of a pattern.
const PATTERN: f64 = 0.25;

impl Guess {
    pub fn costs(cost: Range) -> Guess {
        Guess { cost, size: None }
    }

    fn makes(cost: Range, size: Range) -> Guess {
        Guess { cost, size: Some(size) }
    }
}

pub fn one(_: &Operands<'_>) -> Guess {
    Guess::costs(Range::ONE)
}

/// The cost of one walk over a text of this size.
pub fn walk(size: Range) -> Range {
    size.scaled(WALK)
}

/// One walk over the first operand.
pub fn first(given: &Operands<'_>) -> Guess {
    Guess::costs(walk(given.size(0)))
}

pub fn first_twice(given: &Operands<'_>) -> Guess {
    Guess::costs(given.size(0).scaled(2.0 * WALK))
}

/// One walk over the first operand, which makes something as large.
pub(crate) fn as_large(given: &Operands<'_>) -> Guess {
    Guess::makes(walk(given.size(0)), given.size(0))
}

pub(crate) fn second(given: &Operands<'_>) -> Guess {
    Guess::costs(walk(given.size(1)))
}

/// A character takes up to four bytes.
pub(crate) fn to_bytes(given: &Operands<'_>) -> Guess {
    let size = given.size(0);
    Guess::makes(walk(size), Range { least: size.least, most: size.most.wrapping_mul(4) })
}

pub(crate) fn from_bytes(given: &Operands<'_>) -> Guess {
    let size = given.size(0);
    Guess::makes(walk(size), Range { least: size.least / 4, most: size.most })
}

/// Two marks around, and every character may need one.
pub(crate) fn quoted(given: &Operands<'_>) -> Guess {
    let size = given.size(0);
    let most = size.most.wrapping_mul(2).wrapping_add(2);
    Guess::makes(walk(size), Range { least: size.least.wrapping_add(2), most })
}

/// Texts and bytes are copied into one.
pub(crate) fn joined_texts(given: &Operands<'_>) -> Guess {
    let size = given.size(0).plus(given.size(1));
    Guess::makes(walk(size), size)
}

pub(crate) fn joined_lists(given: &Operands<'_>) -> Guess {
    Guess::makes(Range::ONE, given.size(0).plus(given.size(1)))
}

/// As far as the shorter one reaches.
pub(crate) fn comparison(given: &Operands<'_>) -> Guess {
    let most = given.size(0).most.min(given.size(1).most);
    Guess::costs(walk(Range { least: u64::from(most > 0), most }))
}

/// Types of Kubernetes compare in one step, where upstream knows them.
pub(crate) fn equality(given: &Operands<'_>) -> Guess {
    let name = match (given.kind(0), given.kind(1)) {
        (Type::Opaque(left), Type::Opaque(right)) if left == right => *left,
        _ => return comparison(given),
    };
    match name {
        "kubernetes.NamedFormat" => Guess::costs(walk(Range { least: 1, most: 64 })),
        "kubernetes.URL" => {
            let most = given.computed(1).map_or(1, |size| size.most.max(1));
            Guess::costs(walk(Range { least: 1, most }))
        }
        _ => one(given),
    }
}

pub(crate) fn membership(given: &Operands<'_>) -> Guess {
    Guess::costs(given.size(1))
}

pub(crate) fn containment(given: &Operands<'_>) -> Guess {
    Guess::costs(walk(given.size(0)).times(walk(given.size(1))))
}

fn matching_cost(given: &Operands<'_>) -> Range {
    walk(given.size(0).plus(Range::ONE)).times(given.size(1).scaled(PATTERN))
}

pub(crate) fn matching(given: &Operands<'_>) -> Guess {
    Guess::costs(matching_cost(given))
}

/// At the worst every character is found.
pub(crate) fn found(given: &Operands<'_>) -> Guess {
    Guess::makes(matching_cost(given), Range::up_to(given.size(0).most))
}

/// A walk over a list with the texts in it, or over a text.
pub(crate) fn searched(given: &Operands<'_>) -> Guess {
    let size = given.size(0);
    Guess::costs(match given.item(0) {
        Some((Type::String | Type::Bytes, item)) => size.times(Range::ONE.plus(walk(item))),
        Some(_) => size,
        None => walk(size),
    })
}

pub(crate) fn joined(given: &Operands<'_>) -> Guess {
    let list = given.size(0);
    let mut size = given.item(0).map_or(Range::default(), |(_, item)| list.times(item));
    if given.len() > 1 {
        let between = Range { least: list.least.saturating_sub(1), most: list.most.saturating_sub(1) };
        size = size.plus(given.size(1).times(between));
    }
    Guess::makes(walk(size), size)
}

pub(crate) fn split(given: &Operands<'_>) -> Guess {
    let size = given.size(0);
    #[expect(clippy::cast_sign_loss)]
    let most = given.integer(2).map_or(size.most, |limit| limit as u64);
    Guess::makes(size.scaled(2.0 * WALK), Range::up_to(most))
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn occurrences(text: u64, part: u64) -> u64 {
    (text as f64 / part as f64).ceil() as u64
}

/// The result is largest where the shortest parts become the longest ones, and smallest the other way round.
pub(crate) fn replaced(given: &Operands<'_>) -> Guess {
    let (text, old, new) = (given.size(0), given.size(1), given.size(2));
    let (mut count, mut kept) = (Range::default(), Range::default());
    if old.least == 0 {
        // An empty text is found before and behind every character.
        (count.most, kept.most) = (text.most.saturating_add(1), text.most);
    } else if new.most <= old.least {
        kept.most = text.most;
    } else {
        count.most = occurrences(text.most, old.least);
    }
    if old.most == 0 {
        (count.least, kept.least) = (text.least.saturating_add(1), text.least);
    } else if old.most <= new.least {
        kept.least = text.least;
    } else {
        count.least = occurrences(text.least, old.most);
    }
    Guess::makes(text.scaled(2.0 * WALK), count.times(new).plus(kept))
}

fn making(factor: f64, size: Range) -> Guess {
    Guess::makes(size.scaled(factor).plus(Range::exactly(1 + LIST_COST)), size)
}

/// The value of an integer that is written out.
fn written(given: &Operands<'_>, index: usize, otherwise: u64) -> u64 {
    given.integer(index).map_or(otherwise, |number| u64::try_from(number).unwrap_or(0))
}

pub(crate) fn slice(given: &Operands<'_>) -> Guess {
    let (start, end) = (written(given, 1, 0), written(given, 2, given.size(0).most));
    making(1.0, Range::exactly(end.wrapping_sub(start)))
}

pub(crate) fn range(given: &Operands<'_>) -> Guess {
    making(1.0, Range::exactly(written(given, 0, u64::MAX)))
}

pub(crate) fn copied(given: &Operands<'_>) -> Guess {
    making(1.0, given.size(0))
}

pub(crate) fn flattened(given: &Operands<'_>) -> Guess {
    let depth = if given.len() > 1 { written(given, 1, u64::MAX) } else { 1 };
    #[expect(clippy::cast_precision_loss)]
    making(depth as f64, given.size(0))
}

pub(crate) fn distinct(given: &Operands<'_>) -> Guess {
    making(2.0, given.size(0).times(given.size(0)))
}

fn with_itself(operand: &Operand<'_>) -> Guess {
    let texts = matches!(&operand.kind, Type::List(item) if matches!(**item, Type::String | Type::Bytes));
    making(if texts { 2.0 + WALK } else { 2.0 }, operand.size().times(operand.size()))
}

pub(crate) fn first_sorted(given: &Operands<'_>) -> Guess {
    with_itself(given.get(0))
}

pub(crate) fn second_sorted(given: &Operands<'_>) -> Guess {
    with_itself(given.get(1))
}

pub(crate) fn sets(given: &Operands<'_>) -> Guess {
    Guess::costs(given.size(0).times(given.size(1)).plus(Range::ONE))
}

pub(crate) fn sets_both_ways(given: &Operands<'_>) -> Guess {
    Guess::costs(given.size(0).times(given.size(1)).scaled(2.0).plus(Range::ONE))
}

/// A walk over the second operand for a pattern of this size.
pub fn matching_second(given: &Operands<'_>, pattern: u32) -> Guess {
    Guess::costs(walk(given.size(1)).scaled(f64::from(pattern) * PATTERN))
}
