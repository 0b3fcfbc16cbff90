//! Ways to reach the API server: over TLS as a kubeconfig says, or by a function call into the same process.

use std::path::Path;

use bytes::Bytes;
use http::{Request, Response};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use tower::{BoxError, Service};

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the kubeconfig {path}")]
    Kubeconfig { path: String, source: Box<kube::config::KubeconfigError> },
    #[error("the kubeconfig {path} does not give a usable client")]
    Client { path: String, source: Box<kube::Error> },
}

/// A client as the current context of a kubeconfig file says. Relative paths in it are taken from its folder.
pub async fn from_kubeconfig(path: &Path) -> Result<Client, ConnectError> {
    let path_text = || path.display().to_string();
    let wrong = |source| ConnectError::Kubeconfig { path: path_text(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(wrong)?;
    from_config(config).map_err(|source| ConnectError::Client { path: path_text(), source: Box::new(source) })
}

/// A client from a configuration made in memory.
pub fn from_config(mut config: Config) -> Result<Client, kube::Error> {
    // Whoever calls retries with backoff of its own; retries below it would only add up.
    config.default_retry = false;
    Client::try_from(config)
}

/// A client that calls `service`, usually the API server's pipeline in the same process.
pub fn in_process<S, B>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(service, "default")
}
