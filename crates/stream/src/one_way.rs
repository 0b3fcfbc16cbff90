//! WebSockets on which the server alone speaks: watches and logs, for browsers and whoever else reads messages more easily than
//! an answer without an end.
//!
//! Upstream counterpart: apimachinery/pkg/util/httpstream/wsstream (`Reader`), apiserver/pkg/endpoints/handlers (`HandleWS`).

use bytes::Bytes;
use clock::Duration;
use futures::{SinkExt, Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
pub use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Utf8Bytes,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use crate::websocket;

/// The version of the protocol, the only one.
const VERSION: &str = "13";
/// A client that has not taken a message by then is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client has nothing to say, and certainly nothing longer.
const HEARD_BYTES: usize = 64 << 10;

/// A text, or the bytes as they are where they are none.
pub fn text(bytes: Bytes) -> Message {
    Utf8Bytes::try_from(bytes.clone()).map_or(Message::Binary(bytes), Message::Text)
}

pub fn binary(bytes: Bytes) -> Message {
    Message::Binary(bytes)
}

/// The answer that accepts a WebSocket with this protocol, or with none where it is empty. The error is the answer to what is no
/// good handshake.
pub fn accept(headers: &HeaderMap, protocol: &str) -> Result<Response<()>, Response<()>> {
    let mut refused = Response::new(());
    *refused.status_mut() = StatusCode::BAD_REQUEST;
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != VERSION) {
        refused.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
        return Err(refused);
    }
    let mut accepted = websocket::accept(headers, protocol).ok_or(refused)?;
    if protocol.is_empty() {
        accepted.headers_mut().remove(header::SEC_WEBSOCKET_PROTOCOL);
    }
    Ok(accepted)
}

/// Sends the messages to a client that has just upgraded, until they end or the client does.
pub async fn speak(near: OnUpgrade, messages: impl Stream<Item = Message>) {
    match near.await {
        Ok(near) => tell(TokioIo::new(near), messages).await,
        Err(error) => tracing::debug!(%error, "a WebSocket ended before it began"),
    }
}

pub(crate) async fn tell(near: impl AsyncRead + AsyncWrite + Unpin, messages: impl Stream<Item = Message>) {
    let bounds = WebSocketConfig::default().max_message_size(Some(HEARD_BYTES)).max_frame_size(Some(HEARD_BYTES));
    let (mut to_client, mut from_client) =
        WebSocketStream::from_raw_socket(near, Role::Server, Some(bounds)).await.split();
    let telling = async {
        let mut messages = std::pin::pin!(messages);
        while let Some(message) = messages.next().await {
            if !matches!(clock::timeout(PATIENCE, to_client.send(message)).await, Ok(Ok(()))) {
                return;
            }
        }
        let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = clock::timeout(PATIENCE, to_client.send(Message::Close(Some(normal)))).await;
    };
    // Pings are answered by the protocol itself, as long as somebody reads.
    let listening = async {
        while let Some(Ok(received)) = from_client.next().await {
            if matches!(received, Message::Close(_)) {
                break;
            }
        }
    };
    tokio::select! {
        () = telling => {}
        () = listening => {}
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn messages_come_in_their_order_and_the_end_is_said() {
        let (client, near) = duplex(1 << 10);
        let all = [binary(Bytes::new()), text(Bytes::from_static(b"one")), text(Bytes::from_static(b"\xff"))];
        let session = tokio::spawn(tell(near, stream::iter(all)));
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let mut seen = Vec::new();
        while let Some(Ok(received)) = client.next().await {
            seen.push(match received {
                Message::Text(text) => format!("text {text}"),
                Message::Binary(bytes) => format!("binary {bytes:?}"),
                Message::Close(frame) => format!("close {}", u16::from(frame.unwrap().code)),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(seen, [r#"binary b"""#, "text one", r#"binary b"\xff""#, "close 1000"]);
        session.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_goes_or_talks_too_much_ends_it() {
        let long = Message::Binary(vec![0; HEARD_BYTES + 1].into());
        for last in [Message::Close(None), long] {
            let (client, near) = duplex(1 << 20);
            let session = tokio::spawn(tell(near, stream::pending()));
            let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            client.send(Message::Text("what is not asked for is not heard".into())).await.unwrap();
            client.send(last).await.unwrap();
            session.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (_client, near) = duplex(1 << 10);
        let endless = stream::repeat_with(|| binary(vec![0; 4096].into()));
        tell(near, endless).await;
    }

    #[test]
    fn handshakes() {
        let mut headers = HeaderMap::new();
        let refused = accept(&headers, "").unwrap_err();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["sec-websocket-version"]),
            (400, &"13".parse().unwrap())
        );
        headers.insert("sec-websocket-version", "13".parse().unwrap());
        assert!(accept(&headers, "").unwrap_err().headers().is_empty());
        headers.insert("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
        assert!(!accept(&headers, "").unwrap().headers().contains_key("sec-websocket-protocol"));
        assert_eq!(accept(&headers, "a").unwrap().headers()["sec-websocket-protocol"], "a");
    }
}
