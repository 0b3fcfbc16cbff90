//! Kinds whose objects are made when somebody reads them, and of which nothing is stored. Such a kind is a declaration
//! whose verbs are `get` and `list`, and a reader; discovery, authorization and Tables follow from the declaration.

use std::{future::Future, sync::Arc};

use api::{Value, status::StatusError};
use futures::future::BoxFuture;
use http::StatusCode;

use crate::{
    call::Call,
    http::{
        body::Response,
        options::ListOptions,
        respond,
        view::{self, View},
    },
    special::table::Special,
    storage::filter::Filter,
};

/// Makes the objects of one kind.
pub trait Reader: Send + Sync + 'static {
    /// Goes with every answer.
    const WARNING: Option<&'static str> = None;

    /// The objects of the namespace that is asked for, or of all. Objects that the filter leaves out may be among them.
    fn list(&self, call: &Call, filter: &Filter) -> impl Future<Output = Result<Vec<Value>, StatusError>> + Send;

    /// The object of the name that is asked for.
    fn get(&self, call: &Call) -> impl Future<Output = Result<Value, StatusError>> + Send;
}

/// Answers for a kind with what its reader makes.
pub struct Read<R>(Arc<R>);

impl<R: Reader> Read<R> {
    pub fn by(reader: R) -> Self {
        Read(Arc::new(reader))
    }
}

impl<R: Reader> Special for Read<R> {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Response, StatusError>> {
        let reader = self.0.clone();
        Box::pin(async move { answer(&call, &*reader).await })
    }
}

async fn answer<R: Reader>(call: &Call, reader: &R) -> Result<Response, StatusError> {
    call.warnings.add(R::WARNING.map(str::to_owned));
    let definition = call.info.definition.clone().ok_or_else(StatusError::no_route)?;
    let options = ListOptions::of_list(&call.query)?;
    let listed = call.info.verb == "list";
    let negotiate = if listed { View::negotiate_list } else { View::negotiate_one };
    let view = negotiate(call.state.encodings, &call.headers, &options.include_object, &definition)?;
    let answer = if listed {
        let filter = Filter::parse(&definition, &call.info.label_selector, &call.info.field_selector)?;
        let all = reader.list(call, &filter).await?.into_iter();
        view::list(&definition, view, all.filter(|one| filter.matches(&definition, one)).collect())
    } else {
        view::value(&definition, view, reader.get(call).await?)
    };
    Ok(respond::value(StatusCode::OK, &answer))
}
