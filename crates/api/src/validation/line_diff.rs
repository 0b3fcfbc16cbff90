//! The difference of two texts, line by line, as the unified diff that Python's difflib makes: clients read such diffs in
//! messages, so the choice of matching lines is difflib's too.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

/// Steps that the search for matching lines takes, for each line of the texts and in all; texts of objects that people
/// write stay far below it. A match that is not found by then is shown as different: still a diff, not the shortest.
const STEPS_PER_LINE: usize = 500;
const STEPS_MAX: usize = 4_000_000;

/// From this many lines on, lines that stand in more than one in a hundred places do not guide the matching.
const MANY: usize = 200;

/// Lines `a..a + size` of the one text are lines `b..b + size` of the other.
#[derive(Debug, Clone, Copy)]
struct Match {
    a: usize,
    b: usize,
    size: usize,
}

/// A run of lines: the same in both texts or not.
#[derive(Debug, Clone, Copy)]
struct Run {
    same: bool,
    a: (usize, usize),
    b: (usize, usize),
}

struct Matcher<'a> {
    a: Vec<&'a str>,
    b: Vec<&'a str>,
    /// Where each line stands in `b`.
    places: HashMap<&'a str, Vec<usize>>,
    /// Steps that are left.
    steps: Cell<usize>,
}

impl<'a> Matcher<'a> {
    fn new(a: &'a str, b: &'a str) -> Self {
        let (a, b): (Vec<&str>, Vec<&str>) = (a.split('\n').collect(), b.split('\n').collect());
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, line) in b.iter().enumerate() {
            places.entry(line).or_default().push(i);
        }
        if b.len() >= MANY {
            places.retain(|_, list| list.len() <= b.len() / 100 + 1);
        }
        let steps = Cell::new(STEPS_MAX.min((a.len() + b.len()) * STEPS_PER_LINE));
        Matcher { a, b, places, steps }
    }

    /// The longest run of the same lines within these ranges, the first of several.
    fn longest(&self, a: (usize, usize), b: (usize, usize)) -> Match {
        let mut best = Match { a: a.0, b: b.0, size: 0 };
        // Length of the run that ends at a place in `b` and at the line of `a` before this one.
        let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
        for i in a.0..a.1 {
            let mut longer = BTreeMap::new();
            let places = self.places.get(self.a[i]).map(Vec::as_slice).unwrap_or_default();
            let places = &places[places.partition_point(|j| *j < b.0)..places.partition_point(|j| *j < b.1)];
            let Some(left) = self.steps.get().checked_sub(places.len() + 1) else {
                self.steps.set(0);
                return Match { a: a.0, b: b.0, size: 0 };
            };
            self.steps.set(left);
            for &j in places {
                let size = j.checked_sub(1).and_then(|before| lengths.get(&before)).unwrap_or(&0) + 1;
                longer.insert(j, size);
                if size > best.size {
                    best = Match { a: i + 1 - size, b: j + 1 - size, size };
                }
            }
            lengths = longer;
        }
        while best.a > a.0 && best.b > b.0 && self.a[best.a - 1] == self.b[best.b - 1] {
            best = Match { a: best.a - 1, b: best.b - 1, size: best.size + 1 };
        }
        while best.a + best.size < a.1
            && best.b + best.size < b.1
            && self.a[best.a + best.size] == self.b[best.b + best.size]
        {
            best.size += 1;
        }
        best
    }

    /// All matches in order. Ranges that are still to be searched wait in a list, so that no text is too long.
    fn matches(&self) -> Vec<Match> {
        let mut found = Vec::new();
        let mut waiting = vec![((0, self.a.len()), (0, self.b.len()))];
        while let Some((a, b)) = waiting.pop() {
            let best = self.longest(a, b);
            if best.size == 0 {
                continue;
            }
            found.push(best);
            if a.0 < best.a && b.0 < best.b {
                waiting.push(((a.0, best.a), (b.0, best.b)));
            }
            if best.a + best.size < a.1 && best.b + best.size < b.1 {
                waiting.push(((best.a + best.size, a.1), (best.b + best.size, b.1)));
            }
        }
        found.sort_by_key(|m| m.a);
        found.push(Match { a: self.a.len(), b: self.b.len(), size: 0 });
        found
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut a, mut b) = (0, 0);
        for found in self.matches() {
            if a < found.a || b < found.b {
                runs.push(Run { same: false, a: (a, found.a), b: (b, found.b) });
            }
            (a, b) = (found.a + found.size, found.b + found.size);
            match runs.last_mut() {
                Some(last) if last.same => (last.a.1, last.b.1) = (a, b),
                _ if found.size > 0 => runs.push(Run { same: true, a: (found.a, a), b: (found.b, b) }),
                _ => {}
            }
        }
        runs
    }

    /// Runs that belong together, with no more than `context` lines that are the same around them.
    fn groups(&self, context: usize) -> Vec<Vec<Run>> {
        let tail = |r: &Run| Run {
            a: (r.a.0.max(r.a.1.saturating_sub(context)), r.a.1),
            b: (r.b.0.max(r.b.1.saturating_sub(context)), r.b.1),
            ..*r
        };
        let head =
            |r: &Run| Run { a: (r.a.0, r.a.1.min(r.a.0 + context)), b: (r.b.0, r.b.1.min(r.b.0 + context)), ..*r };
        let mut runs = self.runs();
        if let Some(first) = runs.first_mut().filter(|r| r.same) {
            *first = tail(first);
        }
        if let Some(last) = runs.last_mut().filter(|r| r.same) {
            *last = head(last);
        }
        let mut groups = vec![Vec::new()];
        for run in runs {
            let group = groups.last_mut().expect("there is always one");
            if run.same && run.a.1 - run.a.0 > 2 * context {
                group.push(head(&run));
                groups.push(vec![tail(&run)]);
            } else {
                group.push(run);
            }
        }
        groups.retain(|group| group.iter().any(|run| !run.same));
        groups
    }
}

