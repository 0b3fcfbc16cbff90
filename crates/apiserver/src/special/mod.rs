//! The one table of resources and subresources that the verbs of the pipeline do not cover: reviews, bindings,
//! evictions, tokens, and connections to nodes.

pub mod answers;
mod binding;
mod component;
pub mod connect;
mod eviction;
mod review;
pub mod token;

use std::{collections::HashMap, sync::Arc};

use api::status::StatusError;
use futures::future::BoxFuture;
use http::{Extensions, HeaderMap, HeaderName};

use crate::{
    auth::User,
    http::{body::Body, request::Info},
    server::Server,
};

pub type Response = http::Response<Body>;

/// A request that reached its handler: resolved, authenticated and authorized, without the caller's credentials.
pub struct Call {
    pub server: Server,
    pub info: Arc<Info>,
    pub user: Arc<User>,
    /// Raw.
    pub query: String,
    pub headers: HeaderMap,
    /// The connection's upgrade, for those who join it with another.
    pub extensions: Extensions,
    pub body: Body,
}

impl Call {
    /// A header that programs set: text, or empty.
    pub fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }
}

/// Serves all verbs of one resource or subresource.
pub trait Special: Send + Sync {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Response, StatusError>>;
}

/// `(group, plural, subresource)`; an empty subresource stands for the resource itself.
pub type Key = (&'static str, &'static str, &'static str);

/// The table.
#[derive(Default, Clone)]
pub struct Specials {
    entries: HashMap<String, Arc<dyn Special>>,
}

fn joined(group: &str, plural: &str, subresource: &str) -> String {
    format!("{group}/{plural}/{subresource}")
}

impl Specials {
    #[must_use]
    pub fn with(mut self, (group, plural, subresource): Key, special: Arc<dyn Special>) -> Self {
        self.add((group, plural, subresource), special);
        self
    }

    pub fn add(&mut self, (group, plural, subresource): Key, special: Arc<dyn Special>) {
        self.entries.insert(joined(group, plural, subresource), special);
    }

    pub fn get(&self, group: &str, plural: &str, subresource: &str) -> Option<&Arc<dyn Special>> {
        self.entries.get(&joined(group, plural, subresource))
    }
}
