//! RBAC: roles and bindings compiled into lookups.

pub mod rule;

pub use rule::PolicyRule;
