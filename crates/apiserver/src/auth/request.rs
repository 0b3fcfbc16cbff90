//! The attributes of a request that authorizers look at, and the words of a refusal.

use api::rules::selector::{FieldRequirement, Requirement};
use api::status::StatusError;

use super::User;
use crate::http::request::Info;

/// A request as authorization sees it. Of a resource request `path` is empty, of any other request everything except
/// `verb` and `path` is.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `get`, `list`, `watch`, `create`, … or, off resources, the HTTP method in lower case.
    pub verb: &'a str,
    pub namespace: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub name: &'a str,
    /// The URL path of a request that is for no resource.
    pub path: &'a str,
    /// The selectors of a list, watch or deletecollection.
    pub selected: Selected<'a>,
}

/// The requirements of selectors, all of which hold. Those of a selector that cannot be read are missing, so that the request
/// counts as one for everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selected<'a> {
    pub fields: &'a [FieldRequirement],
    pub labels: &'a [Requirement],
}

impl<'a> Selected<'a> {
    /// The one node whose objects are selected: `spec.nodeName=…`
    pub fn node_name(&self) -> Option<&'a str> {
        let pinned = self.fields.iter().find(|one| one.equal && one.field == "spec.nodeName");
        pinned.map(|one| one.value.as_str())
    }
}

impl<'a> Attributes<'a> {
    /// A request for resources; fill in the rest with struct update.
    pub fn resource(user: &'a User, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Attributes { resource, group, ..Self::path(user, verb, "") }
    }

    /// A request for no resource.
    pub fn path(user: &'a User, verb: &'a str, path: &'a str) -> Self {
        Attributes {
            user,
            verb,
            namespace: "",
            group: "",
            version: "",
            resource: "",
            subresource: "",
            name: "",
            path,
            selected: Selected::default(),
        }
    }

    /// The question that a request asks for its user.
    pub fn of(user: &'a User, info: &'a Info) -> Self {
        if !info.is_resource() {
            return Attributes::path(user, info.verb, &info.path);
        }
        let selected = match info.verb {
            "list" | "watch" | "deletecollection" => {
                Selected { fields: &info.fields.0, labels: &info.labels.requirements }
            }
            _ => Selected::default(),
        };
        Attributes {
            namespace: &info.namespace,
            version: info.version(),
            subresource: info.subresource_name(),
            name: &info.name,
            selected,
            ..Attributes::resource(user, info.verb, info.group(), info.resource())
        }
    }

    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}

/// The 403 for a request that nobody allowed.
pub fn forbidden(a: &Attributes<'_>, reason: &str) -> StatusError {
    let denied = explain(a);
    if !a.is_resource() {
        let message =
            if reason.is_empty() { format!("forbidden: {denied}") } else { format!("forbidden: {denied}: {reason}") };
        return StatusError::forbidden("", "", "", message);
    }
    let what = if a.group.is_empty() { a.resource.to_owned() } else { format!("{}.{}", a.resource, a.group) };
    let named = if a.name.is_empty() { what } else { format!("{what} \"{}\"", a.name) };
    let message = if reason.is_empty() {
        format!("{named} is forbidden: {denied}")
    } else {
        format!("{named} is forbidden: {denied}: {reason}")
    };
    StatusError::forbidden(a.group, a.resource, a.name, message)
}

/// `User "x" cannot list resource "pods" in API group "" in the namespace "y"`.
fn explain(a: &Attributes<'_>) -> String {
    let user = api::validation::field::show(&a.user.name);
    if !a.is_resource() {
        return format!("User {user} cannot {} path {}", a.verb, api::validation::field::show(a.path));
    }
    let resource =
        if a.subresource.is_empty() { a.resource.to_owned() } else { format!("{}/{}", a.resource, a.subresource) };
    let place = if a.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace \"{}\"", a.namespace)
    };
    format!("User {user} cannot {} resource \"{resource}\" in API group \"{}\" {place}", a.verb, a.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_speaks_like_upstream() {
        let user = User::new("x", ["g"]);
        let list = Attributes { namespace: "y", ..Attributes::resource(&user, "list", "", "pods") };
        let status = |a: &Attributes<'_>, why: &str| forbidden(a, why).message;
        let expected =
            r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y""#;
        assert_eq!(status(&list, ""), expected);
        let scale =
            Attributes { name: "d", subresource: "scale", ..Attributes::resource(&user, "get", "apps", "deployments") };
        let expected = r#"deployments.apps "d" is forbidden: User "x" cannot get resource "deployments/scale" in API group "apps" at the cluster scope: no"#;
        assert_eq!(status(&scale, "no"), expected);
        let path = Attributes::path(&user, "get", "/metrics");
        assert_eq!(status(&path, ""), r#"forbidden: User "x" cannot get path "/metrics""#);
    }
}
