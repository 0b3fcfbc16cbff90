//! The server as a value: built from its parts, then listened on or called in process.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use api::{Value, status::StatusError};
use clock::Duration;
use futures::future::BoxFuture;
use http::Request;

use crate::{
    auth::User,
    bootstrap::Cluster,
    http::{
        body::{Body, BoxError, Response},
        chain, ending, listen,
    },
    router::{Rewrite, Router},
    storage::object_store::ObjectStore,
};

pub use crate::state::Limits;

/// A running API server. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    router: Arc<Router>,
}

impl Server {
    pub fn new(router: Router) -> Server {
        Server { router: Arc::new(router) }
    }

    pub fn objects(&self) -> &Arc<ObjectStore> {
        &self.router.state.objects
    }

    /// The lines stand on the page of metrics too: other components of the process have no page of their own.
    pub fn add_metrics(&self, lines: impl Fn() -> String + Send + Sync + 'static) {
        self.router.state.metrics.others.write().push(Box::new(lines));
    }

    /// Says what writes everything once more that is not encrypted with the first key; later ones change nothing.
    pub fn on_rewrite(&self, rewrite: Rewrite) {
        let _ = self.router.rewrite.set(rewrite);
    }

    /// Says how the components are set up that work beside this server, for `/configz`; later ones change nothing.
    pub fn show_configurations(&self, configurations: Value) {
        let _ = self.router.configurations.set(configurations);
    }

    /// Tells extension servers whose certificates are believed now, and no longer those that this server told of before.
    pub async fn tell_authorities(&self, now: &Cluster) -> Result<(), StatusError> {
        match &self.router.keeper {
            Some(keeper) => keeper.tell(now).await,
            None => Ok(()),
        }
    }

    /// Takes the server's address away where clients find it, if there are other servers. Those that know it are answered as before.
    pub async fn leave(&self) {
        if let Some(keeper) = &self.router.keeper {
            keeper.leave().await;
        }
    }

    /// Waits until everything that was audited has gone where it goes.
    pub async fn flush_audit(&self) {
        if let Some(auditor) = &self.router.state.auditor {
            auditor.flush().await;
        }
    }

    /// Ends the answering: the listener's requests are finished, its watches ended, and what is open even then is broken off. With
    /// `retry_after` clients are told meanwhile to come again, instead of finding nobody. When this returns, everything that was
    /// audited has gone where it goes, or cannot within `flush`, which is said by `false`.
    pub async fn end(&self, listening: listen::Listening, retry_after: bool, flush: Duration) -> bool {
        let (state, ending) = (&self.router.state, &self.router.ending);
        let grace = state.limits.watch_grace;
        let watches = || ending::end_watches(&state.objects.watches, grace);
        if retry_after && grace.is_zero() {
            ending.refuse(state.limits.request_timeout).await;
        } else if retry_after {
            futures::join!(ending.refuse(state.limits.request_timeout), watches());
        }
        futures::join!(watches(), listening.stop(ending.answered(state.limits.request_timeout)));
        ending.close();
        state.objects.watches.end_some(usize::MAX);
        let Some(auditor) = &state.auditor else { return true };
        clock::timeout(flush, auditor.end()).await.is_ok()
    }

    /// Serves on `address` until the handle is dropped. Port 0 takes a free one; the handle tells which.
    pub async fn listen(
        &self,
        address: SocketAddr,
        tls: Arc<rustls::ServerConfig>,
    ) -> std::io::Result<listen::Listening> {
        listen::listen(self.router.clone(), address, tls).await
    }

    /// The server as a service for callers in this process. A request carries a bearer token, or its caller as an
    /// `Arc<User>` extension; everything behind authentication is the same as on the network.
    pub fn in_process(&self) -> InProcess {
        InProcess { server: self.clone(), user: None }
    }

    /// One request through the whole chain. Never fails: errors are responses.
    pub async fn handle(&self, request: Request<Body>) -> Response {
        chain::handle(self.router.clone(), request).await
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
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let router = self.server.router.clone();
        let mut request = request.map(Body::wrap);
        if let Some(user) = &self.user
            && request.extensions().get::<Arc<User>>().is_none()
        {
            request.extensions_mut().insert(user.clone());
        }
        Box::pin(async move { Ok(chain::handle(router, request).await) })
    }
}
