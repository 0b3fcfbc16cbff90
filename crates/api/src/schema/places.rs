//! Finds the place of a name among a few by a number of it: one look in a table that is at most half full, where halving a sorted list
//! compares six names.

/// Authors of custom kinds choose names, and may choose alike ones: more than these are not to be found so.
pub(crate) const FEW: usize = 64;

/// For each number the place of a name, counted from one; 0 where there is none.
#[derive(Debug, Default)]
pub(crate) struct Places(Box<[u8]>);

fn number(name: &str) -> usize {
    (json::mixed(name.as_bytes()) >> 32) as usize
}

impl Places {
    /// Of names that differ from each other, at most 255.
    pub fn of<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> Self {
        let mut places = vec![0; (names.len() * 2).next_power_of_two()];
        let last = places.len() - 1;
        for (place, name) in (1..=u8::MAX).zip(names) {
            let mut at = number(name) & last;
            while places[at] != 0 {
                at = (at + 1) & last;
            }
            places[at] = place;
        }
        Places(places.into())
    }

    /// No names were told to it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The place of a name; `is` says whether it is the one at a place.
    #[inline]
    pub fn find(&self, name: &str, is: impl Fn(usize) -> bool) -> Option<usize> {
        let last = self.0.len().checked_sub(1)?;
        let mut at = number(name) & last;
        loop {
            let found = usize::from(self.0[at].checked_sub(1)?);
            if is(found) {
                return Some(found);
            }
            at = (at + 1) & last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_place_and_no_other_has_one() {
        for count in [0, 1, 2, 3, 64, 255] {
            let names: Vec<String> = (0..count).map(|i| format!("name{i}")).collect();
            let places = Places::of(names.iter().map(String::as_str));
            let find = |name: &str| places.find(name, |at| names[at] == name);
            for (at, name) in names.iter().enumerate() {
                assert_eq!(find(name), Some(at));
            }
            assert_eq!((find(""), find("name"), find("other")), (None, None, None));
        }
        assert!(Places::default().is_empty() && Places::default().find("x", |_| true).is_none());
    }
}
