//! Image archives (OCI or Docker) that are imported into containerd: one by name, or those of a folder of which the engine does not
//! have the images yet. A registry is not needed for any of it.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use clock::Duration;
use files::modes;
use json::{Value, json};
use tokio::process::Command;

use crate::engine::{self, Runtime};

/// An import that takes longer is given up.
const LONGEST: Duration = Duration::from_secs(1800);
/// As many archives of a folder are looked at.
const ARCHIVES: usize = 1000;
/// The label by which containerd's CRI keeps an image from being collected.
const PINNED: &str = "io.cri-containerd.pinned=pinned";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("importing {path} into containerd failed: {message}")]
    Refused { path: PathBuf, message: String },
    #[error("importing {path} failed: {program} cannot be started (part of the package {package}): {source}")]
    Program { path: PathBuf, program: &'static str, package: &'static str, source: io::Error },
    #[error("importing {path} failed: it took longer than {} minutes", LONGEST.as_secs() / 60)]
    Late { path: PathBuf },
    #[error("{path} was imported, but the engine does not list its image {image}")]
    Unseen { path: PathBuf, image: String },
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// The endings of archives, and the programs that unpack those which are packed.
const ENDINGS: [(&str, Option<(&str, &str)>); 5] = [
    (".tar", None),
    (".tar.gz", Some(("gzip", "gzip"))),
    (".tgz", Some(("gzip", "gzip"))),
    (".tar.zst", Some(("zstd", "zstd"))),
    (".tzst", Some(("zstd", "zstd"))),
];

/// The program that unpacks an archive and its package. A file of another ending is taken as it is.
fn unpacker(path: &Path) -> Option<(&'static str, &'static str)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).and_then(|(_, program)| *program)
}

fn last_words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.trim().chars().take(1000).collect()
}

fn ctr(socket: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Imports an archive into the containerd behind `socket`, where CRI sees it. Archives packed by gzip and zstd are unpacked on the
/// way. Returns the names of its images.
pub async fn import(socket: &Path, archive: &Path) -> Result<Vec<String>, Error> {
    let path = || archive.to_owned();
    let failed = |program, package| move |source| Error::Program { path: archive.to_owned(), program, package, source };
    if !socket.exists() {
        // The importer would look for it for ten seconds.
        let message = format!("no container engine listens on {}", socket.display());
        return Err(Error::Refused { path: path(), message });
    }
    let mut command = ctr(socket);
    command.arg("import");
    let work = async {
        let Some((program, package)) = unpacker(archive) else {
            let output = command.arg(archive).output().await.map_err(failed("ctr", "containerd"))?;
            return Ok::<(Output, Option<Output>), Error>((output, None));
        };
        let mut unpack = Command::new(program);
        unpack.args(["-dc", "--"]).arg(archive).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut unpack = unpack.kill_on_drop(true).spawn().map_err(failed(program, package))?;
        let unpacked = unpack.stdout.take().and_then(|out| out.try_into().ok()).unwrap_or_else(Stdio::null);
        let import = command.arg("-").stdin(unpacked).spawn().map_err(failed("ctr", "containerd"))?;
        // The pipe's end is the child's alone, or the unpacker would never learn that nobody reads.
        drop(command);
        let (unpacked, imported) = tokio::join!(unpack.wait_with_output(), import.wait_with_output());
        Ok((imported.map_err(failed("ctr", "containerd"))?, Some(unpacked.map_err(failed(program, package))?)))
    };
    let (imported, unpacked) = clock::timeout(LONGEST, work).await.map_err(|_| Error::Late { path: path() })??;
    let outputs = unpacked.iter().chain([&imported]);
    // A broken archive is told by the program that unpacks it rather than by the one that gets nothing from that.
    if let Some(broken) = outputs.clone().find(|output| !output.status.success()) {
        return Err(Error::Refused { path: path(), message: last_words(broken) });
    }
    Ok(names(&String::from_utf8_lossy(&imported.stdout)))
}

/// The images in the words of `ctr`: a line `unpacking NAME (sha256:…)...done` for each, or `NAME saved` of newer ones.
fn names(text: &str) -> Vec<String> {
    let of = |line: &str| match line.strip_prefix("unpacking ") {
        Some(rest) => Some(rest.split_once(' ')?.0.to_owned()),
        None => match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            [name, "saved", ..] => Some((*name).to_owned()),
            _ => None,
        },
    };
    text.lines().filter_map(of).collect()
}

