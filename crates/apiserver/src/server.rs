//! The server as a value: built from its parts, then listened on or called in process.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use api::status::StatusError;
use futures::future::BoxFuture;
use http::{Request, Response};

use crate::{
    admission::attributes::{Admission, Allocation},
    auth::{self, Attributes, Authorizer, User, Verdict},
    http::{
        access::Authenticator,
        body::{Body, BoxError},
        chain,
        large::Gate,
        listen,
        places::Levels,
    },
    pages::{health::Checks, issuer::IssuerDocuments, metrics::Metrics, openapi::Documents},
    special::Specials,
    storage::core::Core,
};

/// `(group, plural)` of each kind with an allocation.
pub type Allocations = Vec<((&'static str, &'static str), Arc<dyn Allocation>)>;

/// The parts of a server.
pub struct Config {
    pub core: Arc<Core>,
    pub authenticator: Arc<dyn Authenticator>,
    pub authorizer: Arc<dyn Authorizer>,
    pub admission: Arc<dyn Admission>,
    pub specials: Specials,
    /// Of the kinds whose objects hold something out of a limited supply.
    pub allocations: Allocations,
    pub limits: Limits,
    /// Named checks beside the server's own, for `/readyz` and `/livez`.
    pub checks: Checks,
    /// Tells others how to check the tokens that this server signs.
    pub issuer: Option<IssuerDocuments>,
}

/// Where the server says stop.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The time a request may take that is not long-running.
    pub request_timeout: Duration,
    /// A watch without a `timeoutSeconds` ends after this to twice this time.
    pub watch_timeout: Duration,
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_timeout: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(1800),
            body_bytes: 3 * 1024 * 1024,
        }
    }
}

/// What all requests share: the parts, and what the server itself counts and remembers.
pub(crate) struct Shared {
    pub config: Config,
    pub metrics: Metrics,
    pub documents: Documents,
    pub places: Levels,
    pub large: Arc<Gate>,
}

/// A running API server. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

impl Server {
    pub async fn new(config: Config) -> Server {
        let shared = Shared {
            metrics: Metrics::default(),
            documents: Documents::default(),
            places: Levels::default(),
            large: Arc::default(),
            config,
        };
        Server { shared: Arc::new(shared) }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.shared.config.core
    }

    pub fn authorizer(&self) -> &Arc<dyn Authorizer> {
        &self.shared.config.authorizer
    }

    /// Whether the authorizers allow this; the error is the answer to who asked.
    pub(crate) fn ask(&self, attributes: &Attributes<'_>) -> Result<(), StatusError> {
        match self.authorizer().authorize(attributes) {
            Verdict::Allow(_) => Ok(()),
            Verdict::Deny(why) | Verdict::NoOpinion(why) => Err(auth::forbidden(attributes, &why)),
        }
    }

    pub fn admission(&self) -> &Arc<dyn Admission> {
        &self.shared.config.admission
    }

    pub fn limits(&self) -> &Limits {
        &self.shared.config.limits
    }

    /// Serves on `address` until the handle is dropped. Port 0 takes a free one; the handle tells which.
    pub async fn listen(
        &self,
        address: SocketAddr,
        tls: Arc<rustls::ServerConfig>,
    ) -> std::io::Result<listen::Listening> {
        listen::listen(self.clone(), address, tls).await
    }

    /// The server as a service for callers in this process. A request carries a bearer token, or its caller as an
    /// `Arc<User>` extension; everything behind authentication is the same as on the network.
    pub fn in_process(&self) -> InProcess {
        InProcess { server: self.clone(), user: None }
    }

    /// One request through the whole chain. Never fails: errors are responses.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        chain::handle(self.clone(), request).await
    }
}

/// The in-process way in; cheap to clone.
#[derive(Clone)]
pub struct InProcess {
    server: Server,
    user: Option<Arc<User>>,
}

impl InProcess {
    /// All requests are this user's, unless they name another one themselves.
    #[must_use]
    pub fn as_user(mut self, user: User) -> Self {
        self.user = Some(Arc::new(user));
        self
    }
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.server.clone();
        let mut request = request.map(Body::wrap);
        if let Some(user) = &self.user
            && request.extensions().get::<Arc<User>>().is_none()
        {
            request.extensions_mut().insert(user.clone());
        }
        Box::pin(async move { Ok(server.handle(request).await) })
    }
}
