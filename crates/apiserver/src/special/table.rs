//! The one table of resources and subresources that the verbs of the pipeline do not cover.

use std::future::Future;

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
    entries: Vec<(Key, Box<dyn Special>)>,
}

impl Specials {
    pub fn add(&mut self, key: Key, special: impl Special + 'static) {
        self.entries.push((key, Box::new(special)));
    }

    pub fn get(&self, group: &str, plural: &str, subresource: &str) -> Option<&dyn Special> {
        let wanted = (group, plural, subresource);
        self.entries.iter().find(|(key, _)| *key == wanted).map(|(_, special)| &**special)
    }
}
