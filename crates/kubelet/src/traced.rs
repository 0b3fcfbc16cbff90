//! The spans of what the kubelet does: its work on Pods, the clean-up of images, and what its server is asked. Calls to the engine and to
//! the API server within that work are spans below it; those of other work, such as the look at what runs, are none.
//! Upstream counterpart: pkg/kubelet/kubelet.go (SyncPod and its siblings), server.InstallTracingFilter, whose names are the ones here.

use std::{borrow::Cow, sync::Arc};

use futures::future::BoxFuture;
use http::request::Parts;
use parking_lot::Mutex;
use spans::{Context, Span, Tracer, config::Config};

use crate::{
    error::Error,
    pod::{decide::Step, desired::DesiredPod},
};

#[derive(Default)]
pub struct Traces {
    tracer: Option<Arc<Tracer>>,
    sending: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Traces {
    /// None are made without a configuration.
    pub fn new(config: Option<&Config>, node: &str) -> Result<Self, Error> {
        let Some(config) = config else { return Ok(Traces::default()) };
        let about = vec![("service.name", "kubelet".to_owned()), ("host.name", node.to_owned())];
        let (tracer, sending) = runtime::traces::begin(config, about).map_err(Error::Machine)?;
        Ok(Traces { tracer: Some(tracer), sending: Mutex::new(Some(Box::pin(sending))) })
    }

    /// Sends spans until the future is dropped.
    pub async fn send(&self) {
        let sending = self.sending.lock().take();
        if let Some(sending) = sending {
            sending.await;
        }
        std::future::pending().await
    }

    pub fn root(&self, name: &'static str) -> Option<Span> {
        self.tracer.as_ref().map(|tracer| tracer.root(name))
    }

    /// The span of steps for a Pod. `update` is upstream's word for their cause.
    pub fn pod(&self, desired: &DesiredPod, steps: &[Step], update: &'static str) -> Option<Span> {
        let ends = |step: &Step| matches!(step, Step::Settle | Step::Finish);
        let name = match steps {
            steps if steps.contains(&Step::KillAll) => "syncTerminatingPod",
            steps if steps.iter().any(ends) => "syncTerminatedPod",
            _ => "syncPod",
        };
        let mut span = self.root(name)?;
        if span.context().sampled {
            span.set("k8s.pod.uid", desired.uid());
            span.set("k8s.pod", &*desired.full_name());
            span.set("k8s.pod.name", desired.name());
            if name == "syncPod" {
                span.set("k8s.pod.update_type", update);
            }
            span.set("k8s.namespace.name", desired.namespace());
        }
        Some(span)
    }

    /// The span of a request by a client who may ask. Its trace goes on here, as upstream: the API server is the client.
    pub fn serve(&self, route: &'static str, parts: &Parts) -> Option<Span> {
        let tracer = self.tracer.as_ref()?;
        let mut given = parts.headers.get_all("traceparent").iter();
        // Of two contexts none is the one that is meant.
        let came_with = given.next().filter(|_| given.next().is_none());
        let came_with = came_with.and_then(|header| Context::parse(header.to_str().ok()?));
        let mut span = tracer.serve(Cow::Borrowed(route), came_with, true);
        span.set("http.request.method", parts.method.as_str());
        span.set("url.path", parts.uri.path());
        span.set("http.route", route);
        Some(span)
    }
}

#[cfg(test)]
mod tests {
    use spans::{Attribute, Facts};
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::pod::fixture;

    const CAME_WITH: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn traces(per_million: u32) -> (Traces, Receiver<Facts>) {
        let (tracer, spans) = Tracer::new(per_million);
        (Traces { tracer: Some(tracer), ..Traces::default() }, spans)
    }

    #[tokio::test]
    async fn work_on_pods_is_named_after_what_it_comes_to() {
        let (traces, mut spans) = traces(1_000_000);
        let desired = fixture::pod("{}");
        let mut check = |steps: &[Step], name: &str, update: Option<&str>| {
            drop(traces.pod(&desired, steps, "create"));
            let made = spans.try_recv().unwrap();
            assert_eq!(made.name, name);
            let attribute =
                |name: &str| made.attributes.iter().find(|(known, _)| *known == name).map(|(_, v)| v.clone());
            assert_eq!(attribute("k8s.pod.update_type"), update.map(Attribute::from));
            let told =
                ["k8s.pod.uid", "k8s.pod", "k8s.pod.name", "k8s.namespace.name"].map(|name| attribute(name).unwrap());
            assert_eq!(told, ["u", "d/p", "p", "d"].map(Attribute::from));
        };
        check(&[Step::Prepare], "syncPod", Some("create"));
        check(&[Step::KillAll, Step::Settle], "syncTerminatingPod", None);
        check(&[Step::Settle], "syncTerminatedPod", None);
        check(&[Step::Finish], "syncTerminatedPod", None);
        assert!(Traces::default().pod(&desired, &[Step::Prepare], "create").is_none());
    }

    #[tokio::test]
    async fn the_trace_of_a_request_goes_on() {
        let (traces, mut spans) = traces(0);
        let parts = |given: &[&str]| {
            let request = http::Request::get("/containerLogs/d/p/m?follow=true");
            let request = given.iter().fold(request, |request, header| request.header("traceparent", *header));
            request.body(()).unwrap().into_parts().0
        };
        drop(traces.serve("/pods", &parts(&[])));
        drop(traces.serve("/pods", &parts(&[CAME_WITH, CAME_WITH])));
        assert!(spans.try_recv().is_err(), "none of a million is sent, and of two contexts none is meant");
        drop(traces.serve("/containerLogs/{podNamespace}/{podID}/{containerName}", &parts(&[CAME_WITH])));
        let served = spans.try_recv().unwrap();
        assert_eq!(served.name, "/containerLogs/{podNamespace}/{podID}/{containerName}");
        assert_eq!(
            (served.context.trace, served.parent),
            (0x0af7651916cd43dd8448eb211c80319c, Some(0xb7ad6b7169203331))
        );
        assert!(Traces::default().serve("/pods", &parts(&[CAME_WITH])).is_none());
    }
}
