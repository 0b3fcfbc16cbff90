//! The finding of a check.

/// Something about a Pod that a check forbids.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    /// Such as `host namespaces`.
    pub reason: &'static str,
    /// Such as `hostNetwork=true, hostPID=true`.
    pub detail: String,
}
