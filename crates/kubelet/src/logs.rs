//! Container logs as CRI engines write them: `time stream F|P text` per line. Reading for clients, and rotation.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use clock::Timestamp;
use k8s_cri::v1::{ContainerFilter, ContainerState, ContainerStateValue};
use tokio::sync::mpsc;

use crate::node::Node;

/// Upstream's defaults: a log is moved away at 10 MiB, and five files are kept.
const ROTATE_BYTES: u64 = 10 << 20;
const KEEP: usize = 4;
const LOOK: Duration = Duration::from_secs(10);

/// What a client wants of a log.
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

/// One line of the file as the client sees it, or `None` if it is not for him. A partial line has no line end.
pub fn render(line: &str, options: &Options) -> Option<String> {
    let mut parts = line.splitn(4, ' ');
    let (time, stream, tag, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next().unwrap_or_default());
    if options.stream.as_ref().is_some_and(|wanted| wanted != stream) {
        return None;
    }
    if let Some(since) = options.since
        && time.parse::<Timestamp>().is_ok_and(|t| t < since)
    {
        return None;
    }
    let end = if tag.starts_with('P') { "" } else { "\n" };
    Some(if options.timestamps { format!("{time} {text}{end}") } else { format!("{text}{end}") })
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
pub async fn send(node: Arc<Node>, path: PathBuf, container: String, options: Options, to: mpsc::Sender<Bytes>) {
    if let Err(error) = try_send(&node, &path, &container, &options, &to).await {
        tracing::debug!(path = %path.display(), %error, "a log could not be read");
    }
}

async fn try_send(
    node: &Node,
    path: &Path,
    container: &str,
    options: &Options,
    to: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    if let Some(count) = options.tail {
        let start = tail_start(&mut file, count)?;
        file.seek(SeekFrom::Start(start))?;
    }
    let mut left = options.limit_bytes.unwrap_or(usize::MAX);
    let mut reader = BufReader::new(file);
    let mut partial = Vec::new();
    loop {
        let mut piece = Vec::new();
        while piece.len() < 64 << 10 && reader.read_until(b'\n', &mut partial)? > 0 && partial.ends_with(b"\n") {
            let line = String::from_utf8_lossy(&partial[..partial.len() - 1]).into_owned();
            piece.extend(render(&line, options).unwrap_or_default().into_bytes());
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
        let alive = node.config.runtime.container_status(container).await;
        let alive = alive.is_ok_and(|s| s.state() == ContainerState::ContainerRunning);
        let replaced = is_replaced(&reader, path);
        let end = reader.get_ref().metadata()?.len();
        if reader.stream_position()? < end {
            continue;
        }
        if replaced {
            reader = BufReader::new(fs::File::open(path)?);
        } else if !alive {
            return Ok(());
        }
        tokio::select! {
            () = clock::sleep(Duration::from_millis(250)) => {}
            () = to.closed() => return Ok(()),
        }
    }
}

fn is_replaced(reader: &BufReader<fs::File>, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (reader.get_ref().metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => open.ino() != named.ino(),
        _ => false,
    }
}

/// Moves logs away that have grown too large. For ever.
pub async fn rotate(node: Arc<Node>) {
    loop {
        clock::sleep(LOOK).await;
        if node.pods.lock().is_empty() {
            continue;
        }
        let state = Some(ContainerStateValue { state: ContainerState::ContainerRunning as i32 });
        let filter = ContainerFilter { state, ..Default::default() };
        if !any_large(&node.config.log_dir) {
            continue;
        }
        for container in node.config.runtime.containers(Some(filter)).await.unwrap_or_default() {
            let Ok(status) = node.config.runtime.container_status(&container.id).await else { continue };
            let path = PathBuf::from(&status.log_path);
            if fs::metadata(&path).is_ok_and(|m| m.len() > ROTATE_BYTES) {
                if let Err(error) = move_away(&path) {
                    tracing::warn!(path = %path.display(), %error, "a log could not be rotated");
                    continue;
                }
                if let Err(error) = node.config.runtime.reopen_log(&container.id).await {
                    tracing::warn!(path = %path.display(), %error, "the engine does not reopen a log");
                }
            }
        }
    }
}

fn any_large(folder: &Path) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => any_large(&entry.path()),
        Ok(meta) => meta.len() > ROTATE_BYTES && entry.file_name().to_string_lossy().ends_with(".log"),
        Err(_) => false,
    })
}

/// A container's log and the parts of it that were moved away.
pub fn parts(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let name = name.to_string_lossy();
    let of_it = |file: &str| file.strip_prefix(&*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|e| of_it(&e.file_name().to_string_lossy())).map(|e| e.path()).collect()
}

fn move_away(path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stamp = clock::now().strftime("%Y%m%d-%H%M%S").to_string();
    fs::rename(path, path.with_file_name(format!("{name}.{stamp}")))?;
    let mut old = parts(path);
    old.retain(|p| p != path);
    old.sort();
    let surplus = old.len().saturating_sub(KEEP);
    old[..surplus].iter().try_for_each(fs::remove_file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_rendered_as_asked() {
        let line = "2026-01-02T03:04:05.000000006Z stdout F hello world";
        let check = |options: Options, expected: Option<&str>| {
            assert_eq!(render(line, &options).as_deref(), expected, "{options:?}");
        };
        check(Options::default(), Some("hello world\n"));
        let with_time = "2026-01-02T03:04:05.000000006Z hello world\n";
        check(Options { timestamps: true, ..Default::default() }, Some(with_time));
        check(Options { stream: Some("stderr".into()), ..Default::default() }, None);
        check(Options { since: Some("2026-01-02T03:04:06Z".parse().unwrap()), ..Default::default() }, None);
        assert_eq!(render("2026-01-02T03:04:05Z stdout P par", &Options::default()).as_deref(), Some("par"));
    }

    #[test]
    fn the_tail_begins_at_a_line() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a\nbb\nccc\n").unwrap();
        for (count, expected) in [(0, 9), (1, 5), (2, 2), (3, 0), (9, 0)] {
            assert_eq!(tail_start(&mut file, count).unwrap(), expected, "{count}");
        }
    }
}
