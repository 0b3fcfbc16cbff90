//! Custom kinds: from a CustomResourceDefinition to the [`Definition`](crate::kind::Definition) of each version that it
//! serves. Every one of them has the same strategy, which works by the version's structural schema; a schema is read when
//! an object of its version first passes, so that kinds nobody uses cost next to nothing.
//!
//! Upstream counterpart: apiextensions-apiserver, pkg/apiserver and pkg/registry/customresource.

pub mod conditions;
mod conversion;
mod defaults;
mod define;
mod embedded;
mod field_path;
pub mod formats;
mod head;
pub(crate) mod json_path;
mod list_types;
mod pattern;
mod rules;
mod strategy;
mod structural;
mod values;
mod version;

pub(crate) use conversion::{REVIEWS, aggregate, bundle_error};
pub(crate) use defaults::{META, prune};
pub use define::{definitions, stored_definition};
pub(crate) use embedded::check as check_embedded;
pub(crate) use field_path::resolve as resolve_field;
pub(crate) use formats::is_known as is_known_format;
pub use head::Head;
pub(crate) use pattern::Pattern;
pub use rules::Compiler;
pub(crate) use rules::Rules;
pub(crate) use structural::Structural;
pub(crate) use values::check as check_value;
pub use version::Stored;
