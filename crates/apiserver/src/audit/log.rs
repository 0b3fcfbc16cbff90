//! The audit log: one line for each event, in a file that is put aside when it is large, or on standard output.
//!
//! A file that is put aside has the time in its name. The newest of them are kept, as many and as long as is wanted.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use clock::Timestamp;
use flate2::{Compression, write::GzEncoder};
use parking_lot::{Mutex, MutexGuard};

use super::event::Event;

/// Only the server's own user reads what everybody did.
const MODE: u32 = 0o600;
/// The size at which a file is put aside when none is given, in megabytes.
const MEGABYTES: u64 = 100;
const COMPRESSED: &str = "gz";
const TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    /// One line for people with a part of what is known.
    Legacy,
}

/// Where the log is, and what is kept of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `-` is standard output.
    pub path: PathBuf,
    pub format: Format,
    /// Days that a file is kept that was put aside; 0 is for ever.
    pub days: u32,
    /// How many of them are kept; 0 is all.
    pub files: usize,
    /// The size at which one is put aside; 0 is a hundred.
    pub megabytes: u64,
    pub compress: bool,
}

pub struct Log {
    format: Format,
    file: Option<Mutex<Rotating>>,
}

impl Log {
    /// Opens the file. That it cannot be opened is said now, not by the first event.
    pub fn open(settings: &Settings) -> io::Result<Log> {
        if settings.path == Path::new("-") {
            return Ok(Log { format: settings.format, file: None });
        }
        let file = Rotating::open(settings)?;
        Ok(Log { format: settings.format, file: Some(Mutex::new(file)) })
    }

    pub fn wants_lines(&self) -> bool {
        self.format == Format::Legacy
    }

    /// The line of an event.
    pub fn append(&self, event: &Event, text: &mut Vec<u8>) {
        match self.format {
            Format::Json => text.extend_from_slice(event.document()),
            Format::Legacy => text.extend_from_slice(event.line().as_bytes()),
        }
        text.push(b'\n');
    }

    /// The way to the file, for one writer at a time.
    pub fn locked(&self) -> Locked<'_> {
        match &self.file {
            Some(file) => Locked::File(file.lock()),
            None => Locked::Output(io::stdout().lock()),
        }
    }

    /// The events that could not be written.
    pub fn write(&self, events: &[Event]) -> Lost {
        let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(events.len()));
        for event in events {
            self.append(event, &mut text);
            ends.push(text.len());
        }
        self.locked().write(&text, &ends)
    }
}

pub enum Locked<'a> {
    File(MutexGuard<'a, Rotating>),
    Output(io::StdoutLock<'static>),
}

/// Numbers of events, and the error of the last one.
#[derive(Debug, Default)]
pub struct Lost {
    pub events: Vec<usize>,
    pub why: Option<String>,
}

impl Locked<'_> {
    /// Writes lines that end at these places: all at once where a file takes them, and otherwise each by itself, so that one
    /// that is too large is lost alone.
    pub fn write(&mut self, text: &[u8], ends: &[usize]) -> Lost {
        match self {
            Locked::Output(output) => lost(0..ends.len(), output.write_all(text)),
            Locked::File(file) if text.len() as u64 <= file.limit => lost(0..ends.len(), file.write(text)),
            Locked::File(file) => {
                let mut all = Lost::default();
                let mut begin = 0;
                for (number, end) in ends.iter().enumerate() {
                    let one = lost(number..number + 1, file.write(&text[begin..*end]));
                    all.events.extend(one.events);
                    all.why = one.why.or(all.why);
                    begin = *end;
                }
                all
            }
        }
    }
}

fn lost(events: std::ops::Range<usize>, written: io::Result<()>) -> Lost {
    match written {
        Ok(()) => Lost::default(),
        Err(error) => Lost { events: events.collect(), why: Some(error.to_string()) },
    }
}

/// A file with a largest size.
pub struct Rotating {
    file: File,
    size: u64,
    limit: u64,
    settings: Settings,
}

impl Rotating {
    fn open(settings: &Settings) -> io::Result<Self> {
        if let Some(folder) = settings.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        let file = files::modes::append(&settings.path, MODE)?;
        let megabytes = if settings.megabytes == 0 { MEGABYTES } else { settings.megabytes };
        let limit = megabytes.saturating_mul(1 << 20);
        Ok(Rotating { size: file.metadata()?.len(), file, limit, settings: settings.clone() })
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let length = text.len() as u64;
        if length > self.limit {
            return Err(io::Error::other(format!("write length {length} exceeds maximum file size {}", self.limit)));
        }
        if self.size + length > self.limit {
            self.rotate(clock::now())?;
        }
        self.file.write_all(text)?;
        self.size += length;
        Ok(())
    }

