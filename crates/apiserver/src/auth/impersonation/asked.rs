//! An authorizer for tests that remembers what it is asked.

use parking_lot::Mutex;

use crate::auth::{Answer, Attributes, Authorizer, Rules, User, Verdict, known};

type Decide = Box<dyn Fn(&str) -> bool + Send + Sync>;

pub struct Asked {
    decide: Decide,
    asked: Mutex<Vec<(String, User)>>,
}

impl Asked {
    /// A question is `VERB RESOURCE.GROUP/SUBRESOURCE NAMESPACE/NAME`, or `VERB PATH`.
    pub fn allowing(decide: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Asked { decide: Box::new(decide), asked: Mutex::default() }
    }

    /// The questions that it was asked since this was last called.
    pub fn questions(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock()).into_iter().map(|(question, _)| question).collect()
    }

    /// The users that it was asked about.
    pub fn users(&self) -> Vec<User> {
        self.asked.lock().iter().map(|(_, user)| user.clone()).collect()
    }
}

fn written(a: &Attributes<'_>) -> String {
    if !a.is_resource() {
        return format!("{} {}", a.verb, a.path);
    }
    let group = if a.group.is_empty() { String::new() } else { format!(".{}", a.group) };
    let below = if a.subresource.is_empty() { String::new() } else { format!("/{}", a.subresource) };
    let place = if a.namespace.is_empty() { String::new() } else { format!("{}/", a.namespace) };
    format!("{} {}{group}{below} {place}{}", a.verb, a.resource, a.name).trim_end().to_owned()
}

impl Authorizer for Asked {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Answer<'a> {
        let question = written(attributes);
        let allowed = (self.decide)(&question);
        self.asked.lock().push((question, attributes.user.clone()));
        known(if allowed { Verdict::Allow(String::new()) } else { Verdict::NoOpinion("not here".to_owned()) })
    }

    fn rules_for(&self, _user: &User, _namespace: &str) -> Rules {
        Rules::default()
    }
}
