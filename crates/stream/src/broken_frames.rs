//! Frames that are nearly right: whatever one side sends, the other neither panics nor hangs, and is gone when it is.

use std::{future::Future, path::Path, time::Duration};

use fuzz::Target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::{
    one_way,
    spdy::{Connection, Side},
    websocket::{Streams, carry, translate},
};

/// Reached only by what hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const ROOM: usize = 1 << 16;

fn found() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found"))
}

fn in_time<T>(runtime: &tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("it does not hang") })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Sends all of it, reads whatever comes back, and goes. Returns how much that was.
async fn send(io: DuplexStream, input: &[u8]) -> usize {
    let (mut reader, mut writer) = tokio::io::split(io);
    let sending = async {
        let _ = writer.write_all(input).await;
        let _ = writer.shutdown().await;
    };
    let reading = async {
        let mut back = Vec::new();
        let _ = reader.read_to_end(&mut back).await;
        back.len()
    };
    tokio::join!(sending, reading).1
}

/// Takes every stream that is opened and reads it to its end; returns what there was.
async fn take_all(connection: Connection, mut opened: tokio::sync::mpsc::Receiver<crate::spdy::Stream>) -> String {
    let mut readers = tokio::task::JoinSet::new();
    while let Some(mut stream) = opened.recv().await {
        readers.spawn(async move {
            let mut bytes = 0;
            while let Some(piece) = stream.read().await {
                bytes += piece.len();
            }
            format!("{} headers, {bytes} bytes;", stream.headers.len())
        });
    }
    drop(connection);
    readers.join_all().await.concat()
}

/// A frame that opens a stream, as our own client sends it.
async fn opening(headers: &'static [(&'static str, &'static str)]) -> Vec<u8> {
    let (near, mut far) = duplex(ROOM);
    let (client, _) = Connection::start(near, Side::Client);
    tokio::spawn(async move { client.open(headers).await.map(drop) });
    let mut frame = vec![0; 8];
    far.read_exact(&mut frame).await.unwrap();
    let length = usize::from(frame[6]) << 8 | usize::from(frame[7]);
    let mut payload = vec![0; length];
    far.read_exact(&mut payload).await.unwrap();
    frame.extend(payload);
    frame
}

#[test]
fn spdy() {
    let runtime = runtime();
    let first = in_time(&runtime, opening(&[("streamtype", "stdin"), ("port", "8080")]));
    let other = in_time(&runtime, opening(&[("streamtype", "error")]));
    let data = [&[0, 0, 0, 1, 0, 0, 0, 5][..], b"hello", &[0, 0, 0, 1, 1, 0, 0, 0]].concat();
    let control: &[&[u8]] = &[
        &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1],
        &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 5],
        &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0],
    ];
    let seeds = vec![[&first[..], &data].concat(), first, other, data, control.concat()];
    let target = Target { name: "spdy", seeds, words: &["\u{80}\u{3}", "\0\0\0\u{1}"], found: found() };
    fuzz::run(&target, |input| {
        in_time(&runtime, async {
            let (raw, near) = duplex(ROOM);
            let (connection, opened) = Connection::start(near, Side::Server);
            let (back, seen) = tokio::join!(send(raw, input), take_all(connection, opened));
            format!("{back} back, {seen}")
        })
    });
}

/// A frame of a client, masked with zeros.
fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    [&[head, 0x80 | payload.len() as u8, 0, 0, 0, 0][..], payload].concat()
}

fn websocket_seeds() -> Vec<Vec<u8>> {
    let frames = [
        frame(0x82, b"\0hello"),
        frame(0x82, b"\x04{\"Width\":80,\"Height\":24}"),
        frame(0x82, &[255, 0]),
        frame(0x81, b"text"),
        frame(0x02, b"\0be"),
        frame(0x80, b"gun"),
        frame(0x89, b"ping"),
        frame(0x88, &[3, 232]),
        vec![0x82, 0xfe, 1, 0, 0, 0, 0, 0],
        vec![0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
    ];
    let mut seeds = frames.to_vec();
    seeds.push(frames.concat());
    seeds
}

#[test]
fn websocket_to_spdy() {
    let runtime = runtime();
    let target =
        Target { name: "websocket", seeds: websocket_seeds(), words: &["{\"Width\":", "\u{4}"], found: found() };
    fuzz::run(&target, |input| {
        in_time(&runtime, async {
            let ((raw, near), (far, engine)) = (duplex(ROOM), duplex(ROOM));
            let (connection, opened) = Connection::start(engine, Side::Server);
            let streams = Streams { stdin: true, stdout: true, stderr: true, tty: true };
            let session = translate(near, far, streams);
            let (back, (), seen) = tokio::join!(send(raw, input), session, take_all(connection, opened));
            format!("{back} back, {seen}")
        })
    });
}

#[test]
fn websocket_tunnel() {
    let runtime = runtime();
    let target = Target { name: "tunnel", seeds: websocket_seeds(), words: &[], found: found() };
    fuzz::run(&target, |input| {
        in_time(&runtime, async {
            let ((raw, near), (far, mut server)) = (duplex(ROOM), duplex(ROOM));
            let mut carried = Vec::new();
            let reading = async {
                let _ = server.read_to_end(&mut carried).await;
            };
            let (back, (), ()) = tokio::join!(send(raw, input), carry(near, far), reading);
            format!("{back} back, {} carried", carried.len())
        })
    });
}

#[test]
fn websocket_of_a_listener() {
    let runtime = runtime();
    let target = Target { name: "listener", seeds: websocket_seeds(), words: &[], found: found() };
    fuzz::run(&target, |input| {
        in_time(&runtime, async {
            let (raw, near) = duplex(ROOM);
            let told = futures::stream::iter([one_way::text(bytes::Bytes::from_static(b"told"))]);
            let session = one_way::tell(near, futures::StreamExt::chain(told, futures::stream::pending()));
            let (back, ()) = tokio::join!(send(raw, input), session);
            format!("{back} back")
        })
    });
}
