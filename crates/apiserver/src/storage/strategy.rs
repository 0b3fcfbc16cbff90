//! The steps that a kind's strategy has in every write, whether it is a client's or the server's own.
//!
//! Upstream counterpart: `BeforeCreate` and `BeforeUpdate` of apiserver/pkg/registry/rest.

use api::{
    Value,
    kind::{Checked, Definition, Target},
    meta,
    status::StatusError,
    validation::{field::FieldError, object_meta},
};

/// Takes from a new object what only the server says: an object that was exported can be created again.
pub fn wipe(object: &mut Value) {
    let Some(metadata) = meta::metadata_mut(object) else { return };
    for field in
        ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]
    {
        metadata.remove(field);
    }
}

/// Gives a new object what the server sets, and checks it; returns warnings for the client, and the object in its type.
pub fn before_create(definition: &Definition, object: &mut Value) -> Result<Checked, StatusError> {
    wipe(object);
    if let Some(metadata) = meta::metadata_mut(object) {
        metadata.insert("uid", Value::from(clock::uuid()));
        metadata.insert("creationTimestamp", Value::from(clock::now_seconds().to_string()));
    }
    let mut warnings = definition.strategy.prepare_create(object);
    match definition.strategy.check(object) {
        Ok(checked) => {
            warnings.extend(checked.warnings);
            Ok(Checked { warnings, ..checked })
        }
        Err(errors) => Err(StatusError { warnings, ..invalid(definition, object, &errors) }),
    }
}

/// Checks an object that the strategy has prepared for an update; returns warnings for the client.
pub fn check_update(
    definition: &Definition,
    new: &Value,
    old: &Value,
    target: Target,
) -> Result<Vec<String>, StatusError> {
    definition.strategy.check_update(new, old, target).map_err(|errors| {
        // Upstream checks the metadata of all kinds by common rules first, and tells of what is wrong by both each time.
        let mut all = object_meta::common_update(new, old, definition.scope);
        all.extend(errors);
        invalid(definition, old, &all)
    })
}

fn invalid(definition: &Definition, object: &Value, errors: &[FieldError]) -> StatusError {
    StatusError::invalid(&definition.group, &definition.kind, meta::name(object), errors)
}
