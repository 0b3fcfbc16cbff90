//! The bounds of a document, and of the answer to it. Sizes are checked where a document is read or built, so that no
//! work behind that needs a deadline of its own.

use std::borrow::Cow;
use std::io::{self, Write};

/// Objects and lists inside one another. Everything that is stored can be read again: parsers stop at 128, and what the
/// server puts around a value (managed fields, lists, events) must fit in between. Upstream takes 10,000.
pub const DEPTH_MAX: usize = 100;

/// The depth of a YAML document, whose parser takes more of the stack for each level.
pub(crate) const YAML_DEPTH_MAX: usize = 64;

/// The message for a document that is deeper, in Go's words.
pub(crate) const TOO_DEEP: &str = "exceeded max depth";

/// The weight of a document: one for each value, and more for each object, which takes about that much more memory. A text
/// of `{}` after `{}` becomes a hundred times its size in memory; this refuses it while it is read. Objects that may be
/// stored reach it only with less than sixteen bytes of text to an object.
pub const WEIGHT_MAX: usize = 1_000_000;

/// The weight of an object that has fields, beside that of their values.
pub(crate) const OBJECT_WEIGHT: usize = 10;

/// The size of an object as it is stored, as upstream's etcd has it.
pub const OBJECT_BYTES_MAX: usize = 1_572_864;

/// A value in a message.
pub(crate) const SHOWN_MAX: usize = 10 * 1024;

/// A name that the client chose within a path in a message.
pub(crate) const STEP_MAX: usize = 1024;

/// The message of an answer.
pub(crate) const MESSAGE_MAX: usize = 256 * 1024;

/// The beginning of a text that is too long for where it is shown.
pub(crate) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}...", &text[..text.floor_char_boundary(most)]))
}

/// An answer names at most this many errors or conflicts.
pub(crate) struct Room {
    items: usize,
    bytes: usize,
}

impl Room {
    pub fn new() -> Self {
        Room { items: 1000, bytes: MESSAGE_MAX }
    }

    /// Whether there is room for one more item of that many bytes. Once there is none there never is again.
    pub fn take(&mut self, bytes: usize) -> bool {
        if self.items == 0 || bytes > self.bytes {
            self.items = 0;
            return false;
        }
        self.items -= 1;
        self.bytes -= bytes;
        true
    }

    pub fn is_left(&self) -> bool {
        self.items > 0
    }
}

/// How many bytes a value takes as JSON, as far as `most`: beyond that, `None`, without looking at the rest.
pub(crate) fn json_bytes(value: &impl serde::Serialize, most: usize) -> Option<usize> {
    let mut counter = Counter { kept: None, bytes: 0, most };
    serde_json::to_writer(&mut counter, value).ok().map(|()| counter.bytes)
}

/// The beginning of a value as JSON.
pub(crate) fn json_start(value: &impl serde::Serialize, most: usize) -> String {
    let mut start = Counter { kept: Some(Vec::new()), bytes: 0, most };
    let _ = serde_json::to_writer(&mut start, value);
    let text = String::from_utf8_lossy(&start.kept.unwrap_or_default()).into_owned();
    cut(&text, most).into_owned()
}

struct Counter {
    kept: Option<Vec<u8>>,
    bytes: usize,
    most: usize,
}

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len();
        if let Some(kept) = &mut self.kept {
            // One byte too many says that there was more.
            kept.extend_from_slice(&bytes[..bytes.len().min(self.most + 1 - kept.len().min(self.most + 1))]);
        }
        if self.bytes > self.most { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn texts_and_values_are_cut_where_they_are_too_long() {
        assert_eq!(cut("ab", 2), "ab");
        assert_eq!(cut("aöb", 2), "a...");
        assert_eq!((json_bytes(&json!([1, 2]), 5), json_bytes(&json!([1, 22]), 5)), (Some(5), None));
        assert_eq!(json_start(&json!([1, 2, 3]), 3), "[1,...");
        assert_eq!(json_start(&json!([1]), 3), "[1]");
        let mut room = Room { items: 2, bytes: 10 };
        assert!(room.take(6) && !room.take(6) && !room.take(1) && !room.is_left());
    }
}
