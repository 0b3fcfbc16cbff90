//! The fields that a write cannot set, because the kind's strategy sets them back: nobody comes to own them through it, and
//! nobody loses them to it.
//!
//! Upstream counterpart: `GetResetFields` and `GetResetFieldsFilter` of the strategies, the filters of structured-merge-diff.

use crate::write::field_set::{self, Set};
use crate::write::structured_merge::Difference;

/// Fields, each by the names on the way to it.
pub type Paths = &'static [&'static [&'static str]];

/// The fields of a write that its strategy sets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resets {
    /// These, with all that is below them.
    These(Paths),
    /// All but these and what is below them. A `*` stands for any item of a list.
    AllBut(Paths),
}

impl Resets {
    pub const NONE: Resets = Resets::These(&[]);
    pub const STATUS: Resets = Resets::These(&[&["status"]]);
    pub const SPEC: Resets = Resets::These(&[&["spec"]]);
    pub const SPEC_AND_METADATA: Resets = Resets::These(&[&["spec"], &["metadata"]]);

    /// Takes the fields out of a set.
    pub fn take_from(self, set: &mut Set) {
        match self {
            Resets::These(paths) => paths.iter().for_each(|path| field_set::subtract_tree(set, path)),
            Resets::AllBut(paths) => field_set::keep_trees(set, paths),
        }
    }

    /// Forgets the fields in a difference.
    pub(crate) fn take_from_difference(self, difference: &mut Difference) {
        self.take_from(&mut difference.changed);
        self.take_from(&mut difference.removed);
    }
}
