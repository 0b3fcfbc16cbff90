//! SPDY/3.1 as Kubernetes speaks it after an HTTP upgrade: many streams of bytes on one connection, each opened with a
//! few headers. Flow control is not part of it: neither Kubernetes' clients nor container engines do it.
//!
//! One task reads frames and hands data to bounded queues, so a stream that nobody reads holds up the connection.

mod headers;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
pub use headers::Headers;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf},
    sync::{Mutex, mpsc, oneshot},
};

use self::headers::{Decoder, Encoder};

/// Data pieces that wait for the reader of a stream.
const QUEUE: usize = 16;
/// Streams that the other side opened and nobody has taken yet.
const BACKLOG: usize = 64;
/// Data is handed on in pieces of this size at most.
const PIECE: usize = 64 << 10;
const MAX_CONTROL: usize = 256 << 10;
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// The side that opened the connection. It numbers its streams odd, the other side even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A connection. It closes when it and all its streams are dropped.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    side: Side,
    next: AtomicU32,
    sending: Mutex<Sending>,
    streams: parking_lot::Mutex<HashMap<u32, Receiving>>,
    reader: std::sync::OnceLock<tokio::task::AbortHandle>,
}

struct Sending {
    io: Box<dyn AsyncWrite + Send + Unpin>,
    encoder: Encoder,
}

/// Where the reading task leaves what belongs to a stream.
struct Receiving {
    /// Gone when the other side has ended the stream.
    data: Option<mpsc::Sender<Bytes>>,
    reply: Option<oneshot::Sender<()>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.get() {
            reader.abort();
        }
    }
}

/// One stream of a connection.
pub struct Stream {
    pub headers: Headers,
    data: mpsc::Receiver<Bytes>,
    writer: Writer,
}

/// The sending end of a stream.
#[derive(Clone)]
pub struct Writer {
    id: u32,
    shared: Arc<Shared>,
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the connection has ended")
}

impl Connection {
    /// Starts on an upgraded connection. The receiver gives the streams that the other side opens.
    pub fn start(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        side: Side,
    ) -> (Self, mpsc::Receiver<Stream>) {
        let (reader, writer) = tokio::io::split(io);
        let shared = Arc::new(Shared {
            side,
            next: AtomicU32::new(if side == Side::Client { 1 } else { 2 }),
            sending: Mutex::new(Sending { io: Box::new(writer), encoder: Encoder::default() }),
            streams: parking_lot::Mutex::default(),
            reader: std::sync::OnceLock::new(),
        });
        let (opened, incoming) = mpsc::channel(BACKLOG);
        let weak = Arc::downgrade(&shared);
        let task = tokio::spawn(async move {
            let mut reading = Reading { io: reader, shared: weak.clone(), decoder: Decoder::new(), opened };
            if let Err(error) = reading.run().await {
                tracing::debug!(%error, "a SPDY connection ended");
            }
            // Tasks that read or wait for a reply learn that nothing more comes.
            if let Some(shared) = weak.upgrade() {
                shared.streams.lock().clear();
                let _ = shared.sending.lock().await.io.shutdown().await;
            }
        });
        let _ = shared.reader.set(task.abort_handle());
        (Connection { shared }, incoming)
    }

    /// Opens a stream and waits until the other side has accepted it.
    pub async fn open(&self, headers: &[(&str, &str)]) -> io::Result<Stream> {
        let headers: Headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let (reply, accepted) = oneshot::channel();
        let stream = {
            // Numbers must go out in order, so one is drawn under the lock.
            let mut sending = self.shared.sending.lock().await;
            let id = self.shared.next.fetch_add(2, Ordering::Relaxed);
            let stream = self.shared.stream(id, headers, Some(reply));
            let mut payload = BytesMut::new();
            payload.put_u32(id);
            payload.put_u32(0);
            payload.put_u16(0);
            let block = sending.encoder.encode(&stream.headers);
            payload.put_slice(&block);
            sending.control(SYN_STREAM, 0, &payload).await?;
            stream
        };
        accepted.await.map_err(|_| closed())?;
        Ok(stream)
    }
}

