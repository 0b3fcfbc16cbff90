//! Constrained ways to act for others: being somebody is a right of its own for each sort of user, and so is each thing that is
//! done as one. Nothing is remembered, so that a right that is taken away is gone.
//! Upstream counterpart: apiserver/pkg/endpoints/filters/impersonation (KEP-5284).

use std::{borrow::Cow, collections::BTreeMap};

use api::{
    status::StatusError,
    validation::{field::Path, names},
};

use super::{AUTHENTICATION, Acting, ask, complete, groups_of_account};
use crate::auth::{Attributes, Authorizer, User, forbidden, user};

/// With this many groups or extra values it is asked first whether all of them are allowed.
const MANY: usize = 4;
const EVERY: &str = "*";
/// The key that a caller that acts for its own node has in place of all its extra: the names of that. The rest differs from Pod
/// to Pod, and rules are about none of them alone.
const ASSOCIATED_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// A way to act for users of one sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A service account for the node that its token is bound to.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// For users who are neither nodes nor service accounts, with all that belongs to one.
    UserInfo,
}

/// The narrowest come first.
const MODES: [Mode; 4] = [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo];

/// The first way in which the caller may act for the user in this request; none where no way is for such users.
pub(super) async fn act(
    authorizer: &dyn Authorizer,
    request: &Attributes<'_>,
    wanted: &User,
) -> Result<Option<Acting>, StatusError> {
    let mut refused = None;
    for mode in MODES.into_iter().filter(|mode| mode.is_for(wanted, request.user)) {
        match mode.act(authorizer, request, wanted).await {
            Ok(user) => return Ok(Some(Acting { user, constraint: Some(mode.verb()) })),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(None), Err)
}

impl Mode {
    fn verb(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "impersonate:associated-node",
            Mode::ArbitraryNode => "impersonate:arbitrary-node",
            Mode::ServiceAccount => "impersonate:serviceaccount",
            Mode::UserInfo => "impersonate:user-info",
        }
    }

    fn is_for(self, wanted: &User, caller: &User) -> bool {
        let name_alone = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node_of(&wanted.name), user::split_service_account(&wanted.name));
        match self {
            Mode::AssociatedNode => {
                let own = caller.extra.get(NODE_NAME).map(Vec::as_slice);
                name_alone
                    && user::split_service_account(&caller.name).is_some()
                    && node.is_some_and(|node| matches!(own, Some([own]) if own == node))
            }
            Mode::ArbitraryNode => name_alone && node.is_some(),
            Mode::ServiceAccount => name_alone && account.is_some(),
            Mode::UserInfo => node.is_none() && account.is_none(),
        }
    }

    /// Asks whether the request may be made in this way at all, then for each part of the user.
    async fn act(
        self,
        authorizer: &dyn Authorizer,
        request: &Attributes<'_>,
        wanted: &User,
    ) -> Result<User, StatusError> {
        let caller = self.caller(request.user);
        let on = self.verb().replacen("impersonate:", "impersonate-on:", 1);
        let verb = format!("{on}:{}", request.verb);
        ask(authorizer, &Attributes { user: &caller, verb: &verb, ..*request }).await?;
        let part = |resource| Attributes {
            version: "v1",
            ..Attributes::resource(&caller, self.verb(), AUTHENTICATION, resource)
        };
        let mut user = wanted.clone();
        if let Some(node) = node_of(&wanted.name) {
            let name = if self == Mode::AssociatedNode { EVERY } else { node };
            user.groups = vec![user::GROUP_NODES.to_owned()];
            ask(authorizer, &Attributes { name, ..part("nodes") }).await?;
        } else if let Some((namespace, name)) = user::split_service_account(&wanted.name) {
            user.groups = groups_of_account(namespace);
            ask(authorizer, &Attributes { namespace, name, ..part("serviceaccounts") }).await?;
        } else {
            ask(authorizer, &Attributes { name: &wanted.name, ..part("users") }).await?;
        }
        if !wanted.uid.is_empty() {
            ask(authorizer, &Attributes { name: &wanted.uid, ..part("uids") }).await?;
        }
        may_have_groups(authorizer, part("groups"), &wanted.groups).await?;
        may_have_extra(authorizer, part("userextras"), &wanted.extra).await?;
        Ok(complete(user))
    }

    /// The caller as rules of this way see it.
    fn caller(self, caller: &User) -> Cow<'_, User> {
        if self != Mode::AssociatedNode {
            return Cow::Borrowed(caller);
        }
        let keys = caller.extra.keys().cloned().collect();
        Cow::Owned(User { extra: BTreeMap::from([(ASSOCIATED_KEYS.to_owned(), keys)]), ..caller.clone() })
    }
}

async fn may_have_groups(
    authorizer: &dyn Authorizer,
    part: Attributes<'_>,
    groups: &[String],
) -> Result<(), StatusError> {
    if groups.iter().any(String::is_empty) {
        return Err(forbidden(&part, "impersonating the empty string group is not allowed"));
    }
    if let Some(name) = groups.iter().find(|group| *group == user::GROUP_MASTERS) {
        let why = "impersonating the system:masters group is not allowed";
        return Err(forbidden(&Attributes { name, ..part }, why));
    }
    if groups.len() >= MANY && ask(authorizer, &Attributes { name: EVERY, ..part }).await.is_ok() {
        return Ok(());
    }
    for name in groups {
        ask(authorizer, &Attributes { name, ..part }).await?;
    }
    Ok(())
}

async fn may_have_extra(
    authorizer: &dyn Authorizer,
    part: Attributes<'_>,
    extra: &BTreeMap<String, Vec<String>>,
) -> Result<(), StatusError> {
    for (key, values) in extra {
        if let Some(why) = wrong_extra(key, values) {
            return Err(forbidden(&part, &why));
        }
    }
    if extra.values().map(Vec::len).sum::<usize>() >= MANY {
        let every = Attributes { subresource: EVERY, name: EVERY, ..part };
        if ask(authorizer, &every).await.is_ok() {
            return Ok(());
        }
    }
    for (key, values) in extra {
        for name in values {
            ask(authorizer, &Attributes { subresource: key, name, ..part }).await?;
        }
    }
    Ok(())
}

/// Why nobody can have this in addition.
fn wrong_extra(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let wrong = names::domain_prefixed_path(key, &Path::new("extra").child("key"));
    if let [first, ..] = wrong.as_slice() {
        return Some(format!("impersonating an invalid key in extra is not allowed: {first}"));
    }
    if key.chars().any(char::is_uppercase) {
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {key:?}"));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    let empty = values.iter().any(String::is_empty);
    empty.then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

/// The node that a user name stands for.
fn node_of(name: &str) -> Option<&str> {
    let node = name.strip_prefix(user::NODE_PREFIX)?;
    names::dns1123_subdomain(node).is_empty().then_some(node)
}
