//! Passing over values as programs write them, in one loop: managers of fields, of which nearly every object has more than of anything
//! else, are read by few.

use crate::escapes::ordinary_end;

/// Values within each other up to this number have a bit each in a word.
const NESTED_MAX: u8 = 64;

/// Where a value ends, and the reading of it may go on, if it is as programs write it: no spaces or fractions, and not more than that
/// many values within each other. Everything else is left to those who look closer.
pub(super) fn end(bytes: &[u8], mut at: usize, depth_max: u8) -> Option<usize> {
    let depth_max = depth_max.min(NESTED_MAX);
    // A bit for each value that is open, the innermost last: whether it is an object.
    let (mut objects, mut depth) = (0u64, 0);
    loop {
        if objects & 1 == 1 {
            at = string(bytes, at)?;
            if *bytes.get(at)? != b':' {
                return None;
            }
            at += 1;
        }
        match *bytes.get(at)? {
            b'"' => at = string(bytes, at)?,
            open @ (b'{' | b'[') => {
                if depth == depth_max {
                    return None;
                }
                at += 1;
                // In ASCII a bracket is closed by the second character behind the one that opens it.
                if *bytes.get(at)? != open + 2 {
                    depth += 1;
                    objects = objects << 1 | u64::from(open == b'{');
                    continue;
                }
                at += 1;
            }
            b'1'..=b'9' => at += bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count(),
            b'0' => at += 1,
            b't' | b'f' | b'n' => {
                at += ["true", "false", "null"].iter().find(|w| bytes[at..].starts_with(w.as_bytes()))?.len()
            }
            _ => return None,
        }
        // A value has ended, and with the last in it the one that it is in.
        loop {
            if depth == 0 {
                let goes_on = matches!(bytes.get(at), Some(b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
                return (!goes_on).then_some(at);
            }
            let close = if objects & 1 == 1 { b'}' } else { b']' };
            let byte = *bytes.get(at)?;
            at += 1;
            if byte == b',' {
                break;
            }
            if byte != close {
                return None;
            }
            depth -= 1;
            objects >>= 1;
        }
    }
}

/// Where a string ends that begins here, with its quotes. Escapes are looked at when they are read.
#[inline]
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        at = ordinary_end(bytes, at);
        match *bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::BROKEN;

    #[test]
    fn values_as_programs_write_them_are_passed_over_at_once() {
        let end = |text: &str, depth| super::end(text.as_bytes(), 0, depth);
        let whole = r#"{"a":[{},[],"",{"b":{"f:c":{}},"k:{\"d\":1}":[1,0,230]},true,false,null],"e":"ä\\"}"#;
        for text in ["{}", "[]", r#""""#, "0", "17", "null", whole] {
            assert_eq!(end(text, 9), Some(text.len()), "{text}");
            assert_eq!(end(&format!("{text},1"), 9), Some(text.len()), "{text}");
        }
        assert_eq!((end("[[]]", 2), end("[[]]", 1)), (Some(4), None));
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!((end(&deep(64), 127), end(&deep(65), 127)), (Some(128), None));
        assert_eq!(end(&"[".repeat(127), 127), None);
        // Left to those who look closer.
        let others = ["[1.5]", "[1e3]", "[-1]", "01", "1.5", "[ 1]", "[1 ]", "\"\\\""];
        for text in others.iter().chain(&BROKEN) {
            assert_eq!(end(text, 9), None, "{text}");
        }
    }
}
