//! FlowSchemas: which requests are one flow, and of which priority level.

use std::hash::{DefaultHasher, Hash, Hasher};

use api::k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject,
};

use crate::{
    auth::{User, user},
    http::request::Info,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    User,
    Namespace,
    /// All of its requests are one flow.
    Nothing,
}

/// A flow schema as requests are compared with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    pub name: String,
    pub uid: String,
    pub level: String,
    pub precedence: i32,
    by: By,
    rules: Vec<PolicyRulesWithSubjects>,
}

impl Schema {
    pub fn of(schema: FlowSchema) -> Self {
        let spec = schema.spec.unwrap_or_default();
        let by = match spec.distinguisher_method.as_ref().map(|method| method.type_.as_str()) {
            Some("ByUser") => By::User,
            Some("ByNamespace") => By::Namespace,
            _ => By::Nothing,
        };
        Schema {
            name: schema.metadata.name.unwrap_or_default(),
            uid: schema.metadata.uid.unwrap_or_default(),
            level: spec.priority_level_configuration.name,
            precedence: spec.matching_precedence.unwrap_or(1000),
            by,
            rules: spec.rules.unwrap_or_default(),
        }
    }

    /// Whether a request is one of its.
    pub fn has(&self, user: &User, info: &Info) -> bool {
        self.rules.iter().any(|rule| {
            rule.subjects.iter().any(|subject| is_subject(subject, user))
                && if info.is_resource() {
                    rule.resource_rules.iter().flatten().any(|rule| is_resource(rule, info))
                } else {
                    rule.non_resource_rules.iter().flatten().any(|rule| is_path(rule, info))
                }
        })
    }

    /// The text that tells its flows apart.
    pub fn distinguisher<'a>(&self, user: &'a User, info: &'a Info) -> &'a str {
        match self.by {
            By::User => &user.name,
            By::Namespace => &info.namespace,
            By::Nothing => "",
        }
    }

    /// The flow of a request as a number.
    pub fn flow(&self, user: &User, info: &Info) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.name, self.distinguisher(user, info)).hash(&mut hasher);
        hasher.finish()
    }
}

fn is_subject(subject: &Subject, user: &User) -> bool {
    let is = |wanted: &str, name: &str| wanted == "*" || wanted == name;
    match subject.kind.as_str() {
        "User" => subject.user.as_ref().is_some_and(|subject| is(&subject.name, &user.name)),
        "Group" => subject.group.as_ref().is_some_and(|group| user.groups.iter().any(|name| is(&group.name, name))),
        "ServiceAccount" => subject.service_account.as_ref().is_some_and(|account| {
            let named = user::split_service_account(&user.name);
            named.is_some_and(|(namespace, name)| namespace == account.namespace && is(&account.name, name))
        }),
        _ => false,
    }
}

fn one_of(list: &[String], text: &str) -> bool {
    list.iter().any(|known| known == "*" || known == text)
}

fn is_resource(rule: &ResourcePolicyRule, info: &Info) -> bool {
    let resource = |known: &String| match (known.as_str(), info.subresource_name()) {
        ("*", _) => true,
        (known, "") => known == info.resource(),
        (known, subresource) => known.split_once('/') == Some((info.resource(), subresource)),
    };
    let place = if info.namespace.is_empty() {
        rule.cluster_scope == Some(true)
    } else {
        rule.namespaces.as_deref().is_some_and(|all| one_of(all, &info.namespace))
    };
    place
        && one_of(&rule.verbs, info.verb)
        && one_of(&rule.api_groups, info.group())
        && rule.resources.iter().any(resource)
}

fn is_path(rule: &NonResourcePolicyRule, info: &Info) -> bool {
    let covers = |known: &String| match known.strip_suffix("/*") {
        _ if known == "*" => true,
        Some(start) => info.path.strip_prefix(start).is_some_and(|rest| rest.starts_with('/')),
        None => *known == info.path,
    };
    one_of(&rule.verbs, info.verb) && rule.non_resource_urls.iter().any(covers)
}
