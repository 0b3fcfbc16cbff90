//! JSON paths of printer columns: `.status.conditions[?(@.type=="Ready")].status`. The first value that a path finds is
//! shown.
//! Upstream counterpart: client-go/util/jsonpath, of which columns use the part without ranges over several results.

use json::Value;

/// A path, read once.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// From the end when negative.
    Item(i64),
    /// Items from and up to these.
    Slice(Option<i64>, Option<i64>),
    All,
    /// `..`: everything below.
    Below,
    Filter(Vec<Step>, Option<(Test, Operand)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Value(Value),
    Path(Vec<Step>),
}

const TESTS: [(&str, Test); 6] = [
    ("==", Test::Equal),
    ("!=", Test::Unequal),
    ("<=", Test::LessOrEqual),
    (">=", Test::GreaterOrEqual),
    ("<", Test::Less),
    (">", Test::Greater),
];

impl JsonPath {
    /// `None` for what is no path.
    pub fn parse(text: &str) -> Option<JsonPath> {
        let mut reader = Reader { rest: text.strip_prefix('$').unwrap_or(text) };
        let steps = reader.steps()?;
        reader.rest.is_empty().then_some(JsonPath(steps))
    }

    /// The first value that the path finds.
    pub fn first<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        find(&self.0, object)
    }
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Steps up to the end or to what belongs to no path.
    fn steps(&mut self) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        loop {
            if self.take("..") {
                steps.push(Step::Below);
                if !self.rest.starts_with('[') {
                    self.name(&mut steps);
                }
            } else if self.take(".") {
                self.name(&mut steps);
            } else if self.take("[") {
                steps.push(self.bracket()?);
            } else {
                return Some(steps);
            }
        }
    }

    /// A field's name; a mark in it stands behind a backslash.
    fn name(&mut self, steps: &mut Vec<Step>) {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                '.' | '[' | ' ' | ')' | '=' | '!' | '<' | '>' | ']' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        match name.as_str() {
            "" => {}
            "*" => steps.push(Step::All),
            _ => steps.push(Step::Field(name)),
        }
    }

    fn bracket(&mut self) -> Option<Step> {
        if self.take("?(") {
            let step = self.filter()?;
            return self.take(")]").then_some(step);
        }
        if let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            let text = self.quoted(quote)?;
            return self.take("]").then_some(Step::Field(text));
        }
        let (inner, rest) = self.rest.split_once(']')?;
        self.rest = rest;
        let number = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
        match inner.trim() {
            "*" => Some(Step::All),
            inner => match inner.split_once(':') {
                Some((from, to)) => Some(Step::Slice(number(from)?, number(to)?)),
                None => inner.parse().ok().map(Step::Item),
            },
        }
    }

    fn quoted(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }

    fn operand(&mut self) -> Option<Operand> {
        self.rest = self.rest.trim_start();
        if self.take("@") {
            return self.steps().map(Operand::Path);
        }
        if let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            return self.quoted(quote).map(|text| Operand::Value(text.into()));
        }
        let end = self.rest.find([')', ' ']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        serde_json::from_str(word).ok().map(Operand::Value)
    }

    fn filter(&mut self) -> Option<Step> {
        let Operand::Path(path) = self.operand()? else { return None };
        self.rest = self.rest.trim_start();
        let test = TESTS.iter().find(|(sign, _)| self.rest.starts_with(sign));
        let Some((sign, test)) = test else { return Some(Step::Filter(path, None)) };
        self.rest = &self.rest[sign.len()..];
        let operand = self.operand()?;
        self.rest = self.rest.trim_start();
        Some(Step::Filter(path, Some((*test, operand))))
    }
}

fn find<'v>(steps: &[Step], value: &'v Value) -> Option<&'v Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    match step {
        Step::Field(name) => find(rest, value.get(name)?),
        Step::Item(at) => find(rest, list.get(position(*at, list.len()))?),
        Step::Slice(from, to) => {
            let from = from.map_or(0, |at| position(at, list.len()));
            let to = to.map_or(list.len(), |at| position(at, list.len())).min(list.len());
            list.get(from..to)?.iter().find_map(|item| find(rest, item))
        }
        Step::All => children(value).find_map(|child| find(rest, child)),
        Step::Below => find(rest, value).or_else(|| children(value).find_map(|child| find(steps, child))),
        Step::Filter(path, test) => {
            children(value).filter(|item| holds(path, test.as_ref(), item)).find_map(|i| find(rest, i))
        }
    }
}

fn position(at: i64, length: usize) -> usize {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    usize::try_from(if at < 0 { length + at } else { at }).unwrap_or(usize::MAX)
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn holds(path: &[Step], test: Option<&(Test, Operand)>, item: &Value) -> bool {
    let Some(left) = find(path, item) else { return false };
    let Some((test, operand)) = test else { return true };
    let right = match operand {
        Operand::Value(value) => value,
        Operand::Path(path) => match find(path, item) {
            Some(value) => value,
            None => return false,
        },
    };
    let order = match (left, right) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    match test {
        Test::Equal => order.is_some_and(|o| o.is_eq()),
        Test::Unequal => order.is_none_or(|o| o.is_ne()),
        Test::Less => order.is_some_and(|o| o.is_lt()),
        Test::LessOrEqual => order.is_some_and(|o| o.is_le()),
        Test::Greater => order.is_some_and(|o| o.is_gt()),
        Test::GreaterOrEqual => order.is_some_and(|o| o.is_ge()),
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn paths_find_what_columns_show() {
        let object = json!({
            "metadata": {"annotations": {"a/b.c": "x"}},
            "spec": {"list": [{"n": 1, "v": "one"}, {"n": 2, "v": "two"}], "word": "w"},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let check = |path: &str, expected: Value| {
            let found = JsonPath::parse(path).expect(path).first(&object).cloned().unwrap_or_default();
            assert_eq!(found, expected, "{path}");
        };
        check(".spec.word", json!("w"));
        check(".spec.nothing", json!(null));
        check(".metadata.annotations.a/b\\.c", json!("x"));
        check(".metadata.annotations['a/b\\.c']", json!("x"));
        check(".spec.list[0].v", json!("one"));
        check(".spec.list[-1].v", json!("two"));
        check(".spec.list[1:].v", json!("two"));
        check(".spec.list[*].v", json!("one"));
        check(".spec.list[?(@.n>1)].v", json!("two"));
        check(".status.conditions[?(@.type==\"Ready\")].status", json!("True"));
        check(".status.conditions[?(@.type == 'Ready')].status", json!("True"));
        check(".status.conditions[?(@.type != 'Ready')].status", json!("False"));
        check("..v", json!("one"));
        for wrong in ["spec", ".a[", ".a[?(@.b==)]", ".a['b"] {
            assert_eq!(JsonPath::parse(wrong), None, "{wrong}");
        }
    }
}
