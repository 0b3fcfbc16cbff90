//! Why a node does not take a Pod, in words that users read.

use std::{fmt, sync::Arc};

/// A reason that users read. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Text {
    pub fn as_str(&self) -> &str {
        match self {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a node does not take a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Text,
    /// Further reasons of the same plugin.
    pub more: Vec<Text>,
    /// Removing Pods from the node would not help.
    pub unresolvable: bool,
    /// The Pod's requests are not as they should be: no node is looked at any more.
    pub broken: bool,
}

impl Rejection {
    pub fn resolvable(reason: &'static str) -> Self {
        Rejection { reason: Text::Static(reason), more: Vec::new(), unresolvable: false, broken: false }
    }

    pub fn unresolvable(reason: &'static str) -> Self {
        Rejection { reason: Text::Static(reason), more: Vec::new(), unresolvable: true, broken: false }
    }

    /// Something is wrong that no other node mends.
    pub fn broken(why: String) -> Self {
        Rejection { reason: Text::Shared(why.into()), more: Vec::new(), unresolvable: true, broken: true }
    }
}
