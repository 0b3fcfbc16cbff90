//! Prometheus' text form: how a value stands between the quotes of a label, and the rows of a text that others wrote.

use std::borrow::Cow;

/// A label's value as it is written; without this, one with a quote or a line break in it would end its line.
pub fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// One measurement: `name{label="value",…} 1.5 1700000000000`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row<'t> {
    pub name: &'t str,
    pub labels: Vec<(&'t str, String)>,
    pub value: f64,
    /// When it was taken, in milliseconds since 1970, where the text says so.
    pub millis: Option<i64>,
}

impl Row<'_> {
    /// The value of a label; empty when the row does not have it.
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| *label == name).map_or("", |(_, value)| value)
    }
}

/// The rows of a text, in order. Comments are left out, and so are lines that are none.
pub fn rows(text: &str) -> impl Iterator<Item = Row<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(row)
}

fn row(line: &str) -> Option<Row<'_>> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = words.next()?.parse().ok()?;
    let millis = words.next().map(str::parse).transpose().ok()?;
    (!name.is_empty() && words.next().is_none()).then_some(Row { name, labels, value, millis })
}

/// Names and values of labels.
type Labels<'t> = Vec<(&'t str, String)>;

/// The labels up to the closing brace, and what follows it.
fn labels(mut text: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        text = loop {
            match chars.next()? {
                (at, '"') => break &quoted[at + 1..],
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim_end(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_are_written() {
        type Expected<'e> = (&'e str, &'e [(&'e str, &'e str)], f64, Option<i64>);
        let check = |line: &str, expected: Option<Expected<'_>>| {
            let expected = expected.map(|(name, labels, value, millis)| {
                let labels = labels.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
                Row { name, labels, value, millis }
            });
            assert_eq!(rows(line).next(), expected, "{line}");
        };
        check("up 1", Some(("up", &[], 1.0, None)));
        check("up{} 1.5e+06 -7", Some(("up", &[], 1.5e6, Some(-7))));
        check("a{b=\"c\",d=\"\"} 2", Some(("a", &[("b", "c"), ("d", "")], 2.0, None)));
        check("a{b=\"c\", d=\"e\",} 2 3", Some(("a", &[("b", "c"), ("d", "e")], 2.0, Some(3))));
        let strange = "x\"} 1\nforged \\";
        check(&format!("a{{b=\"{}\"}} 2", escaped(strange)), Some(("a", &[("b", strange)], 2.0, None)));
        for wrong in
            ["", "# HELP up 1", "up", "up x", "up 1 x", "up 1 2 3", " 1", "a{b=\"c} 1", "a{b=c} 1", "a{ 1", "a{b=\"\\"]
        {
            check(wrong, None);
        }
        assert_eq!(rows("# x\na 1\nbroken{\nb 2\n").map(|row| row.value).sum::<f64>(), 3.0);
        assert_eq!(rows("a{b=\"c\"} 1").next().map(|row| row.label("b").to_owned() + row.label("d")), Some("c".into()));
    }

    #[test]
    fn values_stay_between_their_quotes() {
        let check = |value: &str, expected: &str| assert_eq!(escaped(value), expected);
        check("pods", "pods");
        check("", "");
        check("a\"} 1\nforged 1", "a\\\"} 1\\nforged 1");
        check("\\", "\\\\");
        check("\\\"", "\\\\\\\"");
    }
}
