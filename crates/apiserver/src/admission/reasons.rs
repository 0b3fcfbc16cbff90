//! Several reasons of one refusal, shown as upstream's aggregated errors are.

use std::collections::HashSet;

/// One reason as it is, more of them in brackets, each once; `None` without any.
pub(crate) fn together<R: AsRef<str>>(reasons: &[R]) -> Option<String> {
    let mut said = HashSet::new();
    let each: Vec<&str> = reasons.iter().map(AsRef::as_ref).filter(|reason| said.insert(*reason)).collect();
    match each.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_shown_once() {
        let check = |reasons: &[&str], expected: Option<&str>| assert_eq!(together(reasons).as_deref(), expected);
        check(&[], None);
        check(&["a"], Some("a"));
        check(&["a", "a"], Some("a"));
        check(&["b", "a", "b"], Some("[b, a]"));
    }
}
