//! Clients that speak WebSocket, translated for servers that speak SPDY: remote commands channel by channel, and
//! port-forward as a tunnel of bytes.
//!
//! Upstream counterpart: apiserver/pkg/util/proxy (StreamTranslatorHandler, TunnelingHandler).

use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt, future};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use crate::{
    spdy::{Connection, Side, Writer},
    upgrade,
};

/// The protocols of remote commands that are translated, best first. The fifth adds the closing of single channels.
pub const REMOTE_COMMAND: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/// The tunnel for port-forward.
pub const PORT_FORWARD: &str = "SPDY/3.1+portforward.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Followed by the number of the channel that is closed.
const CLOSE: u8 = 255;

/// The message of a command that ended well on the error channel, for servers that leave it out.
const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;
/// Messages that wait for the client.
const QUEUE: usize = 16;

/// The first of `known` that the request offers, if it asks for a WebSocket.
pub fn offered<'k>(headers: &HeaderMap, known: &[&'k str]) -> Option<&'k str> {
    if !upgrade::asks_for(headers, "websocket") {
        return None;
    }
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let offers: Vec<&str> = values.flat_map(|v| v.split(',')).map(str::trim).collect();
    known.iter().find(|protocol| offers.contains(*protocol)).copied()
}

/// The answer that accepts a WebSocket, or `None` if the request carries no key.
pub fn accept(headers: &HeaderMap, protocol: &str) -> Option<Response<()>> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()).parse().ok()?);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().ok()?);
    Some(response)
}

/// The streams of a remote command besides the error stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Runs a remote command between a WebSocket client and a server that has just upgraded to SPDY, until one of them ends
/// it.
pub async fn remote_command(near: OnUpgrade, far: OnUpgrade, streams: Streams) {
    match future::try_join(near, far).await {
        Ok((near, far)) => translate(TokioIo::new(near), TokioIo::new(far), streams).await,
        Err(error) => tracing::debug!(%error, "a remote command ended before it began"),
    }
}

pub(crate) async fn translate<N, F>(near: N, far: F, streams: Streams)
where
    N: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (to_client, mut from_client) = WebSocketStream::from_raw_socket(near, Role::Server, None).await.split();
    let (connection, _opened) = Connection::start(far, Side::Client);
    let (messages, queue) = mpsc::channel(QUEUE);
    let client = tokio::spawn(send_to_client(queue, to_client));
    let input = async {
        let (inputs, outputs) = open(&connection, streams, &messages).await?;
        tokio::select! {
            // The command has ended and everything it said is on its way.
            () = outputs => {}
            // The client is gone.
            () = read_client(&mut from_client, &inputs) => {}
        }
        std::io::Result::Ok(())
    };
    if let Err(error) = input.await {
        let _ = messages.send(message(ERROR, &failure(&error.to_string()))).await;
    }
    drop(messages);
    let _ = client.await;
}

fn failure(message: &str) -> Vec<u8> {
    let mut quoted = String::new();
    for c in message.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if (c as u32) < 0x20 => quoted += &format!("\\u{:04x}", c as u32),
            c => quoted.push(c),
        }
    }
    format!(r#"{{"metadata":{{}},"status":"Failure","message":"{quoted}","reason":"InternalError","code":500}}"#)
        .into_bytes()
}

fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(1 + data.len());
    bytes.put_u8(channel);
    bytes.put_slice(data);
    Message::Binary(bytes.freeze())
}

async fn send_to_client<IO: AsyncRead + AsyncWrite + Unpin>(
    mut queue: mpsc::Receiver<Message>,
    mut client: futures::stream::SplitSink<WebSocketStream<IO>, Message>,
) {
    while let Some(message) = queue.recv().await {
        if client.send(message).await.is_err() {
            return;
        }
    }
    let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = client.send(Message::Close(Some(normal))).await;
}

/// Where the client's channels lead.
struct Inputs {
    stdin: Option<Writer>,
    resize: Option<Writer>,
    /// Keeps the connection open.
    _connection: Connection,
}

