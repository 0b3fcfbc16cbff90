//! Acting as somebody else: `Impersonate-*` headers, each part of which the caller must be allowed to take on.

use http::HeaderMap;

use super::{Attributes, User, user};

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

/// Whom the headers name, and what the caller must be allowed for it. `Ok(None)` when they name nobody.
pub fn requested(headers: &HeaderMap) -> Result<Option<(User, Vec<Part>)>, String> {
    let one = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let (name, uid) = (one(USER), one(UID));
    let groups: Vec<String> =
        headers.get_all(GROUP).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    let mut wanted = User { name, uid, groups, ..User::default() };
    for key in headers.keys().filter(|k| k.as_str().starts_with(EXTRA)) {
        let values = headers.get_all(key).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
        wanted.extra.insert(unescape(&key.as_str()[EXTRA.len()..]), values.collect());
    }
    if wanted == User::default() {
        return Ok(None);
    }
    if wanted.name.is_empty() {
        return Err(format!(
            "requested {:?} without impersonating a user name",
            (&wanted.groups, &wanted.uid, &wanted.extra)
        ));
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

/// Gives the user the groups that come with his name, when no groups were asked for.
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

/// Undoes percent escapes in a header's name; broken ones stay as they are.
pub fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|h| std::str::from_utf8(h).ok()).and_then(|h| u8::from_str_radix(h, 16).ok());
        match (byte, hex) {
            (b'%', Some(decoded)) => {
                out.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
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
        assert_eq!(requested(&headers(&[])), Ok(None));
        assert!(requested(&headers(&[(GROUP, "a")])).is_err());
    }
}
