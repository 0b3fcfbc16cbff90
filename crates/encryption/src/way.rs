//! The two ways of a value through a provider.

/// Whether values are written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToStorage,
    FromStorage,
}

impl Way {
    /// As metrics name it.
    pub fn label(self) -> &'static str {
        match self {
            Way::ToStorage => "to_storage",
            Way::FromStorage => "from_storage",
        }
    }
}
