//! The standard health question over gRPC, which the kubelet's grpc probes ask. It lives here because this crate is the
//! one that speaks gRPC.

use tonic::{codegen::http::uri::PathAndQuery, transport::Endpoint};
use tonic_prost::ProstCodec;

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

/// Whether the service says that it serves.
pub async fn check(host: &str, port: i32, service: &str) -> Result<bool, String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|e| e.to_string())?;
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec: ProstCodec<Request, Response> = ProstCodec::default();
    let request = tonic::Request::new(Request { service: service.to_owned() });
    let answer = client.unary(request, path, codec).await.map_err(|e| e.message().to_owned())?;
    Ok(answer.into_inner().status == 1)
}
