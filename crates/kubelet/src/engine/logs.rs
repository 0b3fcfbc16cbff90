//! Container logs as CRI engines write them: `time stream F|P text` per line. They are read for clients and rotated here.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use clock::Timestamp;
use files::Dir;
use k8s_cri::v1::ContainerState;
use tokio::sync::mpsc;

use crate::{engine::log_folders::LogFolders, kubelet::Kubelet};

/// Which part of a log a client wants, and in which form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    pub follow: bool,
    pub timestamps: bool,
    pub tail: Option<usize>,
    pub since: Option<Timestamp>,
    pub limit_bytes: Option<usize>,
    /// `stdout` or `stderr`; both when absent.
    pub stream: Option<String>,
}

/// One line of the file as the client sees it, or `None` if it is left out. A partial line has no line end, and what goes on
/// with one has no time of its own. The text may be anything that the container wrote.
pub fn render(line: &[u8], goes_on: bool, options: &Options) -> Option<Vec<u8>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tag) = (std::str::from_utf8(parts.next()?).ok()?, parts.next()?, parts.next()?);
    let text = parts.next().unwrap_or_default();
    if options.stream.as_ref().is_some_and(|wanted| wanted.as_bytes() != stream) {
        return None;
    }
    if let Some(since) = options.since
        && time.parse::<Timestamp>().is_ok_and(|t| t < since)
    {
        return None;
    }
    let end: &[u8] = if tag.starts_with(b"P") { b"" } else { b"\n" };
    let stamp = if options.timestamps && !goes_on { format!("{time} ") } else { String::new() };
    Some([stamp.as_bytes(), text, end].concat())
}

/// Whether a line of the file is the beginning or the middle of one that the container wrote.
fn is_partial(line: &[u8]) -> bool {
    line.splitn(4, |byte| *byte == b' ').nth(2).is_some_and(|tag| tag.starts_with(b"P"))
}

/// Where the last `count` lines begin.
fn tail_start(file: &mut fs::File, count: usize) -> io::Result<u64> {
    const BLOCK: u64 = 16 << 10;
    let mut at = file.seek(SeekFrom::End(0))?;
    if count == 0 {
        return Ok(at);
    }
    let mut found = 0;
    let end = at;
    while at > 0 {
        let from = at.saturating_sub(BLOCK);
        let mut block = vec![0; usize::try_from(at - from).unwrap_or(0)];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut block)?;
        for (index, _) in block.iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
            let position = from + index as u64;
            if position + 1 == end {
                continue;
            }
            found += 1;
            if found == count {
                return Ok(position + 1);
            }
        }
        at = from;
    }
    Ok(0)
}

/// Sends the log of a container in pieces until its end; with `follow`, until the container has ended.
pub async fn send(kubelet: Arc<Kubelet>, path: PathBuf, container: String, options: Options, to: mpsc::Sender<Bytes>) {
    if let Err(error) = try_send(&kubelet, &path, &container, &options, &to).await {
        tracing::debug!(path = %path.display(), %error, "a log could not be read");
    }
}

async fn try_send(
    kubelet: &Kubelet,
    path: &Path,
    container: &str,
    options: &Options,
    to: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let mut file = open(&kubelet.logs, path)?;
    if let Some(count) = options.tail {
        let start = tail_start(&mut file, count)?;
        file.seek(SeekFrom::Start(start))?;
    }
    let mut left = options.limit_bytes.unwrap_or(usize::MAX);
    let mut reader = BufReader::new(file);
    let (mut partial, mut goes_on) = (Vec::new(), false);
    loop {
        let mut piece = Vec::new();
        while piece.len() < 64 << 10 && reader.read_until(b'\n', &mut partial)? > 0 && partial.ends_with(b"\n") {
            let line = &partial[..partial.len() - 1];
            piece.extend(render(line, goes_on, options).unwrap_or_default());
            goes_on = is_partial(line);
            partial.clear();
        }
        if !piece.is_empty() {
            piece.truncate(left);
            left -= piece.len();
            if to.send(Bytes::from(piece)).await.is_err() || left == 0 {
                return Ok(());
            }
            continue;
        }
        if !options.follow {
            return Ok(());
        }
        // First whether it still runs, then whether there is more: nothing is lost between the two.
        let alive = kubelet.config.runtime.container_status(container).await;
        let alive = alive.is_ok_and(|s| s.state() == ContainerState::ContainerRunning);
        let replaced = is_replaced(&reader, &kubelet.logs, path);
        let end = reader.get_ref().metadata()?.len();
        if reader.stream_position()? < end {
            continue;
        }
        if replaced {
            reader = BufReader::new(open(&kubelet.logs, path)?);
        } else if !alive {
            return Ok(());
        }
        tokio::select! {
            () = clock::sleep(Duration::from_millis(250)) => {}
            () = to.closed() => return Ok(()),
        }
    }
}

