//! When the last graceful end began and when it was over, in a file: the metrics tell it after the machine's next start. The
//! layout is upstream's.

use std::{fs, io, path::Path};

use clock::Timestamp;
use files::modes;
use serde::{Deserialize, Serialize};

pub const NAME: &str = "graceful_node_shutdown_state";
/// A time that has not come, as Go writes it.
const NEVER: &str = "0001-01-01T00:00:00Z";
/// No file of ours has more.
const MOST: u64 = 4096;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    pub began: Option<Timestamp>,
    pub ended: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    start_time: String,
    end_time: String,
}

impl Record {
    /// The record in a folder; an empty one where there is none.
    pub fn read(folder: &Path) -> io::Result<Record> {
        let path = folder.join(NAME);
        let bytes = match fs::metadata(&path) {
            Ok(meta) if meta.len() > MOST => return Err(io::Error::other("it is too long")),
            Ok(_) => fs::read(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(error),
        };
        let document: Document = serde_json::from_slice(&bytes)?;
        let time = |text: &str| match text {
            NEVER => Ok(None),
            text => text.parse::<Timestamp>().map(Some).map_err(io::Error::other),
        };
        Ok(Record { began: time(&document.start_time)?, ended: time(&document.end_time)? })
    }

    /// Replaces it. The machine ends soon: it is on the disk afterwards.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text = |time: Option<Timestamp>| time.map_or_else(|| NEVER.to_owned(), |time| time.to_string());
        let document = Document { start_time: text(self.began), end_time: text(self.ended) };
        modes::replace_durably(&folder.join(NAME), modes::SEEN_FILE, serde_json::to_vec(&document)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_upstream_writes_it_and_as_it_is_written_here() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path()).unwrap(), Record::default());
        let at = |text: &str| Some(text.parse().unwrap());
        let upstreams = r#"{"startTime":"2026-03-01T13:00:00.123456789+01:00","endTime":"0001-01-01T00:00:00Z"}"#;
        fs::write(folder.path().join(NAME), upstreams).unwrap();
        let record = Record { began: at("2026-03-01T12:00:00.123456789Z"), ended: None };
        assert_eq!(Record::read(folder.path()).unwrap(), record);
        let record = Record { ended: at("2026-03-01T12:00:30Z"), ..record };
        record.write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()).unwrap(), record);
        for broken in ["", "{}", r#"{"startTime": "x", "endTime": "y"}"#, &" ".repeat(5000)] {
            fs::write(folder.path().join(NAME), broken).unwrap();
            assert!(Record::read(folder.path()).is_err(), "{broken}");
        }
    }
}
