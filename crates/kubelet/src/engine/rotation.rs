//! Container logs that have grown too large are moved away, compressed, and in the end removed.
//! Upstream counterpart: pkg/kubelet/logs.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use clock::Timestamp;
use files::{Dir, modes};
use flate2::{Compression, write::GzEncoder};
use futures::StreamExt;
use k8s_cri::v1::{ContainerFilter, ContainerState, ContainerStateValue};

use crate::{
    configuration::settings::LogRotation,
    engine::{
        log_folders::LogFolders,
        logs::{open, parts, place},
    },
    kubelet::Kubelet,
    volumes::folder::blocking,
};

const COMPRESSED: &str = ".gz";
/// A part that was not compressed to its end.
const UNFINISHED: &str = ".tmp";
/// It stands between the number of a log and the moment at which a part of it was moved away.
const PART: &str = ".log.";

/// Looks at the logs now and then. Runs for ever.
pub async fn run(kubelet: Arc<Kubelet>) {
    let settings = &kubelet.config.settings.logs;
    loop {
        clock::sleep(settings.interval).await;
        if kubelet.pods.is_empty() || !any_wants_work(&kubelet.logs, settings.max_bytes) {
            continue;
        }
        let state = Some(ContainerStateValue { state: ContainerState::ContainerRunning as i32 });
        let filter = ContainerFilter { state, ..Default::default() };
        let running = kubelet.config.runtime.containers(Some(filter)).await.unwrap_or_default();
        let all = futures::stream::iter(running).map(|container| rotate_if_large(&kubelet, container.id));
        all.buffer_unordered(settings.workers).collect::<Vec<()>>().await;
    }
}

async fn rotate_if_large(kubelet: &Kubelet, id: String) {
    let Ok(status) = kubelet.config.runtime.container_status(&id).await else { return };
    let path = PathBuf::from(&status.log_path);
    let settings = &kubelet.config.settings.logs;
    let done = match open(&kubelet.logs, &path).and_then(|file| file.metadata()) {
        Ok(log) if log.len() > settings.max_bytes => rotate(kubelet, &id, &path, settings).await,
        // The kubelet was killed after it moved the log away: the engine still writes to the part.
        Err(error) if error.kind() == io::ErrorKind::NotFound => reopen(kubelet, &id).await,
        _ => return,
    };
    if let Err(error) = done {
        tracing::warn!(path = %path.display(), %error, "a log could not be rotated");
    }
}

async fn rotate(kubelet: &Kubelet, id: &str, path: &Path, settings: &LogRotation) -> io::Result<()> {
    let (at, settings) = (place(&kubelet.logs, path)?, settings.clone());
    let now = clock::now();
    let (name, moved) = blocking(move || {
        let (folder, name) = at;
        clear(&folder, &name, &settings)?;
        let moved = free_name(&folder, &name, now)?;
        folder.rename(&name, &moved)?;
        io::Result::Ok((name, moved))
    })
    .await?;
    let Err(error) = reopen(kubelet, id).await else { return Ok(()) };
    // An engine that does not open the log anew goes on with the one that was moved: it gets its name back. One that has done
    // it all the same, and whose answer got lost, writes to another one by then.
    if open(&kubelet.logs, path).is_err() {
        place(&kubelet.logs, path)?.0.rename(&moved, &name)?;
    }
    Err(error)
}

/// The name of a part that is moved away at this time. Names tell seconds, and the parts of a log are as old as their names sort. One
/// second may see a log grow too large twice: the second part then has the next second, lest it take the first one's place.
fn free_name(folder: &Dir, log: &OsStr, now: Timestamp) -> io::Result<OsString> {
    let there = parts(folder, log)?;
    let mut seconds = now.as_second();
    loop {
        let moment = Timestamp::from_second(seconds).map_err(io::Error::other)?;
        let mut name = log.to_owned();
        name.push(format!(".{}", moment.strftime("%Y%m%d-%H%M%S")));
        let is_taken = |part: &OsString| part.as_bytes().strip_prefix(name.as_bytes()).is_some_and(is_same_part);
        if !there.iter().any(is_taken) {
            return Ok(name);
        }
        seconds += 1;
    }
}

/// Whether this end of a name leaves it a name of the same part.
fn is_same_part(end: &[u8]) -> bool {
    [b"".as_slice(), COMPRESSED.as_bytes(), UNFINISHED.as_bytes()].contains(&end)
}

async fn reopen(kubelet: &Kubelet, id: &str) -> io::Result<()> {
    let reopened = kubelet.config.runtime.reopen_log(id).await;
    reopened.map_err(|error| io::Error::other(format!("the engine does not reopen it: {error}")))
}

/// Removes what is too much of what was moved away and compresses the rest, so that with the part that comes now and the log
/// itself there are as many files as there may be.
fn clear(folder: &Dir, name: &OsStr, settings: &LogRotation) -> io::Result<()> {
    let ends = |part: &OsString, end: &str| part.to_string_lossy().ends_with(end);
    let mut old = parts(folder, name)?;
    old.retain(|part| *part != *name);
    let (unfinished, mut old): (Vec<_>, Vec<_>) = old.into_iter().partition(|part| ends(part, UNFINISHED));
    unfinished.iter().try_for_each(|part| folder.remove(part))?;
    // A part that was compressed and not removed is there twice.
    let twice = |part: &OsString, all: &[OsString]| {
        let mut compressed = part.clone();
        compressed.push(COMPRESSED);
        all.contains(&compressed)
    };
    let all = old.clone();
    for part in all.iter().filter(|part| twice(part, &all)) {
        folder.remove(part)?;
        old.retain(|held| held != part);
    }
    old.sort();
    let surplus = old.len().saturating_sub(settings.max_files.saturating_sub(2));
    old[..surplus].iter().try_for_each(|part| folder.remove(part))?;
    old[surplus..].iter().filter(|part| !ends(part, COMPRESSED)).try_for_each(|part| compress(folder, part))
}