/// Opens the streams in the order that servers expect them in. The future ends when all output has ended.
async fn open(
    connection: &Connection,
    streams: Streams,
    messages: &mpsc::Sender<Message>,
) -> std::io::Result<(Inputs, impl Future<Output = ()> + use<>)> {
    let open = |kind: &'static str| async move { connection.open(&[("streamtype", kind)]).await };
    let mut inputs = Inputs { stdin: None, resize: None, _connection: connection.clone() };
    // Streams that are only written to are kept too: dropping one would forget its number.
    let mut kept = Vec::new();
    let mut error = open("error").await?;
    let _ = error.writer().finish().await;
    if streams.stdin {
        let stdin = open("stdin").await?;
        inputs.stdin = Some(stdin.writer());
        kept.push(stdin);
    }
    let mut outputs = Vec::new();
    for (wanted, kind, channel) in
        [(streams.stdout, "stdout", STDOUT), (streams.stderr && !streams.tty, "stderr", STDERR)]
    {
        if wanted {
            let mut stream = open(kind).await?;
            let messages = messages.clone();
            outputs.push(async move {
                while let Some(piece) = stream.read().await {
                    if messages.send(message(channel, &piece)).await.is_err() {
                        return;
                    }
                }
            });
        }
    }
    if streams.tty {
        let resize = open("resize").await?;
        inputs.resize = Some(resize.writer());
        kept.push(resize);
    }
    let messages = messages.clone();
    let verdict = async move {
        let mut status = BytesMut::new();
        while let Some(piece) = error.read().await {
            status.put_slice(&piece);
        }
        status.freeze()
    };
    Ok((inputs, async move {
        let (status, _) = future::join(verdict, future::join_all(outputs)).await;
        let status = if status.is_empty() { Bytes::from_static(SUCCESS) } else { status };
        // The client reads the verdict as the end, so it goes last.
        let _ = messages.send(message(ERROR, &status)).await;
        drop(kept);
    }))
}

/// Carries the client's messages to their streams until it closes the connection.
async fn read_client<IO: AsyncRead + AsyncWrite + Unpin>(
    client: &mut futures::stream::SplitStream<WebSocketStream<IO>>,
    inputs: &Inputs,
) {
    while let Some(Ok(received)) = client.next().await {
        let data = match received {
            Message::Binary(data) => data,
            Message::Text(text) => Bytes::from(text),
            Message::Close(_) => return,
            // Pings are answered by the protocol itself.
            _ => continue,
        };
        let done = match (data.split_first(), &inputs.stdin, &inputs.resize) {
            (Some((&STDIN, bytes)), Some(stdin), _) => stdin.write(bytes).await,
            (Some((&RESIZE, bytes)), _, Some(resize)) => resize.write(bytes).await,
            (Some((&CLOSE, [STDIN])), Some(stdin), _) => stdin.finish().await,
            _ => Ok(()),
        };
        if let Err(error) = done {
            // The command may have ended without reading all its input; its verdict is still to come.
            tracing::debug!(%error, "input of a remote command was not taken");
        }
    }
}

/// Carries bytes between a WebSocket client and a server that has just upgraded, until one of them ends.
pub async fn tunnel(near: OnUpgrade, far: OnUpgrade) {
    match future::try_join(near, far).await {
        Ok((near, far)) => carry(TokioIo::new(near), TokioIo::new(far)).await,
        Err(error) => tracing::debug!(%error, "a tunnel ended before it began"),
    }
}

