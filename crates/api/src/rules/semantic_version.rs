//! Semantic versions (semver.org, 2.0.0): three numbers, perhaps with the name of what came before the release.

use std::cmp::Ordering;

/// A version without its build metadata, which does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SemanticVersion {
    numbers: [u64; 3],
    /// The part behind the dash, cut at its dots.
    before: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Word(String),
}

impl SemanticVersion {
    pub fn parse(text: &str) -> Option<Self> {
        let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
        if build.is_some_and(|build| !build.split('.').all(is_word)) {
            return None;
        }
        let (numbers, before) = text.split_once('-').map_or((text, None), |(numbers, before)| (numbers, Some(before)));
        let mut parts = numbers.split('.').map(number);
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        let before = before.into_iter().flat_map(|before| before.split('.')).map(part).collect::<Option<_>>()?;
        parts.next().is_none().then_some(SemanticVersion { numbers, before })
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Digits without a zero in front.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

fn part(text: &str) -> Option<Part> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return number(text).map(Part::Number);
    }
    is_word(text).then(|| Part::Word(text.to_owned()))
}

impl Ord for SemanticVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let released = |version: &Self| version.before.is_empty();
        let numbers = self.numbers.cmp(&other.numbers);
        numbers.then(released(self).cmp(&released(other))).then_with(|| self.before.cmp(&other.before))
    }
}

impl PartialOrd for SemanticVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::SemanticVersion;

    #[test]
    fn versions_are_in_order() {
        let texts = [
            "0.0.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.2.0",
            "1.10.0",
            "2.0.0",
        ];
        let versions: Vec<_> = texts.iter().map(|text| SemanticVersion::parse(text).expect(text)).collect();
        assert!(versions.is_sorted() && versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
        assert_eq!(SemanticVersion::parse("1.0.0+build.1"), SemanticVersion::parse("1.0.0"));
        for wrong in [
            "",
            "1",
            "1.0",
            "1.0.0.0",
            "v1.0.0",
            "01.0.0",
            "1.0.0-",
            "1.0.0-01",
            "1.0.0-a..b",
            "1.0.0+",
            "1.0.x",
            "1.-1.0",
        ] {
            assert_eq!(SemanticVersion::parse(wrong), None, "{wrong}");
        }
    }
}
