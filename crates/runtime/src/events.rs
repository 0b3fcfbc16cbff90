//! Container events: CRI's own stream where the engine has it, else containerd's event service, which every containerd
//! offers on the same socket. With either, nothing has to be polled.

use std::{future::ready, time::Duration};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use k8s_cri::v1::{
    ContainerEventResponse, ContainerEventType, GetEventsRequest, runtime_service_client::RuntimeServiceClient,
};
use tonic::{Response, Status, Streaming, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

/// containerd.services.events.v1.SubscribeRequest
#[derive(Clone, PartialEq, prost::Message)]
struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

/// containerd.services.events.v1.Envelope, as far as it is read here.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(string, tag = "3")]
    topic: String,
    #[prost(message, optional, tag = "4")]
    event: Option<Payload>,
}

/// google.protobuf.Any
#[derive(Clone, PartialEq, prost::Message)]
struct Payload {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// containerd.events.TaskExit and TaskOOM: both start with the container's id. `id` is the process: the container's
/// own, or that of an exec.
#[derive(Clone, PartialEq, prost::Message)]
struct TaskEvent {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    id: String,
}

/// The container that an envelope speaks of, unless it is only about an exec in it.
fn container_of(envelope: Envelope) -> Option<String> {
    let event: TaskEvent = prost::Message::decode(envelope.event?.value.as_slice()).ok()?;
    (event.id.is_empty() || event.id == event.container_id).then_some(event.container_id)
}

/// The container, or the sandbox, that an event of CRI speaks of, unless it is about a beginning: who begins them is told by the call.
fn ended(event: ContainerEventResponse) -> Option<String> {
    let is_end = matches!(
        event.container_event_type(),
        ContainerEventType::ContainerStoppedEvent | ContainerEventType::ContainerDeletedEvent
    );
    is_end.then_some(event.container_id)
}

/// A stream that the engine does not offer is refused at once; one that it offers answers with its first event, which
/// may be hours away. A refusal is waited for this long.
const REFUSAL: Duration = Duration::from_millis(500);

/// The messages of a server stream, or `None` when the server refuses it. Ends with the first error.
async fn offered<M: Send + 'static>(
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>> + Send + 'static,
) -> Option<BoxStream<'static, M>> {
    let mut call = Box::pin(call);
    let opening = match tokio::time::timeout(REFUSAL, &mut call).await {
        Ok(answer) => futures::future::ready(Ok(answer.ok()?)).boxed(),
        Err(_) => call,
    };
    let messages = futures::stream::once(opening).filter_map(|r| ready(r.ok())).flat_map(Response::into_inner);
    Some(messages.scan((), |(), message| ready(message.ok())).boxed())
}

/// Container ids, one whenever a container may have changed; `None` when the engine has no events. Ends with the
/// connection.
pub(crate) async fn subscribe(channel: Channel) -> Option<BoxStream<'static, String>> {
    let mut cri = RuntimeServiceClient::new(channel.clone());
    if let Some(events) = offered(async move { cri.get_container_events(GetEventsRequest {}).await }).await {
        return Some(events.filter_map(|event| ready(ended(event))).boxed());
    }
    let envelopes = offered(async move {
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let filters = vec![
            r#"namespace==k8s.io,topic=="/tasks/exit""#.to_owned(),
            r#"namespace==k8s.io,topic=="/tasks/oom""#.to_owned(),
        ];
        let path = PathAndQuery::from_static("/containerd.services.events.v1.Events/Subscribe");
        let codec: ProstCodec<SubscribeRequest, Envelope> = ProstCodec::default();
        client.server_streaming(tonic::Request::new(SubscribeRequest { filters }), path, codec).await
    });
    Some(envelopes.await?.filter_map(|envelope| ready(container_of(envelope))).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn an_exec_that_ends_is_not_the_container_that_ends() {
        let envelope = |id: &str| Envelope {
            topic: "/tasks/exit".to_owned(),
            event: Some(Payload {
                type_url: String::new(),
                value: TaskEvent { container_id: "c1".to_owned(), id: id.to_owned() }.encode_to_vec(),
            }),
        };
        assert_eq!(container_of(envelope("c1")).as_deref(), Some("c1"));
        assert_eq!(container_of(envelope("")).as_deref(), Some("c1"));
        assert_eq!(container_of(envelope("exec-7")), None);
    }

    #[test]
    fn beginnings_are_not_told() {
        let of = |kind: ContainerEventType| {
            ended(ContainerEventResponse {
                container_id: "c1".to_owned(),
                container_event_type: kind as i32,
                ..Default::default()
            })
        };
        assert_eq!(of(ContainerEventType::ContainerStoppedEvent).as_deref(), Some("c1"));
        assert_eq!(of(ContainerEventType::ContainerDeletedEvent).as_deref(), Some("c1"));
        assert_eq!(of(ContainerEventType::ContainerCreatedEvent), None);
        assert_eq!(of(ContainerEventType::ContainerStartedEvent), None);
    }
}
