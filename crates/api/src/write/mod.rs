//! What a write makes of the object that is there: the patch formats, server-side apply, and who owns which field.
//! Nothing here knows a kind, only its schema.

pub mod apply;
pub mod field_set;
pub mod managed_fields;
pub mod patch;
pub mod structured_merge;