/// The folder of a container's logs, and the name of one in it. The engine names a log by the folder that it was given when the
/// container began, which need not be the one of now, the Pod's, the container's and the file's name. A Pod that may write
/// below the node's logs, as collectors do, could put a link in the place of a log, so no link is followed.
pub fn place(folders: &LogFolders, log: &Path) -> io::Result<(Dir, OsString)> {
    let mut names = log.components().rev().map(|part| match part {
        Component::Normal(name) => Ok(name.to_owned()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no path of a log")),
    });
    let mut next = || names.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
    let (file, container, pod) = (next()?, next()?, next()?);
    let folder = log.ancestors().nth(3).unwrap_or(Path::new(""));
    Ok((folders.open_folder(folder)?.folder(&Path::new(&pod).join(container))?, file))
}

/// Opens the log that the engine names.
pub fn open(folders: &LogFolders, log: &Path) -> io::Result<fs::File> {
    let (folder, name) = place(folders, log)?;
    folder.file(Path::new(&name))
}

/// Removes a container's log and the parts of it that were moved away.
pub fn remove(folders: &LogFolders, log: &Path) -> io::Result<()> {
    let (folder, name) = match place(folders, log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        place => place?,
    };
    parts(&folder, &name)?.iter().try_for_each(|part| folder.remove(part))
}

fn is_replaced(reader: &BufReader<fs::File>, folders: &LogFolders, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (reader.get_ref().metadata(), open(folders, path).and_then(|file| file.metadata())) {
        (Ok(open), Ok(named)) => open.ino() != named.ino(),
        _ => false,
    }
}

/// A container's log and the parts of it that were moved away.
pub fn parts(folder: &Dir, name: &OsStr) -> io::Result<Vec<OsString>> {
    let name = name.to_string_lossy();
    let of_it = |file: &OsString| {
        let file = file.to_string_lossy();
        file.strip_prefix(&*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    Ok(folder.names()?.filter(of_it).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_rendered_as_asked() {
        let line = "2026-01-02T03:04:05.000000006Z stdout F hello world";
        let check = |options: Options, expected: Option<&str>| {
            let got = render(line.as_bytes(), false, &options);
            assert_eq!(got.as_deref(), expected.map(str::as_bytes), "{options:?}");
        };
        check(Options::default(), Some("hello world\n"));
        let with_time = "2026-01-02T03:04:05.000000006Z hello world\n";
        check(Options { timestamps: true, ..Default::default() }, Some(with_time));
        check(Options { stream: Some("stderr".into()), ..Default::default() }, None);
        check(Options { since: Some("2026-01-02T03:04:06Z".parse().unwrap()), ..Default::default() }, None);
        let plain = |line: &[u8]| render(line, false, &Options::default());
        let timed = Options { timestamps: true, ..Default::default() };
        assert_eq!(render(line.as_bytes(), true, &timed).as_deref(), Some(&b"hello world\n"[..]));
        assert!(is_partial(b"2026-01-02T03:04:05Z stdout P par") && !is_partial(line.as_bytes()));
        assert_eq!(plain(b"2026-01-02T03:04:05Z stdout P par").as_deref(), Some(&b"par"[..]));
        assert_eq!(plain(b"2026-01-02T03:04:05Z stdout F \xff\xfe").as_deref(), Some(&b"\xff\xfe\n"[..]));
    }

    #[test]
    fn the_tail_begins_at_a_line() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a\nbb\nccc\n").unwrap();
        for (count, expected) in [(0, 9), (1, 5), (2, 2), (3, 0), (9, 0)] {
            assert_eq!(tail_start(&mut file, count).unwrap(), expected, "{count}");
        }
    }

    #[test]
    fn a_log_is_what_the_engine_wrote_and_no_link_in_its_place() {
        let world = tempfile::tempdir().unwrap();
        let at = world.path().join("logs");
        let logs = LogFolders::alone(&at);
        let folder = at.join("d_p_u/c");
        fs::create_dir_all(&folder).unwrap();
        fs::write(world.path().join("shadow"), "s3cret").unwrap();
        let log = folder.join("0.log");
        fs::write(&log, "mine").unwrap();
        assert_eq!(io::read_to_string(open(&logs, &log).unwrap()).unwrap(), "mine");
        fs::write(folder.join("0.log.20260102-030405"), "").unwrap();
        fs::remove_file(&log).unwrap();
        std::os::unix::fs::symlink(world.path().join("shadow"), &log).unwrap();
        assert!(open(&logs, &log).is_err(), "a link in the place of the file");
        remove(&logs, &log).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(world.path().join("shadow")).unwrap(), "s3cret");
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(world.path(), &folder).unwrap();
        assert!(open(&logs, &folder.join("shadow")).is_err(), "a link in the place of the folder");
        assert!(open(&logs, Path::new("")).is_err());
        remove(&logs, &at.join("none/c/0.log")).unwrap();
    }
}
