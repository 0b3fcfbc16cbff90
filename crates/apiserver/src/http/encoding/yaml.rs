//! JSON text as YAML, piece by piece: no more of an answer is in memory than its longest string.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Map,
    Sequence,
}

/// A map or sequence that has begun.
struct Level {
    kind: Kind,
    indent: usize,
    /// Nothing is in it yet.
    empty: bool,
    /// Its first entry stands on the line on which it began.
    inline: bool,
}

/// Turns JSON into YAML in block style.
#[derive(Default)]
pub struct Transcoder {
    levels: Vec<Level>,
    /// The string or other scalar that is being read.
    scalar: Vec<u8>,
    in_string: bool,
    escaped: bool,
    /// A key of a map has been written, its value comes next.
    after_key: bool,
    out: Vec<u8>,
}

impl Transcoder {
    /// The YAML of the next piece.
    pub fn push(&mut self, json: &[u8]) -> Vec<u8> {
        for &byte in json {
            if self.in_string {
                self.in_string = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                if self.in_string {
                    self.scalar.push(byte);
                } else {
                    let text = std::mem::take(&mut self.scalar);
                    self.value(&string(&text));
                }
            } else {
                self.structure(byte);
            }
        }
        std::mem::take(&mut self.out)
    }

    fn structure(&mut self, byte: u8) {
        if matches!(byte, b',' | b'}' | b']' | b'\n') && !self.scalar.is_empty() {
            let text = std::mem::take(&mut self.scalar);
            self.value(&text);
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' => self.open(Kind::Map),
            b'[' => self.open(Kind::Sequence),
            b'}' => self.close(b"{}"),
            b']' => self.close(b"[]"),
            b',' | b':' => {}
            byte if byte.is_ascii_whitespace() => {}
            byte => self.scalar.push(byte),
        }
    }

    /// A key of a map, or a scalar value.
    fn value(&mut self, text: &[u8]) {
        let is_key = self.in_map() && !self.after_key;
        self.begin();
        self.out.extend_from_slice(text);
        if is_key {
            self.out.push(b':');
            self.after_key = true;
        } else if self.levels.is_empty() {
            self.out.push(b'\n');
        }
    }

    fn open(&mut self, kind: Kind) {
        let (indent, inline) = match self.levels.last() {
            None => (0, true),
            // A sequence begins where the key stands that it belongs to.
            Some(Level { kind: Kind::Map, indent, .. }) => (indent + if kind == Kind::Map { 2 } else { 0 }, false),
            Some(Level { kind: Kind::Sequence, indent, .. }) => (indent + 2, true),
        };
        if !self.in_map() {
            self.begin();
        }
        self.after_key = false;
        self.levels.push(Level { kind, indent, empty: true, inline });
    }

    fn close(&mut self, empty: &[u8]) {
        let Some(level) = self.levels.pop() else { return };
        if level.empty {
            if self.in_map() {
                self.out.push(b' ');
            }
            self.out.extend_from_slice(empty);
        }
        if self.levels.is_empty() {
            self.out.push(b'\n');
        }
    }

    /// Writes the beginning of a key or a value: a space after its key, or its line.
    fn begin(&mut self) {
        if std::mem::take(&mut self.after_key) {
            return self.out.push(b' ');
        }
        let Some(level) = self.levels.last_mut() else { return };
        if !(std::mem::take(&mut level.empty) && level.inline) {
            self.out.push(b'\n');
            self.out.resize(self.out.len() + level.indent, b' ');
        }
        if level.kind == Kind::Sequence {
            self.out.extend_from_slice(b"- ");
        }
    }

    fn in_map(&self) -> bool {
        self.levels.last().is_some_and(|level| level.kind == Kind::Map)
    }
}

/// A string as a YAML scalar, from what stands between its quotes in JSON: as it is, where it means nothing else.
fn string(json: &[u8]) -> Vec<u8> {
    if is_plain(json) {
        return json.to_vec();
    }
    let mut out = Vec::with_capacity(json.len() + 2);
    out.push(b'"');
    if json.is_ascii() && !json.contains(&0x7f) {
        out.extend_from_slice(json);
    } else {
        for c in String::from_utf8_lossy(json).chars() {
            match c {
                // A character that JSON may have in a string and YAML may not is escaped.
                '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => {
                    out.extend_from_slice(format!("\\u{:04X}", u32::from(c)).as_bytes());
                }
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
    out.push(b'"');
    out
}

/// Words that YAML, or an older version of it, reads as something else than text.
const WORDS: &[&str] = &["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// Whether text needs no quotes: it begins as no number does, and has nothing in it that YAML gives a meaning to.
fn is_plain(text: &[u8]) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-+=@".contains(&byte);
    let between = |at: usize, byte: u8| match (byte, text.get(at + 1)) {
        (b' ', Some(_)) => true,
        (b':', Some(next)) => *next != b' ',
        _ => usual(byte),
    };
    text.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'/')
        && text.iter().enumerate().all(|(at, byte)| between(at, *byte))
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn yaml(json: &str) -> String {
        String::from_utf8(Transcoder::default().push(json.as_bytes())).unwrap()
    }

    #[test]
    fn blocks_are_written_as_people_write_them() {
        let given = r#"{"kind":"Pod","metadata":{"labels":{},"name":"web"},"spec":{"containers":[{"args":["a","b"],"image":"nginx:1.25"},
            {"env":[],"ports":[[1,2],[]]}],"dns":true}}"#;
        let expected = "kind: Pod\nmetadata:\n  labels: {}\n  name: web\nspec:\n  containers:\n  - args:\n    - a\n    - b\n    \
            image: nginx:1.25\n  - env: []\n    ports:\n    - - 1\n      - 2\n    - []\n  dns: true\n";
        assert_eq!(yaml(given), expected);
        for cut in 0..given.len() {
            let mut pieces = Transcoder::default();
            let mut out = pieces.push(&given.as_bytes()[..cut]);
            out.extend(pieces.push(&given.as_bytes()[cut..]));
            assert_eq!(out, expected.as_bytes(), "cut at {cut}");
        }
    }

    #[test]
    fn text_stays_text() {
        for (text, expected) in [
            ("Always", "Always"),
            ("two words", "two words"),
            ("/var/lib", "/var/lib"),
            ("", r#""""#),
            ("yes", r#""yes""#),
            ("Null", r#""Null""#),
            ("1", r#""1""#),
            ("0x1f", r#""0x1f""#),
            ("-", r#""-""#),
            ("2001-01-01T00:00:00Z", r#""2001-01-01T00:00:00Z""#),
            ("key: value", r#""key: value""#),
            ("a #comment", r#""a #comment""#),
            ("end:", r#""end:""#),
            ("end ", r#""end ""#),
            ("two\nlines", r#""two\nlines""#),
            ("\u{7f}\u{85}ü", r#""\u007F\u0085ü""#),
        ] {
            assert_eq!(yaml(&json!({"a": text}).to_string()), format!("a: {expected}\n"));
        }
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let texts =
            ["x", "y", "- a", "{}", "[1]", "'", "\"", "\\", "a\tb", "é\u{1F600}", "%", "!x", "&a", "*a", "|", ">", "?"];
        let value = json!({"texts": texts, "true": true, "numbers": [0, -1, 1.5, 1e300], "null": null, "k: v": {"": [[[]], {}]}});
        let back: Value = serde_saphyr::from_str(&yaml(&value.to_string())).unwrap();
        assert_eq!(back, value);
        assert_eq!(yaml("[]"), "[]\n");
    }
}