/// Whether CRI shows an image that was just imported. It learns of it through containerd's events, a moment later.
pub async fn shows(engine: &dyn Runtime, image: &str) -> Result<bool, engine::Error> {
    for _ in 0..100 {
        if engine.image(image).await?.is_some() {
            return Ok(true);
        }
        clock::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// An archive as it was when it was imported, with the images that it brought.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    state: String,
    images: Vec<String>,
}

/// The archives that were imported already, by the names of their files.
struct Record {
    path: PathBuf,
    seen: BTreeMap<String, Seen>,
}

impl Record {
    /// One that is not there or cannot be read is empty: the archives are imported once more.
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let value = json::from_text::<Value>(&text).unwrap_or_default();
        let seen = |(name, value): (&str, &Value)| {
            let images = value["images"].as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            Some((name.to_owned(), Seen { state: value["state"].as_str()?.to_owned(), images }))
        };
        let seen_in = value["archives"].as_object().into_iter().flat_map(|map| map.iter());
        let seen = seen_in.map(|(name, value)| (&**name, value)).filter_map(seen).collect();
        Record { path: path.to_owned(), seen }
    }

    fn write(&self) -> io::Result<()> {
        let mut archives = Value::Object(json::Map::default());
        for (name, seen) in &self.seen {
            archives[name.as_str()] = json!({"state": seen.state, "images": seen.images});
        }
        modes::replace(&self.path, modes::PRIVATE_FILE, json!({ "archives": archives }).to_string())
    }
}

