//! The frames that HTTP/2 writes one by one, coalesced into few writes.
//!
//! The protocol's implementation flushes behind every data frame, and the tasks of a hundred watches each bring a frame at
//! their own moment: without this, each frame would be a TLS record and a system call of its own. A flush that comes
//! right behind the one before is put off until the connection has its next turn, when the other tasks that were ready
//! have brought their frames too. A connection that has something to say now and then says it at once.
//!
//! And a long answer does not leave in one turn: a thousand connections with a megabyte each would keep everybody else waiting
//! for a second. After [`TURN`] bytes the connection goes behind the others that are ready.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use clock::Instant;
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};

/// Frames that are ready together go out together, up to this.
const WRITE_BUFFER: usize = 64 * 1024;
/// Bytes that a connection writes before others have their turn.
const TURN: usize = 64 * 1024;
/// Flushes that follow each other faster than this are coalesced.
const CLOSE: Duration = Duration::from_micros(50);

/// Counts the turns of a connection: how often it was polled.
#[derive(Clone, Default)]
pub struct Turns(Arc<AtomicU64>);

impl Turns {
    /// To be called whenever the connection is polled.
    pub fn next(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream whose flushes are coalesced.
pub struct Coalesced<S> {
    inner: BufWriter<S>,
    turns: Turns,
    /// When bytes last left, to the last one.
    flushed: Option<Instant>,
    /// Something was written since then.
    pending: bool,
    /// Something was written since a flush was last asked for.
    fresh: bool,
    /// The turn in which a flush was put off.
    deferred: Option<u64>,
    /// Bytes written since others had their turn.
    written: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Coalesced<S> {
    pub fn new(stream: S, turns: Turns) -> Self {
        Coalesced {
            inner: BufWriter::with_capacity(WRITE_BUFFER, stream),
            turns,
            flushed: None,
            pending: false,
            fresh: false,
            deferred: None,
            written: 0,
        }
    }

    /// Writes, unless it is the turn of others: then the task is ready again at once, and behind them.
    fn write_in_turn(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut BufWriter<S>>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.written >= TURN {
            self.written = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        (self.pending, self.fresh) = (true, true);
        let written = ready!(write(Pin::new(&mut self.inner), cx));
        self.written += written.as_ref().copied().unwrap_or(0);
        Poll::Ready(written)
    }

    /// Whether a flush that is asked for now can wait. Whenever it does, the connection has another turn, in which it
    /// asks again.
    fn waits(&mut self, cx: &mut Context<'_>) -> bool {
        let fresh = std::mem::replace(&mut self.fresh, false);
        if !self.pending || self.flushed.is_none_or(|last| last.elapsed() >= CLOSE) {
            return false;
        }
        let turn = self.turns.now();
        match self.deferred {
            None => self.deferred = Some(turn),
            // The waker was called in this turn.
            Some(begun) if begun == turn => return true,
            // Behind a frame; without one behind it, what is asked for is the end of the turn.
            Some(_) if fresh => {}
            Some(_) => return false,
        }
        cx.waker().wake_by_ref();
        true
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Coalesced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write_in_turn(cx, |inner, cx| inner.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_in_turn(cx, |inner, cx| inner.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waits(cx) {
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        if std::mem::replace(&mut self.pending, false) {
            self.flushed = Some(Instant::now());
        }
        self.deferred = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Flushes what is still there.
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Coalesced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt, DuplexStream};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Connection {
        turns: Turns,
        stream: Coalesced<DuplexStream>,
        peer: DuplexStream,
        woken: Arc<Woken>,
    }

    impl Connection {
        fn new() -> Self {
            let (near, peer) = tokio::io::duplex(1 << 20);
            let turns = Turns::default();
            Connection { stream: Coalesced::new(near, turns.clone()), turns, peer, woken: Arc::default() }
        }

        /// One turn: each frame is written and flushed, and at the end a flush is asked for once more.
        fn turn(&mut self, frames: &[&str]) {
            self.turns.next();
            let waker = Waker::from(self.woken.clone());
            let cx = &mut Context::from_waker(&waker);
            for frame in frames {
                assert!(Pin::new(&mut self.stream).poll_write(cx, frame.as_bytes()).is_ready());
                assert!(Pin::new(&mut self.stream).poll_flush(cx).is_ready());
            }
            assert!(Pin::new(&mut self.stream).poll_flush(cx).is_ready());
        }

        async fn arrived(&mut self) -> String {
            let mut bytes = [0; 1024];
            let read = clock::timeout(Duration::ZERO, self.peer.read(&mut bytes)).await;
            let length = read.map_or(0, |read| read.expect("a pipe in memory"));
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        }

        fn wakes(&self) -> usize {
            self.woken.0.swap(0, Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_now_and_then_leaves_at_once() {
        let mut connection = Connection::new();
        for _ in 0..3 {
            connection.turn(&["a"]);
            assert_eq!((connection.arrived().await.as_str(), connection.wakes()), ("a", 0));
            tokio::time::advance(CLOSE).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_follow_closely_wait_for_the_next_turn() {
        let mut connection = Connection::new();
        connection.turn(&["a"]);
        assert_eq!(connection.arrived().await, "a");
        connection.turn(&["b", "c"]);
        assert_eq!((connection.arrived().await.as_str(), connection.wakes()), ("", 1));
        connection.turn(&["d", "e"]);
        assert_eq!(connection.arrived().await, "bcde");
        connection.wakes();
        connection.turn(&["f"]);
        assert_eq!((connection.arrived().await.as_str(), connection.wakes()), ("", 1));
        connection.turn(&[]);
        assert_eq!((connection.arrived().await.as_str(), connection.wakes()), ("f", 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_waits_for_good() {
        let mut connection = Connection::new();
        connection.turn(&["a"]);
        connection.turn(&["b"]);
        tokio::time::advance(CLOSE).await;
        connection.turn(&["c"]);
        assert_eq!(connection.arrived().await, "abc");
    }

    #[tokio::test]
    async fn a_long_answer_lets_others_go_before_it_now_and_then() {
        let mut connection = Connection::new();
        let waker = Waker::from(connection.woken.clone());
        let cx = &mut Context::from_waker(&waker);
        let piece = [b'x'; 16 * 1024];
        let mut turns = Vec::new();
        for _ in 0..3 {
            let mut bytes = 0;
            while let Poll::Ready(written) = Pin::new(&mut connection.stream).poll_write(cx, &piece) {
                bytes += written.unwrap();
            }
            turns.push(bytes);
            assert_eq!(connection.wakes(), 1, "it is ready again");
        }
        assert_eq!(turns, [TURN; 3]);
    }
}
