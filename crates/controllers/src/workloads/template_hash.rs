//! Short names for the content of a template.

/// Letters and digits that upstream spells numbers in names with.
const SAFE: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Names the content (and how often that name was taken by something else) in a few characters.
pub fn template_hash(content: &[u8], collisions: Option<i32>) -> String {
    let salt = collisions.map(|n| (n as u32).to_le_bytes());
    let bytes = content.iter().chain(salt.iter().flatten());
    api::rules::hash::fnv_32(bytes)
        .to_string()
        .bytes()
        .map(|digit| SAFE[usize::from(digit) % SAFE.len()] as char)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::template_hash;

    #[test]
    fn a_hash_follows_from_content_and_collisions() {
        assert_eq!(template_hash(b"foobar", None), template_hash(b"foobar", None));
        let all = [template_hash(b"foobar", None), template_hash(b"foobar", Some(1)), template_hash(b"foobaz", None)];
        assert!(all[0] != all[1] && all[0] != all[2], "{all:?}");
        assert!(all.iter().all(|hash| hash.len() <= 10 && !hash.contains(['a', 'e', 'i', 'o', 'u', '0', '1', '3'])));
    }
}
