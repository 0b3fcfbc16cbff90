//! The spans of a Pod's life, as a collector gets them.

use std::sync::Arc;

use json::json;
use parking_lot::Mutex;
use runtime::grpc;
use spans::{
    EXPORT,
    config::{Collector, Config},
    messages::{ExportTraceServiceRequest, ExportTraceServiceResponse, ResourceSpans},
};

use crate::tests::world::{World, until};

#[test]
fn a_collector_is_told_of_the_work_on_a_pod() {
    let world = World::new();
    let socket = world.kubelet_folder().with_file_name("otel.sock");
    let tracing = Config { collector: Collector::Socket(socket.clone()), per_million: 1_000_000 };
    *world.tracing.lock() = Some(tracing);
    let container = json!({"name": "m", "image": "x:1"});
    world.make_pod("p", json!({"terminationGracePeriodSeconds": 5, "containers": [container]}));
    let told = Arc::new(Mutex::new(Vec::<ResourceSpans>::new()));
    world.life(None, async || {
        let heard = told.clone();
        let collector = grpc::Server::default().unary(EXPORT, move |batch: ExportTraceServiceRequest| {
            heard.lock().extend(batch.resource_spans);
            async { Ok(ExportTraceServiceResponse::default()) }
        });
        let collector = tokio::spawn(collector.serve(grpc::listen(&socket).unwrap()));
        until("the Pod is ready", || world.is_ready("p")).await;
        world.delete_pod("p");
        until("the Pod is gone", || world.pod("p").is_none()).await;
        let was_told = |name: &str| {
            let told = told.lock();
            told.iter().flat_map(|from| &from.scope_spans).flat_map(|scope| &scope.spans).any(|span| span.name == name)
        };
        for name in ["syncPod", "syncTerminatingPod", "syncTerminatedPod"] {
            until(name, || was_told(name)).await;
        }
        collector.abort();
    });
    let told = told.lock();
    let about = told[0].resource.iter().flat_map(|about| &about.attributes);
    assert_eq!(about.map(|attribute| attribute.key.as_str()).collect::<Vec<_>>(), ["service.name", "host.name"]);
}
