//! Acting as somebody else: `Impersonate-*` headers, each part of which the caller must be allowed to take on.
//!
//! A caller that sends one of them never acts under its own name by accident: a header that can't be understood is refused.

#[cfg(test)]
mod asked;
mod constrained;
mod legacy;

use api::{status::StatusError, validation::field::quote};
use http::HeaderMap;

use super::{Attributes, Authorizer, User, Verdict, forbidden, header, user};

/// How all of them begin.
const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The group of what is asked for in the constrained ways, and of the UIDs and extras in the old one.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The user that a request acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acting {
    pub user: User,
    /// The verb that bounds it, where one does.
    pub constraint: Option<&'static str>,
}

/// In which ways callers may act for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Impersonation {
    /// A user who may `impersonate` somebody may do so in all requests.
    #[default]
    Legacy,
    /// Beside that, some may do so in some requests.
    Constrained,
}

impl Impersonation {
    /// The name of the step in traces.
    pub fn span(self) -> &'static str {
        match self {
            Impersonation::Legacy => "impersonation",
            Impersonation::Constrained => "constrainedimpersonation",
        }
    }

    /// The user that the headers of a request name, exactly as they do. `Ok(None)` when they name nobody.
    pub fn requested(self, headers: &HeaderMap) -> Result<Option<User>, StatusError> {
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
        let wanted = User {
            name: one(USER)?,
            uid: one(UID)?,
            groups: header::all(headers, GROUP).map_err(unreadable)?,
            extra: header::extra(headers, EXTRA).map_err(unreadable)?,
        };
        if !wanted.name.is_empty() {
            return Ok(Some(wanted));
        }
        let what = match self {
            Impersonation::Legacy => format!("{} without impersonating a user", references(&wanted)),
            Impersonation::Constrained => format!("{} without impersonating a user name", go_syntax(&wanted)),
        };
        Err(StatusError::bad_request(format!("requested {what}")))
    }

    /// Whether a caller may act for somebody in a request, and who that is then, with the groups that come with the name. The
    /// error is the answer to the caller: the first refusal, that of the narrowest way that there is to act for such a user.
    pub async fn act(
        self,
        authorizer: &dyn Authorizer,
        request: &Attributes<'_>,
        wanted: &User,
    ) -> Result<Acting, StatusError> {
        if self == Impersonation::Legacy {
            return legacy::act(authorizer, request.user, wanted).await;
        }
        let refused = match constrained::act(authorizer, request, wanted).await {
            Ok(Some(acting)) => return Ok(acting),
            Ok(None) => None,
            Err(refused) => Some(refused),
        };
        let acting = legacy::act(authorizer, request.user, wanted).await;
        acting.map_err(|error| refused.unwrap_or(error))
    }
}

/// The parts of a user without a name, as Go writes references to objects: a kind, the value as a name, an API version and a field
/// path, which stand between the empty fields of the rest.
fn references(wanted: &User) -> String {
    let version = format!("{AUTHENTICATION}/v1");
    let groups = wanted.groups.iter().map(|group| format!("{{Group  {group}    }}"));
    let extra = wanted.extra.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
    let extra = extra.map(|(key, value)| format!("{{UserExtra  {value}  {version}  {key}}}"));
    let uid = (!wanted.uid.is_empty()).then(|| format!("{{UID  {}  {version}  }}", wanted.uid));
    format!("[{}]", groups.chain(extra).chain(uid).collect::<Vec<_>>().join(" "))
}

