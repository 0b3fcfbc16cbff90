//! A record as a line, in klog's form or as component-base's JSON. Whatever a value holds, no other line can be made of it, and nothing
//! that a terminal would act on.

use std::fmt::Write;

use jiff::Zoned;
use tracing::Level;

use crate::{
    filter,
    record::{Record, Value},
};

pub struct Line<'a> {
    pub now: Zoned,
    pub process: u32,
    pub record: &'a Record<'a>,
}

impl Line<'_> {
    /// As with klog, a message that has values, or a sign that could mislead, stands between quotes.
    pub fn text(&self) -> String {
        let Record { level, file, line, message, values, error } = self.record;
        let severity = match *level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let (time, process) = (self.now.strftime("%m%d %H:%M:%S"), self.process);
        let micros = self.now.subsec_nanosecond() / 1000;
        let file = file.map_or("???", |path| path.rsplit('/').next().unwrap_or(path));
        let mut out = format!("{severity}{time}.{micros:06} {process:>7} {file}:{line}] ");
        if values.is_empty() && error.is_none() && !message.chars().any(misleads) {
            out.push_str(message);
        } else {
            quote(&mut out, message);
        }
        let error = error.as_deref().map(|text| ("err", Shown::Text(text)));
        let shown = values.iter().map(|(name, value)| match value {
            Value::Bare(text) => (*name, Shown::Bare(text)),
            Value::Text(text) => (*name, Shown::Text(text)),
        });
        // An error comes first with klog, and last in JSON.
        for (name, value) in error.into_iter().chain(shown) {
            out.push(' ');
            out.push_str(name);
            out.push('=');
            match value {
                Shown::Bare(text) => out.push_str(text),
                Shown::Text(text) if text.contains('\n') => lines(&mut out, text),
                Shown::Text(text) => quote(&mut out, text),
            }
        }
        out.push('\n');
        out
    }

    pub fn json(&self) -> String {
        let Record { level, file, line, message, values, error } = self.record;
        let micros = self.now.timestamp().as_microsecond();
        let caller = file.map_or("???", |path| match path.rmatch_indices('/').nth(1) {
            Some((at, _)) => &path[at + 1..],
            None => path,
        });
        let text = |text: &str| json::Value::from(text).to_string();
        let mut out = format!(
            "{{\"ts\":{}.{:03},\"caller\":{},\"msg\":{}",
            micros.div_euclid(1000),
            micros.rem_euclid(1000),
            text(&format!("{caller}:{line}")),
            text(message)
        );
        if *level != Level::ERROR {
            let _ = write!(out, ",\"v\":{}", filter::verbosity_of(*level));
        }
        for (name, value) in values {
            let value = match value {
                Value::Bare(bare) => bare.clone(),
                Value::Text(value) => text(value),
            };
            let _ = write!(out, ",{}:{value}", text(name));
        }
        if let Some(error) = error {
            let _ = write!(out, ",\"err\":{}", text(error));
        }
        out.push_str("}\n");
        out
    }
}

enum Shown<'a> {
    Bare(&'a str),
    Text(&'a str),
}

/// Control signs, and those that turn the direction of a text or are not seen.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// As Go quotes a text.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c => put(out, c),
        }
    }
    out.push('"');
}

/// A sign, or the escape that stands for it.
fn put(out: &mut String, c: char) {
    match c {
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{b}' => out.push_str("\\v"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii_control() => drop(write!(out, "\\x{:02x}", u32::from(c))),
        c if misleads(c) => drop(write!(out, "\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// A text of several lines, as klog shows it: each behind a tab.
fn lines(out: &mut String, text: &str) {
    out.push_str("<\n");
    for line in text.lines() {
        out.push('\t');
        line.chars().for_each(|c| if c == '\t' { out.push(c) } else { put(out, c) });
        out.push('\n');
    }
    out.push_str(" >");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(level: Level, message: &str, values: Vec<(&'static str, Value)>, error: Option<&str>) -> Record<'static> {
        let file = Some("/src/crates/kubelet/src/pod/worker.rs");
        Record { level, file, line: 42, message: message.to_owned(), values, error: error.map(str::to_owned) }
    }

    fn line(record: &Record<'_>, json: bool) -> String {
        let now: jiff::Timestamp = "2026-11-25T19:22:15.123456789Z".parse().unwrap();
        let line = Line { now: now.to_zoned(jiff::tz::TimeZone::UTC), process: 4711, record };
        if json { line.json() } else { line.text() }
    }

    #[test]
    fn lines_are_klogs() {
        let check = |level, message: &str, values, error, expected: &str| {
            assert_eq!(line(&record(level, message, values, error), false), expected);
        };
        let text = |text: &str| Value::Text(text.to_owned());
        check(Level::INFO, "it \"runs\"", vec![], None, "I1125 19:22:15.123456    4711 worker.rs:42] it \"runs\"\n");
        check(
            Level::WARN,
            "Pod started",
            vec![("pod", text("default/web")), ("count", Value::Bare("3".to_owned()))],
            Some("a \"b\""),
            "W1125 19:22:15.123456    4711 worker.rs:42] \"Pod started\" err=\"a \\\"b\\\"\" pod=\"default/web\" count=3\n",
        );
        check(
            Level::ERROR,
            "said",
            vec![("out", text("one\n\ttwo\u{1b}[2J"))],
            None,
            "E1125 19:22:15.123456    4711 worker.rs:42] \"said\" out=<\n\tone\n\t\ttwo\\x1b[2J\n >\n",
        );
    }

    #[test]
    fn no_message_makes_a_line_of_its_own() {
        let forged = record(Level::INFO, "name x\nE1125 00:00:00.000000 1 a.rs:1] gone\u{202e}", vec![], None);
        let text = line(&forged, false);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("] \"name x\\nE1125") && text.ends_with("gone\\u202e\"\n"), "{text}");
        let key = record(Level::INFO, "m", vec![("a", Value::Text("\" b=\"c\r".to_owned()))], None);
        assert!(line(&key, false).ends_with("\"m\" a=\"\\\" b=\\\"c\\r\"\n"));
        for record in [forged, key] {
            assert_eq!(line(&record, true).lines().count(), 1);
        }
    }

    #[test]
    fn objects_have_upstreams_keys_in_upstreams_order() {
        let values = vec![("pod", Value::Text("a/b".to_owned())), ("ready", Value::Bare("true".to_owned()))];
        assert_eq!(
            line(&record(Level::INFO, "up", values, None), true),
            "{\"ts\":1795634535123.456,\"caller\":\"pod/worker.rs:42\",\"msg\":\"up\",\"v\":0,\"pod\":\"a/b\",\"ready\":true}\n"
        );
        assert_eq!(
            line(&record(Level::ERROR, "down", vec![], Some("no\nway")), true),
            "{\"ts\":1795634535123.456,\"caller\":\"pod/worker.rs:42\",\"msg\":\"down\",\"err\":\"no\\nway\"}\n"
        );
        assert!(line(&record(Level::DEBUG, "d", vec![], None), true).contains("\"v\":4"));
    }
}
