//! Files of an administrator's that are looked at every two seconds, so that what they say is taken up while a program runs.

use std::path::PathBuf;

use clock::Duration;

/// The pause between two looks.
pub const LOOK: Duration = Duration::from_secs(2);

/// Files, and what they held at the last look.
#[derive(Debug)]
pub struct Followed {
    files: Vec<PathBuf>,
    texts: Vec<String>,
    /// Whether the texts of the last look are told once more.
    again: bool,
    /// The last reason why they could not be read.
    unread: String,
}

/// The texts of files; an error names the file.
pub fn read(files: &[PathBuf]) -> Result<Vec<String>, String> {
    let text = |file: &PathBuf| {
        std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
    };
    files.iter().map(text).collect()
}

impl Followed {
    /// `texts` is what the files hold, which is known.
    pub fn new(files: Vec<PathBuf>, texts: Vec<String>) -> Self {
        Followed { files, texts, again: false, unread: String::new() }
    }

    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Waits until the files hold something else, or until they cannot be read for a reason that was not told at the look before.
    pub async fn changed(&mut self) -> Result<Vec<String>, String> {
        loop {
            clock::sleep(LOOK).await;
            match read(&self.files) {
                Ok(texts) if texts == self.texts && !self.again => self.unread.clear(),
                Ok(texts) => {
                    self.again = false;
                    self.unread.clear();
                    self.texts.clone_from(&texts);
                    return Ok(texts);
                }
                Err(why) if why == self.unread => {}
                Err(why) => {
                    self.unread.clone_from(&why);
                    return Err(why);
                }
            }
        }
    }

    /// The texts could not be taken up, and are told at the next look too: a file may have been half written.
    pub fn not_taken(&mut self) {
        self.again = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_change_and_each_reason_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("1");
        let mut followed = Followed::new(vec![file.clone()], read(std::slice::from_ref(&file)).unwrap());
        let quiet = async |followed: &mut Followed| {
            let told = clock::timeout(LOOK * 5, followed.changed()).await;
            assert!(told.is_err(), "{told:?}");
        };
        quiet(&mut followed).await;
        write("2");
        assert_eq!(followed.changed().await, Ok(vec!["2".to_owned()]));
        quiet(&mut followed).await;
        followed.not_taken();
        assert_eq!(followed.changed().await, Ok(vec!["2".to_owned()]));
        std::fs::remove_file(&file).unwrap();
        let why = followed.changed().await.unwrap_err();
        assert!(why.starts_with(&format!("cannot read {}: ", file.display())), "{why}");
        quiet(&mut followed).await;
        write("2");
        quiet(&mut followed).await;
        std::fs::remove_file(&file).unwrap();
        assert_eq!(followed.changed().await, Err(why));
    }
}
