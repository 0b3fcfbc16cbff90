//! Watches and logs over WebSocket, for clients that ask for one: a message for each event, or for each piece of a log.
//! (exec, attach and port-forward, on which both sides speak, are `special/connect`.)
//! Upstream counterpart: apiserver/pkg/endpoints/handlers/watch.go, responsewriters/writers.go (`StreamObject`).

use std::collections::VecDeque;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt, stream as streams};
use http::{Extensions, HeaderMap, Request, StatusCode, Uri, header};
use http_body_util::BodyStream;
use hyper::upgrade::OnUpgrade;
use stream::{
    one_way::{self, Message},
    upgrade,
};

use crate::http::{
    body::{Body, Response},
    encoding::Encoding,
};

/// The protocols of logs: as text in base64, and as it is.
const BASE64: &str = "base64.binary.k8s.io";
const BINARY: &str = "binary.k8s.io";

/// A client that asks for a WebSocket.
pub struct Asked {
    headers: HeaderMap,
    upgrade: OnUpgrade,
}

impl Asked {
    /// `None` where a usual answer is asked for. What the client says of its connection is taken out of the request.
    pub fn take(headers: &mut HeaderMap, extensions: &mut Extensions) -> Option<Asked> {
        if !upgrade::asks_for(headers, "websocket") {
            return None;
        }
        let mut client = Request::new(());
        std::mem::swap(client.extensions_mut(), extensions);
        let upgrade = hyper::upgrade::on(&mut client);
        std::mem::swap(client.extensions_mut(), extensions);
        let asked = Asked { headers: headers.clone(), upgrade };
        upgrade::strip_hop_by_hop(headers);
        for name in [header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_PROTOCOL, header::SEC_WEBSOCKET_VERSION] {
            headers.remove(name);
        }
        headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        Some(asked)
    }

    fn protocols(&self) -> Vec<&str> {
        let values = self.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).map(str::trim).filter(|protocol| !protocol.is_empty()).collect()
    }

    /// Sends the events of a watch, each as a message: a text in JSON, bytes in protobuf.
    pub fn watch(self, encoding: Encoding, body: Body) -> Response {
        let origin = self.headers.get(header::ORIGIN).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let is_address = |uri: Uri| uri.scheme().is_some() || origin.starts_with('/');
        if !origin.parse().is_ok_and(is_address) {
            return bare(StatusCode::FORBIDDEN);
        }
        let protocol = match self.protocols()[..] {
            [] => String::new(),
            [one] => one.to_owned(),
            _ => return bare(StatusCode::BAD_REQUEST),
        };
        let message: fn(Bytes) -> Message = if encoding == Encoding::Json { one_way::text } else { one_way::binary };
        let events = events(encoding, body).map(message);
        self.answer(&protocol, events)
    }

    /// Sends a log piece by piece, behind an empty message.
    pub fn log(self, body: Body) -> Response {
        let known = |offered: &&str| [BINARY, BASE64].contains(offered);
        let protocol = match (self.protocols().into_iter().find(known), self.protocols().is_empty()) {
            (Some(protocol), _) => protocol.to_owned(),
            (None, true) => String::new(),
            (None, false) => return bare(StatusCode::FORBIDDEN),
        };
        let message: fn(Bytes) -> Message = match &*protocol {
            BASE64 => |piece| one_way::text(STANDARD.encode(piece).into()),
            _ => one_way::binary,
        };
        let first = streams::iter([Bytes::new()]);
        self.answer(&protocol, first.chain(pieces(body)).map(message))
    }

    fn answer<S>(self, protocol: &str, messages: S) -> Response
    where
        S: Stream<Item = Message> + Send + 'static,
    {
        match one_way::accept(&self.headers, protocol) {
            Ok(accepted) => {
                tokio::spawn(one_way::speak(self.upgrade, messages));
                accepted.map(|()| Body::empty())
            }
            Err(refused) => refused.map(|()| Body::empty()),
        }
    }
}

