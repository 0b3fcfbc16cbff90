//! A folder of the file system.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::{
    disk::{Disk, DiskFile, LockError},
    log_file::LogFile,
};

const LOCK: &str = "lock";

/// A folder of the file system.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates the folder (for its owner alone) when it is missing.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = path.into();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(Folder { path })
    }

    /// A folder that is there already.
    pub fn existing(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if !std::fs::metadata(&path)?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a folder"));
        }
        Ok(Folder { path })
    }
}

impl Disk for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.path)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.path.join(name))?;
        Ok(Box::new(RealFile { file, len: 0 }))
    }

    fn append(&self, name: &str, len: u64) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(LogFile::open(&self.path.join(name), len)?))
    }

    fn read(&self, name: &str) -> io::Result<(u64, Box<dyn Read + Send>)> {
        let file = File::open(self.path.join(name))?;
        let len = file.metadata()?.len();
        Ok((len, Box::new(io::BufReader::with_capacity(1 << 16, file))))
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        use nix::fcntl::{FallocateFlags, fallocate};
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.path.join(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let len = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        fallocate(&file, FallocateFlags::empty(), 0, len).map_err(|errno| {
            // Best effort: an empty file is in nobody's way.
            let _ = std::fs::remove_file(&path);
            errno.into()
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>, LockError> {
        let path = self.path.join(LOCK);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
                return Err(LockError::Held(holder));
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        // The process id is for the error of a second process. On a full disk it may be missing; the lock holds.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Box::new(FolderLock(file)))
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread is just starting has the file too, until it runs its program.
        let _ = self.0.unlock();
    }
}

struct RealFile {
    file: File,
    len: u64,
}

impl DiskFile for RealFile {
    fn size(&self) -> u64 {
        self.len
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len = len;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
