//! JSON merge patch, RFC 7386: objects merge, null removes, everything else replaces.

use serde_json::Value;

/// Merges `patch` into `current`.
pub fn apply(mut current: Value, patch: &Value) -> Value {
    json_patch::merge(&mut current, patch);
    current
}
