//! The strategy of a kind: its rules over objects as JSON.
//!
//! Upstream counterpart: pkg/registry, the `strategy.go` of each kind.

use std::{any::Any, sync::Arc};

use json::Value;

use crate::validation::field::Errors;
use crate::write::resets::Resets;

/// The part of an object that a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The object itself: `status` of the request is ignored where the kind has a status subresource.
    Object,
    /// The status subresource: only `status` (and allowed metadata) of the request counts.
    Status,
    /// Another subresource that writes a part of the object (`resize`, `ephemeralcontainers`, `scale`, `finalize`, …).
    Other(&'static str),
}

/// An object in its type, whichever that is.
pub type TypedObject = Arc<dyn Any + Send + Sync>;

/// A new object that was found right.
pub struct Checked {
    /// For the client (`Warning:` headers).
    pub warnings: Vec<String>,
    /// The object in its type, without `metadata.managedFields`, of kinds that have one.
    pub typed: Option<TypedObject>,
}

/// The rules of one kind, over objects as JSON. All functions are pure.
pub trait Strategy: Send + Sync {
    /// Fills in defaults. An object that does not decode stays as it is: `validate` says why.
    fn default(&self, object: &mut Value);
    /// Fills in the defaults of an object that takes the place of another, which has its own.
    fn default_changed(&self, object: &mut Value, _old: &Value) {
        self.default(object);
    }
    /// Takes nulls that stand for nothing from what a client wrote. An applied configuration keeps them, to be refused.
    fn drop_nulls(&self, _object: &mut Value) {}
    /// Checks a new object: what is wrong with it, or else the warnings, and the object in its type. One call, because all of it
    /// needs that, and decoding is what costs.
    fn check(&self, object: &Value) -> Result<Checked, Errors>;
    /// Checks a change, and the new object as `check` does.
    fn check_update(&self, new: &Value, old: &Value, target: Target) -> Result<Vec<String>, Errors>;
    /// Returns what is wrong with a new object.
    fn validate(&self, object: &Value) -> Errors {
        self.check(object).err().unwrap_or_default()
    }
    /// Returns what is wrong with a change.
    fn validate_update(&self, new: &Value, old: &Value, target: Target) -> Errors {
        self.check_update(new, old, target).err().unwrap_or_default()
    }
    /// Why an object that has the kind's shape is none all the same.
    fn unreadable(&self, _object: &Value) -> Option<String> {
        None
    }
    /// Sets the fields of a new object that belong to the server: status, generation and those that the kind adds.
    /// Returns warnings about what nobody sees any more afterwards.
    fn prepare_create(&self, object: &mut Value) -> Vec<String>;
    /// Sets the fields of a changed object that belong to the server, and decides whether `metadata.generation` grows.
    fn prepare_update(&self, new: &mut Value, old: &Value, target: Target);
    /// The fields that a write cannot set, as `prepare_update` sets them back.
    fn resets(&self, target: Target) -> Resets;
    /// The cells of one row of a Table, in the order of the definition's columns.
    fn row(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value>;
    /// The grace period that a delete gets: `None` deletes at once. `requested` is from the delete options.
    fn grace_seconds(&self, object: &Value, requested: Option<i64>) -> Option<i64>;
    /// Changes an object that stays in the store while its deletion is under way, as the kind wants it. Whether it wants anything:
    /// such a kind is marked by the time alone.
    fn prepare_delete(&self, _object: &mut Value) -> bool {
        false
    }
    /// Turns an object of this version into the stored version, in place; nothing to do for most kinds.
    fn to_storage(&self, _object: &mut Value) {}
    /// Turns a stored object into this version, in place.
    #[expect(clippy::wrong_self_convention, reason = "the counterpart of `to_storage`, on an object")]
    fn from_storage(&self, _object: &mut Value) {}
}
