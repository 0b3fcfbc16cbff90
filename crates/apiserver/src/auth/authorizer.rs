//! Authorizers: the verdict of one, and the verdict of several in order.

use std::sync::Arc;

use futures::future::{BoxFuture, Either, Ready, ready};

use super::{User, rbac::PolicyRule, request::Attributes};

/// The answer of an authorizer. The reason is for the 403 message and for reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allow(String),
    /// Refused, whatever the other authorizers think.
    Deny(String),
    /// This authorizer does not allow it; another one may.
    NoOpinion(String),
    /// It could not be found out: an authorizer was not reached, or answered nonsense.
    Failed(Failure),
}

/// The failure where no verdict could be found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// Refused all the same, whatever the other authorizers think.
    pub denied: bool,
    pub reason: String,
    pub error: String,
}

/// A verdict, or the way to it. Most authorizers know at once, and those that have to ask elsewhere make a future.
pub type Answer<'a> = Either<Ready<Verdict>, BoxFuture<'a, Verdict>>;

/// The answer of an authorizer that has to ask nobody.
pub fn known<'a>(verdict: Verdict) -> Answer<'a> {
    Either::Left(ready(verdict))
}

impl Verdict {
    pub fn allowed(&self) -> bool {
        matches!(self, Verdict::Allow(_))
    }

    pub fn denied(&self) -> bool {
        matches!(self, Verdict::Deny(_) | Verdict::Failed(Failure { denied: true, .. }))
    }

    pub fn reason(&self) -> &str {
        match self {
            Verdict::Allow(reason) | Verdict::Deny(reason) | Verdict::NoOpinion(reason) => reason,
            Verdict::Failed(failure) => &failure.reason,
        }
    }

    /// Why there is no better verdict.
    pub fn error(&self) -> Option<&str> {
        match self {
            Verdict::Failed(failure) => Some(&failure.error),
            _ => None,
        }
    }
}

/// One way to decide.
pub trait Authorizer: Send + Sync {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Answer<'a>;

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
    /// The authorizers that may allow more than they can list, each with why.
    pub unlisted: Vec<&'static str>,
}

/// Authorizers in order: the first allow or deny decides. Members of `system:masters` are let through first.
pub struct Union(pub Vec<Arc<dyn Authorizer>>);

/// The reasons and errors of authorizers that do not decide.
#[derive(Default)]
struct Undecided {
    reasons: Vec<String>,
    errors: Vec<String>,
}

impl Undecided {
    /// Takes an authorizer's verdict; what decides comes back.
    fn hear(&mut self, verdict: Verdict) -> Option<Verdict> {
        let reason = match verdict {
            Verdict::NoOpinion(reason) => reason,
            Verdict::Failed(Failure { denied: false, reason, error }) => {
                self.errors.push(error);
                reason
            }
            decided => return Some(decided),
        };
        if !reason.is_empty() {
            self.reasons.push(reason);
        }
        None
    }

    fn verdict(self) -> Verdict {
        let reason = self.reasons.join(", ");
        let error = match self.errors.as_slice() {
            [] => return Verdict::NoOpinion(reason),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Verdict::Failed(Failure { denied: false, reason, error })
    }
}

impl Union {
    /// Waits for an authorizer that has to ask, and asks those behind it.
    async fn later<'a>(
        &'a self,
        (first, rest): (BoxFuture<'a, Verdict>, &'a [Arc<dyn Authorizer>]),
        mut heard: Undecided,
        attributes: &'a Attributes<'a>,
    ) -> Verdict {
        if let Some(decided) = heard.hear(first.await) {
            return decided;
        }
        for authorizer in rest {
            if let Some(decided) = heard.hear(authorizer.authorize(attributes).await) {
                return decided;
            }
        }
        heard.verdict()
    }
}

impl Authorizer for Union {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Answer<'a> {
        if attributes.user.is_master() {
            return known(Verdict::Allow(String::new()));
        }
        let mut heard = Undecided::default();
        for (at, authorizer) in self.0.iter().enumerate() {
            match authorizer.authorize(attributes) {
                Either::Left(verdict) => {
                    if let Some(decided) = heard.hear(verdict.into_inner()) {
                        return known(decided);
                    }
                }
                Either::Right(asked) => {
                    let rest = &self.0[at + 1..];
                    return Either::Right(Box::pin(self.later((asked, rest), heard, attributes)));
                }
            }
        }
        known(heard.verdict())
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let mut all = if user.is_master() { everything() } else { Rules::default() };
        for authorizer in &self.0 {
            let rules = authorizer.rules_for(user, namespace);
            all.resource.extend(rules.resource);
            all.path.extend(rules.path);
            all.unlisted.extend(rules.unlisted);
        }
        all
    }
}

fn everything() -> Rules {
    Rules {
        resource: vec![PolicyRule::resources(&["*"], &["*"], &["*"])],
        path: vec![PolicyRule::paths(&["*"], &["*"])],
        unlisted: Vec::new(),
    }
}

/// Lets everything through; only when it was asked for by name (`--authorization-mode=AlwaysAllow`).
pub struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> Answer<'a> {
        known(Verdict::Allow(String::new()))
    }

    fn rules_for(&self, _: &User, _: &str) -> Rules {
        everything()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says a verdict, at once or after others had their turn.
    struct Fixed(Verdict, bool);

    impl Authorizer for Fixed {
        fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> Answer<'a> {
            if !self.1 {
                return known(self.0.clone());
            }
            Either::Right(Box::pin(async {
                tokio::task::yield_now().await;
                self.0.clone()
            }))
        }

        fn rules_for(&self, _: &User, _: &str) -> Rules {
            Rules::default()
        }
    }

    #[tokio::test]
    async fn the_first_opinion_decides() {
        let user = User::new("x", ["g"]);
        let a = Attributes::resource(&user, "get", "", "pods");
        // Whoever has to ask elsewhere stands where it stands.
        let check = async |list: &[&Verdict], expected: Verdict| {
            for late in 0..1 << list.len() {
                let one = |(at, verdict): (usize, &&Verdict)| {
                    Arc::new(Fixed((*verdict).clone(), late >> at & 1 == 1)) as Arc<dyn Authorizer>
                };
                let union = Union(list.iter().enumerate().map(one).collect());
                assert_eq!(union.authorize(&a).await, expected, "{late:b}");
            }
        };
        let (none, deny) = (Verdict::NoOpinion("a".into()), Verdict::Deny("b".into()));
        let allow = Verdict::Allow("c".into());
        let failed = |denied: bool, reason: &str, error: &str| {
            Verdict::Failed(Failure { denied, reason: reason.into(), error: error.into() })
        };
        check(&[&none, &deny, &allow], deny.clone()).await;
        check(&[&none, &allow, &deny], allow.clone()).await;
        check(&[&none, &none], Verdict::NoOpinion("a, a".into())).await;
        check(&[&failed(false, "", "e"), &none, &allow], allow.clone()).await;
        check(&[&failed(false, "", "e"), &none], failed(false, "a", "e")).await;
        check(&[&failed(false, "", "e"), &failed(false, "", "f")], failed(false, "", "[e, f]")).await;
        check(&[&failed(true, "", "e"), &allow], failed(true, "", "e")).await;
        let master = User::new("root", [crate::auth::user::GROUP_MASTERS]);
        let union = Union(vec![Arc::new(Fixed(deny, false))]);
        assert!(union.authorize(&Attributes { user: &master, ..a }).await.allowed());
    }
}