impl Shared {
    fn stream(self: &Arc<Self>, id: u32, headers: Headers, reply: Option<oneshot::Sender<()>>) -> Stream {
        let (sender, data) = mpsc::channel(QUEUE);
        self.streams.lock().insert(id, Receiving { data: Some(sender), reply });
        Stream { headers, data, writer: Writer { id, shared: self.clone() } }
    }
}

impl Sending {
    async fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(8 + payload.len());
        frame.put_u16(0x8003);
        frame.put_u16(kind);
        frame.put_u32(u32::from(flags) << 24 | payload.len() as u32);
        frame.put_slice(payload);
        self.io.write_all(&frame).await?;
        self.io.flush().await
    }

    async fn data(&mut self, id: u32, flags: u8, data: &[u8]) -> io::Result<()> {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&id.to_be_bytes());
        head[4..].copy_from_slice(&(u32::from(flags) << 24 | data.len() as u32).to_be_bytes());
        self.io.write_all(&head).await?;
        self.io.write_all(data).await?;
        self.io.flush().await
    }
}

impl Stream {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The next piece, or `None` when the other side has ended the stream or the connection.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.data.recv().await
    }

    pub fn writer(&self) -> Writer {
        self.writer.clone()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // From now on its data is read and thrown away.
        self.writer.shared.streams.lock().remove(&self.writer.id);
    }
}

impl Writer {
    pub async fn write(&self, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(PIECE) {
            self.shared.sending.lock().await.data(self.id, 0, piece).await?;
        }
        Ok(())
    }

    /// Ends this direction of the stream.
    pub async fn finish(&self) -> io::Result<()> {
        self.shared.sending.lock().await.data(self.id, FIN, &[]).await
    }
}

/// The task that reads a connection.
struct Reading<IO> {
    io: ReadHalf<IO>,
    shared: Weak<Shared>,
    decoder: Decoder,
    opened: mpsc::Sender<Stream>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn number(payload: &[u8], at: usize) -> io::Result<u32> {
    let bytes = payload.get(at..at + 4).ok_or_else(|| invalid("a frame is too short"))?;
    Ok(u32::from_be_bytes(bytes.try_into().expect("four bytes")))
}

impl<IO: AsyncRead + AsyncWrite> Reading<IO> {
    async fn run(&mut self) -> io::Result<()> {
        loop {
            let mut head = [0; 8];
            self.io.read_exact(&mut head).await?;
            let (first, second) = (number(&head, 0)?, number(&head, 4)?);
            let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
            if first & 0x8000_0000 == 0 {
                self.data(first, flags, length).await?;
                continue;
            }
            if first >> 16 != 0x8003 || length > MAX_CONTROL {
                return Err(invalid("a frame of another version or too large"));
            }
            let mut payload = vec![0; length];
            self.io.read_exact(&mut payload).await?;
            if !self.control((first & 0xffff) as u16, flags, &payload).await? {
                return Ok(());
            }
        }
    }

    async fn data(&mut self, id: u32, flags: u8, mut length: usize) -> io::Result<()> {
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        let queue = shared.streams.lock().get(&id).and_then(|r| r.data.clone());
        drop(shared);
        while length > 0 {
            let mut piece = vec![0; length.min(PIECE)];
            self.io.read_exact(&mut piece).await?;
            length -= piece.len();
            if let Some(queue) = &queue {
                // An error means that nobody reads the stream any more.
                let _ = queue.send(Bytes::from(piece)).await;
            }
        }
        if flags & FIN != 0 {
            self.ended(id);
        }
        Ok(())
    }

    fn ended(&self, id: u32) {
        if let Some(receiving) = self.shared.upgrade().and_then(|s| s.streams.lock().get_mut(&id)?.data.take()) {
            drop(receiving);
        }
    }

