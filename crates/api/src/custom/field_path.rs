//! Paths of fields in definitions: `.spec.size`, `.spec['a-b']`.

use super::structural::Structural;
use crate::validation::field::Path;

/// The path, normalised, and the schema of what it names. The error is part of a message.
pub fn resolve<'s>(text: &str, schema: &'s Structural, brackets: bool) -> Result<(Path, &'s Structural), String> {
    let (mut path, mut schema) = (Path::default(), schema);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let name = match first {
            '.' => {
                rest = &rest[1..];
                let end = rest.find(['.', '[', ']']).unwrap_or(rest.len());
                // The token behind a dot may be a mark itself.
                let end = if end == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { end };
                if end == 0 {
                    return Err("unexpected end of JSON path".to_owned());
                }
                let name = rest[..end].to_owned();
                rest = &rest[end..];
                name
            }
            '[' if !brackets => return Err("array notation is not allowed".to_owned()),
            '[' => {
                let (name, behind) = quoted(&rest[1..])?;
                rest = behind.strip_prefix(']').ok_or("unexpected end of JSON path")?;
                name
            }
            _ => {
                let end = rest.find(['.', '[', ']']).filter(|end| *end > 0).unwrap_or(rest.len());
                return Err(format!("expected [ or . but got: {}", &rest[..end]));
            }
        };
        let missing = || "does not refer to a valid field".to_owned();
        if schema.properties.is_empty() {
            schema = schema.values().ok_or_else(missing)?;
            path = path.key(&name);
        } else {
            schema = schema.properties.get(name.as_str()).ok_or_else(missing)?;
            path = path.child(&name);
        }
    }
    Ok((path, schema))
}

/// A text in single quotes, and what follows on it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let Some(inner) = text.strip_prefix('\'') else {
        let end = text.find(['.', '[', ']']).unwrap_or(text.len());
        return Err(match &text[..end] {
            "" => "unexpected end of JSON path".to_owned(),
            token => format!("expected single quoted string but got {token}"),
        });
    };
    let mut out = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => return Ok((out, &inner[at + 1..])),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('a') => out.push('\u{7}'),
                Some('b') => out.push('\u{8}'),
                Some('f') => out.push('\u{c}'),
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some('v') => out.push('\u{b}'),
                Some(c @ ('\'' | '\\')) => out.push(c),
                Some(c) => return Err(format!("invalid string literal: invalid escape char \\{c}")),
                None => break,
            },
            c => out.push(c),
        }
    }
    Err(format!("expected single quoted string but got {text}"))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn paths_name_fields_of_the_schema() {
        let schema = json!({"properties": {"spec": {"properties": {"a": {"type": "string"}, "b.c": {"type": "string"}}},
            "map": {"additionalProperties": {"properties": {"x": {"type": "integer"}}}}}});
        let schema = Structural::of(&json::from_value(schema).expect("a schema"));
        let check = |text: &str, expected: Result<&str, &str>| {
            let found = resolve(text, &schema, true).map(|(path, _)| path.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        };
        check(".spec.a", Ok("spec.a"));
        check(".spec['b.c']", Ok("spec.b.c"));
        check(".map['k'].x", Ok("map[k].x"));
        check(".map.k.x", Ok("map[k].x"));
        check(".spec.z", Err("does not refer to a valid field"));
        check("spec", Err("expected [ or . but got: spec"));
        check(".spec.", Err("unexpected end of JSON path"));
        check(".spec[a]", Err("expected single quoted string but got a"));
        assert_eq!(resolve(".spec['a']", &schema, false).err().as_deref(), Some("array notation is not allowed"));
    }
}
