//! Follows the kernel's log for as long as the kubelet runs. Kubelets that share a machine each follow it: it is the machine of each
//! of their nodes. Upstream counterpart: pkg/kubelet/oom/oom_watcher_linux.go.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Seek, SeekFrom},
    path::Path,
    sync::Arc,
};

use client::EventKind;
use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use tokio::net::unix::pipe::Receiver;

use crate::{
    kubelet::Kubelet,
    oom::parser::{self, Kill, Parser},
};

/// The kernel gives one message at a time, and none is longer.
const MESSAGE_BYTES: usize = 8192;

/// Runs for ever.
pub async fn run(kubelet: Arc<Kubelet>) {
    if let Some(path) = kubelet.host.kernel_log.as_deref() {
        match Log::open(path) {
            Ok(mut log) => {
                let error = follow(&kubelet, &mut log).await;
                tracing::error!(%error, "Unexpectedly stopped receiving OOM notifications");
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "failed to start OOM watcher: nobody is told when memory runs out");
            }
        }
    }
    std::future::pending().await
}

async fn follow(kubelet: &Kubelet, log: &mut Log) -> io::Error {
    let mut parser = Parser::default();
    loop {
        match log.next().await {
            Ok(line) => {
                if let Some(kill) = parser::message(&line).and_then(|message| parser.read(message)) {
                    note(kubelet, &kill);
                }
            }
            Err(error) => return error,
        }
    }
}

fn note(kubelet: &Kubelet, kill: &Kill) {
    kubelet.ooms.count(&kill.cgroup);
    if kill.is_of_machine() {
        let Kill { process, pid, .. } = kill;
        let text = format!("System OOM encountered, victim process: {process}, pid: {pid}");
        kubelet.events.node(EventKind::Warning, "SystemOOM", &text);
    }
}

/// The kernel's log from its end on: what it said before is not told again.
struct Log {
    /// The device is read as a pipe is: one message after the other, and waiting for the next.
    file: Receiver,
    /// The beginning of a line whose end is still to come.
    begun: Vec<u8>,
    lines: VecDeque<String>,
}

impl Log {
    fn open(path: &Path) -> io::Result<Self> {
        let file = Receiver::from_file_unchecked(end_of(path)?)?;
        Ok(Log { file, begun: Vec::new(), lines: VecDeque::new() })
    }

    async fn next(&mut self) -> io::Result<String> {
        let mut buffer = [0; MESSAGE_BYTES];
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(line);
            }
            self.file.readable().await?;
            match self.file.try_read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.take(&buffer[..length]),
                // Messages that were not read in time are gone, and the next read goes on behind them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    tracing::warn!("messages of the kernel were lost, it wrote faster than they were read");
                    self.begun.clear();
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = MESSAGE_BYTES.saturating_sub(self.begun.len());
            self.begun.extend(&part[..part.len().min(room)]);
            if parts.peek().is_some() {
                self.lines.push_back(String::from_utf8_lossy(&self.begun).into_owned());
                self.begun.clear();
            }
        }
    }
}

/// A log, opened where its next message will be.
fn end_of(path: &Path) -> io::Result<File> {
    let how = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut file = File::from(open(path, how, Mode::empty())?);
    match file.seek(SeekFrom::End(0)) {
        // A pipe in place of the device has no past.
        Err(error) if error.kind() != io::ErrorKind::NotSeekable => Err(error),
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::kubelet::KERNEL_LOG;

    /// A log in place of the kernel's, and the end at which the test writes.
    fn log() -> (tempfile::TempDir, File, Log) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        let log = Log::open(&path).unwrap();
        (folder, writer, log)
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_are_written() {
        let (_folder, mut writer, mut log) = log();
        writer.write_all(b"4,1,2,-;one\n KEY=value\n4,2,3,-;t").unwrap();
        assert_eq!(log.next().await.unwrap(), "4,1,2,-;one");
        assert_eq!(log.next().await.unwrap(), " KEY=value");
        writer.write_all(b"wo\n").unwrap();
        assert_eq!(log.next().await.unwrap(), "4,2,3,-;two");
        // One that never ends takes no more room than another.
        writer.write_all(&vec![b'x'; MESSAGE_BYTES * 3]).unwrap();
        writer.write_all(b"\nlast\n").unwrap();
        assert_eq!(log.next().await.unwrap().len(), MESSAGE_BYTES);
        assert_eq!(log.next().await.unwrap(), "last");
    }

    #[tokio::test]
    async fn a_log_that_is_not_there_or_ends_is_an_error() {
        assert!(Log::open(Path::new("/nonexistent/kmsg")).is_err());
        let (_folder, writer, mut log) = log();
        drop(writer);
        assert_eq!(log.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// The real device, where this process may read it: nothing of the past is told.
    #[test]
    fn the_kernels_own_log_is_read_from_its_end() {
        let Ok(mut past) = end_of(Path::new(KERNEL_LOG)) else {
            eprintln!("SKIPPED: {KERNEL_LOG} cannot be read here");
            return;
        };
        past.seek(SeekFrom::Start(0)).unwrap();
        let last = std::iter::from_fn(|| number(&mut past)).last();
        let mut log = end_of(Path::new(KERNEL_LOG)).unwrap();
        // The kernel may have said something in the meantime.
        let first = number(&mut log);
        assert!(first.is_none_or(|first| Some(first) > last), "{last:?}, then {first:?}");
    }

    /// The number of the next message that is there.
    fn number(log: &mut File) -> Option<u64> {
        let mut buffer = [0; MESSAGE_BYTES];
        let length = log.read(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..length]).split(',').nth(1)?.parse().ok()
    }
}
