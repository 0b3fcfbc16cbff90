//! JSON text as YAML, as upstream's library writes it: keys in its order, strings in the style that it chooses. The text comes in
//! pieces; of a list no more is in memory than an item and what stands beside the items.

use std::{cmp::Ordering, mem};

use json::{Key, Map, Value};

use super::yaml_text::{Place, Writer};

/// The fields whose items are written one by one.
const LISTS: [&str; 2] = ["items", "rows"];

/// Turns JSON into YAML in block style.
#[derive(Default)]
pub struct Transcoder {
    /// The text that has been read and not yet been written.
    text: Vec<u8>,
    depth: usize,
    in_string: bool,
    escaped: bool,
    list: List,
    /// Fields of the document that come behind its list.
    later: Map,
    out: Writer,
}

/// Where the document is with its list.
#[derive(Default, Clone, Copy, PartialEq)]
enum List {
    #[default]
    Before,
    /// Its items are being read, and some are written.
    In {
        any: bool,
    },
    Behind,
}

impl Transcoder {
    /// The YAML of the next piece.
    pub fn push(&mut self, json: &[u8]) -> Vec<u8> {
        for &byte in json {
            if self.in_string {
                self.in_string = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                self.text.push(byte);
            } else {
                self.structure(byte);
            }
        }
        self.out.take()
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth += 1;
                if byte == b'[' && self.depth == 2 && self.list == List::Before && self.begin_list() {
                    return;
                }
            }
            b',' if self.depth == 2 && matches!(self.list, List::In { .. }) => return self.item(),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 && matches!(self.list, List::In { .. }) {
                    self.item();
                    return self.end_list();
                }
                self.text.push(byte);
                if self.depth == 0 {
                    self.end();
                }
                return;
            }
            _ => {}
        }
        self.text.push(byte);
    }

    /// Whether the array that begins is the list of the document. The fields that sort before it are written.
    fn begin_list(&mut self) -> bool {
        let named = |name: &&str| self.text.ends_with(format!("\"{name}\":").as_bytes());
        let Some(name) = LISTS.into_iter().find(named) else { return false };
        let mut fields = mem::take(&mut self.text);
        fields.truncate(fields.len() - name.len() - 3);
        let fields = object(fields.strip_suffix(b",").unwrap_or(&fields), b"}");
        let (before, later) = fields.into_iter().partition(|(own, _): &(Key, Value)| by_name(own, name).is_lt());
        self.later = later;
        self.fields(&before);
        self.out.key(name, 0);
        self.list = List::In { any: false };
        true
    }

    /// An item of the list has been read.
    fn item(&mut self) {
        let text = mem::take(&mut self.text);
        if text.trim_ascii().is_empty() {
            return;
        }
        let item: Value = serde_json::from_slice(&text).unwrap_or_default();
        self.out.dash(0);
        value(&mut self.out, &item, 0, Place::Sequence);
        self.list = List::In { any: true };
    }

    fn end_list(&mut self) {
        if self.list == (List::In { any: false }) {
            self.out.word("[]");
        }
        self.list = List::Behind;
    }

    /// The document has been read.
    fn end(&mut self) {
        let text = mem::take(&mut self.text);
        match mem::take(&mut self.list) {
            List::Behind => {
                let mut later = mem::take(&mut self.later);
                let text = text.strip_prefix(b",").unwrap_or(&text);
                later.append(&mut object(&[b"{".as_slice(), text].concat(), b""));
                self.fields(&later);
            }
            _ => {
                let document: Value = serde_json::from_slice(&text).unwrap_or_default();
                value(&mut self.out, &document, 0, Place::Document);
            }
        }
        self.out.end();
    }

    fn fields(&mut self, map: &Map) {
        if !map.is_empty() {
            fields(&mut self.out, map, 0, Place::Document);
        }
    }
}

/// The fields in the text of an object, which lacks its end.
fn object(text: &[u8], end: &[u8]) -> Map {
    serde_json::from_slice::<Value>(&[text, end].concat())
        .ok()
        .and_then(|value| match value {
            Value::Object(map) => Some(map),
            _ => None,
        })
        .unwrap_or_default()
}

fn value(out: &mut Writer, value: &Value, indent: usize, place: Place) {
    match value {
        Value::Object(map) if map.is_empty() => out.word("{}"),
        Value::Array(items) if items.is_empty() => out.word("[]"),
        Value::Object(map) => fields(out, map, if place == Place::Document { 0 } else { indent + 2 }, place),
        Value::Array(items) => {
            // A sequence begins where the key stands that it belongs to.
            let indent = if place == Place::Sequence { indent + 2 } else { indent };
            for (at, item) in items.iter().enumerate() {
                if at > 0 || place == Place::Mapping {
                    out.line(indent);
                }
                out.dash_here();
                self::value(out, item, indent, Place::Sequence);
            }
        }
        Value::String(text) => out.text(text, indent + 2),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => out.word(&general(float)),
            None => out.word(&number.to_string()),
        },
        Value::Bool(value) => out.word(if *value { "true" } else { "false" }),
        Value::Null => out.word("null"),
    }
}

fn fields(out: &mut Writer, map: &Map, indent: usize, place: Place) {
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| by_name(a, b));
    for (at, (name, of)) in sorted.into_iter().enumerate() {
        // The first field stands behind the dash of its sequence.
        if at > 0 || place != Place::Sequence {
            out.line(indent);
        }
        out.key_here(name, indent);
        value(out, of, indent, Place::Mapping);
    }
}

