//! The changes of a write, in every version in which somebody owns fields.

use json::Value;

use crate::write::{
    entries::{Writer, strip, version},
    structured_merge::{self, Difference},
    versions::{Sight, Versions},
};

/// One write's change, in every version in which somebody owns fields.
pub(crate) struct Changes<'a> {
    own: &'a Difference,
    by: &'a Writer<'a>,
    /// Before and after, without their managers.
    objects: (Option<&'a Value>, &'a Value),
    others: Vec<(String, Option<Difference>)>,
}

impl<'a> Changes<'a> {
    /// `own` is the change in the version of the write.
    pub fn new(own: &'a Difference, objects: (Option<&'a Value>, &'a Value), by: &'a Writer<'a>) -> Self {
        Changes { own, by, objects, others: Vec::new() }
    }

    /// The change as the version of a manager has it; `None` where there is no such version any more.
    pub fn of(&mut self, entry: &Value) -> Option<&Difference> {
        let version = version(entry);
        let versions = self.by.versions.filter(|_| version != self.by.api_version);
        let Some(versions) = versions else { return Some(self.own) };
        let at = match self.others.iter().position(|(known, _)| known == version) {
            Some(at) => at,
            None => {
                let difference = self.difference(versions, version);
                self.others.push((version.to_owned(), difference));
                self.others.len() - 1
            }
        };
        self.others[at].1.as_ref()
    }

    fn difference(&self, versions: &Versions, version: &str) -> Option<Difference> {
        let (old, new) = self.objects;
        // Both are asked for at once.
        let (before, after) = (old.map(|old| versions.sees(old, version)), versions.sees(new, version));
        let (ty, after) = match after {
            Sight::As(ty, after) => (ty, after),
            Sight::Gone => return None,
            Sight::Asked => return Some(Difference::default()),
        };
        let before = match before {
            None => structured_merge::blank(&ty),
            Some(Sight::As(_, before)) => before,
            Some(_) => return Some(Difference::default()),
        };
        let mut difference = structured_merge::compare(&ty, &before, &after);
        strip(&mut difference.changed);
        strip(&mut difference.removed);
        self.by.resets.take_from_difference(&mut difference);
        Some(difference)
    }
}
