//! The grammar of label selectors as text, with upstream's messages (apimachinery's `labels/selector.go`).

use super::requirement::{Operator, Requirement, check_requirement};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    /// One of `( ) , ! = == != > <`.
    Sign(&'static str),
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(word) => word,
            Token::Sign(sign) => sign,
            Token::End => "",
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut list = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            list.push(Token::End);
            return list;
        }
        if let Some(sign) = ["==", "!=", "(", ")", ",", "!", "=", ">", "<"].into_iter().find(|s| rest.starts_with(s)) {
            list.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
            continue;
        }
        let end = rest.find(|c: char| " \t\r\n(),!=><".contains(c)).unwrap_or(rest.len());
        list.push(Token::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

pub(crate) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: tokens(text), at: 0 };
    let mut list = Vec::new();
    loop {
        match parser.peek() {
            Token::Word(_) | Token::Sign("!") => {
                let requirement = parser.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?;
                list.push(requirement);
                match parser.next() {
                    Token::End => return Ok(list),
                    Token::Sign(",") => {
                        if !matches!(parser.peek(), Token::Word(_) | Token::Sign("!")) {
                            return Err(format!("found '{}', expected: identifier after ','", parser.peek().text()));
                        }
                    }
                    other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
                }
            }
            Token::End => return Ok(list),
            other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text())),
        }
    }
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = *self.peek() == Token::Sign("!");
        if absent {
            self.at += 1;
        }
        let key = match self.next() {
            Token::Word(word) => word,
            other => return Err(format!("found '{}', expected: identifier", other.text())),
        };
        let requirement = if absent {
            Requirement::new(&key, Operator::DoesNotExist, &[])
        } else if matches!(self.peek(), Token::End | Token::Sign(",")) {
            Requirement::new(&key, Operator::Exists, &[])
        } else {
            self.comparison(&key)?
        };
        check_requirement(&requirement)?;
        Ok(requirement)
    }

    fn comparison(&mut self, key: &str) -> Result<Requirement, String> {
        let token = self.next();
        let set = match token.text() {
            "=" | "==" => return Ok(Requirement::new(key, Operator::In, &[&self.value()?])),
            "!=" => return Ok(Requirement::new(key, Operator::NotIn, &[&self.value()?])),
            ">" => return Ok(Requirement::new(key, Operator::GreaterThan, &[&self.value()?])),
            "<" => return Ok(Requirement::new(key, Operator::LessThan, &[&self.value()?])),
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        let values = self.values()?;
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        Ok(Requirement::new_set(key, set, &values))
    }

    /// One value after `=`; nothing means the empty value.
    fn value(&mut self) -> Result<String, String> {
        match self.peek().clone() {
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            Token::End | Token::Sign(",") => Ok(String::new()),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// `(a, b)`; an empty place is the empty value.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            Token::Sign("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.text())),
        }
        let mut list = vec![String::new()];
        loop {
            match self.next() {
                Token::Word(word) => match list.last_mut() {
                    Some(last) if last.is_empty() => *last = word,
                    _ => return Err(format!("found '{word}', expected: ',' or ')'")),
                },
                Token::Sign(",") => list.push(String::new()),
                Token::Sign(")") => return Ok(list),
                other => {
                    let wanted = match list.as_slice() {
                        [first] if first.is_empty() => "',', ')' or identifier",
                        [.., last] if last.is_empty() => "',', or identifier",
                        _ => "',' or ')'",
                    };
                    return Err(format!("found '{}', expected: {wanted}", other.text()));
                }
            }
        }
    }
}