/// The file's size and the times of its content: another file has others.
fn state(path: &Path) -> io::Result<String> {
    let of = fs::metadata(path)?;
    Ok(format!("{} {}.{} {}.{}", of.size(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()))
}

/// The outcome of looking through a folder.
#[derive(Debug, Default)]
pub struct Imports {
    /// The images that came, by the archives that brought them.
    pub images: BTreeMap<String, Vec<String>>,
    /// The archives that brought nothing, and why.
    pub failures: Vec<String>,
}

/// The archives of a folder, by the names of their files.
fn archives(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let named = entries.flatten().map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let is_archive = |(name, path): &(String, PathBuf)| {
        !name.starts_with('.') && ENDINGS.iter().any(|(ending, _)| name.ends_with(ending)) && path.is_file()
    };
    let mut found: Vec<_> = named.filter(is_archive).collect();
    found.sort();
    Ok(found)
}

/// Imports the archives of a folder that are new, or whose images the engine has lost; the record says what was imported before.
/// The images are pinned. An archive that is broken keeps none of the others.
pub async fn import_folder(engine: &dyn Runtime, socket: &Path, folder: &Path, record: &Path) -> Imports {
    let mut imports = Imports::default();
    let found = archives(folder).unwrap_or_else(|error| {
        imports.failures.push(format!("cannot read {}: {error}", folder.display()));
        Vec::new()
    });
    if found.len() > ARCHIVES {
        imports.failures.push(format!(
            "{} has {} archives; the first {ARCHIVES} are imported",
            folder.display(),
            found.len()
        ));
    }
    let mut record = Record::read(record);
    record.seen.retain(|name, _| found.iter().any(|(held, _)| held == name));
    for (name, path) in found.into_iter().take(ARCHIVES) {
        match one(engine, socket, &path, record.seen.get(&name)).await {
            Ok(None) => {}
            Ok(Some(seen)) => {
                imports.images.insert(name.clone(), seen.images.clone());
                record.seen.insert(name, seen);
                // Written each time: a start that is interrupted goes on from there.
                if let Err(error) = record.write() {
                    tracing::warn!(%error, "cannot write {}: the archives are imported again", record.path.display());
                }
            }
            Err(error) => imports.failures.push(error.to_string()),
        }
    }
    imports
}

/// Imports one archive, unless it was imported and its images are still there.
async fn one(engine: &dyn Runtime, socket: &Path, path: &Path, before: Option<&Seen>) -> Result<Option<Seen>, Error> {
    let state = state(path).map_err(|error| Error::Refused { path: path.to_owned(), message: error.to_string() })?;
    if let Some(before) = before.filter(|before| before.state == state) {
        let mut is_whole = true;
        for image in &before.images {
            is_whole = is_whole && engine.image(image).await?.is_some();
        }
        if is_whole {
            return Ok(None);
        }
    }
    let images = import(socket, path).await?;
    for image in &images {
        let label = ctr(socket).args(["label", image, PINNED]).output();
        let pinned = clock::timeout(LONGEST, label).await;
        if !matches!(&pinned, Ok(Ok(output)) if output.status.success()) {
            tracing::warn!(image, "an imported image could not be pinned");
        }
        if !shows(engine, image).await? {
            return Err(Error::Unseen { path: path.to_owned(), image: image.clone() });
        }
    }
    Ok(Some(Seen { state, images }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn archives_are_known_by_their_endings() {
        for (name, program) in [
            ("a.tar", None),
            ("a.tar.gz", Some("gzip")),
            ("a.tgz", Some("gzip")),
            ("a.tar.zst", Some("zstd")),
            ("a", None),
        ] {
            assert_eq!(unpacker(Path::new(name)).map(|(program, _)| program), program, "{name}");
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.tar.zst", "a.tar", ".hidden.tar", "notes.txt", ".a.tar.part"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("folder.tar")).unwrap();
        let found: Vec<String> = archives(folder.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["a.tar", "b.tar.zst"]);
        assert!(archives(&folder.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn images_are_read_from_the_words_of_the_importer() {
        let older = "unpacking docker.io/library/a:1 (sha256:00)...done\nunpacking r.io/b:2 (sha256:11)...done\n";
        assert_eq!(names(older), ["docker.io/library/a:1", "r.io/b:2"]);
        assert_eq!(names("r.io/b:2   saved\nelapsed: 0.1 s\ttotal: 1.0 MiB\n"), ["r.io/b:2"]);
    }

    #[tokio::test]
    async fn an_archive_whose_images_are_there_is_not_imported_again() {
        let folder = tempfile::tempdir().unwrap();
        let (archive, at) = (folder.path().join("a.tar"), folder.path().join("record.json"));
        fs::write(&archive, "x").unwrap();
        let images = vec!["r.io/a:1".to_owned()];
        let seen = Seen { state: state(&archive).unwrap(), images };
        Record { path: at.clone(), seen: [("a.tar".to_owned(), seen.clone())].into() }.write().unwrap();
        assert_eq!(Record::read(&at).seen["a.tar"], seen);
        let engine = Fake::default();
        engine.add_image("r.io/a:1");
        // Nobody listens on this socket: whatever is imported fails.
        let socket = folder.path().join("none.sock");
        let look = async |engine: &Fake| import_folder(engine, &socket, folder.path(), &at).await;
        let imports = look(&engine).await;
        assert!(imports.failures.is_empty() && imports.images.is_empty(), "{imports:?}");
        let lost = look(&Fake::default()).await.failures;
        assert!(lost.len() == 1 && lost[0].contains("a.tar"), "{lost:?}");
        fs::write(&archive, "another").unwrap();
        assert_eq!(look(&engine).await.failures.len(), 1);
    }
}
