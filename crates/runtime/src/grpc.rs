//! gRPC over unix sockets: calls to programs of this node, and services that are offered to them. Every call has a limit in
//! time, every message one in size. It lives here because this crate is the one that speaks gRPC.

use std::{collections::BTreeMap, convert::Infallible, fs, io, path::Path, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, future::BoxFuture};
use hyper::{body::Incoming, server::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
};
use tonic::{
    Request, Response, Streaming,
    body::Body,
    codegen::http::uri::PathAndQuery,
    transport::{Endpoint, Uri},
};
use tonic_prost::ProstCodec;

pub use tonic::{Code, Status, transport::Channel};

/// A service has this many connections at once, and each of them this many calls. Further ones wait.
const CONNECTIONS: usize = 64;
const CALLS: u32 = 32;
/// Longer messages are refused: the limit of gRPC for Go, which the programs of other people are written with.
const MESSAGE_BYTES: usize = 4 << 20;

/// A lazily connected channel to a unix socket: it is opened on first use, and again after it broke.
pub fn channel(socket: &Path) -> Channel {
    let path = socket.to_owned();
    // The address is required by the transport and never used: the connector goes to the socket.
    Endpoint::from_static("http://cri.invalid").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    }))
}

/// A lazily connected channel to a host and its port, without TLS.
pub fn remote(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    Ok(endpoint.connect_timeout(Duration::from_secs(10)).connect_lazy())
}

/// Connects to a socket, says so, and waits until the connection breaks: who is no longer there shows it by that, also when
/// nobody calls.
pub async fn hold(socket: &Path, connected: impl FnOnce()) -> io::Result<()> {
    let stream = UnixStream::connect(socket).await?;
    let made = hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await;
    // The connection ends when nobody can ask over it any more.
    let (_requests, connection) = made.map_err(io::Error::other)?;
    connected();
    connection.await.map_err(io::Error::other)
}

/// A status code in the words of gRPC for Go.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// A failed call in the words of gRPC for Go, as they stand in events and statuses.
pub fn words(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", code_name(status.code()), status.message())
}

pub(crate) async fn ready(channel: &Channel) -> Result<tonic::client::Grpc<Channel>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(client)
}

pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    clock::timeout(limit, call).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")))
}

/// One question and its answer. `path` is `/package.Service/Method`.
pub async fn unary<Q, A>(channel: &Channel, path: &'static str, question: Q, limit: Duration) -> Result<A, Status>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let call = async {
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = ready(channel).await?.unary(Request::new(question), path, codec).await;
        Ok(answer.map_err(lost)?.into_inner())
    };
    within(limit, call).await
}

/// A call whose connection broke has no answer, and nobody knows what became of it: gRPC for Go calls that Unavailable, where this
/// library knows no code. What a server says itself has no cause here.
fn lost(status: Status) -> Status {
    match std::error::Error::source(&status) {
        Some(_) if status.code() == Code::Unknown => {
            Status::unavailable(format!("error reading from server: {}", status.message()))
        }
        _ => status,
    }
}

/// One question that is answered by a stream of messages. The limit is for its beginning: an answer may stay open for ever.
pub async fn stream<Q, A>(
    channel: &Channel,
    path: &'static str,
    question: Q,
    limit: Duration,
) -> Result<Streaming<A>, Status>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut client = within(limit, ready(channel)).await?;
    // Servers send their headers with the first message, for which there is no limit.
    let call =
        client.server_streaming(Request::new(question), PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
    Ok(call.await.map_err(lost)?.into_inner())
}

type Method = Arc<dyn Fn(http::Request<Incoming>) -> BoxFuture<'static, http::Response<Body>> + Send + Sync>;

/// The methods that are offered on a socket, by their paths.
#[derive(Clone, Default)]
pub struct Server {
    methods: BTreeMap<&'static str, Method>,
}

/// Makes a socket at this path, in the place of one that an earlier process left. The folder decides about the users who
/// may connect.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(socket),
    }
}

