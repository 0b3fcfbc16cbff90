//! The special resources and subresources that the control plane itself answers: bindings, evictions, tokens and reviews.

use std::future::Future;
use std::sync::Arc;

use api::codec::decode::Gvk;
use api::kind::Definition;
use api::schema::Type;
use api::status::StatusError;
use api::{Value, meta};
use futures::future::BoxFuture;
use http::{StatusCode, header};
use serde_json::json;

use crate::admission::attributes::{Operation, Review};
use crate::auth::authn::Authentication;
use crate::http::body::Body;
use crate::http::options::WriteOptions;
use crate::http::respond;
use crate::pages::health::Checks;
use crate::special::{Call, Response, Special, Specials, binding, component, eviction, review, token};

/// What the answers need besides the server.
#[derive(Clone)]
pub struct Parts {
    pub authentication: Arc<Authentication>,
    /// Without it no service account gets a token.
    pub tokens: Option<Arc<token::Issuer>>,
    /// How the rest of the control plane is.
    pub components: Checks,
}

/// Adds all of them to the table.
pub fn add(specials: &mut Specials, parts: &Parts) {
    specials.add(("", "pods", "binding"), handler(binding::pod));
    specials.add(("", "bindings", ""), handler(binding::collection));
    specials.add(("", "pods", "eviction"), handler(eviction::evict));
    if let Some(issuer) = parts.tokens.clone() {
        specials.add(("", "serviceaccounts", "token"), handler(move |call| token::create(call, issuer.clone())));
    }
    let components = parts.components.clone();
    let read = move |call| component::read(call, components.clone());
    specials.add(("", "componentstatuses", ""), handler(read));
    let authentication = parts.authentication.clone();
    let authn = "authentication.k8s.io";
    specials.add((authn, "tokenreviews", ""), handler(move |call| review::token(call, authentication.clone())));
    specials.add((authn, "selfsubjectreviews", ""), handler(review::self_subject));
    let authz = "authorization.k8s.io";
    specials.add((authz, "subjectaccessreviews", ""), handler(review::access));
    specials.add((authz, "localsubjectaccessreviews", ""), handler(review::local_access));
    specials.add((authz, "selfsubjectaccessreviews", ""), handler(review::self_access));
    specials.add((authz, "selfsubjectrulesreviews", ""), handler(review::self_rules));
}

/// A special that is one function: its kind's declaration has one verb.
struct Handler<F>(F);

fn handler<F, R>(handler: F) -> Arc<dyn Special>
where
    F: Fn(Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Response, StatusError>> + Send + 'static,
{
    Arc::new(Handler(handler))
}

impl<F, R> Special for Handler<F>
where
    F: Fn(Call) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Response, StatusError>> + Send + 'static,
{
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Response, StatusError>> {
        Box::pin((self.0)(call))
    }
}

/// Reads the body as a built-in kind, with its defaults, and the options of the write.
pub async fn body(
    call: &mut Call,
    group: &str,
    version: &str,
    kind: &str,
) -> Result<(Value, WriteOptions), StatusError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions", call.header(header::USER_AGENT))?;
    let media_type = call.header(header::CONTENT_TYPE).to_owned();
    let limit = call.server.limits().body_bytes;
    let bytes = std::mem::replace(&mut call.body, Body::empty()).collect(limit).await?;
    let definition = api::kinds::built_in().by_kind(group, version, kind);
    let ty = definition.map_or(&Type::Any, |d| &d.ty);
    let decoded =
        api::codec::decode::decode(ty, Gvk { group, version, kind }, &bytes, &media_type, options.validation)?;
    let mut value = decoded.value;
    if let Some(definition) = definition {
        definition.strategy.default(&mut value);
    }
    Ok((value, options))
}

/// Sends the object of a subresource through admission, as a create.
pub async fn admitted(
    call: &Call,
    definition: &Definition,
    name: &str,
    object: Value,
    options: &WriteOptions,
) -> Result<Value, StatusError> {
    let mut review = Review {
        definition,
        operation: Operation::Create,
        subresource: call.info.subresource,
        namespace: &call.info.namespace,
        name,
        user: &call.user,
        dry_run: options.dry_run,
        object: Some(object),
        old: None,
        options: options.object("CreateOptions"),
        warnings: Vec::new(),
        annotations: Vec::new(),
    };
    call.server.admission().admit(&mut review).await?;
    call.server.admission().validate(&mut review).await?;
    Ok(review.object.unwrap_or_default())
}

/// The name in the body is the one in the path, or absent.
pub fn same_name(call: &Call, object: &Value, what: &str) -> Result<(), StatusError> {
    let (namespace, name) = (meta::namespace(object), meta::name(object));
    if !name.is_empty() && name != call.info.name {
        let path = &call.info.name;
        return Err(StatusError::bad_request(format!(
            "name in URL does not match name in {what} object: {path} != {name}"
        )));
    }
    if !namespace.is_empty() && namespace != call.info.namespace {
        return Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

pub fn created(value: &Value) -> Response {
    respond::value(StatusCode::CREATED, value)
}

pub fn success() -> Response {
    created(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}
