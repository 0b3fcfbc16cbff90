//! Sets of completion indexes, as `status.completedIndexes` and success policies write them: `0-3,5,7,8`.

use std::fmt;

use crate::validation::field::quote;

/// Closed intervals in ascending order that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Reads the indexes below `completions`. Parts that cannot be read are left out.
    pub fn parse(text: &str, completions: i32) -> Self {
        let intervals = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
            (first >= 0).then_some((first, last.min(completions - 1)))
        });
        Self::merged(intervals.filter(|(first, last)| first <= last).collect())
    }

    /// Reads a text that has to keep the form: ascending indexes below `completions`. The error says what is wrong.
    pub fn parse_strict(text: &str, completions: i32) -> Result<Self, String> {
        let mut intervals: Vec<(i32, i32)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = interval(part, completions)?;
            if let Some((_, before)) = intervals.last().filter(|(_, before)| *before >= first) {
                return Err(format!("non-increasing order, previous: {before}, current: {first}"));
            }
            intervals.push((first, last));
        }
        Ok(Self::merged(intervals))
    }

    fn merged(mut intervals: Vec<(i32, i32)>) -> Self {
        intervals.sort_unstable();
        let mut merged: Vec<(i32, i32)> = Vec::new();
        for (first, last) in intervals {
            match merged.last_mut() {
                Some(held) if first <= held.1.saturating_add(1) => held.1 = held.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Indexes(merged)
    }

    pub fn union(&self, other: &Indexes) -> Self {
        Self::merged(self.0.iter().chain(&other.0).copied().collect())
    }

    pub fn len(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, index: i32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// The lowest index that is in both sets.
    pub fn first_common(&self, other: &Indexes) -> Option<i32> {
        let later = |mine: &(i32, i32), theirs: &(i32, i32)| mine.0.max(theirs.0);
        let meets = |mine: &(i32, i32), theirs: &(i32, i32)| later(mine, theirs) <= mine.1.min(theirs.1);
        self.0.iter().find_map(|mine| {
            let at = other.0.partition_point(|(_, last)| *last < mine.0);
            other.0.get(at).filter(|theirs| meets(mine, theirs)).map(|theirs| later(mine, theirs))
        })
    }

    /// How many indexes are in both sets.
    pub fn common(&self, other: &Indexes) -> i32 {
        let (mut a, mut b, mut common) = (self.0.as_slice(), other.0.as_slice(), 0);
        while let (Some(mine), Some(theirs)) = (a.first(), b.first()) {
            common += (mine.1.min(theirs.1) - mine.0.max(theirs.0) + 1).max(0);
            if mine.1 <= theirs.1 {
                a = &a[1..];
            } else {
                b = &b[1..];
            }
        }
        common
    }

    /// The lowest indexes below `completions` that the set lacks, at most `most` of them.
    pub fn lowest_missing(&self, completions: i32, most: usize) -> Vec<i32> {
        let mut missing = Vec::new();
        let mut next = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            let room = most - missing.len();
            missing.extend((next..first.min(completions)).take(room));
            next = last.saturating_add(1);
        }
        missing
    }
}

/// One index, or the first and the last of several.
fn interval(part: &str, completions: i32) -> Result<(i32, i32), String> {
    let index = |text: &str| match text.parse::<i32>() {
        Err(_) => Err(format!("cannot convert string to integer for index: {}", quote(text))),
        Ok(index) if index >= completions => Err(format!("too large index: {}", quote(text))),
        Ok(index) => Ok(index),
    };
    match part.split('-').collect::<Vec<_>>()[..] {
        [only] => Ok((index(only)?, index(only)?)),
        [first, last] => match (index(first)?, index(last)?) {
            (first, last) if first >= last => Err(format!("non-increasing order, previous: {first}, current: {last}")),
            ends => Ok(ends),
        },
        _ => Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'",
            quote(part)
        )),
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Self::merged(indexes.into_iter().map(|index| (index, index)).collect())
    }
}

