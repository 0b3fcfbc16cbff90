//! The columns of a kind's Table, and the two or three that most kinds share.

use json::Value;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::cell;

/// One column of a Table. Build it with [`name`], [`age`], [`col`], [`wide`], [`int`] or [`flag`].
pub struct Column<T: 'static> {
    pub name: &'static str,
    /// `string`, `integer`, `date`, …
    pub kind: &'static str,
    pub format: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
    /// The cell; `now` is for ages.
    pub cell: fn(&T, now: jiff::Timestamp) -> Value,
}

impl<T> Column<T> {
    /// Shown only with `-o wide`.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    #[must_use]
    pub const fn format(mut self, format: &'static str) -> Self {
        self.format = format;
        self
    }

    pub(super) fn header(&self) -> ColumnHeader {
        ColumnHeader {
            name: self.name.to_owned(),
            kind: self.kind.to_owned(),
            format: self.format.to_owned(),
            priority: self.priority,
            description: self.description.to_owned(),
        }
    }
}

type Cell<T> = fn(&T, jiff::Timestamp) -> Value;

/// A column of text.
pub const fn col<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    Column { name, kind: "string", format: "", priority: 0, description, cell }
}

/// A column of text that is shown only with `-o wide`.
pub const fn wide<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    col(name, description, cell).wide()
}

/// A column of whole numbers.
pub const fn int<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    Column { name, kind: "integer", format: "", priority: 0, description, cell }
}

/// A column of `true` and `false`.
pub const fn flag<T>(name: &'static str, description: &'static str, cell: Cell<T>) -> Column<T> {
    Column { name, kind: "boolean", format: "", priority: 0, description, cell }
}

/// The column that nearly every kind begins with.
pub const fn name<T: Metadata<Ty = ObjectMeta>>() -> Column<T> {
    let cell: Cell<T> = |object, _| Value::from(object.metadata().name.clone().unwrap_or_default());
    col("Name", NAME_ABOUT, cell).format("name")
}

/// Time since creation.
pub const fn age<T: Metadata<Ty = ObjectMeta>>() -> Column<T> {
    col("Age", CREATED_ABOUT, |object, now| Value::from(cell::age(object.metadata().creation_timestamp.as_ref(), now)))
}

/// Creation time itself: the second column of a kind that has no columns of its own.
pub const fn created<T: Metadata<Ty = ObjectMeta>>() -> Column<T> {
    let cell: Cell<T> = |object, _| json::to_value(&object.metadata().creation_timestamp).unwrap_or_default();
    Column { name: "Created At", kind: "date", format: "", priority: 0, description: CREATED_ABOUT, cell }
}

/// The API's documentation of `metadata.name`; clients read it in the Table's header.
pub const NAME_ABOUT: &str = "Name must be unique within a namespace. Is required when creating resources, although some \
    resources may allow a client to request the generation of an appropriate name automatically. Name is primarily \
    intended for creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// The API's documentation of `metadata.creationTimestamp`.
pub const CREATED_ABOUT: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. \
    It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. \
    It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// A column without its cell, for the Table's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnHeader {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub priority: i32,
    pub description: String,
}
