//! The errors of an expression: when it is compiled, with its place in the source, and when it is evaluated.

use std::fmt::{self, Display, Write};

/// One finding about an expression's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Code points before the place.
    pub(crate) at: usize,
    pub message: String,
}

/// Everything that is wrong with an expression. `Display` shows each finding with its line, as cel-go does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    text: String,
    issues: Vec<Issue>,
    instantiation: bool,
}

/// More findings than this are not reported: one slip in a long expression makes many.
const MOST_ISSUES: usize = 100;

impl CompileError {
    pub(crate) fn new(source: &str, mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|i| i.at);
        issues.truncate(MOST_ISSUES);
        let mut text = String::new();
        for (index, issue) in issues.iter().enumerate() {
            if index > 0 {
                text.push('\n');
            }
            snippet(source, issue, &mut text);
        }
        CompileError { text, issues, instantiation: false }
    }

    /// A finding that has no place, such as a result of the wrong type.
    pub(crate) fn whole(message: String) -> Self {
        CompileError { text: message.clone(), issues: vec![Issue { at: 0, message }], instantiation: false }
    }

    /// A finding in an expression that is right as such, and still makes no program.
    pub(crate) fn of_program(message: String) -> Self {
        CompileError { instantiation: true, ..CompileError::whole(message) }
    }

    /// Whether the expression is right as such: it was its program that could not be made.
    pub fn is_instantiation(&self) -> bool {
        self.instantiation
    }

    pub fn issues(&self) -> &[Issue] {
        &self.issues
    }
}

/// `ERROR: <input>:1:3: message`, the line, and a mark below the place.
fn snippet(source: &str, issue: &Issue, out: &mut String) {
    let before: String = source.chars().take(issue.at).collect();
    let line = before.matches('\n').count();
    let column = before.chars().rev().take_while(|c| *c != '\n').count();
    let text = source.split('\n').nth(line).unwrap_or_default().replace('\t', " ");
    let _ = write!(out, "ERROR: <input>:{}:{}: {}", line + 1, column + 1, issue.message);
    let _ = write!(out, "\n | {text}\n | {}^", ".".repeat(column));
}

impl Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CompileError {}

/// Why an evaluation has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The expression's own error. `||`, `&&` and the quantifiers pass over it when the other side decides.
    #[error("{0}")]
    Failed(String),
    /// The budget is used up; nothing passes over this one.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimitExceeded,
}

impl EvaluationError {
    pub fn new(message: impl Into<String>) -> Self {
        EvaluationError::Failed(message.into())
    }

    /// Arguments that a function does not take.
    pub fn no_such_overload() -> Self {
        EvaluationError::new("no such overload")
    }

    pub(crate) fn no_such_key(key: impl Display) -> Self {
        EvaluationError::Failed(format!("no such key: {key}"))
    }
}
