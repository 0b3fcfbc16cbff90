//! Traces and gRPC: the way of spans to a collector, and what a call to another process says of the trace that it is of.
//! Upstream counterpart: k8s.io/component-base/tracing, otelgrpc, whose names are the ones here.

use std::{sync::Arc, time::Duration};

use spans::{
    Attribute, EXPORT, Tracer,
    config::{Collector, Config},
    messages::{ExportTraceServiceRequest, ExportTraceServiceResponse},
};
use tonic::{Request, Response, Status};

use crate::grpc::{self, Channel, words};

/// A collector that takes longer for a batch loses it; upstream's number.
const LIMIT: Duration = Duration::from_secs(10);

/// The maker of spans, and the work that sends them. `about` says whose they are.
pub fn begin(
    config: &Config,
    about: Vec<(&'static str, String)>,
) -> Result<(Arc<Tracer>, impl Future<Output = ()> + Send + use<>), String> {
    let channel = match &config.collector {
        Collector::Socket(path) => grpc::channel(path),
        Collector::Remote(address) => grpc::remote(address).map_err(|why| format!("{address}: {why}"))?,
    };
    let (tracer, spans) = Tracer::new(config.per_million);
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

/// An interceptor that lets a call say which trace it is of.
pub(crate) type Carry = fn(Request<()>) -> Result<Request<()>, Status>;

pub(crate) fn carry(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(context) = spans::current().and_then(|context| context.header().parse().ok()) {
        request.metadata_mut().insert("traceparent", context);
    }
    Ok(request)
}

/// Makes a call, which is a span where the work that it is a part of is one.
pub(crate) async fn called<T, L>(
    method: &'static str,
    call: impl Future<Output = Result<Result<Response<T>, Status>, L>>,
) -> Result<Result<Response<T>, Status>, L> {
    let Some(mut span) = spans::child(method) else { return call.await };
    let (service, name) = method.split_once('/').unwrap_or(("", method));
    for (key, value) in [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", name)] {
        span.set(key, value);
    }
    let answer = Box::pin(span.around(call)).await;
    let code = match &answer {
        Ok(Ok(_)) => tonic::Code::Ok,
        Ok(Err(status)) => status.code(),
        Err(_) => tonic::Code::DeadlineExceeded,
    };
    span.set("rpc.grpc.status_code", Attribute::Number((code as i32).into()));
    if code != tonic::Code::Ok {
        span.fail();
    }
    answer
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
        let about = vec![("service.name", "apiserver".to_owned()), ("service.instance.id", "x".to_owned())];
        let (tracer, sending) = begin(&config, about).unwrap();
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

    #[tokio::test]
    async fn calls_are_spans_and_say_so() {
        let (tracer, mut spans) = Tracer::new(1_000_000);
        let call = |answer: Result<(), Status>| async move {
            let carried = carry(Request::new(())).unwrap();
            let carried = carried.metadata().get("traceparent").map(|header| header.to_str().unwrap().to_owned());
            Ok::<_, ()>(answer.map(|()| Response::new(carried)))
        };
        // Work that is no span calls as ever.
        let answer = called("runtime.v1.RuntimeService/Version", call(Ok(()))).await.unwrap().unwrap();
        assert_eq!(answer.into_inner(), None);
        let work = tracer.root("syncPod");
        let calls = async {
            let answer = called("runtime.v1.RuntimeService/RunPodSandbox", call(Ok(()))).await.unwrap().unwrap();
            let _ = called("runtime.v1.ImageService/PullImage", call(Err(Status::not_found("no")))).await;
            answer.into_inner()
        };
        let carried = work.around(calls).await;
        let (run, pull) = (spans.recv().await.unwrap(), spans.recv().await.unwrap());
        assert_eq!((carried, &*run.name), (Some(run.context.header()), "runtime.v1.RuntimeService/RunPodSandbox"));
        assert_eq!((run.parent, run.failed, pull.failed), (Some(work.context().span), false, true));
        let codes = [&run, &pull].map(|facts| facts.attributes.last().unwrap().1.clone());
        assert_eq!(codes, [0, 5].map(Attribute::Number));
    }
}
