//! The standard health question over gRPC, which the kubelet's grpc probes ask. It lives here because this crate is the
//! one that speaks gRPC.

use tonic::{codegen::http::uri::PathAndQuery, transport::Endpoint};
use tonic_prost::ProstCodec;

use crate::grpc;

/// grpc.health.v1.HealthCheckRequest
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
}

/// grpc.health.v1.HealthCheckResponse; status 1 is SERVING.
#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Why a service is not taken for healthy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unhealthy {
    #[error("cannot be connected to: {0}")]
    Unreachable(String),
    #[error("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {0}")]
    Unimplemented(String),
    #[error("error: health rpc probe failed: {0}")]
    Failed(String),
    #[error("service unhealthy (responded with \"{0}\")")]
    NotServing(&'static str),
}

/// Asks the service whether it serves.
pub async fn check(host: &str, port: i32, service: &str) -> Result<(), Unhealthy> {
    let unreachable = |e: tonic::transport::Error| Unhealthy::Unreachable(e.to_string());
    let url = format!("http://{}", api::rules::ip::with_port(host, port));
    let endpoint = Endpoint::from_shared(url).map_err(unreachable)?;
    let channel = endpoint.connect().await.map_err(unreachable)?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(unreachable)?;
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec: ProstCodec<Request, Response> = ProstCodec::default();
    let request = tonic::Request::new(Request { service: service.to_owned() });
    let answer = client.unary(request, path, codec).await.map_err(|status| match status.code() {
        tonic::Code::Unimplemented => Unhealthy::Unimplemented(status.message().to_owned()),
        _ => Unhealthy::Failed(grpc::words(&status)),
    })?;
    match answer.into_inner().status {
        1 => Ok(()),
        2 => Err(Unhealthy::NotServing("NOT_SERVING")),
        3 => Err(Unhealthy::NotServing("SERVICE_UNKNOWN")),
        _ => Err(Unhealthy::NotServing("UNKNOWN")),
    }
}
