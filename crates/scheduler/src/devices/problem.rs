//! The obstacles that keep claims from devices, other than that there are too few.

/// Why there are no devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A claim, a class or a pool is not as it should be, so no other node is tried.
    Broken(String),
    /// Another node may do.
    Here(&'static str),
}