fn bare(code: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

/// The bytes of an answer until it ends or breaks off.
fn pieces(body: Body) -> impl Stream<Item = Bytes> + Send {
    let data = BodyStream::new(body).map(|frame| frame.ok().map(|frame| frame.into_data().unwrap_or_default()));
    data.take_while(|piece| std::future::ready(piece.is_some())).map(Option::unwrap_or_default)
}

/// The events of a watch, whose answer holds several in one piece.
fn events(encoding: Encoding, body: Body) -> impl Stream<Item = Bytes> + Send {
    let start = (Box::pin(pieces(body)), Parts { encoding, held: BytesMut::new() }, VecDeque::new());
    streams::unfold(start, async |(mut pieces, mut parts, mut ready)| {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, (pieces, parts, ready)));
            }
            ready.extend(parts.take(&pieces.next().await?));
        }
    })
}

/// Takes an answer apart where its events end.
struct Parts {
    encoding: Encoding,
    held: BytesMut,
}

impl Parts {
    fn take(&mut self, piece: &[u8]) -> Vec<Bytes> {
        self.held.extend_from_slice(piece);
        std::iter::from_fn(|| self.next()).collect()
    }

    fn next(&mut self) -> Option<Bytes> {
        match self.encoding {
            // A line break within an event is escaped.
            Encoding::Json => {
                let end = memchr::memchr(b'\n', &self.held)?;
                Some(self.held.split_to(end + 1).freeze())
            }
            // The length of each stands before it, and is what a message tells by itself.
            _ => {
                let length = self.held.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize)?;
                if self.held.len() < length + 4 {
                    return None;
                }
                self.held.advance(4);
                Some(self.held.split_to(length).freeze())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_apart_wherever_they_are_cut() {
        let check = |encoding, whole: &[u8], expected: &[&[u8]]| {
            for at in 0..=whole.len() {
                let mut parts = Parts { encoding, held: BytesMut::new() };
                let all = [parts.take(&whole[..at]), parts.take(&whole[at..])].concat();
                assert_eq!(all, expected, "cut at {at}");
            }
        };
        check(Encoding::Json, b"{\"a\":1}\n{}\n{", &[b"{\"a\":1}\n", b"{}\n"]);
        check(Encoding::Protobuf, b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c\0\0", &[b"ab", b"", b"c"]);
    }

    #[test]
    fn nothing_of_the_handshake_is_passed_on() {
        let mut headers = HeaderMap::new();
        let mut extensions = Extensions::new();
        extensions.insert(7_u8);
        assert!(Asked::take(&mut headers, &mut extensions).is_none());
        for (name, value) in [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "k"),
            ("sec-websocket-protocol", "a, b"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-extensions", "permessage-deflate"),
            ("accept", "*/*"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let asked = Asked::take(&mut headers, &mut extensions).unwrap();
        assert_eq!(asked.protocols(), ["a", "b"]);
        assert_eq!((headers.len(), extensions.get()), (1, Some(&7_u8)));
    }

    /// The codes of upstream's handshakes.
    #[tokio::test]
    async fn what_is_no_good_handshake_is_refused() {
        let ask = |more: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            let usual = [
                ("connection", "Upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "k"),
            ];
            for (name, value) in usual.iter().chain(more) {
                headers.insert(*name, value.parse().unwrap());
            }
            Asked::take(&mut headers, &mut Extensions::new()).unwrap()
        };
        let watch = |more: &[(&'static str, &str)]| ask(more).watch(Encoding::Json, Body::empty()).status().as_u16();
        assert_eq!(watch(&[]), 403);
        assert_eq!(watch(&[("origin", "null")]), 403);
        assert_eq!(watch(&[("origin", "https://a")]), 101);
        assert_eq!(watch(&[("origin", "https://a"), ("sec-websocket-protocol", "a, b")]), 400);
        assert_eq!(watch(&[("origin", "https://a"), ("sec-websocket-version", "8")]), 400);
        let log = |offered: &str| {
            let answer = ask(&[("sec-websocket-protocol", offered)]).log(Body::empty());
            let taken = answer.headers().get("sec-websocket-protocol").map(|v| v.to_str().unwrap().to_owned());
            (answer.status().as_u16(), taken.unwrap_or_default())
        };
        assert_eq!(log(""), (101, String::new()));
        assert_eq!(log("x, base64.binary.k8s.io"), (101, BASE64.to_owned()));
        assert_eq!(log("binary.k8s.io"), (101, BINARY.to_owned()));
        assert_eq!(log("v4.channel.k8s.io"), (403, String::new()));
    }
}
