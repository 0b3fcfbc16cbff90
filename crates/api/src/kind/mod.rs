//! The declaration of a kind, from which routes, discovery, tables, RBAC names, defaults and validation follow.
//!
//! A built-in kind is a `const` [`Kind<T>`] in its own file under `kinds/`, over its `k8s-openapi` type. The server works
//! on [`Definition`], which owns all that it says, so that a CustomResourceDefinition can build one at run time too.
//! Nothing here names a kind: the kinds and their rules stand under `kinds/`.

pub mod cell;
mod column;
mod declaration;
pub(crate) mod define;
mod definition;
mod gated;
pub mod group;
mod kind_table;
mod names;
mod older;
mod strategy;
pub mod webhook;

pub use column::{CREATED_ABOUT, Column, ColumnHeader, NAME_ABOUT, age, col, created, flag, int, name, wide};
pub use declaration::{
    ALL_VERBS, FieldLabel, Gated, GatedText, Generation, Kind, Scale, Scope, StatusMetadata, Subresource, Way, label,
};
pub(crate) use define::{BuiltIn, Scoped};
pub use definition::{CustomSchema, Definition, FieldValue, SelectableField};
pub use kind_table::KindTable;
pub use older::Older;
pub use strategy::{Checked, Strategy, Target, TypedObject};