/// Two neighbours are written as `7,8`, more as `7-9`.
impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_a_set_and_text_again() {
        let check = |text: &str, completions: i32, expected: &str| {
            assert_eq!(Indexes::parse(text, completions).to_string(), expected, "{text} below {completions}");
        };
        check("", 5, "");
        check("0", 1, "0");
        check("0", 0, "");
        check("0,1", 5, "0,1");
        check("0-2,4,6-8", 10, "0-2,4,6-8");
        check("0-2,3", 10, "0-3");
        check("0-8", 5, "0-4");
        check("0-2,4,6-8", 5, "0-2,4");
        check("a,1,b-3,4-c,6", 10, "1,6");
        check("5-3,-2,7", 10, "7");
        check("6,1-3,2-4", 10, "1-4,6");
    }

    #[test]
    fn a_text_that_has_to_keep_the_form_is_read_or_refused() {
        let check = |text: &str, expected: Result<i32, &str>| {
            let read = Indexes::parse_strict(text, 10).map(|indexes| indexes.len());
            assert_eq!(read, expected.map_err(str::to_owned), "{text}");
        };
        check("", Ok(0));
        check("0", Ok(1));
        check("0-2,4,6-9", Ok(8));
        check("1,2,3", Ok(3));
        check("a", Err("cannot convert string to integer for index: \"a\""));
        check("1,", Err("cannot convert string to integer for index: \"\""));
        check("-1", Err("cannot convert string to integer for index: \"\""));
        check("1-b", Err("cannot convert string to integer for index: \"b\""));
        check("10", Err("too large index: \"10\""));
        check("3-10", Err("too large index: \"10\""));
        check("3,3", Err("non-increasing order, previous: 3, current: 3"));
        check("2-4,3", Err("non-increasing order, previous: 4, current: 3"));
        check("4-4", Err("non-increasing order, previous: 4, current: 4"));
        let parts = "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts \
                     separated by '-'";
        check("1-2-3", Err(parts));
    }

    #[test]
    fn sets_are_joined_and_compared() {
        let set = |text: &str| Indexes::parse(text, 100);
        let check = |a: &str, b: &str, union: &str, common: i32| {
            assert_eq!(set(a).union(&set(b)).to_string(), union, "{a} and {b}");
            assert_eq!((set(a).common(&set(b)), set(b).common(&set(a))), (common, common), "{a} and {b}");
            let first = (0..100).find(|i| set(a).contains(*i) && set(b).contains(*i));
            assert_eq!((set(a).first_common(&set(b)), set(b).first_common(&set(a))), (first, first), "{a} and {b}");
        };
        check("", "", "", 0);
        check("0-3", "", "0-3", 0);
        check("0-3", "2-5", "0-5", 2);
        check("0,2,4", "1,3", "0-4", 0);
        check("0-9", "1,3-5,9,11", "0-9,11", 5);
        assert_eq!(set("0-2,4,6-8").len(), 7);
        let inside: Vec<i32> = (0..10).filter(|i| set("0-2,4,6-8").contains(*i)).collect();
        assert_eq!(inside, [0, 1, 2, 4, 6, 7, 8]);
        assert_eq!([3, 1, 2, 7, 1].into_iter().collect::<Indexes>(), set("1-3,7"));
    }

    #[test]
    fn the_lowest_missing_come_first() {
        let check = |text: &str, completions: i32, most: usize, expected: &[i32]| {
            assert_eq!(
                Indexes::parse(text, 100).lowest_missing(completions, most),
                expected,
                "{text} of {completions}"
            );
        };
        check("", 3, 5, &[0, 1, 2]);
        check("", 3, 2, &[0, 1]);
        check("0-2", 3, 5, &[]);
        check("1,3-4", 7, 3, &[0, 2, 5]);
        check("1,8-9", 5, 9, &[0, 2, 3, 4]);
        check("0", 0, 9, &[]);
    }
}