/// A user without a name as Go writes one in its own syntax.
fn go_syntax(wanted: &User) -> String {
    let texts = |list: &[String]| {
        let quoted: Vec<String> = list.iter().map(|text| quote(text)).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = if wanted.groups.is_empty() { "[]string(nil)".to_owned() } else { texts(&wanted.groups) };
    let extra: Vec<String> =
        wanted.extra.iter().map(|(key, values)| format!("{}:{}", quote(key), texts(values))).collect();
    let extra = if extra.is_empty() { "(nil)".to_owned() } else { format!("{{{}}}", extra.join(", ")) };
    let uid = quote(&wanted.uid);
    format!("&user.DefaultInfo{{Name:\"\", UID:{uid}, Groups:{groups}, Extra:map[string][]string{extra}}}")
}

/// Asks one question about a caller that wants to be somebody else. Without an answer it is refused.
async fn ask(authorizer: &dyn Authorizer, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    match authorizer.authorize(attributes).await {
        Verdict::Allow(_) => Ok(()),
        Verdict::Deny(why) | Verdict::NoOpinion(why) => Err(forbidden(attributes, &why)),
        Verdict::Failed(failure) if failure.reason.is_empty() => Err(forbidden(attributes, &failure.error)),
        Verdict::Failed(failure) => Err(forbidden(attributes, &format!("{}: {}", failure.error, failure.reason))),
    }
}

/// The groups that come with being a service account.
fn groups_of_account(namespace: &str) -> Vec<String> {
    let all = user::GROUP_SERVICE_ACCOUNTS;
    vec![all.to_owned(), format!("{all}:{namespace}")]
}

/// Adds the group of those who are known, or of those who are not.
fn complete(mut wanted: User) -> User {
    let group = match wanted.name.as_str() {
        user::ANONYMOUS => user::GROUP_UNAUTHENTICATED,
        _ if wanted.in_group(user::GROUP_UNAUTHENTICATED) => return wanted,
        _ => user::GROUP_AUTHENTICATED,
    };
    if !wanted.in_group(group) {
        wanted.groups.push(group.to_owned());
    }
    wanted
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod of_headers {
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
    fn nobody_acts_as_himself_by_accident() {
        let requested = |list: &[(&str, &str)]| Impersonation::Legacy.requested(&headers(list));
        assert!(requested(&[("accept", "*/*")]).unwrap().is_none());
        let user = requested(&[(USER, "jösé"), (GROUP, "größe"), ("Impersonate-Extra-acme.com%2fx", "1")]);
        let user = user.unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("jösé", "größe"));
        assert_eq!(user.extra["acme.com/x"], ["1"]);
        for asked in [
            &[(GROUP, "a")][..],
            &[(USER, "")],
            &[(USER, ""), (UID, "u")],
            &[(USER, "a"), (USER, "b")],
            &[(USER, "a"), (UID, "1"), (UID, "2")],
            &[(USER, "a"), ("impersonate-groups", "b")],
            &[("impersonate-usr", "a")],
            &[(USER, "a"), ("impersonate-extra-%ff", "x")],
        ] {
            assert_eq!(requested(asked).unwrap_err().code, 400, "{asked:?}");
            let error = Impersonation::Constrained.requested(&headers(asked)).unwrap_err();
            assert_eq!(error.code, 400, "{asked:?}");
        }
        let nameless = requested(&[(GROUP, "g"), (UID, "u"), ("Impersonate-Extra-a", "1")]).unwrap_err();
        let parts = "{Group  g    } {UserExtra  1  authentication.k8s.io/v1  a} {UID  u  authentication.k8s.io/v1  }";
        assert_eq!(nameless.message, format!("requested [{parts}] without impersonating a user"));
        let constrained = |list: &[(&str, &str)], user: &str| {
            let error = Impersonation::Constrained.requested(&headers(list)).unwrap_err();
            assert_eq!(error.message, format!("requested &user.DefaultInfo{user} without impersonating a user name"));
        };
        let (group, groups) = ((GROUP, "g"), r#"Groups:[]string{"g"}"#);
        constrained(&[group], &format!(r#"{{Name:"", UID:"", {groups}, Extra:map[string][]string(nil)}}"#));
        constrained(
            &[(UID, "u"), ("Impersonate-Extra-a", "1"), ("Impersonate-Extra-a", "2"), ("Impersonate-Extra-b", "\"")],
            r#"{Name:"", UID:"u", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"1", "2"}, "b":[]string{"\""}}}"#,
        );
        let mut raw = HeaderMap::new();
        raw.insert(USER, http::HeaderValue::from_bytes(b"j\xf6s\xe9").unwrap());
        assert_eq!(Impersonation::Legacy.requested(&raw).unwrap_err().code, 400);
    }
}
