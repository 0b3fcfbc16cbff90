//! Connections whose other side may end them without a word: some servers close TCP and send no `close_notify` before. Go takes
//! that for an end like another. Whether an answer is whole HTTP tells by itself, but for one that only the end bounds.

use std::{
    io::{ErrorKind, IoSlice, Result},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TLS connection whose end need not be announced.
pub(crate) struct Unannounced<S>(pub S);

impl<S: AsyncRead + Unpin> AsyncRead for Unannounced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let read = ready!(Pin::new(&mut self.0).poll_read(cx, buffer));
        Poll::Ready(read.or_else(|error| if error.kind() == ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) }))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unannounced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
