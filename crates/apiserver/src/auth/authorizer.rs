//! Authorizers: the verdict of one, and the verdict of several in order.

use std::sync::Arc;

use super::{User, rbac::PolicyRule, request::Attributes};

/// The answer of an authorizer. The reason is for the 403 message and for reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allow(String),
    /// Refused, whatever the other authorizers think.
    Deny(String),
    /// This authorizer does not allow it; another one may.
    NoOpinion(String),
}

impl Verdict {
    pub fn allowed(&self) -> bool {
        matches!(self, Verdict::Allow(_))
    }

    pub fn reason(&self) -> &str {
        let (Verdict::Allow(reason) | Verdict::Deny(reason) | Verdict::NoOpinion(reason)) = self;
        reason
    }
}

/// One way to decide.
pub trait Authorizer: Send + Sync {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict;

    /// The rules that apply to a user in a namespace, for `SelfSubjectRulesReview`.
    fn rules_for(&self, user: &User, namespace: &str) -> Rules;
}

/// The rules of a user in one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// `rbac.authorization.k8s.io` `PolicyRule`s with resources.
    pub resource: Vec<PolicyRule>,
    /// `PolicyRule`s with `nonResourceURLs`.
    pub path: Vec<PolicyRule>,
    /// Some authorizer may allow more than it can list.
    pub incomplete: bool,
}

/// Authorizers in order: the first allow or deny decides. Members of `system:masters` are let through first.
pub struct Union(pub Vec<Arc<dyn Authorizer>>);

impl Authorizer for Union {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        if attributes.user.is_master() {
            return Verdict::Allow(String::new());
        }
        let mut reasons: Vec<String> = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(attributes) {
                Verdict::NoOpinion(reason) if reason.is_empty() => {}
                Verdict::NoOpinion(reason) => reasons.push(reason),
                decided => return decided,
            }
        }
        Verdict::NoOpinion(reasons.join(", "))
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let mut all = if user.is_master() { everything() } else { Rules::default() };
        for authorizer in &self.0 {
            let rules = authorizer.rules_for(user, namespace);
            all.resource.extend(rules.resource);
            all.path.extend(rules.path);
            all.incomplete |= rules.incomplete;
        }
        all
    }
}

fn everything() -> Rules {
    Rules {
        resource: vec![PolicyRule::resources(&["*"], &["*"], &["*"])],
        path: vec![PolicyRule::paths(&["*"], &["*"])],
        incomplete: false,
    }
}

/// Lets everything through; only when it was asked for by name (`--authorization-mode=AlwaysAllow`).
pub struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn authorize(&self, _: &Attributes<'_>) -> Verdict {
        Verdict::Allow(String::new())
    }

    fn rules_for(&self, _: &User, _: &str) -> Rules {
        everything()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_opinion_decides() {
        struct Fixed(Verdict);
        impl Authorizer for Fixed {
            fn authorize(&self, _: &Attributes<'_>) -> Verdict {
                self.0.clone()
            }

            fn rules_for(&self, _: &User, _: &str) -> Rules {
                Rules::default()
            }
        }
        let union =
            |list: Vec<Verdict>| Union(list.into_iter().map(|v| Arc::new(Fixed(v)) as Arc<dyn Authorizer>).collect());
        let user = User::new("x", ["g"]);
        let a = Attributes::resource(&user, "get", "", "pods");
        let (none, deny) = (Verdict::NoOpinion("a".into()), Verdict::Deny("b".into()));
        let allow = Verdict::Allow("c".into());
        assert_eq!(union(vec![none.clone(), deny.clone(), allow.clone()]).authorize(&a), deny);
        assert_eq!(union(vec![none.clone(), allow.clone(), deny.clone()]).authorize(&a), allow);
        assert_eq!(union(vec![none.clone(), none]).authorize(&a), Verdict::NoOpinion("a, a".into()));
        let master = User::new("root", [crate::auth::user::GROUP_MASTERS]);
        assert!(union(vec![deny]).authorize(&Attributes { user: &master, ..a }).allowed());
    }
}
