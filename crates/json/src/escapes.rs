//! Where a string has to be escaped, or has been: bytes are looked at by eights, since nearly all strings have nothing of the sort.

/// Whether a string stands in text as it is.
pub fn is_plain(text: &str) -> bool {
    plain(text.as_bytes()) == text.len()
}

/// A byte in each of eight.
const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The highest bit of each byte that is less than another. A borrow falsifies bytes behind the first hit only, and the first hit
/// of all is what counts.
#[inline]
fn less(word: u64, than: u8) -> u64 {
    word.wrapping_sub(eight(than)) & !word & eight(0x80)
}

/// How many bytes at the front are none of those that `hits` finds in eight of them. Most names and texts are short, so the
/// bytes that fill no eight are looked at together too: those before them once more, or as two fours that share some.
#[inline]
fn until(bytes: &[u8], hits: impl Fn(u64) -> u64) -> usize {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let first = |hits: u64| hits.trailing_zeros() as usize / 8;
    for (at, chunk) in chunks.iter().enumerate() {
        let hits = hits(u64::from_le_bytes(*chunk));
        if hits != 0 {
            return at * 8 + first(hits);
        }
    }
    if rest.is_empty() {
        return bytes.len();
    }
    if let Some(last) = bytes.last_chunk::<8>() {
        let hits = hits(u64::from_le_bytes(*last));
        return if hits == 0 { bytes.len() } else { bytes.len() - 8 + first(hits) };
    }
    if let (Some(head), Some(tail)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        let both = u64::from(u32::from_le_bytes(*head)) | u64::from(u32::from_le_bytes(*tail)) << 32;
        let hits = hits(both);
        return match first(hits) {
            _ if hits == 0 => rest.len(),
            at @ 0..4 => at,
            at => rest.len() + at - 8,
        };
    }
    // Room that is left over holds bytes that are never found.
    let mut word = eight(b'x');
    for (at, byte) in rest.iter().enumerate() {
        word ^= u64::from(b'x' ^ byte) << (8 * at);
    }
    let hits = hits(word);
    if hits == 0 { rest.len() } else { first(hits) }
}

/// The quotes, backslashes and control characters among eight bytes: where what is read as it is ends.
#[inline]
fn special(word: u64) -> u64 {
    less(word ^ eight(b'"'), 1) | less(word ^ eight(b'\\'), 1) | less(word, 0x20)
}

/// Where the bytes of a string that are read as they are end, from this place on: at a quote, a backslash, a control character
/// or the end of the text.
#[inline(always)]
pub(crate) fn ordinary_end(bytes: &[u8], mut at: usize) -> usize {
    // Behind a string follows more, nearly always.
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let hits = special(u64::from_le_bytes(*word));
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    ordinary_end_near(bytes, at)
}

/// [`ordinary_end`] where fewer than eight bytes are left.
#[cold]
fn ordinary_end_near(bytes: &[u8], at: usize) -> usize {
    at + bytes.get(at..).map_or(0, |rest| until(rest, special))
}

/// How many bytes at the front are written into a string as they are: fewer than are read so.
#[inline]
pub(crate) fn plain(bytes: &[u8]) -> usize {
    // Two pairs that differ in one bit: a quote and `&`, `<` and `>`.
    let pair = |word: u64, one: u8, other: u8| less((word & eight(!(one ^ other))) ^ eight(one & other), 1);
    let hits = |word: u64| {
        pair(word, b'"', b'&')
            | pair(word, b'<', b'>')
            | less(word ^ eight(b'\\'), 1)
            | less(word ^ eight(0xe2), 1)
            | less(word, 0x20)
    };
    until(bytes, hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_found_wherever_it_stands() {
        for byte in 0..=255u8 {
            for len in 0..20 {
                for at in 0..len {
                    let mut bytes = vec![b'x'; len];
                    bytes[at] = byte;
                    let special = byte < 0x20 || matches!(byte, b'"' | b'\\');
                    assert_eq!(ordinary_end(&bytes, 0), if special { at } else { len }, "{byte} at {at} of {len}");
                    assert_eq!(ordinary_end(&bytes, at), if special { at } else { len }, "{byte} at {at} of {len}");
                    // Two hits, and neighbours that borrow from each other.
                    bytes[len - 1] = byte.wrapping_add(1);
                    let expected = bytes.iter().position(|b| *b < 0x20 || matches!(b, b'"' | b'\\')).unwrap_or(len);
                    assert_eq!(ordinary_end(&bytes, 0), expected, "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_written_escaped_is_found_wherever_it_stands() {
        let special = |byte: u8| byte < 0x20 || b"\"\\&<>\xe2".contains(&byte);
        for byte in 0..=255u8 {
            for len in 0..20 {
                for at in 0..len {
                    let mut bytes = vec![b'x'; len];
                    bytes[at] = byte;
                    assert_eq!(plain(&bytes), if special(byte) { at } else { len }, "{byte} at {at} of {len}");
                    bytes[len - 1] = byte.wrapping_add(1);
                    let expected = bytes.iter().position(|b| special(*b)).unwrap_or(len);
                    assert_eq!(plain(&bytes), expected, "{bytes:?}");
                }
            }
        }
    }
}
