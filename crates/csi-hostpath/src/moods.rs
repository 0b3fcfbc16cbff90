//! The moods of the driver, which change its answer to a call, and the record of the calls.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use runtime::grpc::Status;

pub struct Moods {
    file: PathBuf,
    log: PathBuf,
}

#[derive(Debug, PartialEq)]
enum Mood {
    Willing,
    Refusing(String),
    Hanging,
    Lying,
    /// It does what it is asked, and says of the volume that it is not well.
    Ailing(String),
}

/// The mood of a method. A line that says something else is a fault of the test, and refuses.
fn mood(text: &str, method: &str) -> Mood {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    match lines.filter(|(name, _)| *name == method).map(|(_, mood)| mood.trim()).next_back() {
        None | Some("") => Mood::Willing,
        Some("hang") => Mood::Hanging,
        Some("lie") => Mood::Lying,
        Some(other) => match (other.strip_prefix("abnormal "), other.strip_prefix("refuse ")) {
            (Some(what), _) => Mood::Ailing(what.to_owned()),
            (None, why) => Mood::Refusing(why.unwrap_or("no such mood").to_owned()),
        },
    }
}

impl Moods {
    pub fn new(file: &Path, log: &Path) -> Moods {
        Moods { file: file.to_owned(), log: log.to_owned() }
    }

    /// Adds a line to the log.
    pub fn note(&self, method: &str, what: &str) {
        let file = fs::OpenOptions::new().create(true).append(true).open(&self.log);
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{method} {what}\n").as_bytes())) {
            eprintln!("{}: {error}", self.log.display());
        }
    }

    fn mood(&self, method: &str) -> Mood {
        mood(&fs::read_to_string(&self.file).unwrap_or_default(), method)
    }

    /// The words about volumes that are not well, where a method is to have any.
    pub fn ailment(&self, method: &str) -> Option<String> {
        match self.mood(method) {
            Mood::Ailing(words) => Some(words),
            _ => None,
        }
    }

    /// Answers a call as the mood is.
    pub async fn answer<A: Default>(
        &self,
        method: &str,
        what: &str,
        work: impl FnOnce() -> Result<A, Status>,
    ) -> Result<A, Status> {
        self.note(method, what);
        match self.mood(method) {
            Mood::Willing | Mood::Ailing(_) => work(),
            Mood::Refusing(why) => Err(Status::internal(why)),
            Mood::Hanging => std::future::pending().await,
            Mood::Lying => Ok(A::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_about_a_method_counts() {
        let text = "Stage refuse no disk\nPublish hang\nStage lie\nUnstage \nUnpublish sing\nStats abnormal the disk is gone\n";
        let refusing = |why: &str| Mood::Refusing(why.to_owned());
        for (method, expected) in [
            ("Stage", Mood::Lying),
            ("Publish", Mood::Hanging),
            ("Unstage", Mood::Willing),
            ("Unpublish", refusing("no such mood")),
            ("GetInfo", Mood::Willing),
            ("Stats", Mood::Ailing("the disk is gone".to_owned())),
        ] {
            assert_eq!(mood(text, method), expected, "{method}");
        }
        assert_eq!(mood("Stage refuse no disk", "Stage"), refusing("no disk"));
    }

    #[tokio::test]
    async fn what_was_asked_is_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let (file, log) = (folder.path().join("moods"), folder.path().join("log"));
        let moods = Moods::new(&file, &log);
        assert_eq!(moods.answer("Stage", "v", || Ok(7)).await.unwrap(), 7);
        fs::write(&file, "Stage abnormal old").unwrap();
        assert_eq!((moods.ailment("Stage").as_deref(), moods.ailment("Publish")), (Some("old"), None));
        assert_eq!(moods.answer("Stage", "v", || Ok(7)).await.unwrap(), 7);
        fs::write(&file, "Stage refuse no disk").unwrap();
        assert_eq!(moods.answer("Stage", "v", || Ok(7)).await.unwrap_err().message(), "no disk");
        assert_eq!(fs::read_to_string(&log).unwrap(), "Stage v\nStage v\nStage v\n");
    }
}
