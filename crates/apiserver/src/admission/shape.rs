//! The schema of an object that a policy or a webhook changes, and the fields that are put right in it afterwards.

use api::{Value, kind::Definition, meta, schema::Type, write::entries};

/// Gives the object its field managers back when those after the patch cannot be read.
pub(super) fn restore_managers(object: &mut Value, before: &Value) -> Option<String> {
    let (known, now) = (&before["metadata"]["managedFields"], &object["metadata"]["managedFields"]);
    if now == known || now.as_array().is_none_or(|list| list.iter().all(entries::is_valid)) {
        return None;
    }
    object["metadata"]["managedFields"] = known.clone();
    let what = ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
                mutating admission controller; please fix your requests: an entry cannot be read";
    Some(what.to_owned())
}

/// The source of the object's schema: its resource's definition, or, with a subresource, a kind of its own.
pub(super) enum Shape<'d> {
    Own(&'d Definition),
    BuiltIn(&'d Definition),
    Unknown,
}

impl<'d> Shape<'d> {
    pub(super) fn of(definition: &'d Definition, object: &Value) -> Self {
        let (group, version, kind) = names(object);
        if kind == definition.kind {
            return Shape::Own(definition);
        }
        api::kinds::built_in().by_kind(group, version, kind).map_or(Shape::Unknown, |known| Shape::BuiltIn(known))
    }

    /// The type of the object, if it is known.
    pub(super) fn known(&self) -> Option<&'d Type> {
        match self {
            Shape::Own(definition) | Shape::BuiltIn(definition) => Some(&definition.ty),
            Shape::Unknown => None,
        }
    }

    pub(super) fn ty(&self) -> &'d Type {
        self.known().unwrap_or(&Type::Any)
    }

    pub(super) fn default(&self, object: &mut Value, old: Option<&Value>) {
        let now = || clock::now_seconds().to_string();
        match (self, old) {
            (Shape::Own(definition), Some(old)) => definition.default_changed(object, old, now),
            (Shape::Own(definition) | Shape::BuiltIn(definition), _) => definition.default(object, now),
            (Shape::Unknown, _) => {}
        }
    }
}

/// Group, version and kind of an object.
fn names(object: &Value) -> (&str, &str, &str) {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = meta::group_and_version(text("apiVersion"));
    (group, version, text("kind"))
}
