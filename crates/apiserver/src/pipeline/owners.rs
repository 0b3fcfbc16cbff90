//! Owners that stand twice in an object: the second goes, and whoever wrote it is told.
//! Upstream counterpart: apiserver/pkg/endpoints/handlers, `dedupOwnerReferences`.

use std::collections::HashSet;

use api::{Value, meta};

/// The moment at which owners are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Written,
    Admitted,
}

/// Takes out references that are there already, and says which these are.
pub(super) fn deduplicate(object: &mut Value, seen: Seen) -> Option<String> {
    let owners = meta::at(object, "/metadata/ownerReferences").and_then(Value::as_array)?;
    if owners.len() < 2 {
        return None;
    }
    // Looked up, not compared with each other: an object has room for very many.
    let mut kept = HashSet::with_capacity(owners.len());
    let (first, twice): (Vec<_>, Vec<_>) = owners.iter().partition(|&owner| kept.insert(owner));
    if twice.is_empty() {
        return None;
    }
    let twice: Vec<_> = twice.iter().map(|owner| owner["uid"].as_str().unwrap_or_default().to_owned()).collect();
    let first: Vec<_> = first.into_iter().cloned().collect();
    meta::metadata_mut(object)?.insert("ownerReferences", Value::from(first));
    let when = if seen == Seen::Admitted { " after mutating admission happens" } else { "" };
    Some(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such \
         requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        twice.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    /// Owners by their UIDs; one with a star is a controller.
    fn check(uids: &str, kept: &str, told: Option<&str>) {
        let owner = |uid: &str| match uid.strip_suffix('*') {
            Some(uid) => json!({"uid": uid, "controller": true}),
            None => json!({"uid": uid}),
        };
        let of = |uids: &str| json!({"metadata": {"ownerReferences": uids.split(' ').map(owner).collect::<Vec<_>>()}});
        let mut object = of(uids);
        let warning = deduplicate(&mut object, Seen::Written);
        let begin = ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such \
                     requests as early as 1.24; please fix your requests; duplicate UID(s) observed: ";
        assert_eq!(warning.as_deref().map(|text| text.strip_prefix(begin).unwrap()), told, "{uids}");
        assert_eq!(object, of(kept), "{uids}");
    }

    #[test]
    fn only_what_is_equal_in_all_is_twice() {
        check("a", "a", None);
        check("a b", "a b", None);
        check("a b a", "a b", Some("a"));
        check("a a* a", "a a*", Some("a"));
        check("a b a b b", "a b", Some("a, b, b"));
        assert_eq!(deduplicate(&mut json!({}), Seen::Admitted), None);
    }
}
