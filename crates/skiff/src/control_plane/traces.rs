//! The spans of the API server, sent to a collector: who they are from, and the way there.
//! Upstream counterpart: pkg/controlplane/apiserver/options, k8s.io/apiserver/pkg/server/options/tracing.go.

use std::sync::Arc;

use clock::Duration;
use runtime::grpc::{self, Channel, words};
use spans::{
    EXPORT, Tracer,
    config::{Collector, Config},
    messages::{ExportTraceServiceRequest, ExportTraceServiceResponse},
};

/// A collector that takes longer for a batch loses it; upstream's number.
const LIMIT: Duration = Duration::from_secs(10);

/// The maker of spans, and the work that sends them.
pub fn begin(config: &Config, instance: String) -> anyhow::Result<(Arc<Tracer>, impl Future<Output = ()> + use<>)> {
    let channel = match &config.collector {
        Collector::Socket(path) => grpc::channel(path),
        Collector::Remote(address) => grpc::remote(address).map_err(|why| anyhow::anyhow!("{address}: {why}"))?,
    };
    let (tracer, spans) = Tracer::new(config.per_million);
    let about = vec![("service.name", "apiserver".to_owned()), ("service.instance.id", instance)];
    let send = move |batch| send(channel.clone(), batch);
    Ok((tracer, spans::run(spans, about, send)))
}

async fn send(channel: Channel, batch: ExportTraceServiceRequest) -> Result<(), String> {
    let sent = grpc::unary::<_, ExportTraceServiceResponse>(&channel, EXPORT, batch, LIMIT).await;
    match sent.map_err(|status| words(&status))?.partial_success {
        Some(partly) if partly.rejected_spans > 0 => {
            Err(format!("{} spans were rejected: {}", partly.rejected_spans, partly.error_message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_collector_gets_the_spans_with_their_origin() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("otel.sock");
        let (tell, mut told) = mpsc::unbounded_channel();
        let collector =
            grpc::Server::default().unary(EXPORT, move |batch: ExportTraceServiceRequest| {
                let told = tell.send(batch);
                async move {
                    told.map(|()| ExportTraceServiceResponse::default()).map_err(|_| grpc::Status::internal("gone"))
                }
            });
        tokio::spawn(collector.serve(grpc::listen(&socket).unwrap()));
        let config = Config { collector: Collector::Socket(socket), per_million: 1_000_000 };
        let (tracer, sending) = begin(&config, "apiserver-x".to_owned()).unwrap();
        let sending = tokio::spawn(sending);
        let mut span = tracer.serve("GET /api/v1/nodes".into(), None, false);
        span.set("http.response.status_code", 200u16);
        let trace = span.context().trace;
        drop((span, tracer));
        sending.await.unwrap();
        let batch = told.recv().await.unwrap();
        let from = &batch.resource_spans[0];
        let about: Vec<&str> = from.resource.iter().flat_map(|r| &r.attributes).map(|a| a.key.as_str()).collect();
        assert_eq!(about, ["service.name", "service.instance.id"]);
        let span = &from.scope_spans[0].spans[0];
        assert_eq!((&*span.name, &span.trace_id[..]), ("GET /api/v1/nodes", &trace.to_be_bytes()[..]));
    }
}