    /// False when the other side goes away.
    async fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> io::Result<bool> {
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        match kind {
            SYN_STREAM => {
                let id = number(payload, 0)? & 0x7fff_ffff;
                let headers = self.decoder.decode(payload.get(10..).unwrap_or_default());
                let headers = headers.ok_or_else(|| invalid("a header block is broken"))?;
                let stream = shared.stream(id, headers, None);
                {
                    let mut sending = shared.sending.lock().await;
                    let mut reply = id.to_be_bytes().to_vec();
                    reply.extend_from_slice(&sending.encoder.encode(&[]));
                    sending.control(SYN_REPLY, 0, &reply).await?;
                }
                drop(shared);
                // An error means that nobody takes streams any more; this one is dropped.
                let _ = self.opened.send(stream).await;
                if flags & FIN != 0 {
                    self.ended(id);
                }
            }
            SYN_REPLY | HEADERS => {
                let id = number(payload, 0)? & 0x7fff_ffff;
                // The block must be read in any case: later ones refer to it.
                let headers = self.decoder.decode(payload.get(4..).unwrap_or_default());
                headers.ok_or_else(|| invalid("a header block is broken"))?;
                if let Some(receiving) = shared.streams.lock().get_mut(&id)
                    && let Some(reply) = receiving.reply.take()
                {
                    let _ = reply.send(());
                }
                if flags & FIN != 0 {
                    self.ended(id);
                }
            }
            RST_STREAM => {
                let id = number(payload, 0)? & 0x7fff_ffff;
                if let Some(receiving) = shared.streams.lock().get_mut(&id) {
                    receiving.data = None;
                    receiving.reply = None;
                }
            }
            PING => {
                let theirs = (number(payload, 0)? % 2 == 1) == (shared.side == Side::Server);
                if theirs {
                    shared.sending.lock().await.control(PING, 0, payload).await?;
                }
            }
            GOAWAY => return Ok(false),
            // SETTINGS, WINDOW_UPDATE and what later drafts have say nothing that matters here.
            _ => {}
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    async fn text(stream: &mut Stream) -> String {
        let mut all = Vec::new();
        while let Some(piece) = stream.read().await {
            all.extend_from_slice(&piece);
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn streams_carry_data_both_ways_and_half_close() {
        let (near, far) = duplex(1000);
        let (client, _incoming) = Connection::start(near, Side::Client);
        let (server, mut incoming) = Connection::start(far, Side::Server);
        let echo = tokio::spawn(async move {
            while let Some(mut stream) = incoming.recv().await {
                tokio::spawn(async move {
                    let name = stream.header("streamtype").unwrap().to_owned();
                    let got = text(&mut stream).await;
                    stream.writer().write(format!("{name} got {}", got.len()).as_bytes()).await.unwrap();
                    stream.writer().finish().await.unwrap();
                });
            }
        });
        let mut one = client.open(&[("streamtype", "one")]).await.unwrap();
        let mut two = client.open(&[("streamtype", "two")]).await.unwrap();
        two.writer().write(&vec![b'x'; 300_000]).await.unwrap();
        one.writer().finish().await.unwrap();
        assert_eq!(text(&mut one).await, "one got 0");
        two.writer().finish().await.unwrap();
        assert_eq!(text(&mut two).await, "two got 300000");
        // The end of one side is the end of the other.
        drop((client, one, two));
        echo.await.unwrap();
        drop(server);
    }

    #[tokio::test]
    async fn pings_are_answered_and_what_is_unknown_is_skipped() {
        let (mut raw, far) = duplex(1000);
        let (_server, _incoming) = Connection::start(far, Side::Server);
        raw.write_all(&[0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 1, 0]).await.unwrap();
        let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
        raw.write_all(&ping).await.unwrap();
        let mut back = [0; 12];
        raw.read_exact(&mut back).await.unwrap();
        assert_eq!(back, ping);
        raw.write_all(&[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]).await.unwrap();
        assert_eq!(raw.read(&mut back).await.unwrap(), 0, "another version ends the connection");
    }
}
