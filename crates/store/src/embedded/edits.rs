//! The difference between two values of one key, in few bytes.
//!
//! A heartbeat changes two times of twenty bytes in an object of six hundred. Edits are runs of three numbers and new
//! bytes: this many bytes of the old value stay, this many go, this many come in their place. The rest behind the last
//! run stays. Numbers have seven bits in a byte, the lowest first.

/// Equal bytes between two differences that are fewer than this are written again: a run of their own costs as much.
const GAP: usize = 4;
/// The stride at which equal bytes are compared.
const STRIDE: usize = 16;

/// Appends the edits that make `new` of `old`. False, with nothing appended, when they are more than half of the new value.
pub(super) fn between(old: &[u8], new: &[u8], out: &mut Vec<u8>) -> bool {
    let (begin, most) = (out.len(), out.len() + new.len() / 2);
    let head = common(old, new);
    let tail = common_end(&old[head..], &new[head..]);
    let (gone, came) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let fits = if gone.len() == came.len() {
        in_place(head, gone, came, out, most)
    } else {
        run(head, gone.len(), came, out, most)
    };
    if !fits {
        out.truncate(begin);
    }
    fits
}

/// Edits of a stretch that is as long as before.
fn in_place(mut kept: usize, gone: &[u8], came: &[u8], out: &mut Vec<u8>, most: usize) -> bool {
    let mut at = 0;
    while at < came.len() {
        let equal = common(&gone[at..], &came[at..]);
        let begin = at + equal;
        let mut end = begin;
        // To the next stretch of equal bytes that is worth a run of its own.
        while end < came.len() && common(&gone[end..came.len().min(end + GAP)], &came[end..]) < GAP {
            end += 1;
        }
        kept += equal;
        if begin < end && !run(kept, end - begin, &came[begin..end], out, most) {
            return false;
        }
        kept = if begin < end { 0 } else { kept };
        at = end;
    }
    true
}

fn run(kept: usize, gone: usize, came: &[u8], out: &mut Vec<u8>, most: usize) -> bool {
    for count in [kept, gone, came.len()] {
        number(count, out);
    }
    let fits = out.len() + came.len() <= most;
    if fits {
        out.extend_from_slice(came);
    }
    fits
}

/// The value that edits make of `old`; `None` when they are not edits of it.
pub(super) fn applied(old: &[u8], mut edits: &[u8], most: usize) -> Option<Vec<u8>> {
    let (mut rest, mut out) = (old, Vec::with_capacity(old.len()));
    while !edits.is_empty() {
        let (kept, gone, came) = (take_number(&mut edits)?, take_number(&mut edits)?, take_number(&mut edits)?);
        out.extend_from_slice(rest.get(..kept)?);
        rest = rest[kept..].get(gone..)?;
        out.extend_from_slice(edits.get(..came)?);
        edits = &edits[came..];
        if out.len() > most {
            return None;
        }
    }
    out.extend_from_slice(rest);
    (out.len() <= most).then_some(out)
}

fn number(mut count: usize, out: &mut Vec<u8>) {
    while count >= 0x80 {
        out.push(count as u8 | 0x80);
        count >>= 7;
    }
    out.push(count as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut count = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = usize::from(byte & 0x7f);
        count |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        if byte & 0x80 == 0 {
            return Some(count);
        }
    }
    None
}

/// How many bytes are equal at the beginning.
fn common(a: &[u8], b: &[u8]) -> usize {
    let strides = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE)).take_while(|(a, b)| a == b).count() * STRIDE;
    strides + a[strides..].iter().zip(&b[strides..]).take_while(|(a, b)| a == b).count()
}

/// How many bytes are equal at the end.
fn common_end(a: &[u8], b: &[u8]) -> usize {
    let strides = a.rchunks_exact(STRIDE).zip(b.rchunks_exact(STRIDE)).take_while(|(a, b)| a == b).count() * STRIDE;
    let (a, b) = (&a[..a.len() - strides], &b[..b.len() - strides]);
    strides + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(old: &[u8], new: &[u8]) -> Option<usize> {
        let mut out = b"before".to_vec();
        if !between(old, new, &mut out) {
            assert_eq!(out, b"before");
            return None;
        }
        let edits = &out[6..];
        assert_eq!(applied(old, edits, new.len()).as_deref(), Some(new));
        assert_eq!(applied(old, edits, new.len().saturating_sub(1)).is_none(), !new.is_empty(), "the bound holds");
        Some(edits.len())
    }

    #[test]
    fn edits_are_as_short_as_what_changed() {
        let check = |old: &str, new: &str, expected: Option<usize>| {
            assert_eq!(edited(old.as_bytes(), new.as_bytes()), expected, "{old} {new}");
        };
        check("", "", Some(0));
        check("", "new", None);
        check("old", "", None);
        check("the same", "the same", Some(0));
        check("a time of 10:00:01 and more", "a time of 10:00:02 and more", Some(4));
        // Two places, and one that is too close to the other for a run of its own.
        check("1234567890abcdefghij1234567890", "1x34567890abcdefghij123456789x", Some(8));
        check("1234567890abcdefghij1234567890", "1x3x567890abcdefghij1234567890", Some(6));
        check("shorter, behind is the rest", "longer text, behind is the rest", Some(14));
        check("nothing stays", "all is other.", None);
    }

    /// A few thousand pairs of values that have more or less in common.
    #[test]
    fn whatever_is_edited_comes_back() {
        let mut seed = 7u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below
        };
        let mut smaller = 0;
        for _ in 0..4000 {
            let old: Vec<u8> = (0..draw(400)).map(|_| b'a' + draw(3) as u8).collect();
            let mut new = old.clone();
            for _ in 0..draw(5) {
                let at = draw(new.len() + 1);
                let end = (at + draw(9)).min(new.len());
                let with: Vec<u8> = (0..draw(9)).map(|_| b'a' + draw(3) as u8).collect();
                new.splice(at..end, with);
            }
            smaller += usize::from(edited(&old, &new).is_some());
        }
        assert!(smaller > 2000, "{smaller}");
    }

    #[test]
    fn what_is_no_edit_is_refused() {
        for (edits, why) in [
            (&[4, 0, 0][..], "more stays than there is"),
            (&[1, 3, 0], "more goes than there is"),
            (&[0, 0, 2, b'x'], "less comes than is said"),
            (&[0, 0], "a number is missing"),
            (&[0x80], "a number has no end"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0], "a number is too large"),
        ] {
            assert_eq!(applied(b"old", edits, 100), None, "{why}");
        }
        assert_eq!(applied(b"old", &[1, 1, 1, b'L'], 100).as_deref(), Some(&b"oLd"[..]));
    }
}
