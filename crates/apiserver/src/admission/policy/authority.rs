//! The answers to what expressions ask about rights: those of the server's authorizer, for the user of the request.
//!
//! Expressions do not wait. Where an authorizer has to ask elsewhere, the question is noted, its answer is waited for outside of
//! the expressions, and they are evaluated anew with it. Each round answers one more question, and what questions cost bounds
//! their number.

use std::{collections::HashMap, sync::Arc};

use api::rules::{
    cel::authorizer::{Authority, Decision, Question},
    selector::{FieldSelector, Selector},
};
use futures::future::Either;
use parking_lot::Mutex;

use crate::auth::{self, Authorizer, Selected, User, Verdict};

pub(super) struct UsersRights {
    user: User,
    authorizer: Arc<dyn Authorizer>,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    known: HashMap<Question, Decision>,
    /// The first question whose answer has to be waited for.
    open: Option<Question>,
}

impl UsersRights {
    pub fn new(user: User, authorizer: Arc<dyn Authorizer>) -> Self {
        UsersRights { user, authorizer, answers: Mutex::default() }
    }

    /// Takes the question that the last evaluation could not do without.
    pub fn open(&self) -> Option<Question> {
        self.answers.lock().open.take()
    }

    /// Waits for the answer to a question.
    pub async fn settle(&self, question: Question) {
        let put = Put::new(question);
        let user = put.user(&self.user);
        let verdict = self.authorizer.authorize(&put.attributes(&user)).await;
        self.answers.lock().known.insert(put.question, decision(&verdict));
    }
}

impl Authority for UsersRights {
    fn decide(&self, question: &Question) -> Decision {
        if let Some(known) = self.answers.lock().known.get(question) {
            return known.clone();
        }
        let put = Put::new(question.clone());
        let user = put.user(&self.user);
        match self.authorizer.authorize(&put.attributes(&user)) {
            Either::Left(verdict) => decision(&verdict.into_inner()),
            Either::Right(_) => {
                self.answers.lock().open.get_or_insert(put.question.clone());
                Decision::default()
            }
        }
    }
}

fn decision(verdict: &Verdict) -> Decision {
    Decision {
        allowed: verdict.allowed(),
        reason: verdict.reason().to_owned(),
        error: verdict.error().map(str::to_owned),
    }
}

/// A question with its selectors read. Of one that cannot be read nothing counts.
struct Put {
    question: Question,
    fields: FieldSelector,
    labels: Selector,
}

impl Put {
    fn new(question: Question) -> Self {
        let fields = FieldSelector::parse(&question.field_selector).unwrap_or_default();
        let labels = Selector::parse(&question.label_selector).unwrap_or_default();
        Put { question, fields, labels }
    }

    fn user(&self, own: &User) -> User {
        match &self.question.account {
            Some((namespace, name)) => User::service_account(namespace, name, "").authenticated(),
            None => own.clone(),
        }
    }

    fn attributes<'a>(&'a self, user: &'a User) -> auth::Attributes<'a> {
        let question = &self.question;
        if !question.path.is_empty() {
            return auth::Attributes::path(user, &question.verb, &question.path);
        }
        auth::Attributes {
            namespace: &question.namespace,
            version: "*",
            subresource: &question.subresource,
            name: &question.name,
            selected: Selected { fields: &self.fields.0, labels: &self.labels.requirements },
            ..auth::Attributes::resource(user, &question.verb, &question.group, &question.resource)
        }
    }
}