/// The order of keys: letters behind everything else, numbers by their value.
fn by_name(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    let (one, other) = (a[at], b[at]);
    match (one.is_alphabetic(), other.is_alphabetic()) {
        (true, true) => return one.cmp(&other),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero within a number counts as a digit of it.
    let mut digits_before = a[..at].iter().rev().take_while(|c| c.is_ascii_digit());
    let within = (one == '0' || other == '0') && digits_before.any(|c| *c != '0');
    let number = |text: &[char]| {
        let digits = text[at..].iter().map_while(|c| c.to_digit(10));
        digits.fold((i64::from(within), 0), |(number, length), digit| {
            (number.wrapping_mul(10).wrapping_add(digit.into()), length + 1)
        })
    };
    number(&a).cmp(&number(&b)).then(one.cmp(&other))
}

/// A number as Go's `%g` writes it, with as few digits as it needs.
fn general(value: f64) -> String {
    let text = format!("{value:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn yaml(json: &str) -> String {
        String::from_utf8(Transcoder::default().push(json.as_bytes())).unwrap()
    }

    /// However the text is cut, the same comes out.
    fn check(given: &str, expected: &str) {
        assert_eq!(yaml(given), expected);
        for cut in 0..given.len() {
            let mut pieces = Transcoder::default();
            let mut out = pieces.push(&given.as_bytes()[..cut]);
            out.extend(pieces.push(&given.as_bytes()[cut..]));
            assert_eq!(String::from_utf8(out).unwrap(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn blocks_are_written_in_the_order_of_their_keys() {
        check(
            r#"{"kind":"Pod","metadata":{"labels":{},"name":"web"},"spec":{"containers":[{"image":"nginx:1.25","args":["a","b"]},
            {"ports":[[1,2],[]],"env":[]}],"dns":true}}"#,
            "kind: Pod\nmetadata:\n  labels: {}\n  name: web\nspec:\n  containers:\n  - args:\n    - a\n    - b\n    \
             image: nginx:1.25\n  - env: []\n    ports:\n    - - 1\n      - 2\n    - []\n  dns: true\n",
        );
    }

    #[test]
    fn lists_are_written_item_by_item() {
        check(
            r#"{"kind":"L","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"b":"\"items\":[","a":[1]},[2],3]}"#,
            "apiVersion: v1\nitems:\n- a:\n  - 1\n  b: '\"items\":['\n- - 2\n- 3\nkind: L\nmetadata:\n  resourceVersion: \"7\"\n",
        );
        check(
            r#"{"apiVersion":"a/v1","items":[],"kind":"L","metadata":{"remainingItemCount":1}}"#,
            "apiVersion: a/v1\nitems: []\nkind: L\nmetadata:\n  remainingItemCount: 1\n",
        );
        check(
            r#"{"kind":"Table","columnDefinitions":[{"name":"Name"}],"rows":[{"cells":["a",null,1.5]}]}"#,
            "columnDefinitions:\n- name: Name\nkind: Table\nrows:\n- cells:\n  - a\n  - null\n  - 1.5\n",
        );
        check(r#"{"items":[1]}"#, "items:\n- 1\n");
    }

    #[test]
    fn keys_have_their_order() {
        let mut names = ["b", "a10", "a9", "a", "0", "B", ".", "f:x", "f:1", "a01", "a1"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(names, [".", "0", "B", "a", "a1", "a01", "a9", "a10", "b", "f:1", "f:x"]);
    }

    #[test]
    fn numbers_are_gos() {
        check(
            "{\"numbers\":[0,-1,1.5,1e+300,0.00001,1234567.5,18446744073709551615]}",
            "numbers:\n- 0\n- -1\n- 1.5\n- 1e+300\n- 1e-05\n- 1.2345675e+06\n- 18446744073709551615\n",
        );
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let long = "words that go on ".repeat(20);
        let texts = [
            "x",
            "y",
            "- a",
            "{}",
            "[1]",
            "'",
            "\"",
            "\\",
            "a\tb",
            "é\u{1F600}",
            "%",
            "!x",
            "&a",
            "*a",
            "|",
            ">",
            "?",
            "a: b",
            "a #b",
            "one\ntwo\n",
            "one\n\ntwo",
            " lead\nx",
            "\n",
            "\n\n",
            "tail\n\n",
            "x \ny",
            "it's: so",
            "1_000",
            "0x1f",
            "12:30",
            "~",
            "<<",
            "",
            " ",
            "a ",
            "---",
            "...",
            ":x",
            "x:",
            "-",
            "=",
            "\u{7f}\u{85}ü",
            "a\u{2028}b",
            "<a&b>",
            "2001-01-01",
            &long,
        ];
        let deep = json!({"": [[[]], {}], "k".repeat(200): {"a": 1, "b": [2]}, "true": {"12": "a"}});
        let value = json!({"texts": texts.as_slice(), "numbers": [0, -1, 1.5, 1e300], "null": null, "k: v": deep, "nested": [[texts.as_slice()]]});
        let back: Value = serde_saphyr::from_str(&yaml(&value.to_string())).unwrap();
        assert_eq!(back, value);
        assert_eq!(yaml("[]"), "[]\n");
    }
}
