//! The view of a write that admission and allocation have, and the contracts they fulfil.

use api::{Value, kind::Definition, status::StatusError};
use futures::future::BoxFuture;

use crate::audit::Trail;
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
    /// Empty for a create with `generateName` until the name is made, which is before admission refuses.
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
    /// The trail to which plugins tell their notes for an audit log.
    pub trail: &'a Trail,
    /// Quotas have been charged. A write that is tried again, with something else allocated to it, uses no more of them.
    pub charged: bool,
    /// Which policies and webhooks were asked, and which are asked again.
    pub reinvocation: Reinvocation,
    /// The object is deleted with others: the request does not name it.
    pub collection: bool,
}

/// The two rounds of mutating admission. There is a second one when a policy or a webhook changed the object: in it the plugins
/// see what these made, and of the policies and webhooks only those that want it are asked again, each once, if the object
/// changed after they saw it.
#[derive(Default)]
pub struct Reinvocation {
    /// The second round.
    again: bool,
    changed: bool,
    asked: [Asked; 2],
}

/// Those that are asked one after another, and again about what those behind them changed.
#[derive(Debug, Clone, Copy)]
pub enum Group {
    Policies,
    Webhooks,
}

/// The progress of the members of a group.
#[derive(Default)]
struct Asked {
    /// Those that want to be asked again, and were asked after the last change.
    called: Vec<String>,
    /// Those that were asked before it.
    due: Vec<String>,
    /// The object after the last of the first round.
    output: Option<Value>,
}

impl Reinvocation {
    /// Begins the second round if there is one.
    pub fn begin(&mut self) -> bool {
        self.again = self.changed && !self.again;
        self.again
    }

    /// 0 is the first round.
    pub fn round(&self) -> usize {
        usize::from(self.again)
    }

    fn asked(&mut self, group: Group) -> &mut Asked {
        &mut self.asked[group as usize]
    }

    /// The members of a group begin a round. A change by other plugins since the round before is a change, too.
    pub fn enter(&mut self, group: Group, object: Option<&Value>) {
        let again = self.again;
        let asked = self.asked(group);
        if again && asked.output.take().as_ref() != object {
            asked.due.append(&mut asked.called);
        }
    }

    /// Whether a member is asked in this round.
    pub fn calls(&self, group: Group, member: &str) -> bool {
        !self.again || self.asked[group as usize].due.iter().any(|due| due == member)
    }

    /// The member that was just asked changed the object.
    pub fn changed(&mut self, group: Group) {
        self.changed = true;
        let asked = self.asked(group);
        asked.due.append(&mut asked.called);
    }

    /// A member that wants to be asked again was asked.
    pub fn called(&mut self, group: Group, member: &str) {
        self.asked(group).called.push(member.to_owned());
    }

    /// The members of a group end a round.
    pub fn leave(&mut self, group: Group, object: Option<&Value>) {
        if !self.again {
            self.asked(group).output = object.cloned();
        }
    }
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
    /// into `new`; a dry run is shown some that need not be free.
    fn allocate<'a>(
        &'a self,
        old: Option<&'a Value>,
        new: &'a mut Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Box<dyn Companions>, StatusError>>;

    /// Gives back the holdings of an object when it leaves the store.
    fn release<'a>(&'a self, object: &'a Value) -> BoxFuture<'a, Result<Box<dyn Companions>, StatusError>>;
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    /// Webhooks are called in the order of their letters; upper case ones want to be called again, those in `changing` change the
    /// object in the first round. `between` is whether other plugins change it before the second.
    fn check(webhooks: &str, changing: &str, between: bool, expected: &str) {
        let (mut reinvocation, mut called) = (Reinvocation::default(), String::new());
        let mut count = 0;
        loop {
            reinvocation.enter(Group::Webhooks, Some(&json!(count)));
            for webhook in webhooks.chars() {
                let name = webhook.to_string();
                if !reinvocation.calls(Group::Webhooks, &name) {
                    continue;
                }
                called.push(webhook);
                if changing.contains(webhook) && !called.contains('|') {
                    count += 1;
                    reinvocation.changed(Group::Webhooks);
                }
                if webhook.is_uppercase() {
                    reinvocation.called(Group::Webhooks, &name);
                }
            }
            reinvocation.leave(Group::Webhooks, Some(&json!(count)));
            if !reinvocation.begin() {
                break;
            }
            called.push('|');
            count += i32::from(between);
        }
        assert_eq!(called, expected, "{webhooks} {changing}");
    }

    #[test]
    fn webhooks_are_called_again_about_later_changes() {
        check("AbC", "", false, "AbC");
        check("AbC", "A", false, "AbC|");
        check("AbC", "b", false, "AbC|A");
        check("AbC", "C", false, "AbC|A");
        check("abc", "c", false, "abc|");
        check("ABC", "BC", false, "ABC|AB");
        check("ABC", "B", true, "ABC|ABC");
    }
}
