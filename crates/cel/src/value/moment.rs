//! Points in time as texts give them: the offset from UTC stays, and only the text of the value shows it.

use std::cmp::Ordering;
use std::fmt::{self, Display};

use jiff::Timestamp;
use jiff::tz::Offset;

#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub at: Timestamp,
    offset: Offset,
}

impl Moment {
    /// The point in time with the offset of a text, in seconds; `None` where no clock has that offset.
    pub(crate) fn with_offset(at: Timestamp, seconds: i32) -> Option<Moment> {
        Some(Moment { at, offset: Offset::from_seconds(seconds).ok()? })
    }

    /// Another point in time with the same offset.
    pub(crate) fn moved_to(self, at: Timestamp) -> Moment {
        Moment { at, ..self }
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        Moment { at, offset: Offset::UTC }
    }
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Offset::UTC => write!(f, "{}", self.at),
            offset => write!(f, "{}", self.at.display_with_offset(offset)),
        }
    }
}
