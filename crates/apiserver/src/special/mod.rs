//! Resources and subresources that the verbs of the pipeline do not cover: reviews, bindings, evictions, tokens, and
//! connections to nodes. What an ordinary kind does differently belongs in its declaration, not here.

mod binding;
mod component;
pub mod connect;
mod eviction;
mod object;
mod review;
pub mod table;
pub mod token;

use std::sync::Arc;

use crate::{auth::authn::Authentication, pages::health::Checks};
use connect::connector::Connector;
use table::Specials;
use token::Issuer;

/// What the specials need besides the state.
pub struct Parts {
    pub authentication: Arc<Authentication>,
    pub tokens: Arc<Issuer>,
    /// How the rest of the control plane is.
    pub components: Checks,
    /// Without it nothing is connected to.
    pub connector: Option<Connector>,
}

/// All of them.
pub fn all(parts: Parts) -> Specials {
    const AUTHENTICATION: &str = "authentication.k8s.io";
    const AUTHORIZATION: &str = "authorization.k8s.io";
    let Parts { authentication, tokens, components, connector } = parts;
    let mut all = Specials::default();
    all.add(("", "pods", "binding"), binding::pod);
    all.add(("", "bindings", ""), binding::collection);
    all.add(("", "pods", "eviction"), eviction::evict);
    all.add(("", "serviceaccounts", "token"), move |call| token::create(call, tokens.clone()));
    all.add(("", "componentstatuses", ""), move |call| component::read(call, components.clone()));
    all.add((AUTHENTICATION, "tokenreviews", ""), move |call| review::token(call, authentication.clone()));
    all.add((AUTHENTICATION, "selfsubjectreviews", ""), review::self_subject);
    all.add((AUTHORIZATION, "subjectaccessreviews", ""), review::access);
    all.add((AUTHORIZATION, "localsubjectaccessreviews", ""), review::local_access);
    all.add((AUTHORIZATION, "selfsubjectaccessreviews", ""), review::self_access);
    all.add((AUTHORIZATION, "selfsubjectrulesreviews", ""), review::self_rules);
    if let Some(connector) = connector {
        connect::add(&mut all, &Arc::new(connector));
    }
    all
}
