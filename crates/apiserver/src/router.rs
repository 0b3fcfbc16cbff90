//! From a request to what serves it: a special handler, a verb of the pipeline, or a page about the server itself.

use std::sync::Arc;

use api::{
    Value,
    kind::{Definition, Way},
    status::StatusError,
};
use futures::future::BoxFuture;
use http::{HeaderValue, StatusCode, header};

use crate::{
    auth::credentials::Identities,
    bootstrap::keep::Keeper,
    call::Call,
    http::{
        access::Authenticator,
        body::Response,
        encoding::{Encoding, cbor, pretty},
        ending::Ending,
        large::Gate,
        request::Refusal,
        respond,
        view::View,
        web::Web,
    },
    pages::{
        debug::Debugging,
        discovery,
        health::Checks,
        index,
        issuer::IssuerDocuments,
        openapi::{self, Documents},
        version::{self, Build},
        zpages::Zpages,
    },
    pipeline,
    special::{aggregated, table::Specials},
    state::State,
};

/// Where `skiff store encrypt` asks a server that runs. Only who may do everything may ask: no role of a cluster names it.
pub const REWRITE: &str = "/skiff/store/encrypt";

/// Answers with what was done.
pub type Rewrite = Box<dyn Fn() -> BoxFuture<'static, Result<Value, StatusError>> + Send + Sync>;

/// The parts that the front door knows beside the state that handlers read.
pub struct Router {
    /// The rewriting of every value that is not encrypted with the first key of its resource.
    pub rewrite: std::sync::OnceLock<Rewrite>,
    /// The configurations of the components beside the server: the page `/configz`.
    pub configurations: std::sync::OnceLock<Value>,
    pub state: Arc<State>,
    pub authenticator: Arc<dyn Authenticator>,
    pub specials: Specials,
    /// The named checks of `/readyz` and `/livez`.
    pub checks: Checks,
    /// Tells others how to check the tokens that this server signs.
    pub issuer: Option<IssuerDocuments>,
    pub documents: Documents,
    pub web: Web,
    pub build: Build,
    pub debugging: Debugging,
    pub zpages: Zpages,
    /// The headers that name users, of which handlers see none.
    pub identities: Identities,
    pub(crate) large: Arc<Gate>,
    pub(crate) ending: Ending,
    /// Keeps the server's own objects.
    pub keeper: Option<Arc<Keeper>>,
    /// Ends with the server.
    pub background: tokio::task::JoinSet<()>,
}

impl Router {
    /// With nothing but the pipeline's verbs and the pages that every server has.
    pub fn new(state: Arc<State>, authenticator: Arc<dyn Authenticator>) -> Self {
        Router {
            rewrite: std::sync::OnceLock::new(),
            configurations: std::sync::OnceLock::new(),
            checks: Checks::of(&state.objects),
            state,
            authenticator,
            specials: Specials::default(),
            issuer: None,
            documents: Documents::default(),
            web: Web::default(),
            build: Build::default(),
            debugging: Debugging::default(),
            zpages: Zpages::default(),
            identities: Identities::default(),
            large: Arc::default(),
            ending: Ending::default(),
            keeper: None,
            background: tokio::task::JoinSet::new(),
        }
    }

    pub async fn route(&self, call: Call) -> Result<Response, StatusError> {
        if call.info.remote.is_some() {
            return aggregated::pass(call).await;
        }
        let Some(definition) = call.info.definition.clone() else { return self.page(call).await };
        let is_own = definition.subresource(call.info.subresource).is_none_or(|(_, _, way)| way == Way::Own);
        if !(is_own && self.state.encodings.contains(&Encoding::Cbor)) {
            return self.handle(call, definition).await;
        }
        let verb = call.info.verb;
        let (call, warning) = in_json(call, &definition).await?;
        call.warnings.add(warning);
        self.handle(call, definition).await.map_err(|error| cbor::unsupported(error, verb))
    }

    async fn handle(&self, call: Call, definition: Arc<Definition>) -> Result<Response, StatusError> {
        let warnings = call.warnings.clone();
        let answer = match self.specials.get(&definition.group, &definition.plural, call.info.subresource) {
            Some(special) => special.call(call).await,
            None => pipeline::run(call, definition).await,
        };
        warnings.beside(answer)
    }

    async fn page(&self, mut call: Call) -> Result<Response, StatusError> {
        if let Some(answer) = self.debugging.answer(&mut call).await? {
            return Ok(answer);
        }
        if call.info.verb == "post"
            && call.info.path == REWRITE
            && let Some(rewrite) = self.rewrite.get()
        {
            return Ok(respond::json(StatusCode::OK, rewrite().await?.to_string()));
        }
        if !matches!(call.info.verb, "get" | "head") {
            return Err(StatusError::no_route());
        }
        let path = call.info.path.as_str();
        if let Some(answer) = self.zpages.answer(path, &call.headers)? {
            return Ok(answer);
        }
        if let Some(shown) = self.configurations.get().filter(|_| path == "/configz") {
            return Ok(respond::json(StatusCode::OK, shown.to_string()));
        }
        match path {
            "/version" => Ok(respond::json(StatusCode::OK, pretty::text(&version::page(&self.build)))),
            "/metrics" => {
                let (objects, state) = (&self.state.objects.measured, &self.state);
                let page = state.metrics.render() + &state.aggregator.metrics() + &objects.render();
                Ok(respond::metrics(page + &self.build.page() + &objects.count().await))
            }
            "/metrics/slis" => Ok(respond::metrics(self.checks.slis())),
            "/" => {
                let paths = index::paths(&self.state, &self.checks, self.issuer.as_ref(), &self.zpages);
                Ok(respond::json(StatusCode::OK, pretty::text(&paths.to_string())))
            }
            _ if path.starts_with("/debug/") => {
                let fairness = self.state.fairness.as_ref();
                Ok(fairness
                    .and_then(|fairness| fairness.page(path, &call.query))
                    .map_or_else(nothing_here, respond::text))
            }
            _ => {
                let issuer = || self.issuer.as_ref()?.answer(path);
                if let Some(document) = discovery::answer(&call) {
                    View::negotiate(self.state.encodings, &call.headers, "", None)?;
                    return Ok(document);
                }
                let found = self.checks.answer(path, &call.query).await.or_else(issuer);
                Ok(found.or_else(|| openapi::answer(&call, &self.documents)).unwrap_or_else(nothing_here))
            }
        }
    }
}

/// A request whose body, if it is CBOR, has become JSON, with what is to be warned of.
async fn in_json(mut call: Call, definition: &Definition) -> Result<(Call, Option<String>), StatusError> {
    let Some(media_type) = cbor::stands_for(call.header(header::CONTENT_TYPE)) else { return Ok((call, None)) };
    let body = call.read_body().await?;
    // The object of another subresource is of a type that its handler knows.
    let verb = if matches!(call.info.subresource, "" | "status") { call.info.verb } else { "" };
    let (json, warning) = cbor::as_json(&body, definition, verb, &call.query)?;
    call.body = json.into();
    call.headers.insert(header::CONTENT_TYPE, media_type);
    Ok((call, warning))
}

/// The answer to a request that nothing serves.
pub fn refuse(refusal: &Refusal) -> Result<Response, StatusError> {
    refusal.error().map_or_else(|| Ok(nothing_here()), Err)
}

/// No part of the API: a page for people, as upstream has it.
fn nothing_here() -> Response {
    let mut response = Response::new("404 page not found\n".into());
    *response.status_mut() = StatusCode::NOT_FOUND;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
