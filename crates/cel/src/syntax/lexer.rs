//! Text into tokens.

use super::literal::{self, Literal};
use crate::error::Issue;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Ident(String),
    Literal(Literal),
    /// An operator or a bracket, and the words `in`, `true`, `false` and `null`.
    Mark(&'static str),
    End,
}

#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub token: Token,
    pub at: usize,
    /// The text, for messages.
    pub text: String,
}

const MARKS: [&str; 27] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]",
    "{", "}", "true", "false", "null",
];

/// The tokens of a text, and what in it is no token. The last token is always `End`.
pub(super) fn tokens(source: &str) -> (Vec<Placed>, Vec<Issue>) {
    let chars: Vec<char> = source.chars().collect();
    let (mut found, mut issues) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        if matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}') {
            at += 1;
            continue;
        }
        if chars[at..].starts_with(&['/', '/']) {
            at += chars[at..].iter().take_while(|c| **c != '\n').count();
            continue;
        }
        match one(&chars, at) {
            Ok((token, length)) => {
                found.push(Placed { token, at, text: chars[at..at + length].iter().collect() });
                at += length;
            }
            Err((message, length)) => {
                issues.push(Issue { at, message });
                at += length.max(1);
            }
        }
    }
    found.push(Placed { token: Token::End, at, text: "<EOF>".to_owned() });
    (found, issues)
}

/// The token at a place and its length, or what is wrong and how much to pass over.
fn one(chars: &[char], at: usize) -> Result<(Token, usize), (String, usize)> {
    let rest = &chars[at..];
    if let Some(read) = literal::string(rest) {
        return read.map(|(value, length)| (Token::Literal(value), length));
    }
    let next_is_digit = rest.get(1).is_some_and(char::is_ascii_digit);
    if rest[0].is_ascii_digit() || (rest[0] == '.' && next_is_digit) {
        return literal::number(rest).map(|(value, length)| (Token::Literal(value), length));
    }
    if rest[0].is_ascii_alphabetic() || rest[0] == '_' {
        let length = rest.iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').count();
        let word: String = rest[..length].iter().collect();
        let mark = ["in", "true", "false", "null"].into_iter().find(|m| *m == word);
        return Ok((mark.map_or(Token::Ident(word), Token::Mark), length));
    }
    let starts = |mark: &str| rest.len() >= mark.len() && mark.chars().zip(rest).all(|(m, c)| m == *c);
    if let Some(mark) = MARKS.into_iter().find(|m| starts(m)) {
        return Ok((Token::Mark(mark), mark.len()));
    }
    Err((format!("Syntax error: token recognition error at: '{}'", rest[0]), 1))
}
