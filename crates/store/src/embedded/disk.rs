//! The files of a store behind one small trait: a [`Folder`](super::folder::Folder) of the file system, or a
//! [`Memory`](super::memory::Memory) that lies.

use std::io::{self, Read};

/// One flat folder. Only `sync_folder` makes creations, renames and removals durable.
pub trait Disk: Send + Sync + 'static {
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates the file, or empties it.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file to write on behind its first `len` bytes. The content behind them is lost, at the latest
    /// when it is written over.
    fn append(&self, name: &str, len: u64) -> io::Result<Box<dyn DiskFile>>;
    /// The file's length and its content from the beginning.
    fn read(&self, name: &str) -> io::Result<(u64, Box<dyn Read + Send>)>;
    /// Creates a file that holds room for this number of bytes and nothing else, or leaves no file.
    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_folder(&self) -> io::Result<()>;
    /// Takes the folder for this process, until the guard is dropped.
    fn lock(&self) -> Result<Box<dyn Send + Sync>, LockError>;
    /// The name of this folder in errors.
    fn name(&self) -> String;
}

/// A file that is written at its end.
pub trait DiskFile: Send {
    fn size(&self) -> u64;
    /// A write costs the blocks of this many bytes that it touches.
    fn block(&self) -> usize {
        1
    }
    /// Writes all bytes at the end, or fails; then any part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file to `len` bytes.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync(&mut self) -> io::Result<()>;
}

#[derive(Debug)]
pub enum LockError {
    /// Another process has it; its id where it is known.
    Held(Option<u32>),
    Io(io::Error),
}