fn range((start, end): (usize, usize)) -> String {
    match end - start {
        1 => format!("{}", start + 1),
        0 => format!("{start},0"),
        length => format!("{},{length}", start + 1),
    }
}

/// The unified diff without a header; empty when the texts are the same.
pub(crate) fn unified(a: &str, b: &str, context: usize) -> String {
    let matcher = Matcher::new(a, b);
    let mut out = String::new();
    for group in matcher.groups(context) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let _ = writeln!(out, "@@ -{} +{} @@", range((first.a.0, last.a.1)), range((first.b.0, last.b.1)));
        for run in &group {
            let mut put = |sign: char, lines: &[&str]| {
                for line in lines {
                    let _ = writeln!(out, "{sign}{line}");
                }
            };
            if run.same {
                put(' ', &matcher.a[run.a.0..run.a.1]);
            } else {
                put('-', &matcher.a[run.a.0..run.a.1]);
                put('+', &matcher.b[run.b.0..run.b.1]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(a: &str, b: &str, expected: &str) {
        let lines = |text: &str| text.split(' ').collect::<Vec<_>>().join("\n");
        assert_eq!(unified(&lines(a), &lines(b), 1).trim_end().replace('\n', " "), expected);
    }

    /// Without a bound on the search these would take minutes.
    #[test]
    fn the_search_ends() {
        let text = |lines: &mut dyn Iterator<Item = usize>| lines.map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let few = text(&mut (0..100_000).map(|n| n % 997));
        let backwards = text(&mut (0..100_000).rev().map(|n| n % 997));
        let diff = unified(&few, &backwards, 1);
        assert!(diff.starts_with("@@ "));
        let count = |sign: char| diff.lines().filter(|line| line.starts_with(sign)).count();
        assert_eq!(count('-'), count('+'));
        let far = text(&mut (0..100_000));
        assert!(unified(&far, &text(&mut (0..100_000).rev()), 1).len() > far.len());
    }

    #[test]
    fn diffs() {
        check("a b c", "a b c", "");
        check("a b c", "a x c", "@@ -1,3 +1,3 @@  a -b +x  c");
        check("a b c d e", "a b c d e f", "@@ -5 +5,2 @@  e +f");
        check("a b c d e f g", "x b c d e f y", "@@ -1,2 +1,2 @@ -a +x  b @@ -6,2 +6,2 @@  f -g +y");
        check("a b", "b", "@@ -1,2 +1 @@ -a  b");
    }
}
