//! The parts that validation of every kind uses: field errors with their paths, names, `metadata`, and the texts of
//! upstream's messages. The rules of one kind are in its file under `kinds`.

pub mod conditions;
pub mod field;
pub mod internal_form;
pub mod line_diff;
pub mod names;
pub mod object_meta;
pub(crate) mod relative_path;
pub mod section;
pub mod url;
pub(crate) mod webhook;