    /// Puts the file aside and begins another one.
    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        fs::rename(&self.settings.path, aside(&self.settings.path, now))?;
        self.file = files::modes::append(&self.settings.path, MODE)?;
        self.size = 0;
        let settings = self.settings.clone();
        // Compressing a hundred megabytes takes its time: nobody waits for it.
        let tidy = move || {
            if let Err(error) = tidy(&settings, now) {
                tracing::error!(%error, "old audit logs could not be tidied up");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(tidy)),
            Err(_) => tidy(),
        }
        Ok(())
    }
}

/// The name before the time and the ending behind it.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.map(|p| p.to_string_lossy().into_owned());
    let ending = text(path.extension()).map(|ending| format!(".{ending}")).unwrap_or_default();
    (format!("{}-", text(path.file_stem()).unwrap_or_default()), ending)
}

/// The name of a file that is put aside now.
fn aside(path: &Path, now: Timestamp) -> PathBuf {
    let (name, ending) = parts(path);
    path.with_file_name(format!("{name}{}{ending}", now.strftime(TIME)))
}

/// Removes what is too old or too much, and compresses the rest.
fn tidy(settings: &Settings, now: Timestamp) -> io::Result<()> {
    let (name, ending) = parts(&settings.path);
    let folder = files::folder_of(&settings.path);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        let whole = file.strip_suffix(&format!(".{COMPRESSED}")).unwrap_or(&file);
        let time = whole.strip_prefix(&name).and_then(|rest| rest.strip_suffix(&ending)).and_then(time);
        found.extend(time.map(|time| (time, path)));
    }
    found.sort_by(|a, b| b.cmp(a));
    for (at, (time, path)) in found.into_iter().enumerate() {
        let late = settings.days > 0 && now.as_second() - time.as_second() > i64::from(settings.days) * 86_400;
        if late || (settings.files > 0 && at >= settings.files) {
            fs::remove_file(path)?;
        } else if settings.compress && path.extension().is_none_or(|ending| ending != COMPRESSED) {
            compress(&path)?;
        }
    }
    Ok(())
}

fn time(text: &str) -> Option<Timestamp> {
    Timestamp::strptime("%Y-%m-%dT%H-%M-%S%.f%z", format!("{text}+0000")).ok()
}

/// The compressed file takes the place of the other one when it is whole.
fn compress(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{COMPRESSED}"));
    let target = PathBuf::from(name);
    let begun = target.with_extension("part");
    let mut encoder = GzEncoder::new(files::modes::append(&begun, MODE)?, Compression::default());
    encoder.get_ref().set_len(0)?;
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::rename(begun, target)?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn settings(folder: &Path, files: usize, days: u32, compress: bool) -> Settings {
        let path = folder.join("audit.log");
        Settings { path, format: Format::Json, days, files, megabytes: 1, compress }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn a_large_file_is_put_aside_and_few_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Rotating::open(&settings(folder.path(), 2, 0, false)).unwrap();
        let begin: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        for second in 0..4 {
            log.write(format!("{second}\n").as_bytes()).unwrap();
            log.rotate(Timestamp::from_second(begin.as_second() + second).unwrap()).unwrap();
        }
        let expected = ["audit-2024-01-01T00-00-02.000.log", "audit-2024-01-01T00-00-03.000.log", "audit.log"];
        assert_eq!(names(folder.path()), expected);
        assert_eq!(fs::read_to_string(folder.path().join(expected[1])).unwrap(), "3\n");
        assert!(log.write(&vec![b'x'; (1 << 20) + 1]).is_err(), "no line is larger than a file");
        log.write(&vec![b'x'; 1 << 20]).unwrap();
        log.write(b"y\n").unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("audit.log")).unwrap(), "y\n");
    }

    #[test]
    fn old_files_go_and_others_are_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 0, 2, true);
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for time in ["2024-01-01T00:00:00Z", "2024-01-09T00:00:00Z"] {
            fs::write(aside(&settings.path, at(time)), "text").unwrap();
        }
        fs::write(folder.path().join("audit-other.log"), "").unwrap();
        tidy(&settings, at("2024-01-10T00:00:00Z")).unwrap();
        assert_eq!(names(folder.path()), ["audit-2024-01-09T00-00-00.000.log.gz", "audit-other.log"]);
        let file = File::open(folder.path().join("audit-2024-01-09T00-00-00.000.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn a_log_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder.path().join("below"), 0, 0, false);
        Rotating::open(&settings).unwrap().write(b"a\n").unwrap();
        let mut log = Rotating::open(&settings).unwrap();
        log.write(b"b\n").unwrap();
        assert_eq!((fs::read_to_string(&settings.path).unwrap(), log.size), ("a\nb\n".to_owned(), 4));
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&settings.path).unwrap().permissions());
        assert_eq!(mode & 0o777, MODE);
    }
}
