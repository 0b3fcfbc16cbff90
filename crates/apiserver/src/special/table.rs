//! The one table of resources and subresources that the verbs of the pipeline do not cover.

use std::{collections::HashMap, future::Future};

use api::status::StatusError;
use futures::future::BoxFuture;

use crate::{call::Call, http::body::Response};

/// Serves all verbs of one resource or subresource.
pub trait Special: Send + Sync {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Response, StatusError>>;
}

/// A special can be one function.
impl<F, R> Special for F
where
    F: Fn(Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Response, StatusError>> + Send + 'static,
{
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Response, StatusError>> {
        Box::pin(self(call))
    }
}

/// `(group, plural, subresource)`; an empty subresource stands for the resource itself.
pub type Key = (&'static str, &'static str, &'static str);

#[derive(Default)]
pub struct Specials {
    entries: HashMap<Key, Box<dyn Special>>,
}

impl Specials {
    pub fn add(&mut self, key: Key, special: impl Special + 'static) {
        let before = self.entries.insert(key, Box::new(special));
        assert!(before.is_none(), "two specials for {key:?}");
    }

    /// Every request asks.
    pub fn get<'a>(&'a self, group: &'a str, plural: &'a str, subresource: &'a str) -> Option<&'a dyn Special> {
        let entries: &HashMap<(&'a str, &'a str, &'a str), Box<dyn Special>> = &self.entries;
        entries.get(&(group, plural, subresource)).map(AsRef::as_ref)
    }
}
