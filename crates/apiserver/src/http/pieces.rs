//! The text of a streamed answer, made piece by piece as the client takes it. Large objects are not copied: their pieces
//! are the store's own bytes, shared by everyone who is being sent them.

use std::collections::VecDeque;

use bytes::Bytes;

/// Stored bytes from this size on are shared. Below it a copy costs less than a piece of its own.
const SHARED_FROM: usize = 16 * 1024;
/// The first piece. The next ones grow: a client that takes nothing costs little, one that takes all is served in few
/// steps.
const FIRST: usize = 16 * 1024;
const DOUBLINGS: u32 = 4;

/// Text that is made in the order in which it is sent.
#[derive(Default)]
pub struct Pieces {
    ready: VecDeque<Bytes>,
    open: Vec<u8>,
    made: u32,
    /// Shared bytes came last, so that little text is to be expected before the next.
    shared: bool,
}

impl Pieces {
    /// For text of about that size.
    pub fn sized(size: usize) -> Self {
        Pieces { open: Vec::with_capacity(size), ..Pieces::default() }
    }

    /// Where text is appended.
    pub fn text(&mut self) -> &mut Vec<u8> {
        if self.open.capacity() == 0 {
            self.open.reserve(if self.shared { 512 } else { self.size() + 8 * 1024 });
        }
        &mut self.open
    }

    /// All of it in one.
    pub fn whole(mut self) -> Bytes {
        if self.ready.is_empty() {
            return self.open.into();
        }
        self.close();
        Vec::from(self.ready).concat().into()
    }

    /// Appends bytes that others have too.
    pub fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_FROM {
            return self.text().extend_from_slice(&bytes);
        }
        self.close();
        self.ready.push_back(bytes);
        self.shared = true;
    }

    /// Whether there is enough for a piece.
    pub fn is_full(&self) -> bool {
        !self.ready.is_empty() || self.open.len() >= self.size()
    }

    /// The next piece; `None` when there is no text.
    pub fn take(&mut self) -> Option<Bytes> {
        if self.ready.is_empty() {
            self.close();
            self.made = (self.made + 1).min(DOUBLINGS);
            self.shared = false;
        }
        self.ready.pop_front()
    }

    fn size(&self) -> usize {
        FIRST << self.made
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.open).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_and_keep_their_order() {
        let mut pieces = Pieces::default();
        let mut sizes = Vec::new();
        for _ in 0..7 {
            while !pieces.is_full() {
                pieces.text().extend_from_slice(&[b' '; 1024]);
            }
            sizes.extend(pieces.take().map(|piece| piece.len() / 1024));
        }
        assert_eq!((sizes, pieces.take()), (vec![16, 32, 64, 128, 256, 256, 256], None));
    }

    #[test]
    fn large_bytes_are_the_same_bytes() {
        let large = Bytes::from(vec![b'x'; SHARED_FROM]);
        let mut pieces = Pieces::default();
        pieces.text().push(b'[');
        pieces.share(large.clone());
        pieces.share(Bytes::from_static(b","));
        pieces.text().push(b']');
        pieces.text().push(b'\n');
        let taken: Vec<Bytes> = std::iter::from_fn(|| pieces.take()).collect();
        assert_eq!(taken, ["[".into(), large.clone(), Bytes::from(",]\n")]);
        assert!(std::ptr::eq(taken[1].as_ptr(), large.as_ptr()));
    }
}
