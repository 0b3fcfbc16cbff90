//! Resources and subresources that the verbs of the pipeline do not cover: reviews, bindings, evictions, tokens, and
//! connections to nodes, and kinds that are made when they are read. The differences of an ordinary kind belong in its declaration, not here.

pub mod aggregated;
mod binding;
mod component;
pub mod connect;
mod eviction;
mod forwarded;
mod metrics;
mod object;
mod reader;
mod review;
pub mod table;
pub mod token;

use std::sync::Arc;

use crate::{auth::authn::Authentication, pages::health::Checks};
use component::Components;
use connect::connector::Connector;
use metrics::scrape::Scraper;
use reader::Read;
use table::Specials;

pub(crate) use object::set_condition;
use token::Issuer;

/// The parts that the specials need besides the state.
pub struct Parts {
    pub authentication: Arc<Authentication>,
    pub tokens: Arc<Issuer>,
    /// How the rest of the control plane is.
    pub components: Checks,
    /// Without it nothing is connected to.
    pub connector: Option<Connector>,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Those that need nothing besides the state.
pub fn of_state() -> Specials {
    let mut all = Specials::default();
    all.add(("", "pods", "binding"), binding::pod);
    all.add(("", "bindings", ""), binding::collection);
    all.add(("", "pods", "eviction"), eviction::evict);
    all.add((AUTHENTICATION, "selfsubjectreviews", ""), review::self_subject);
    all.add((AUTHORIZATION, "subjectaccessreviews", ""), review::access);
    all.add((AUTHORIZATION, "localsubjectaccessreviews", ""), review::local_access);
    all.add((AUTHORIZATION, "selfsubjectaccessreviews", ""), review::self_access);
    all.add((AUTHORIZATION, "selfsubjectrulesreviews", ""), review::self_rules);
    all
}

/// All of them.
pub fn all(parts: Parts) -> Specials {
    let Parts { authentication, tokens, components, connector } = parts;
    let mut all = of_state();
    all.add(("", "serviceaccounts", "token"), move |call| token::create(call, tokens.clone()));
    all.add(("", "componentstatuses", ""), Read::by(Components(components)));
    all.add((AUTHENTICATION, "tokenreviews", ""), move |call| review::token(call, authentication.clone()));
    let connector = connector.map(Arc::new);
    metrics::add(&mut all, &Scraper::new(connector.as_ref().map(Connector::resource_metrics)));
    if let Some(connector) = connector {
        connect::add(&mut all, &connector);
    }
    all
}
