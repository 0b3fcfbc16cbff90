//! What admission and allocation see of a write, and the contracts they fulfil.

use api::{Value, kind::Definition, status::StatusError};
use futures::future::BoxFuture;

use crate::auth::User;
use crate::storage::commit::Companions;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As AdmissionReview spells it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write on its way through admission.
pub struct Attributes<'a> {
    pub definition: &'a Definition,
    pub operation: Operation,
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Empty for a create with `generateName` until the name is made (before admission runs).
    pub name: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    /// The object to write: `None` for a delete.
    pub object: Option<Value>,
    /// The object as it is: `None` for a create.
    pub old: Option<&'a Value>,
    /// The options of the request (`CreateOptions`, `DeleteOptions`, …) or, for a connect, its query.
    pub options: Value,
    /// Sent to the client as `Warning` headers.
    pub warnings: Vec<String>,
    /// What plugins have to say to an audit log.
    pub annotations: Vec<(String, String)>,
    /// Quotas have been charged. A write that is tried again, with something else allocated to it, uses no more of them.
    pub charged: bool,
}

/// Admission: first everything that changes the object, later everything that only refuses.
pub trait Admission: Send + Sync {
    fn admit<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), StatusError>>;
    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), StatusError>>;
}

/// Chooses values out of a limited supply (addresses, ports) for objects of one kind. Nothing is taken before the object is
/// written: what it takes and gives back is committed with it.
pub trait Allocation: Send + Sync {
    /// Called after mutating admission and before validation, on create (`old` is `None`) and update. Fills the values
    /// into `new`.
    fn allocate<'a>(
        &'a self,
        old: Option<&'a Value>,
        new: &'a mut Value,
    ) -> BoxFuture<'a, Result<Box<dyn Companions>, StatusError>>;

    /// What an object gives back when it leaves the store.
    fn release<'a>(&'a self, object: &'a Value) -> BoxFuture<'a, Result<Box<dyn Companions>, StatusError>>;
}
