//! Errors for people, in one line.

/// An error and its causes in one line. A cause that was said already is not said again.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_twice() {
        let error = anyhow::anyhow!("no such file").context("cannot read x: no such file").context("cannot start");
        assert_eq!(sentence(&error), "cannot start: cannot read x: no such file");
        assert_eq!(sentence(&anyhow::anyhow!("one\n  two")), "one two");
    }
}
