//! A folder in memory that can run full, lose power and flip bits, for tests and for the simulation.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::Arc,
};

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile, LockError};

/// A folder in memory. Clones are the same folder, so a test can open a store again on what the last one left.
#[derive(Clone, Default)]
pub struct Memory {
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Default)]
struct MemoryState {
    files: BTreeMap<String, Arc<Mutex<Content>>>,
    /// The names as of the last `sync_folder`.
    durable: BTreeMap<String, Arc<Mutex<Content>>>,
    /// Bytes that fit in all files together.
    capacity: Option<usize>,
    /// The blocks in which writes cost; 0 is single bytes.
    block: usize,
    sync_fails: bool,
    /// The number of syncs that succeed; power is lost in the one after them.
    syncs_left: Option<u32>,
    /// How often power was lost. A file that was opened before is dead.
    power_cuts: u32,
    /// Power is lost and did not come back yet.
    dead: bool,
    locked: bool,
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    synced: usize,
}

impl MemoryState {
    fn count_sync(&mut self) -> io::Result<()> {
        self.dead |= self.syncs_left == Some(0);
        self.syncs_left = self.syncs_left.map(|left| left.saturating_sub(1));
        if self.sync_fails || self.dead { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

impl Memory {
    /// A folder on a disk that is written in blocks of this many bytes.
    pub fn in_blocks(bytes: usize) -> Self {
        let disk = Memory::default();
        disk.state.lock().block = bytes;
        disk
    }

    /// From now on the files hold at most this number of bytes together.
    pub fn set_capacity(&self, bytes: Option<usize>) {
        self.state.lock().capacity = bytes;
    }

    /// From now on `sync` fails with an I/O error.
    pub fn fail_syncs(&self, fail: bool) {
        self.state.lock().sync_fails = fail;
    }

    /// The next `sync` does not come back: power is lost in its middle, until [`Memory::lose_power`].
    pub fn die_at_sync(&self) {
        self.die_after_syncs(0);
    }

    /// This many syncs (of files and of the folder) succeed, the next does not come back.
    pub fn die_after_syncs(&self, count: u32) {
        self.state.lock().syncs_left = Some(count);
    }

    /// Whether power was lost and did not come back yet.
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Bytes in all files.
    pub fn used(&self) -> usize {
        self.state.lock().files.values().map(|f| f.lock().bytes.len()).sum()
    }

    /// A power cut: unsynced names are gone, of each file's unsynced tail `keep(length)` bytes stay.
    /// The folder is free to be locked again.
    pub fn lose_power(&self, mut keep: impl FnMut(usize) -> usize) {
        let mut state = self.state.lock();
        state.files = state.durable.clone();
        state.locked = false;
        (state.dead, state.syncs_left) = (false, None);
        state.power_cuts += 1;
        for file in state.files.values() {
            let mut file = file.lock();
            let unsynced = file.bytes.len().saturating_sub(file.synced);
            let stays = file.synced.min(file.bytes.len()) + keep(unsynced).min(unsynced);
            file.bytes.truncate(stays);
            file.synced = stays;
        }
    }

    /// Changes a file's bytes behind the store's back.
    pub fn tamper(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.state.lock().files.get(name).cloned().expect("the test names an existing file");
        change(&mut file.lock().bytes);
    }

    fn file(&self, name: &str) -> io::Result<Arc<Mutex<Content>>> {
        self.state.lock().files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for Memory {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let content = Arc::new(Mutex::new(Content::default()));
        self.state.lock().files.insert(name.to_owned(), content.clone());
        Ok(Box::new(MemoryFile::new(self, content)))
    }

    fn append(&self, name: &str, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut file = MemoryFile::new(self, self.file(name)?);
        file.truncate(len)?;
        Ok(Box::new(file))
    }

    fn read(&self, name: &str) -> io::Result<(u64, Box<dyn Read + Send>)> {
        let bytes = self.file(name)?.lock().bytes.clone();
        Ok((bytes.len() as u64, Box::new(io::Cursor::new(bytes))))
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let room = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let made = self.create(name)?.append(&vec![0; room]);
        if made.is_err() {
            self.remove(name)?;
        }
        made
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state.lock().files.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.count_sync()?;
        state.durable = state.files.clone();
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, LockError> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.locked, true) {
            return Err(LockError::Held(Some(std::process::id())));
        }
        Ok(Box::new(MemoryLock(self.clone())))
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }
}

struct MemoryLock(Memory);

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.0.state.lock().locked = false;
    }
}

struct MemoryFile {
    disk: Memory,
    content: Arc<Mutex<Content>>,
    power_cuts: u32,
}

impl MemoryFile {
    fn new(disk: &Memory, content: Arc<Mutex<Content>>) -> Self {
        MemoryFile { disk: disk.clone(), content, power_cuts: disk.state.lock().power_cuts }
    }

    fn alive(&self) -> io::Result<()> {
        let state = self.disk.state.lock();
        let alive = !state.dead && state.power_cuts == self.power_cuts;
        if alive { Ok(()) } else { Err(io::Error::other("power was lost")) }
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> u64 {
        self.content.lock().bytes.len() as u64
    }

    fn block(&self) -> usize {
        self.disk.state.lock().block.max(1)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.alive()?;
        let used = self.disk.used();
        let room = self.disk.state.lock().capacity.map_or(usize::MAX, |c| c.saturating_sub(used));
        let fits = bytes.len().min(room);
        self.content.lock().bytes.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.alive()?;
        self.content.lock().bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.alive()?;
        self.disk.state.lock().count_sync()?;
        let mut content = self.content.lock();
        content.synced = content.bytes.len();
        Ok(())
    }
}
