//! ABAC: policies in a file, one to a line, each of which lets somebody do something (`--authorization-mode=ABAC`).
//!
//! Upstream counterpart: pkg/auth/authorizer/abac.

use api::validation::section::Section;
use json::Value;

use super::{Answer, Attributes, Authorizer, Rules, User, Verdict, known, rbac::PolicyRule, user::GROUP_AUTHENTICATED};

/// A line longer than this is refused, as upstream's reader does.
const LONGEST_LINE: usize = 64 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    path: String,
}

/// The policies of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

impl Policies {
    /// Reads the file's text. The error names the line; `name` is what the file is called.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut policies = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let wrong = |why: String| format!("error reading policy file {name}, line {}: {why}", at + 1);
            if line.len() > LONGEST_LINE {
                return Err(wrong("token too long".to_owned()));
            }
            let value = json::parse(trimmed).map_err(|error| wrong(error.to_string()))?;
            policies.push(Policy::read(&value).map_err(wrong)?);
        }
        Ok(Policies(policies))
    }
}

/// A policy for everybody is one for those who are known; so is one for the user `*` and a group, as upstream reads it.
fn known_only(user: &str, group: String) -> String {
    if user == "*" || group == "*" { GROUP_AUTHENTICATED.to_owned() } else { group }
}

impl Policy {
    fn read(value: &Value) -> Result<Policy, String> {
        let section = Section::of("", value)?;
        if section.get("kind").is_none() && section.get("apiVersion").is_none() {
            return Policy::unversioned(&section);
        }
        section.is("Policy", &["abac.authorization.kubernetes.io/v1beta1"])?;
        section.has_only(&["apiVersion", "kind", "spec"])?;
        let spec = section.section("spec")?;
        spec.has_only(&["user", "group", "readonly", "apiGroup", "resource", "namespace", "nonResourcePath"])?;
        let text = |field: &str| spec.text(field).map(|text| text.unwrap_or_default().to_owned());
        let user = text("user")?;
        Ok(Policy {
            group: known_only(&user, text("group")?),
            user,
            readonly: spec.flag("readonly")?.unwrap_or_default(),
            api_group: text("apiGroup")?,
            resource: text("resource")?,
            namespace: text("namespace")?,
            path: text("nonResourcePath")?,
        })
    }

    /// The oldest form, in which an absent field means everything.
    fn unversioned(section: &Section<'_>) -> Result<Policy, String> {
        section.has_only(&["user", "group", "readonly", "resource", "namespace"])?;
        let text = |field: &str| section.text(field).map(|text| text.unwrap_or_default().to_owned());
        let or_all = |text: String| if text.is_empty() { "*".to_owned() } else { text };
        let (user, group) = (text("user")?, text("group")?);
        let everybody = user.is_empty() && group.is_empty();
        let (resource, namespace) = (text("resource")?, text("namespace")?);
        let path = if resource.is_empty() && namespace.is_empty() { "*" } else { "" };
        Ok(Policy {
            group: known_only(if everybody { "*" } else { &user }, group),
            user,
            readonly: section.flag("readonly")?.unwrap_or_default(),
            api_group: "*".to_owned(),
            resource: or_all(resource),
            namespace: or_all(namespace),
            path: path.to_owned(),
        })
    }

    fn is_about(&self, user: &User) -> bool {
        let named = match &*self.user {
            "" => None,
            name => Some(name == "*" || name == user.name),
        };
        let member = match &*self.group {
            "" => None,
            group => Some(group == "*" || user.in_group(group)),
        };
        (named.is_some() || member.is_some()) && named.unwrap_or(true) && member.unwrap_or(true)
    }

    fn allows(&self, a: &Attributes<'_>) -> bool {
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        if !self.is_about(a.user) || self.readonly && !a.is_read_only() {
            return false;
        }
        if a.is_resource() {
            return fits(&self.namespace, a.namespace)
                && fits(&self.resource, a.resource)
                && fits(&self.api_group, a.group);
        }
        let below = self.path.ends_with('*').then(|| self.path.trim_end_matches('*'));
        fits(&self.path, a.path) || below.is_some_and(|prefix| a.path.starts_with(prefix))
    }

    fn verbs(&self) -> &'static [&'static str] {
        if self.readonly { &["get", "list", "watch"] } else { &["*"] }
    }
}

