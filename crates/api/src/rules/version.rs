//! Versions of groups, by their maturity.
//! Upstream counterpart: `CompareKubeAwareVersionStrings` of apimachinery/pkg/version.

use std::cmp::Ordering;

/// Compares versions by their maturity: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, and then whatever is none of these.
pub fn compare(a: &str, b: &str) -> Ordering {
    match (parts(a), parts(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stage, major and minor number of a version such as `v1beta2`.
fn parts(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = (rest[..end].parse().ok()?, &rest[end..]);
    let staged = |word: &str| rest.strip_prefix(word).and_then(|minor| minor.parse().ok());
    match (rest, staged("beta"), staged("alpha")) {
        ("", ..) => Some((2, major, 0)),
        (_, Some(minor), _) => Some((1, major, minor)),
        (_, _, Some(minor)) => Some((0, major, minor)),
        _ => None,
    }
}