fn compress(folder: &Dir, part: &OsStr) -> io::Result<()> {
    let named = |end: &str| {
        let mut name = part.to_owned();
        name.push(end);
        name
    };
    let (unfinished, done) = (named(UNFINISHED), named(COMPRESSED));
    let mut from = folder.file(Path::new(part))?;
    let mut to = GzEncoder::new(folder.create(Path::new(&unfinished), modes::LOG_FILE)?, Compression::default());
    io::copy(&mut from, &mut to)?;
    to.finish()?.flush()?;
    folder.rename(&unfinished, &done)?;
    folder.remove(part)
}

/// Whether a log is too large, or gone while a part of it is there.
fn any_wants_work(folders: &LogFolders, max_bytes: u64) -> bool {
    // A log stands in a container's folder in a Pod's folder; nothing else counts.
    let wants_work = |folder: Dir| {
        let (mut large, mut logs, mut moved) = (false, BTreeSet::new(), BTreeSet::new());
        let looked = folder.walk(|path, meta| {
            if files::beneath::is_folder(meta) {
                return;
            }
            if path.extension().is_some_and(|end| end == "log") {
                large |= u64::try_from(meta.st_size).is_ok_and(|size| size > max_bytes);
                logs.insert(path.to_owned());
            } else if let Some((log, _)) = path.to_string_lossy().split_once(PART) {
                moved.insert(PathBuf::from(format!("{log}.log")));
            }
        });
        looked.is_ok() && (large || !moved.is_subset(&logs))
    };
    folders.pods().any(|pod| folders.of_pod(&pod).into_iter().any(wants_work))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::settings::Settings;
    use std::{fs, io::Read};

    #[test]
    fn parts_of_one_second_are_different_files() {
        let world = tempfile::tempdir().unwrap();
        let logs = world.path().join("logs");
        let folder = logs.join("d_p_u/c");
        fs::create_dir_all(&folder).unwrap();
        let log = folder.join("0.log");
        fs::write(&log, "now").unwrap();
        let (opened, name) = place(&LogFolders::alone(&logs), &log).unwrap();
        let at = |second: i64| free_name(&opened, &name, Timestamp::from_second(1_767_323_045 + second).unwrap());
        let of = |second: u8| OsString::from(format!("0.log.20260102-03040{second}"));
        assert_eq!(at(0).unwrap(), of(5));
        fs::write(folder.join(of(5)), "first").unwrap();
        assert_eq!(at(0).unwrap(), of(6));
        fs::write(folder.join("0.log.20260102-030406.gz"), "second, compressed").unwrap();
        fs::write(folder.join("0.log.20260102-030407.tmp"), "third, half compressed").unwrap();
        assert_eq!(at(0).unwrap(), of(8), "one of another form is there as well");
        assert_eq!(at(1).unwrap(), of(8));
        assert_eq!(at(4).unwrap(), of(9));
        // Another log's parts are its own.
        fs::write(folder.join("0.log.20260102-030409.old"), "somebody else's").unwrap();
        assert_eq!(at(4).unwrap(), of(9));
    }

    #[test]
    fn the_oldest_parts_go_and_the_rest_is_compressed() {
        let world = tempfile::tempdir().unwrap();
        let logs = world.path().join("logs");
        let folder = logs.join("d_p_u/c");
        fs::create_dir_all(&folder).unwrap();
        let (log, secret) = (folder.join("0.log"), world.path().join("secret"));
        fs::write(&log, "now").unwrap();
        fs::write(&secret, "not a log").unwrap();
        for second in 0..6 {
            fs::write(folder.join(format!("0.log.20260102-03040{second}")), format!("part {second}")).unwrap();
        }
        // One was compressed and not removed, one not to its end, and in one's place there is a link.
        fs::write(folder.join("0.log.20260102-030405.gz"), "whole").unwrap();
        fs::write(folder.join("0.log.20260102-030404.tmp"), "half").unwrap();
        let (opened, name) = place(&LogFolders::alone(&logs), &log).unwrap();
        let settings = Settings::default().logs;
        clear(&opened, &name, &settings).unwrap();
        let names = || {
            let mut names: Vec<_> = opened.names().unwrap().map(|n| n.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let of = |second: u8| format!("0.log.20260102-03040{second}.gz");
        assert_eq!(names(), ["0.log".to_owned(), of(3), of(4), of(5)]);
        let mut text = String::new();
        flate2::read::GzDecoder::new(fs::File::open(folder.join(of(4))).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "part 4");
        assert_eq!(fs::read_to_string(folder.join(of(5))).unwrap(), "whole");
        clear(&opened, &name, &LogRotation { max_files: 2, ..settings.clone() }).unwrap();
        assert_eq!(names(), ["0.log"]);
        std::os::unix::fs::symlink(&secret, folder.join("0.log.20260102-030407")).unwrap();
        assert!(clear(&opened, &name, &settings).is_err(), "a link is not read");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "not a log");
    }
}
