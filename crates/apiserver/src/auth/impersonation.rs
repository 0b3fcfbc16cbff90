//! Acting as somebody else: `Impersonate-*` headers, each part of which the caller must be allowed to take on.
//!
//! A caller that sends one of them never acts under its own name by accident: a header that can't be understood is refused.

use api::status::StatusError;
use http::HeaderMap;

use super::{Attributes, User, header, user};

/// How all of them begin.
const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// One thing that the caller must be allowed to `impersonate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub group: &'static str,
    pub version: &'static str,
    pub resource: &'static str,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

impl Part {
    /// The question for the authorizer.
    pub fn attributes<'a>(&'a self, caller: &'a User) -> Attributes<'a> {
        Attributes {
            version: self.version,
            namespace: &self.namespace,
            subresource: &self.subresource,
            name: &self.name,
            ..Attributes::resource(caller, "impersonate", self.group, self.resource)
        }
    }
}

/// The user that the headers name, and the rights that the caller must have for it. `Ok(None)` when they name nobody.
pub fn requested(headers: &HeaderMap) -> Result<Option<(User, Vec<Part>)>, StatusError> {
    let unreadable = |why: header::Unreadable| StatusError::bad_request(why.to_string());
    let known = |name: &str| matches!(name, USER | GROUP | UID) || name.starts_with(EXTRA);
    let mut ours = headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with(PREFIX)).peekable();
    if ours.peek().is_none() {
        return Ok(None);
    }
    if let Some(strange) = ours.find(|name| !known(name)) {
        return Err(StatusError::bad_request(format!("the header {strange} is not understood")));
    }
    let one = |name: &str| header::one(headers, name).map(Option::unwrap_or_default).map_err(unreadable);
    let mut wanted = User {
        name: one(USER)?,
        uid: one(UID)?,
        groups: header::all(headers, GROUP).map_err(unreadable)?,
        extra: header::extra(headers, EXTRA).map_err(unreadable)?,
    };
    if wanted.name.is_empty() {
        return Err(StatusError::internal(format!(
            "requested {:?} without impersonating a user name",
            (&wanted.groups, &wanted.uid, &wanted.extra)
        )));
    }
    let parts = parts(&wanted);
    complete(&mut wanted);
    Ok(Some((wanted, parts)))
}

fn parts(wanted: &User) -> Vec<Part> {
    let part = |resource, name: &str| Part {
        group: "",
        version: "v1",
        resource,
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let mut all = vec![match user::split_service_account(&wanted.name) {
        Some((namespace, name)) => Part { namespace: namespace.to_owned(), ..part("serviceaccounts", name) },
        None => part("users", &wanted.name),
    }];
    all.extend(wanted.groups.iter().map(|g| part("groups", g)));
    for (key, values) in &wanted.extra {
        let extra = |value: &String| Part {
            group: "authentication.k8s.io",
            subresource: key.clone(),
            ..part("userextras", value)
        };
        all.extend(values.iter().map(extra));
    }
    if !wanted.uid.is_empty() {
        all.push(Part { group: "authentication.k8s.io", ..part("uids", &wanted.uid) });
    }
    all
}

/// Gives the user the groups that come with the name, when no groups were asked for.
fn complete(wanted: &mut User) {
    if wanted.groups.is_empty()
        && let Some((namespace, _)) = user::split_service_account(&wanted.name)
    {
        let all = user::GROUP_SERVICE_ACCOUNTS;
        wanted.groups = vec![all.to_owned(), format!("{all}:{namespace}")];
    }
    let has = |group: &str| wanted.in_group(group);
    if wanted.name == user::ANONYMOUS {
        if !has(user::GROUP_UNAUTHENTICATED) {
            wanted.groups.push(user::GROUP_UNAUTHENTICATED.to_owned());
        }
    } else if !has(user::GROUP_AUTHENTICATED) && !has(user::GROUP_UNAUTHENTICATED) {
        wanted.groups.push(user::GROUP_AUTHENTICATED.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(name.parse::<http::HeaderName>().unwrap(), value);
        }
        headers
    }

    #[test]
    fn each_part_is_asked_for() {
        let asked = [(USER, "jane"), (GROUP, "a"), (GROUP, "b"), ("Impersonate-Extra-acme.com%2fx", "1"), (UID, "u")];
        let (user, parts) = requested(&headers(&asked)).unwrap().unwrap();
        assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/x"], ["1"]);
        let shown: Vec<String> = parts.iter().map(|p| format!("{}/{}={}", p.resource, p.subresource, p.name)).collect();
        assert_eq!(shown, ["users/=jane", "groups/=a", "groups/=b", "userextras/acme.com/x=1", "uids/=u"]);
    }

    #[test]
    fn an_account_brings_its_groups() {
        let (user, parts) = requested(&headers(&[(USER, "system:serviceaccount:ns:bot")])).unwrap().unwrap();
        let groups = ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"];
        assert_eq!(user.groups, groups);
        assert_eq!(
            (parts[0].resource, parts[0].namespace.as_str(), parts[0].name.as_str()),
            ("serviceaccounts", "ns", "bot")
        );
    }

    #[test]
    fn nobody_acts_as_himself_by_accident() {
        assert!(requested(&headers(&[("accept", "*/*")])).unwrap().is_none());
        let (user, parts) = requested(&headers(&[(USER, "jösé"), (GROUP, "größe")])).unwrap().unwrap();
        assert_eq!((user.name.as_str(), parts[0].name.as_str(), parts[1].name.as_str()), ("jösé", "jösé", "größe"));
        for (asked, code) in [
            (&[(GROUP, "a")][..], 500),
            (&[(USER, "")], 500),
            (&[(USER, ""), (UID, "u")], 500),
            (&[(USER, "a"), (USER, "b")], 400),
            (&[(USER, "a"), (UID, "1"), (UID, "2")], 400),
            (&[(USER, "a"), ("impersonate-groups", "b")], 400),
            (&[("impersonate-usr", "a")], 400),
            (&[(USER, "a"), ("impersonate-extra-%ff", "x")], 400),
        ] {
            assert_eq!(requested(&headers(asked)).unwrap_err().code, code, "{asked:?}");
        }
        let mut raw = HeaderMap::new();
        raw.insert(USER, http::HeaderValue::from_bytes(b"j\xf6s\xe9").unwrap());
        assert_eq!(requested(&raw).unwrap_err().code, 400);
    }
}
