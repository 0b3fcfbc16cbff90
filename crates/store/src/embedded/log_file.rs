//! The file that a log segment is appended to, written past the page cache where the file system allows it.
//!
//! It is opened so that a write returns when its bytes, and the length that shows them, are durable (`O_DSYNC`, what
//! `fdatasync` behind the write would give): one system call and one wait instead of two, and on disks that can write a
//! block through their cache no flush of that cache.
//!
//! Through the page cache each sync writes whole pages: a heartbeat of a few hundred bytes would cost 4 KiB, and on file
//! systems with large folios more. Written directly it costs the sectors that it touches, which frames are fitted to
//! ([`FrameBuilder::fill`](super::frame::FrameBuilder::fill)). And a file that grows with
//! each write has its new size written to the file system's journal each time, so it grows by a stretch of zeros now and
//! then, which later writes fill. A reader takes zeros behind the last frame for the end.
//!
//! The file system writes the time of each change of the file on top of that, and no file can be spared it: ext4 writes a
//! page of its inode table up to twice a minute, or a transaction of its journal every five seconds in which there was
//! a write. `/proc/PID/io` counts the page of an ext4 without a journal for this process, and the journal for none.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{disk::DiskFile, reserve};

/// The greatest alignment in memory that devices want for direct writes.
const ALIGNMENT: usize = 4096;
/// By how much the file grows beyond what is written.
const ROOM: usize = 64 << 10;
/// One huge batch must not hold its memory for good.
const BUFFER_KEPT: usize = 1 << 20;

pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// The size of the file: zeros from `len` on.
    allocated: u64,
    /// Writes begin and end at multiples of this; 1 when they go through the page cache.
    block: usize,
    /// The content of the last block, when it is not full.
    tail: Vec<u8>,
    buffer: Aligned,
    /// Something was done to the file that is not a write.
    unsynced: bool,
}

impl LogFile {
    /// Opens an existing file to write on behind its first `len` bytes, which are durable then: a process that was killed
    /// in the middle of a write may have left them in memory only.
    pub fn open(path: &Path, len: u64) -> io::Result<Self> {
        let durable = |flags| OpenOptions::new().read(true).write(true).custom_flags(libc::O_DSYNC | flags).open(path);
        let direct = durable(libc::O_DIRECT);
        let mut buffer = Aligned::default();
        let block = direct.as_ref().ok().and_then(|file| block_size(file, &mut buffer));
        let (file, block) = match (direct, block) {
            (Ok(file), Some(block)) => (file, block),
            _ => (durable(0)?, 1),
        };
        file.sync_data()?;
        let (allocated, tail) = (file.metadata()?.len(), read_tail(path, len, block)?);
        Ok(LogFile { path: path.to_owned(), file, len, allocated, block, tail, buffer, unsynced: false })
    }
}

/// The smallest block that can be read directly; `None` when none can.
fn block_size(file: &File, buffer: &mut Aligned) -> Option<usize> {
    [512, 4096].into_iter().find(|size| file.read_at(buffer.room(*size), 0).is_ok())
}

fn read_tail(path: &Path, len: u64, block: usize) -> io::Result<Vec<u8>> {
    let begin = len - len % block as u64;
    let mut tail = vec![0; (len - begin) as usize];
    if !tail.is_empty() {
        File::open(path)?.read_exact_at(&mut tail, begin)?;
    }
    Ok(tail)
}

impl DiskFile for LogFile {
    fn size(&self) -> u64 {
        self.len
    }

    fn block(&self) -> usize {
        self.block
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let held = self.tail.len();
        let used = held + bytes.len();
        let padded = used.next_multiple_of(self.block);
        let begin = self.len - held as u64;
        let out = self.buffer.room(padded + ROOM);
        out[..held].copy_from_slice(&self.tail);
        out[held..used].copy_from_slice(bytes);
        out[used..padded].fill(0);
        let needed = begin + padded as u64;
        let grows = needed > self.allocated;
        if grows {
            out[padded..].fill(0);
        }
        let whole = if grows { out.len() } else { padded };
        match self.file.write_all_at(&out[..whole], begin) {
            // On a nearly full disk there may be room for the bytes alone.
            Err(error) if grows && reserve::is_full(&error) => {
                self.file.write_all_at(&out[..padded], begin)?;
                self.allocated = self.allocated.max(needed);
            }
            written => {
                written?;
                self.allocated = self.allocated.max(begin + whole as u64);
            }
        }
        self.len += bytes.len() as u64;
        self.tail.clear();
        self.tail.extend_from_slice(&out[used - used % self.block..used]);
        self.buffer.shrink();
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.unsynced = true;
        self.file.set_len(len)?;
        self.allocated = len;
        if len != self.len {
            self.tail = read_tail(&self.path, len, self.block)?;
            self.len = len;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.file.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }
}

/// Memory whose useful part begins at a multiple of [`ALIGNMENT`].
#[derive(Default)]
struct Aligned(Vec<u8>);

impl Aligned {
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + ALIGNMENT {
            self.0.resize(len + ALIGNMENT, 0);
        }
        let begin = self.0.as_ptr().align_offset(ALIGNMENT);
        &mut self.0[begin..begin + len]
    }

    fn shrink(&mut self) {
        if self.0.len() > BUFFER_KEPT {
            self.0 = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of all sizes around a block's, cut back and written on, read back as if they had been one.
    #[test]
    fn what_was_appended_is_there_and_zeros_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, b"header").unwrap();
        let mut expected = b"header".to_vec();
        let mut file = LogFile::open(&path, 6).unwrap();
        for (round, size) in [1, 505, 512, 3, 5000, 4096, 0, 100_000, 511].into_iter().enumerate() {
            let piece = vec![b'a' + round as u8; size];
            file.append(&piece).unwrap();
            file.sync().unwrap();
            expected.extend_from_slice(&piece);
            check(&path, &expected);
            file.append(b"undone").unwrap();
            file.truncate(expected.len() as u64).unwrap();
            check(&path, &expected);
            if round % 3 == 2 {
                file = LogFile::open(&path, expected.len() as u64).unwrap();
            }
        }
        assert_eq!(file.size(), expected.len() as u64);
    }

    fn check(path: &Path, expected: &[u8]) {
        let bytes = std::fs::read(path).unwrap();
        let (written, padding) = bytes.split_at(expected.len());
        assert!(written == expected && padding.len() <= ROOM + 4096 && padding.iter().all(|b| *b == 0));
    }
}
