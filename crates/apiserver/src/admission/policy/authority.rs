//! The answers to what expressions ask about rights: those of the server's authorizer, for the user of the request.

use std::sync::Arc;

use api::rules::cel::authorizer::{Authority, Question};

use crate::auth::{self, Authorizer, Selected, User};

pub(super) struct UsersRights {
    pub user: User,
    pub authorizer: Arc<dyn Authorizer>,
}

impl Authority for UsersRights {
    fn decide(&self, question: &Question) -> (bool, String) {
        let account = question
            .account
            .as_ref()
            .map(|(namespace, name)| User::service_account(namespace, name, "").authenticated());
        let user = account.as_ref().unwrap_or(&self.user);
        let path = auth::Attributes::path(user, &question.verb, &question.path);
        let attributes = if question.path.is_empty() {
            auth::Attributes {
                namespace: &question.namespace,
                version: "*",
                subresource: &question.subresource,
                name: &question.name,
                selected: Selected { node_name: pinned_node(&question.field_selector) },
                ..auth::Attributes::resource(user, &question.verb, &question.group, &question.resource)
            }
        } else {
            path
        };
        let verdict = self.authorizer.authorize(&attributes);
        (verdict.allowed(), verdict.reason().to_owned())
    }
}

/// The node that a field selector pins down; the rest of selectors changes no verdict here.
fn pinned_node(selector: &str) -> Option<&str> {
    let equal = |part: &'_ str| part.trim().strip_prefix("spec.nodeName=").map(|node| node.len());
    let part = selector.split(',').find(|part| equal(part).is_some())?;
    part.trim().strip_prefix("spec.nodeName=").map(|node| node.trim_start_matches('='))
}