pub(crate) async fn carry<N, F>(near: N, far: F)
where
    N: AsyncRead + AsyncWrite + Unpin,
    F: AsyncRead + AsyncWrite + Unpin,
{
    let (mut to_client, mut from_client) = WebSocketStream::from_raw_socket(near, Role::Server, None).await.split();
    let (mut from_server, mut to_server) = tokio::io::split(far);
    let up = async {
        while let Some(Ok(message)) = from_client.next().await {
            let sent = match message {
                Message::Binary(data) => to_server.write_all(&data).await,
                Message::Close(_) => break,
                _ => Ok(()),
            };
            if sent.is_err() || to_server.flush().await.is_err() {
                break;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            if to_client.send(Message::Binary(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
                return;
            }
        }
        let _ = to_client.close().await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::spdy;

    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

    /// A server that answers as a container engine does: echoes input to output, then gives its verdict.
    async fn engine(io: tokio::io::DuplexStream, verdict: &'static str) {
        let (_connection, mut opened) = Connection::start(io, Side::Server);
        let mut streams: Vec<spdy::Stream> = Vec::new();
        for expected in ["error", "stdin", "stdout", "stderr"] {
            let stream = opened.recv().await.unwrap();
            assert_eq!(stream.header("streamtype"), Some(expected));
            streams.push(stream);
        }
        while let Some(piece) = streams[1].read().await {
            streams[2].writer().write(&piece).await.unwrap();
        }
        streams[3].writer().write(b"bye").await.unwrap();
        streams[0].writer().write(verdict.as_bytes()).await.unwrap();
        for stream in &streams {
            stream.writer().finish().await.unwrap();
        }
        while streams[0].read().await.is_some() {}
        // The engine closes only when the client has.
        while opened.recv().await.is_some() {}
    }

    async fn run(verdict: &'static str) -> Vec<String> {
        let (client, near) = duplex(1 << 16);
        let (far, server) = duplex(1 << 16);
        let engine = tokio::spawn(engine(server, verdict));
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        let session = tokio::spawn(translate(near, far, streams));
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        client.send(message(STDIN, b"hello")).await.unwrap();
        client.send(message(CLOSE, &[STDIN])).await.unwrap();
        let mut seen = Vec::new();
        while let Some(Ok(received)) = client.next().await {
            match received {
                Message::Binary(data) => seen.push(format!("{} {}", data[0], String::from_utf8_lossy(&data[1..]))),
                Message::Close(frame) => seen.push(format!("close {}", u16::from(frame.unwrap().code))),
                _ => {}
            }
        }
        session.await.unwrap();
        engine.await.unwrap();
        seen
    }

    #[tokio::test]
    async fn a_remote_command_is_translated() {
        let ended = tokio::time::timeout(TIMEOUT, run(r#"{"status":"Failure"}"#)).await.unwrap();
        let mut sorted = ended[..2].to_vec();
        sorted.sort();
        assert_eq!(sorted, ["1 hello", "2 bye"]);
        assert_eq!(ended[2..], [r#"3 {"status":"Failure"}"#, "close 1000"]);
        let silent = tokio::time::timeout(TIMEOUT, run("")).await.unwrap();
        assert_eq!(silent[2], r#"3 {"metadata":{},"status":"Success"}"#);
    }

    #[tokio::test]
    async fn a_tunnel_carries_bytes() {
        let (client, near) = duplex(1 << 16);
        let (far, mut server) = duplex(1 << 16);
        let session = tokio::spawn(carry(near, far));
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        client.send(Message::Binary(Bytes::from_static(b"ping"))).await.unwrap();
        let mut got = [0; 4];
        server.read_exact(&mut got).await.unwrap();
        server.write_all(b"pong").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Binary(Bytes::from_static(b"pong")));
        drop(server);
        assert!(matches!(client.next().await, Some(Ok(Message::Close(_)))));
        tokio::time::timeout(TIMEOUT, session).await.unwrap().unwrap();
        assert_eq!(&got, b"ping");
    }

    #[test]
    fn offers_and_answers() {
        let mut headers = HeaderMap::new();
        let offer = |headers: &HeaderMap| offered(headers, &REMOTE_COMMAND);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io, v5.channel.k8s.io".parse().unwrap());
        assert_eq!(offer(&headers), None, "no WebSocket is asked for");
        headers.insert(header::CONNECTION, "keep-alive, Upgrade".parse().unwrap());
        headers.insert(header::UPGRADE, "websocket".parse().unwrap());
        assert_eq!(offer(&headers), Some("v5.channel.k8s.io"));
        assert!(accept(&headers, "x").is_none());
        headers.insert(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
        let answer = accept(&headers, "x").unwrap();
        assert_eq!(answer.headers()[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, "base64.channel.k8s.io".parse().unwrap());
        assert_eq!(offer(&headers), None);
    }
}
