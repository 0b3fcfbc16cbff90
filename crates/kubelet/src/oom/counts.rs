//! How often memory has run out in each cgroup since the kubelet began.

use parking_lot::Mutex;

/// The most cgroups that are remembered. Those of containers come and go; the one whose last time is longest ago is forgotten.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub struct Counts {
    /// The one that was counted last is at the end.
    held: Mutex<Vec<(String, u64)>>,
}

impl Counts {
    pub fn count(&self, cgroup: &str) {
        let mut held = self.held.lock();
        let place = held.iter().position(|(path, _)| path == cgroup);
        let before = place.map_or(0, |place| held.remove(place).1);
        if held.len() == MOST {
            held.remove(0);
        }
        held.push((cgroup.to_owned(), before + 1));
    }

    pub fn of(&self, cgroup: &str) -> u64 {
        self.held.lock().iter().find(|(path, _)| path == cgroup).map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_last_is_remembered() {
        let counts = Counts::default();
        counts.count("/always");
        for number in 0..MOST * 2 {
            counts.count(&format!("/{number}"));
            counts.count("/always");
        }
        assert_eq!(counts.of("/always"), MOST as u64 * 2 + 1);
        assert_eq!((counts.of("/0"), counts.of(&format!("/{}", MOST * 2 - 1)), counts.of("/never")), (0, 1, 0));
        assert_eq!(counts.held.lock().len(), MOST);
    }
}
