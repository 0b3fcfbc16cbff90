//! Changes in folders, as the kernel tells them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe;

/// A write comes in several events: those that follow within this time belong to it.
const SETTLE: Duration = Duration::from_millis(20);

/// A watched folder: what can be read from it are the kernel's notes of changes.
pub struct Changes {
    folder: PathBuf,
    notes: pipe::Receiver,
    /// Device and inode: another folder may take the place of this one.
    identity: (u64, u64),
}

fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(folder).map(|meta| (meta.dev(), meta.ino()))
}

impl Changes {
    /// Watches a folder, and those of its subfolders that are named. One of these that has gone is passed over: the folder
    /// above it has changed.
    pub fn of(folder: &Path, below: &[PathBuf]) -> io::Result<Changes> {
        let changes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        // A file counts when it is written to its end, not while it is being written.
        let what = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        changes.add_watch(folder, what)?;
        for subfolder in below {
            let _ = changes.add_watch(subfolder, what);
        }
        // To the runtime it is something to read from, as a pipe is.
        let notes = pipe::Receiver::from_owned_fd_unchecked(changes.into())?;
        Ok(Changes { folder: folder.to_owned(), notes, identity: identity(folder)? })
    }

    /// Waits until something has changed; false when the watch is over, because the folder itself is gone or another one.
    pub async fn next(&self) -> bool {
        let mut notes = [0; 4096];
        let mut seen = false;
        loop {
            let ready = self.notes.readable();
            let ready = if seen { clock::timeout(SETTLE, ready).await } else { Ok(ready.await) };
            match ready.map(|ready| ready.and_then(|()| self.notes.try_read(&mut notes))) {
                // The file that changed does not matter: everything is read again.
                Ok(Ok(1..)) => seen = true,
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) => return false,
                Err(_) => return identity(&self.folder).is_ok_and(|now| now == self.identity),
            }
        }
    }
}
