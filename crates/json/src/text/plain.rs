//! Passing over values as programs write them, in one loop: managers of fields, of which nearly every object has more than of anything
//! else, are read by few.

use crate::escapes::ordinary;

/// Where a value ends, and the reading of it may go on, if it is as programs write it: no spaces, escapes or fractions, and not more than
/// that many values within each other. Everything else is left to those who look closer.
pub(super) fn end(bytes: &[u8], mut at: usize, depth_max: u8) -> Option<usize> {
    let string = |from: usize| {
        let end = from + ordinary(bytes.get(from..)?);
        (bytes.get(end) == Some(&b'"')).then_some(end + 1)
    };
    let name = |from: usize| {
        let end = string(from + 1).filter(|_| bytes[from] == b'"')?;
        (bytes.get(end) == Some(&b':')).then_some(end + 1)
    };
    // A bit for each value that is open, the innermost last: whether it is an object.
    let (mut objects, mut depth) = (0u128, 0);
    loop {
        match bytes.get(at)? {
            b'"' => at = string(at + 1)?,
            open @ (b'{' | b'[') => {
                let is_object = *open == b'{';
                depth += 1;
                if depth > depth_max {
                    return None;
                }
                objects = objects << 1 | u128::from(is_object);
                at += 1;
                let close = if is_object { b'}' } else { b']' };
                if *bytes.get(at)? != close {
                    if is_object {
                        at = name(at)?;
                    }
                    continue;
                }
            }
            b'1'..=b'9' => at += bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count(),
            b'0' => at += 1,
            b't' | b'f' | b'n' => {
                at += ["true", "false", "null"].iter().find(|w| bytes[at..].starts_with(w.as_bytes()))?.len()
            }
            _ => return None,
        }
        // A value has ended, or is empty and about to.
        loop {
            let is_object = objects & 1 == 1;
            match bytes.get(at) {
                _ if depth == 0 => {
                    return Some(at)
                        .filter(|at| !matches!(bytes.get(*at), Some(b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')));
                }
                Some(b',') => {
                    at += 1;
                    if is_object {
                        at = name(at)?;
                    }
                    break;
                }
                Some(b'}') if is_object => {}
                Some(b']') if !is_object => {}
                _ => return None,
            }
            at += 1;
            depth -= 1;
            objects >>= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_as_programs_write_them_are_passed_over_at_once() {
        let end = |text: &str, depth| super::end(text.as_bytes(), 0, depth);
        let whole = r#"{"a":[{},[],"",{"b":{"f:c":{}},"d":[1,0,230]},true,false,null],"e":"ä"}"#;
        for text in ["{}", "[]", r#""""#, "0", "17", "null", whole] {
            assert_eq!(end(text, 9), Some(text.len()), "{text}");
            assert_eq!(end(&format!("{text},1"), 9), Some(text.len()), "{text}");
        }
        assert_eq!((end("[[]]", 2), end("[[]]", 1)), (Some(4), None));
        assert_eq!(end(&"[".repeat(127), 127), None);
        let others = [
            "",
            "{",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "{,}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":1,2}"#,
            "{1:2}",
            "[1:2]",
            "[}",
            "{]",
            "[1}",
            r#"{"a":1]"#,
            "[01]",
            "[1.5]",
            "[1e3]",
            "[-1]",
            "01",
            "1.5",
            "[ 1]",
            "[1 ]",
            r#""\u0041""#,
            "\"\n\"",
            "\"",
            "tru",
            "[nul]",
        ];
        for text in others {
            assert_eq!(end(text, 9), None, "{text}");
        }
    }
}
