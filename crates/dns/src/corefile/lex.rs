//! The words and blocks of a Corefile, before anyone knows what they mean. Pure.
//!
//! As Caddy reads them: words part at white space, `"` holds words together (`\"` is a quote in them), `#` at a word's
//! beginning starts a comment, `{` at a line's end opens a block that a `}` alone on its line closes.

use super::Error;

/// Bounds on a file: bytes, server blocks, lines.
const MAX_BYTES: usize = 256 << 10;
const MAX_BLOCKS: usize = 64;
const MAX_LINES: usize = 4096;

/// One server block: its zones and what stands in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub line: usize,
    pub keys: Vec<String>,
    pub directives: Vec<Directive>,
}

/// A plugin with its arguments, and the lines between its braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    pub line: usize,
    pub name: String,
    pub args: Vec<String>,
    pub body: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub number: usize,
    pub words: Vec<String>,
}

/// Reads the blocks of a file.
pub fn blocks(text: &str) -> Result<Vec<Block>, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::new(1, format!("the file is longer than {MAX_BYTES} bytes")));
    }
    let lines = lines(text)?;
    let mut lines = lines.into_iter();
    let mut blocks: Vec<Block> = Vec::new();
    while let Some(line) = lines.next() {
        if blocks.len() == MAX_BLOCKS {
            return Err(Error::new(line.number, format!("more than {MAX_BLOCKS} server blocks")));
        }
        let (mut words, mut last) = (line.words, line.number);
        // The zones may go on over several lines, each but the last ending with a comma.
        while words.last().is_some_and(|w| w.ends_with(',')) {
            let next = lines.next().ok_or_else(|| Error::new(last, "zones are missing behind the comma"))?;
            last = next.number;
            words.extend(next.words);
        }
        if words.pop().as_deref() != Some("{") {
            return Err(Error::new(last, "a server block is its zones and a `{` at the end of the line"));
        }
        let keys = words.iter().flat_map(|w| w.split(',')).filter(|w| !w.is_empty()).map(str::to_owned).collect();
        blocks.push(Block { line: line.number, keys, directives: directives(&mut lines, last)? });
    }
    Ok(blocks)
}

/// Reads plugins up to the end of the block.
fn directives(lines: &mut impl Iterator<Item = Line>, opened: usize) -> Result<Vec<Directive>, Error> {
    let mut found = Vec::new();
    loop {
        let line = lines.next().ok_or_else(|| Error::new(opened, "the block is not closed with a `}`"))?;
        let mut words = line.words.into_iter();
        let Some(name) = words.next() else { continue };
        let mut args: Vec<String> = words.collect();
        if name == "}" {
            return if args.is_empty() {
                Ok(found)
            } else {
                Err(Error::new(line.number, "`}` stands alone on its line"))
            };
        }
        let open = args.last().is_some_and(|w| w == "{");
        let body = if open {
            args.pop();
            body(lines, line.number)?
        } else {
            Vec::new()
        };
        found.push(Directive { line: line.number, name, args, body });
    }
}

fn body(lines: &mut impl Iterator<Item = Line>, opened: usize) -> Result<Vec<Line>, Error> {
    let mut found = Vec::new();
    loop {
        let line = lines.next().ok_or_else(|| Error::new(opened, "the block is not closed with a `}`"))?;
        if line.words == ["}"] {
            return Ok(found);
        }
        if line.words.iter().any(|w| w == "{" || w == "}") {
            return Err(Error::new(line.number, "a block in the block of a plugin"));
        }
        found.push(line);
    }
}

/// The lines that have words.
fn lines(text: &str) -> Result<Vec<Line>, Error> {
    let (mut found, mut number) = (Vec::<Line>::new(), 1);
    let mut rest = text.chars().peekable();
    let mut current = Line { number, words: Vec::new() };
    while let Some(next) = rest.next() {
        match next {
            '\n' => {
                number += 1;
                let full = std::mem::replace(&mut current, Line { number, words: Vec::new() });
                if !full.words.is_empty() {
                    found.push(full);
                }
            }
            c if c.is_whitespace() => {}
            '#' => while rest.next_if(|c| *c != '\n').is_some() {},
            '"' => current.words.push(quoted(&mut rest, &mut number)?),
            c => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
                    word.push(c);
                }
                if word.contains("{$") || word.contains("{%") {
                    return Err(Error::new(number, "variables of the environment are not filled in"));
                }
                current.words.push(word);
            }
        }
        if found.len() > MAX_LINES {
            return Err(Error::new(number, format!("more than {MAX_LINES} lines")));
        }
    }
    if !current.words.is_empty() {
        found.push(current);
    }
    Ok(found)
}

fn quoted(rest: &mut impl Iterator<Item = char>, number: &mut usize) -> Result<String, Error> {
    let (mut word, opened) = (String::new(), *number);
    while let Some(c) = rest.next() {
        match c {
            '"' => return Ok(word),
            '\\' => match rest.next() {
                Some('"') => word.push('"'),
                Some(other) => word.extend(['\\', other]),
                None => break,
            },
            '\n' => {
                *number += 1;
                word.push('\n');
            }
            other => word.push(other),
        }
    }
    Err(Error::new(opened, "the quote is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        let blocks = match blocks(text) {
            Ok(blocks) => blocks,
            Err(error) => return error.to_string(),
        };
        let directive = |d: &Directive| {
            let body: Vec<String> = d.body.iter().map(|l| l.words.join(" ")).collect();
            format!("{}({}){{{}}}", d.name, d.args.join("|"), body.join(";"))
        };
        let block = |b: &Block| {
            let inner: Vec<String> = b.directives.iter().map(directive).collect();
            format!("{}: {}", b.keys.join(" "), inner.join(" "))
        };
        blocks.iter().map(block).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn blocks_words_and_comments() {
        for (text, expected) in [
            (
                ".:53 {\n errors # loud\n cache 30 {\n  disable success\n }\n}",
                ".:53: errors(){} cache(30){disable success}",
            ),
            ("a.b, c.d,\ne.f {\n}\n", "a.b c.d e.f: "),
            (". {\n log . \"{name} \\\"x\\\" \\d\"\n}", ".: log(.|{name} \"x\" \\d){}"),
            (
                ". {\n template IN A {\n answer \"{{ .Name }} 60 IN A 1.2.3.4\"\n }\n}",
                ".: template(IN|A){answer {{ .Name }} 60 IN A 1.2.3.4}",
            ),
            ("", ""),
            (". {\n errors\n", "Corefile:1 - Error during parsing: the block is not closed with a `}`"),
            (". {\n log \"x\n}", "Corefile:2 - Error during parsing: the quote is not closed"),
            (
                "errors\n",
                "Corefile:1 - Error during parsing: a server block is its zones and a `{` at the end of the line",
            ),
            (
                ". {\n forward . {$DNS}\n}",
                "Corefile:2 - Error during parsing: variables of the environment are not filled in",
            ),
        ] {
            assert_eq!(show(text), expected, "{text}");
        }
    }

    #[test]
    fn long_files_are_refused() {
        assert!(blocks(&"#".repeat(MAX_BYTES + 1)).is_err());
        assert!(blocks(&"a {\n}\n".repeat(MAX_BLOCKS + 1)).is_err());
        assert!(blocks(&"a\n".repeat(MAX_LINES + 2)).is_err());
    }
}
