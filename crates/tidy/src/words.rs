//! The words of comments: sentences with a subject, and no riddles.

use crate::repository::sources;

/// The text of a comment that has its line for itself.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim_start())
}

/// The first line of a comment that begins with a question's word where a subject belongs, or that keeps a number to itself.
fn riddle(text: &str) -> Option<String> {
    let is_riddle = |said: &str| {
        let asks = ["What ", "Who ", "Whom ", "Whose "].iter().any(|word| said.starts_with(word));
        asks || said.to_lowercase().contains("so many")
    };
    let found = text.lines().enumerate().find(|(_, line)| comment(line).is_some_and(is_riddle));
    found.map(|(at, line)| format!("{}: {}", at + 1, line.trim()))
}

#[test]
fn comments_say_what_things_are() {
    let riddles = sources().into_iter().filter_map(|s| riddle(&s.text).map(|line| format!("{}:{line}", s.path)));
    let riddles: Vec<String> = riddles.collect();
    assert!(
        riddles.is_empty(),
        "a comment is a sentence with a subject: no line begins with \"What\", \"Who\", \"Whom\" or \"Whose\" (\"The objects \
         that …\" instead of \"What …\"), and a number is named, not called \"so many\"\n{}",
        riddles.join("\n")
    );
}

#[test]
fn riddles_are_found_in_comments_alone() {
    let check = |text: &str, expected: Option<&str>| assert_eq!(riddle(text).as_deref(), expected, "{text}");
    check("/// The objects that a watcher may see.\nlet what = \"What a watcher may see\";", None);
    check("//! Objects.\n\n    /// What a watcher may see.", Some("3: /// What a watcher may see."));
    check("// Who asked may have given up.", Some("1: // Who asked may have given up."));
    check("/// Whose tokens are believed.", Some("1: /// Whose tokens are believed."));
    check("//! One file.\n//! What it holds.", Some("2: //! What it holds."));
    check("/// So many are kept.", Some("1: /// So many are kept."));
    check("/// Whoever asks is told. Whatever comes is kept.", None);
}