impl Server {
    /// Offers a method that answers with one message.
    pub fn unary<Q, A, F>(mut self, path: &'static str, work: impl Fn(Q) -> F + Clone + Send + Sync + 'static) -> Self
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + 'static,
        F: Future<Output = Result<A, Status>> + Send + 'static,
    {
        let method = move |request| {
            let work = work.clone();
            let service = tower::service_fn(move |question: Request<Q>| {
                let answer = work(question.into_inner());
                async move { answer.await.map(Response::new) }
            });
            let codec = ProstCodec::<A, Q>::default();
            let mut server = tonic::server::Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES);
            async move { server.unary(service, request).await }.boxed()
        };
        self.methods.insert(path, Arc::new(method));
        self
    }

    /// Offers a method that answers with a stream of messages.
    pub fn streaming<Q, A, S>(
        mut self,
        path: &'static str,
        work: impl Fn(Q) -> S + Clone + Send + Sync + 'static,
    ) -> Self
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static,
    {
        let method = move |request| {
            let work = work.clone();
            let service = tower::service_fn(move |question: Request<Q>| {
                let answer = work(question.into_inner());
                std::future::ready(Ok::<_, Status>(Response::new(answer)))
            });
            let codec = ProstCodec::<A, Q>::default();
            let mut server = tonic::server::Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES);
            async move { server.server_streaming(service, request).await }.boxed()
        };
        self.methods.insert(path, Arc::new(method));
        self
    }

    fn answer(&self, request: http::Request<Incoming>) -> BoxFuture<'static, http::Response<Body>> {
        match self.methods.get(request.uri().path()) {
            Some(method) => method(request),
            None => {
                let unknown = Status::unimplemented(format!("unknown method {}", request.uri().path()));
                std::future::ready(unknown.into_http()).boxed()
            }
        }
    }

    /// Answers until the future is dropped.
    pub async fn serve(self, listener: UnixListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(self.clone().connection(stream))),
                    Err(error) => {
                        tracing::debug!(%error, "a connection to a service of this node failed");
                        clock::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn connection(self, stream: UnixStream) {
        let methods = hyper::service::service_fn(move |request| self.answer(request).map(Ok::<_, Infallible>));
        let mut server = http2::Builder::new(TokioExecutor::new());
        server.timer(TokioTimer::new()).max_concurrent_streams(CALLS);
        if let Err(error) = server.serve_connection(TokioIo::new(stream), methods).await {
            tracing::debug!(%error, "a connection to a service of this node broke");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Text {
        #[prost(string, tag = "1")]
        text: String,
    }

    fn text(text: &str) -> Text {
        Text { text: text.to_owned() }
    }

    #[tokio::test]
    async fn nobody_knows_what_became_of_a_call_whose_server_died() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let (called, mut calls) = tokio::sync::mpsc::unbounded_channel();
        let server = Server::default().unary("/t.T/Hang", move |_: Text| {
            called.send(()).expect("the test waits for it");
            std::future::pending::<Result<Text, Status>>()
        });
        let serving = tokio::spawn(server.serve(listen(&socket).unwrap()));
        let channel = channel(&socket);
        let asking =
            tokio::spawn(
                async move { unary::<Text, Text>(&channel, "/t.T/Hang", text(""), Duration::from_secs(60)).await },
            );
        calls.recv().await.unwrap();
        serving.abort();
        let error = asking.await.unwrap().unwrap_err();
        assert!(
            words(&error).starts_with("rpc error: code = Unavailable desc = error reading from server: "),
            "{error:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_answers_refuses_and_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let server = Server::default()
            .unary("/t.T/Echo", |question: Text| async move {
                if question.text == "no" { Err(Status::invalid_argument("no")) } else { Ok(question) }
            })
            .unary("/t.T/Hang", |_: Text| std::future::pending::<Result<Text, Status>>())
            .unary("/t.T/Unknown", |_: Text| async { Err::<Text, _>(Status::unknown("no idea")) })
            .streaming("/t.T/Count", |_: Text| futures::stream::iter([Ok(text("1")), Ok(text("2"))]));
        let serving = tokio::spawn(server.serve(listen(&socket).unwrap()));
        let (channel, limit) = (channel(&socket), Duration::from_secs(1));
        let ask = async |path, question| unary::<Text, Text>(&channel, path, question, limit).await;
        assert_eq!(ask("/t.T/Echo", text("yes")).await.unwrap(), text("yes"));
        let refused = ask("/t.T/Echo", text("no")).await.unwrap_err();
        assert_eq!(words(&refused), "rpc error: code = InvalidArgument desc = no");
        assert_eq!(ask("/t.T/Hang", text("")).await.unwrap_err().code(), Code::DeadlineExceeded);
        assert_eq!(
            words(&ask("/t.T/Unknown", text("")).await.unwrap_err()),
            "rpc error: code = Unknown desc = no idea"
        );
        assert_eq!(ask("/t.T/None", text("")).await.unwrap_err().code(), Code::Unimplemented);
        let long = ask("/t.T/Echo", text(&"x".repeat(MESSAGE_BYTES + 1))).await.unwrap_err();
        assert_eq!(long.code(), Code::OutOfRange, "{long:?}");
        let counted: Vec<_> =
            stream::<Text, Text>(&channel, "/t.T/Count", text(""), limit).await.unwrap().collect().await;
        assert_eq!(counted.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [text("1"), text("2")]);
        let (tell, connected) = tokio::sync::oneshot::channel();
        let at = socket.clone();
        let held = tokio::spawn(async move { hold(&at, || tell.send(()).expect("the test waits for it")).await });
        connected.await.unwrap();
        serving.abort();
        let _ = serving.await;
        // How it broke is of no interest.
        let _ = clock::timeout(limit, held).await.expect("it is seen to be gone");
        fs::remove_file(&socket).unwrap();
        assert!(hold(&socket, || panic!("nobody is there")).await.is_err());
        // A connection that broke is opened again.
        let server = Server::default().unary("/t.T/Echo", |question: Text| async move { Ok(question) });
        let _serving = tokio::spawn(server.serve(listen(&socket).unwrap()));
        let mut answer = ask("/t.T/Echo", text("again")).await;
        while answer.is_err() {
            answer = ask("/t.T/Echo", text("again")).await;
        }
        assert_eq!(answer.unwrap(), text("again"));
    }
}
