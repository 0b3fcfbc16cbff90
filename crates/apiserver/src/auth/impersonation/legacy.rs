//! The old way to act for others: whoever may `impersonate` each part of somebody may do so in all that it does.
//! Upstream counterpart: apiserver/pkg/endpoints/filters/impersonation, its legacy mode.

use api::status::StatusError;

use super::{AUTHENTICATION, Acting, ask, complete, groups_of_account};
use crate::auth::{Attributes, Authorizer, User, user};

const VERB: &str = "impersonate";

pub(super) async fn act(authorizer: &dyn Authorizer, caller: &User, wanted: &User) -> Result<Acting, StatusError> {
    let core = |resource| Attributes { version: "v1", ..Attributes::resource(caller, VERB, "", resource) };
    let other = |resource| Attributes { version: "v1", ..Attributes::resource(caller, VERB, AUTHENTICATION, resource) };
    let mut user = wanted.clone();
    match user::split_service_account(&wanted.name) {
        Some((namespace, name)) => {
            if wanted.groups.is_empty() {
                user.groups = groups_of_account(namespace);
            }
            ask(authorizer, &Attributes { namespace, name, ..core("serviceaccounts") }).await?;
        }
        None => ask(authorizer, &Attributes { name: &wanted.name, ..core("users") }).await?,
    }
    for name in &wanted.groups {
        ask(authorizer, &Attributes { name, ..core("groups") }).await?;
    }
    for (key, values) in &wanted.extra {
        for name in values {
            ask(authorizer, &Attributes { subresource: key, name, ..other("userextras") }).await?;
        }
    }
    if !wanted.uid.is_empty() {
        ask(authorizer, &Attributes { name: &wanted.uid, ..other("uids") }).await?;
    }
    Ok(Acting { user: complete(user), constraint: None })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::auth::impersonation::asked::Asked;

    async fn acted(wanted: &User) -> (User, Vec<String>) {
        let asked = Asked::allowing(|_| true);
        let acting = act(&asked, &User::new("me", ["ops"]), wanted).await.unwrap();
        assert_eq!(acting.constraint, None);
        (acting.user, asked.questions())
    }

    #[tokio::test]
    async fn each_part_is_asked_for() {
        let extra = BTreeMap::from([("acme.com/x".to_owned(), vec!["1".to_owned()])]);
        let wanted = User { uid: "u".to_owned(), extra, ..User::new("jane", ["a", "b"]) };
        let (user, asked) = acted(&wanted).await;
        assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
        let expected = [
            "impersonate users jane",
            "impersonate groups a",
            "impersonate groups b",
            "impersonate userextras.authentication.k8s.io/acme.com/x 1",
            "impersonate uids.authentication.k8s.io u",
        ];
        assert_eq!(asked, expected);
        for (at, part) in expected.iter().enumerate() {
            let denied = (*part).to_owned();
            let asked = Asked::allowing(move |question| question != denied);
            assert_eq!(act(&asked, &User::new("me", ["ops"]), &wanted).await.unwrap_err().code, 403, "{part}");
            assert_eq!(asked.questions().len(), at + 1);
        }
    }

    #[tokio::test]
    async fn an_account_brings_its_groups() {
        let (user, asked) = acted(&User::new("system:serviceaccount:ns:bot", [] as [&str; 0])).await;
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]);
        assert_eq!(asked, ["impersonate serviceaccounts ns/bot"]);
        let (user, _) = acted(&User::new("system:serviceaccount:ns:bot", ["only"])).await;
        assert_eq!(user.groups, ["only", "system:authenticated"]);
        let (user, _) = acted(&User::new("system:anonymous", [] as [&str; 0])).await;
        assert_eq!(user.groups, ["system:unauthenticated"]);
    }
}