impl Authorizer for Policies {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Answer<'a> {
        known(match self.0.iter().any(|policy| policy.allows(attributes)) {
            true => Verdict::Allow(String::new()),
            false => Verdict::NoOpinion("No policy matched.".to_owned()),
        })
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let here =
            |policy: &&Policy| policy.is_about(user) && (policy.namespace == "*" || policy.namespace == namespace);
        let about: Vec<&Policy> = self.0.iter().filter(here).collect();
        let resources = about.iter().filter(|policy| !policy.resource.is_empty());
        let paths = about.iter().filter(|policy| !policy.path.is_empty());
        Rules {
            resource: resources.map(|p| PolicyRule::resources(p.verbs(), &[&p.api_group], &[&p.resource])).collect(),
            path: paths.map(|p| PolicyRule::paths(p.verbs(), &[&p.path])).collect(),
            unlisted: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(spec: &str) -> String {
        format!(
            "{{\"apiVersion\": \"abac.authorization.kubernetes.io/v1beta1\", \"kind\": \"Policy\", \"spec\": {{{spec}}}}}"
        )
    }

    #[tokio::test]
    async fn a_line_lets_its_user_do_what_it_says() {
        let user = |name: &str, group: &str| User::new(name, [group, "system:authenticated"]);
        let check = async |spec: &str, user: &User, request: &str, expected: bool| {
            let policies = Policies::parse("f", &format!("# who\n\n{spec}\n")).unwrap();
            let (verb, what) = request.split_once(' ').unwrap();
            let a = match what.split_once(':') {
                _ if what.starts_with('/') => Attributes::path(user, verb, what),
                Some((namespace, resource)) => {
                    Attributes { namespace, ..Attributes::resource(user, verb, "", resource) }
                }
                None => Attributes::resource(user, verb, "apps", what),
            };
            assert_eq!(policies.authorize(&a).await.allowed(), expected, "{spec} {} {request}", user.name);
        };
        let (alice, bob) = (user("alice", "dev"), user("bob", "ops"));
        let all = line(r#""user":"alice","namespace":"*","resource":"*","apiGroup":"*","nonResourcePath":"*""#);
        check(&all, &alice, "delete a:pods", true).await;
        check(&all, &alice, "get /metrics", true).await;
        check(&all, &bob, "get a:pods", false).await;
        let read = line(r#""group":"ops","readonly":true,"namespace":"a","resource":"pods""#);
        check(&read, &bob, "watch a:pods", true).await;
        check(&read, &bob, "create a:pods", false).await;
        check(&read, &bob, "get b:pods", false).await;
        check(&read, &bob, "get deployments", false).await;
        check(&read, &bob, "get /api", false).await;
        let both = line(r#""user":"bob","group":"dev","namespace":"*","resource":"*","apiGroup":"*""#);
        check(&both, &bob, "get a:pods", false).await;
        let paths = line(r#""user":"*","group":"*","nonResourcePath":"/api*""#);
        check(&paths, &bob, "get /apis/apps", true).await;
        check(&paths, &bob, "get /healthz", false).await;
        check(&paths, &User::anonymous(), "get /api", false).await;
        check(&line(r#""namespace":"*","resource":"*""#), &alice, "get a:pods", false).await;
        let old = r#"{"user":"bob", "readonly": true, "resource": "pods"}"#;
        check(old, &bob, "get z:pods", true).await;
        check(old, &bob, "get z:secrets", false).await;
        check("{\"readonly\":true}", &alice, "get /x", true).await;
        check("{\"readonly\":true}", &User::anonymous(), "get /x", false).await;
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let check = |text: &str, expected: &str| {
            let said = Policies::parse("f", text).unwrap_err();
            assert!(said.starts_with("error reading policy file f, line 2: ") && said.contains(expected), "{said}");
        };
        check("\nrubbish", "expected value");
        check("\n[]", "it must hold a map");
        check("\n{\"usr\": \"a\"}", "usr: there is no such field");
        check("\n{\"kind\": \"Policy\", \"apiVersion\": \"v1\"}", "apiVersion: it must be abac.");
        check(&format!("\n{}", line("\"user\": 1")), "spec.user: it must be text");
        check(&format!("\n{{\"user\": \"{}\"}}", "a".repeat(LONGEST_LINE)), "token too long");
    }
}
