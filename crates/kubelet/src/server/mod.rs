//! The kubelet's HTTPS server: what the API server and metrics collectors ask of a node.

pub mod access;
pub mod answer;
mod answers;
mod cadvisor;
mod cadvisor_disks;
mod cadvisor_rows;
mod checkpoint;
mod configz;
pub mod endpoint;
mod engine_metrics;
pub mod healthz;
mod journal;
mod log_query;
pub mod pod_resources;
pub mod pod_resources_messages;
mod profiles;
mod resource_metrics;
mod streams;
mod summary;
mod system_logs;
#[cfg(test)]
mod tests;
mod volume_metrics;

use std::sync::Arc;

use api::features::Feature;
use client::Client;
use http::{Request, StatusCode, request::Parts};
use hyper::body::Incoming;
use listener::{Answering, Bounds, Listener, Peer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::{
    answer::{Answer, text},
    endpoint::{Asked, Endpoint},
};
use crate::{error::Error, kubelet::Kubelet, sharing::Sharing};

pub async fn listen(kubelet: &Kubelet) -> Result<Option<TcpListener>, Error> {
    let Some(serving) = &kubelet.config.serving else { return Ok(None) };
    let port = serving.port;
    // The one of IPv6 takes connections of IPv4 too.
    let any: std::net::IpAddr = match kubelet.config.node_ips().any(|ip| ip.is_ipv6()) {
        false => std::net::Ipv4Addr::UNSPECIFIED.into(),
        true => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let at = kubelet.config.settings.address.unwrap_or(any);
    let listener = TcpListener::bind((at, port)).await.map_err(|source| Error::Listen { port, source })?;
    Ok(Some(listener))
}

/// Serves until the future is dropped.
pub async fn serve(kubelet: Arc<Kubelet>, client: Client, listener: Option<TcpListener>) {
    let (Some(listener), Some(serving)) = (listener, &kubelet.config.serving) else {
        return std::future::pending().await;
    };
    let tls = tokio_rustls::TlsAcceptor::from(serving.tls.clone());
    let guard = match access::Guard::new(client, &serving.client_authority, &kubelet.config.node_name) {
        Ok(guard) => Arc::new(guard),
        Err(error) => {
            tracing::error!(error, "the kubelet's server cannot check its clients");
            return std::future::pending().await;
        }
    };
    let service = move |peer: Peer| {
        let (kubelet, guard) = (kubelet.clone(), guard.clone());
        move |request: Request<Incoming>| {
            let (kubelet, guard, peer) = (kubelet.clone(), guard.clone(), peer.clone());
            async move { respond(kubelet, &guard, &peer, request).await }
        }
    };
    let listener = Listener::new(listener, "kubelet", Bounds::of_process(8), Arc::default());
    listener.serve(tls, CancellationToken::new(), service).await;
}

async fn respond(kubelet: Arc<Kubelet>, guard: &access::Guard, peer: &Peer, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let asked = endpoint::resolve(request.method(), &path);
    let counted = kubelet.figures.asked(request.method(), &asked.endpoint);
    // It is under way until its answer is sent; one that was upgraded, until its connection ends.
    let _counted = match request.extensions().get::<Answering>() {
        Some(answering) => {
            answering.keep(Box::new(counted));
            None
        }
        None => Some(counted),
    };
    if let (Endpoint::Images, Some(sharing)) = (asked.endpoint, &kubelet.sharing) {
        return share(sharing, guard, peer, &request.into_parts().0).await;
    }
    if let Err((code, message)) = guard.check(peer, request.headers(), &asked).await {
        return text(code, message);
    }
    let (parts, body) = request.into_parts();
    let Some(mut span) = kubelet.traces.serve(asked.endpoint.route(), &parts) else {
        return answered(kubelet, asked, Request::from_parts(parts, body)).await;
    };
    let request = Request::from_parts(parts, body);
    let answer = Box::pin(span.around(answered(kubelet, asked, request))).await;
    span.set("http.response.status_code", answer.status().as_u16());
    if answer.status().is_server_error() {
        span.fail();
    }
    answer
}

/// Answers a node that asks for content of images, and nobody else.
pub async fn share(sharing: &Sharing, guard: &access::Guard, peer: &Peer, request: &Parts) -> Answer {
    match guard.node(peer) {
        Ok(node) => sharing.answer(&node, request).await,
        Err((code, message)) => text(code, message),
    }
}

async fn answered(kubelet: Arc<Kubelet>, asked: Asked<'_>, request: Request<Incoming>) -> Answer {
    if !kubelet.config.settings.debugging_handlers && asked.endpoint.is_for_debugging() {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n".to_owned());
    }
    match asked.endpoint {
        Endpoint::Health => text(StatusCode::OK, "ok".to_owned()),
        Endpoint::Pods => answers::pods(&kubelet),
        Endpoint::RunningPods => answers::running_pods(&kubelet).await,
        Endpoint::Cadvisor => cadvisor::answer(&kubelet).await,
        Endpoint::ProbeMetrics => answer::exposition(kubelet.probe_counts.render()),
        Endpoint::SystemLogs(path) if kubelet.config.settings.system_logs => {
            if let Some(answering) = request.extensions().get::<Answering>() {
                answering.is_patient();
            }
            let query = request.uri().query().unwrap_or_default();
            system_logs::answer(path, query, kubelet.config.settings.log_query).await
        }
        Endpoint::SystemLogs(_) => text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n".to_owned()),
        Endpoint::Checkpoint { .. } if !kubelet.config.features.enabled(Feature::ContainerCheckpoint) => {
            text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
        }
        Endpoint::Checkpoint { namespace, pod, container } => {
            let query = request.uri().query().unwrap_or_default();
            checkpoint::answer(&kubelet, (namespace, pod, container), query).await
        }
        Endpoint::Metrics => answers::metrics(&kubelet).await,
        Endpoint::ResourceMetrics => resource_metrics::answer(&kubelet).await,
        Endpoint::Config => configz::answer(&kubelet),
        Endpoint::Summary => summary::answer(&kubelet, request.uri().query().unwrap_or_default()).await,
        Endpoint::Logs { namespace, pod, container } => {
            if let Some(answering) = request.extensions().get::<Answering>() {
                answering.is_patient();
            }
            answers::logs(kubelet, namespace, pod, container, request.uri().query().unwrap_or_default()).await
        }
        Endpoint::Profile(name) if kubelet.config.settings.profiling => {
            if let Some(answering) = request.extensions().get::<Answering>() {
                answering.is_patient();
            }
            profiles::answer(name, request).await
        }
        Endpoint::Profile(_) => text(StatusCode::METHOD_NOT_ALLOWED, "profiling endpoint is disabled.\n".to_owned()),
        Endpoint::DebugFlags(rest) if kubelet.config.settings.debug_flags => answers::debug_flags(rest, request).await,
        Endpoint::DebugFlags(_) => text(StatusCode::METHOD_NOT_ALLOWED, "flags endpoint is disabled.\n".to_owned()),
        Endpoint::Stream(path) => {
            let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
            streams::forward(&kubelet, &parts, request).await
        }
        // A node that shares none has no such path.
        Endpoint::Images | Endpoint::Unknown => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    }
}
