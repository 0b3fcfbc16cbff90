//! The ways in which a write changes an object: the patch formats, server-side apply, and the owners of fields.
//! Nothing here knows a kind, only its schema.

pub mod apply;
mod changes;
pub mod entries;
pub mod field_set;
pub mod managed_fields;
pub mod patch;
pub mod resets;
pub mod scale;
pub mod structured_merge;
pub mod typed;
pub mod versions;
