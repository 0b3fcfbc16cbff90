//! JSON values as a compact tree. An API server builds, copies and drops the tree of an object several times a write, and
//! most of that is names of fields: here they are shared, and the fields of an object stand side by side.
//!
//! Names and methods are those of `serde_json`, whose errors and numbers these are, so that who knows the one knows the other.

mod compact;
mod escapes;
mod foreign;
mod key;
mod macros;
mod map;
mod pieces;
mod read;
mod reader;
mod source;
mod text;
mod tree;
mod typed;
mod value;
mod write;

pub use compact::{append_name, append_string};
pub use escapes::is_plain;
pub use key::{Key, know, mixed};
pub use map::{Entry, IntoIter, Iter, IterMut};
pub use serde_json::{Error, Number};
pub use source::Reader;
pub use text::length_of_value;
pub use tree::{parse, parse_without};
pub use typed::{from_text, from_text_without, from_value};
pub use value::{Place, Value};
pub use write::to_value;

/// The fields of an object.
pub type Map = map::Map<Value>;
