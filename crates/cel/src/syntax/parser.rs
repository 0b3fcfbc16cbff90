//! The grammar: operators by precedence, members, literals. Macros are expanded as their calls are read.

use super::ast::{Access, Expr};
use super::lexer::{Placed, Token, tokens};
use super::literal::Literal;
use super::macros;
use crate::error::{CompileError, Issue};
use crate::value::Value;

/// cel-go's bounds of an expression.
const LONGEST: usize = 100_000;
const DEEPEST: usize = 250;
/// Brackets within brackets. cel-go takes as many as levels; each takes the stack of several functions here, so fewer
/// are taken, and still more than anybody writes.
const NESTED: usize = 100;
/// Some macros write their operand twice; nested they would grow without this bound.
const MOST_EXPRESSIONS: usize = 200_000;

const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a name can be that of a variable.
pub fn is_identifier(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let words = ["true", "false", "null", "in"];
    let free = !RESERVED.contains(&name) && !words.contains(&name);
    first && free && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether an expression selects a field of a variable anywhere: `a.b`, `a.?b` or `has(a.b)`. A text that is none does not.
pub fn selects(source: &str, variable: &str, field: &str) -> bool {
    parse(source).is_ok_and(|expr| expr.selects(variable, field))
}

/// The mistake of the grammar at which the reading ends.
type Failed = Issue;

/// Reads an expression.
pub(crate) fn parse(source: &str) -> Result<Expr, CompileError> {
    let size = source.chars().count();
    if size > LONGEST {
        let message = format!("expression code point size exceeds limit: size: {size}, limit {LONGEST}");
        return Err(CompileError::new("", vec![Issue { at: 0, message }]));
    }
    let (tokens, mut issues) = tokens(source);
    let mut parser = Parser { tokens, next: 0, nested: 0, count: 0, issues: Vec::new() };
    let read = parser.expression().and_then(|e| {
        let rest = parser.peek();
        if rest.token == Token::End {
            return Ok(e);
        }
        let message = format!("Syntax error: extraneous input '{}' expecting <EOF>", rest.text);
        Err(Issue { at: rest.at, message })
    });
    issues.append(&mut parser.issues);
    match read {
        Ok(expr) if issues.is_empty() => Ok(expr),
        Ok(_) => Err(CompileError::new(source, issues)),
        Err(issue) => {
            issues.push(issue);
            Err(CompileError::new(source, issues))
        }
    }
}

struct Parser {
    tokens: Vec<Placed>,
    next: usize,
    nested: usize,
    /// Expressions made so far.
    count: usize,
    issues: Vec<Issue>,
}

/// The operators with two sides, from those that bind least.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">", "in"], &["+", "-"], &["*", "/", "%"]];

/// The tokens that an expression may begin with, as messages list them.
const STARTS: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

impl Parser {
    fn peek(&self) -> &Placed {
        &self.tokens[self.next]
    }

    fn take(&mut self) -> Placed {
        let token = self.tokens[self.next].clone();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    /// Takes a mark if it comes next, and says where it stood.
    fn eat(&mut self, mark: &str) -> Option<usize> {
        match &self.peek().token {
            Token::Mark(found) if *found == mark => Some(self.take().at),
            _ => None,
        }
    }

    fn eat_any(&mut self, marks: &[&'static str]) -> Option<(&'static str, usize)> {
        marks.iter().find_map(|mark| self.eat(mark).map(|at| (*mark, at)))
    }

    fn expect(&mut self, mark: &str) -> Result<usize, Failed> {
        self.eat(mark).ok_or_else(|| self.mismatch(&format!("'{mark}'")))
    }

    fn mismatch(&self, expected: &str) -> Failed {
        let found = self.peek();
        Issue { at: found.at, message: format!("Syntax error: mismatched input '{}' expecting {expected}", found.text) }
    }

    /// Refuses trees that are too deep or too large for the walks that follow.
    fn bounded(&mut self, expr: Expr) -> Result<Expr, Failed> {
        self.count += 1;
        if expr.depth > DEEPEST {
            return Err(self.too_deep());
        }
        if self.count > MOST_EXPRESSIONS {
            return Err(Issue { at: expr.at, message: "expression is too large".to_owned() });
        }
        Ok(expr)
    }

    fn expression(&mut self) -> Result<Expr, Failed> {
        self.nested += 1;
        if self.nested > NESTED {
            return Err(self.too_deep());
        }
        let mut read = self.binary(0)?;
        if let Some(at) = self.eat("?") {
            read = self.choice(at, read)?;
        }
        self.nested -= 1;
        Ok(read)
    }

    fn too_deep(&self) -> Failed {
        Issue { at: self.peek().at, message: format!("expression recursion limit exceeded: {DEEPEST}") }
    }

    fn choice(&mut self, at: usize, condition: Expr) -> Result<Expr, Failed> {
        let yes = self.binary(0)?;
        self.expect(":")?;
        let no = self.expression()?;
        self.bounded(Expr::call(at, "_?_:_", vec![condition, yes, no]))
    }

    /// Operators of this level and those that bind tighter. One function for all levels keeps the stack small.
    fn binary(&mut self, lowest: usize) -> Result<Expr, Failed> {
        let mut left = self.unary()?;
        while let Some((level, mark, at)) = self.operator(lowest) {
            let right = self.binary(level + 1)?;
            let mut terms = vec![left, right];
            let name = match mark {
                "in" => "@in".to_owned(),
                "&&" | "||" => {
                    while self.eat(mark).is_some() {
                        terms.push(self.binary(level + 1)?);
                    }
                    format!("_{mark}_")
                }
                mark => format!("_{mark}_"),
            };
            left = self.bounded(Expr::call(at, &name, terms))?;
        }
        Ok(left)
    }

    fn operator(&mut self, lowest: usize) -> Option<(usize, &'static str, usize)> {
        let levels = LEVELS.iter().enumerate().skip(lowest);
        levels.into_iter().find_map(|(level, marks)| self.eat_any(marks).map(|(mark, at)| (level, mark, at)))
    }

    /// Signs in a row cancel each other in pairs.
    fn unary(&mut self) -> Result<Expr, Failed> {
        let Some((mark, at)) = self.eat_any(&["!", "-"]) else { return self.member() };
        if mark == "-"
            && let Token::Literal(Literal::Int(_) | Literal::Double(_)) = self.peek().token
        {
            let literal = self.take();
            let number = self.constant(literal, true).map(|e| Expr { at, ..e })?;
            return self.members(number);
        }
        let mut odd = true;
        while self.eat(mark).is_some() {
            odd = !odd;
        }
        let operand = self.member()?;
        if !odd {
            return Ok(operand);
        }
        self.bounded(Expr::call(at, if mark == "!" { "!_" } else { "-_" }, vec![operand]))
    }

    fn member(&mut self) -> Result<Expr, Failed> {
        let primary = self.primary()?;
        self.members(primary)
    }

    fn members(&mut self, mut expr: Expr) -> Result<Expr, Failed> {
        loop {
            if let Some(at) = self.eat(".") {
                let optional = self.eat("?").is_some();
                let name = self.name()?;
                if !optional && let Some(open) = self.eat("(") {
                    let arguments = self.arguments()?;
                    expr = self.call(open, &name, Some(expr), arguments)?;
                } else {
                    let access = if optional { Access::Optional } else { Access::Plain };
                    expr = Expr::select(at, expr, &name, access);
                }
            } else if let Some(at) = self.eat("[") {
                let name = if self.eat("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.expect("]")?;
                expr = Expr::call(at, name, vec![expr, index]);
            } else {
                return Ok(expr);
            }
            expr = self.bounded(expr)?;
        }
    }

    fn name(&mut self) -> Result<String, Failed> {
        match &self.peek().token {
            Token::Ident(name) => {
                let name = name.clone();
                self.take();
                Ok(name)
            }
            _ => Err(self.mismatch("IDENTIFIER")),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Expr>, Failed> {
        let mut found = Vec::new();
        if self.eat(")").is_some() {
            return Ok(found);
        }
        loop {
            found.push(self.expression()?);
            if self.eat(",").is_none() {
                self.expect(")")?;
                return Ok(found);
            }
        }
    }

    fn call(&mut self, at: usize, name: &str, target: Option<Expr>, arguments: Vec<Expr>) -> Result<Expr, Failed> {
        match macros::expand(at, name, target, arguments) {
            Ok(expanded) => {
                // A part that a macro writes twice counts twice.
                if matches!(name, "optMap" | "optFlatMap") {
                    self.count = self.count.saturating_add(expanded.count());
                }
                self.bounded(expanded)
            }
            Err(issue) => {
                let at = issue.at;
                self.issues.push(issue);
                Ok(Expr::ident(at, super::ast::ACCUMULATOR))
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, Failed> {
        if let Some((mark, at)) = self.eat_any(&["(", "[", "{", "true", "false", "null"]) {
            return match mark {
                "(" => {
                    let inner = self.expression()?;
                    self.expect(")")?;
                    Ok(inner)
                }
                "[" => self.list(at),
                "{" => self.map(at),
                "null" => Ok(Expr::literal(at, Value::Null)),
                word => Ok(Expr::literal(at, Value::Bool(word == "true"))),
            };
        }
        if matches!(self.peek().token, Token::Literal(_)) {
            let literal = self.take();
            return self.constant(literal, false);
        }
        let start = self.peek().at;
        let dotted = self.eat(".").is_some();
        if !matches!(self.peek().token, Token::Ident(_)) {
            return Err(self.mismatch(if dotted { "IDENTIFIER" } else { STARTS }));
        }
        let name = self.name()?;
        if RESERVED.contains(&name.as_str()) {
            self.issues.push(Issue { at: start, message: format!("reserved identifier: {name}") });
        }
        if let Some(open) = self.eat("(") {
            let arguments = self.arguments()?;
            return self.call(open, &name, None, arguments);
        }
        if let Some(object) = self.object(&name, start)? {
            return Ok(object);
        }
        Ok(Expr::ident(start, &name))
    }

    /// `Name.Of.Type{field: value}`. Whether there is such a type is the checker's.
    fn object(&mut self, first: &str, at: usize) -> Result<Option<Expr>, Failed> {
        let mut name = first.to_owned();
        let mut ahead = self.next;
        while self.tokens[ahead].token == Token::Mark(".")
            && let Some(Token::Ident(part)) = self.tokens.get(ahead + 1).map(|t| &t.token)
        {
            name = format!("{name}.{part}");
            ahead += 2;
        }
        if self.tokens[ahead].token != Token::Mark("{") {
            return Ok(None);
        }
        self.next = ahead + 1;
        let mut fields = Vec::new();
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let field = self.name()?;
            self.expect(":")?;
            fields.push((field, self.expression()?, optional));
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.bounded(Expr::object(at, name, fields)).map(Some)
    }

    fn list(&mut self, at: usize) -> Result<Expr, Failed> {
        let mut items = Vec::new();
        while self.eat("]").is_none() {
            let optional = self.eat("?").is_some();
            items.push((self.expression()?, optional));
            if self.eat(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        self.bounded(Expr::list(at, items))
    }

    fn map(&mut self, at: usize) -> Result<Expr, Failed> {
        let mut entries = Vec::new();
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?, optional));
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.bounded(Expr::map(at, entries))
    }

    fn constant(&mut self, placed: Placed, negative: bool) -> Result<Expr, Failed> {
        let Token::Literal(literal) = placed.token else { return Err(self.mismatch(STARTS)) };
        let value = match literal {
            Literal::Int(magnitude) => {
                let int = i128::from(magnitude) * if negative { -1 } else { 1 };
                let int = i64::try_from(int);
                Value::Int(int.map_err(|_| Issue { at: placed.at, message: "invalid int literal".to_owned() })?)
            }
            Literal::Uint(uint) => Value::Uint(uint),
            Literal::Double(double) => Value::Double(if negative { -double } else { double }),
            Literal::String(text) => Value::string(text),
            Literal::Bytes(bytes) => Value::Bytes(bytes.into()),
        };
        self.count += 1;
        Ok(Expr::literal(placed.at, value))
    }
}
