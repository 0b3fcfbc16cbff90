//! The list of built-in kinds, in the order of discovery: one line for each. What a kind is stands in its file.

use crate::kind::Definition;

pub mod pod;

/// What the server serves under a path.
pub(crate) fn resources() -> Vec<Definition> {
    vec![pod::POD.define()]
}

/// What only travels in bodies of subresources.
pub(crate) fn bodies() -> Vec<Definition> {
    vec![]
}
