//! Sets of processors by their numbers, written as the kernel writes them: `0-3,7`.

use std::{collections::BTreeSet, fmt};

use crate::configuration::settings;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// An empty text is an empty set.
    pub fn read(text: &str) -> Result<CpuSet, String> {
        if text.is_empty() { Ok(CpuSet::default()) } else { settings::cpus(text).map(|all| all.into_iter().collect()) }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(&self.0 | &other.0)
    }

    pub fn minus(&self, other: &CpuSet) -> CpuSet {
        CpuSet(&self.0 - &other.0)
    }

    pub fn common(&self, other: &CpuSet) -> CpuSet {
        CpuSet(&self.0 & &other.0)
    }

    pub fn is_within(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(all: I) -> Self {
        CpuSet(all.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut sign = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(out, "{sign}{first}")?;
            if last > first {
                write!(out, "-{last}")?;
            }
            sign = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_they_are_read() {
        for text in ["", "0", "0-1", "0-3,7", "1,3,5-6"] {
            assert_eq!(CpuSet::read(text).unwrap().to_string(), text);
        }
        assert_eq!(CpuSet::read("7,1,0,1-2").unwrap().to_string(), "0-2,7");
        for text in ["1.3", "asd", "3-1", ","] {
            assert!(CpuSet::read(text).is_err(), "{text}");
        }
    }
}
