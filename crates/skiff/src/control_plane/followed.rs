//! Files of the administrator's that are read anew when they change. What is wrong with them then changes nothing, and is said once.

use std::path::PathBuf;

use files::followed::Followed as Files;
use futures::future::BoxFuture;

type Apply = Box<dyn Fn(Vec<String>) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

pub struct Followed {
    files: Files,
    apply: Apply,
}

/// The texts of files.
pub fn read(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    files::followed::read(files).map_err(anyhow::Error::msg)
}

impl Followed {
    /// `texts` is what the files hold, which has been applied.
    pub fn new(
        (files, texts): (Vec<PathBuf>, Vec<String>),
        apply: impl Fn(Vec<String>) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync + 'static,
    ) -> Self {
        Followed { files: Files::new(files, texts), apply: Box::new(apply) }
    }

    /// Follows the files until cancelled. A change that cannot be applied is tried again at the next look.
    pub async fn run(mut self) {
        let mut said = String::new();
        loop {
            let wrong = match self.files.changed().await {
                Err(why) => why,
                Ok(texts) => match (self.apply)(texts).await {
                    Ok(()) => {
                        let files = self.files.files().iter().map(|file| file.display().to_string());
                        tracing::info!(files = files.collect::<Vec<_>>().join(","), "these files were read anew");
                        said.clear();
                        continue;
                    }
                    Err(error) => {
                        self.files.not_taken();
                        format!("{error:#}")
                    }
                },
            };
            if wrong != said {
                tracing::error!("{wrong}; what was read before stays in force");
            }
            said = wrong;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use files::followed::LOOK;
    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_are_applied_and_what_is_wrong_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let files = vec![folder.path().join("a"), folder.path().join("b")];
        let write = |at: usize, text: &str| std::fs::write(&files[at], text).unwrap();
        write(0, "1");
        write(1, "1");
        let applied = Arc::<Mutex<Vec<String>>>::default();
        let seen = applied.clone();
        let apply = move |texts: Vec<String>| {
            let seen = seen.clone();
            async move {
                anyhow::ensure!(texts[0] == texts[1], "they do not go together");
                seen.lock().unwrap().push(texts.concat());
                Ok(())
            }
            .boxed()
        };
        let texts = read(&files).unwrap();
        let following = tokio::spawn(Followed::new((files.clone(), texts), apply).run());
        let after_a_look = async || {
            clock::sleep(LOOK * 2).await;
            applied.lock().unwrap().clone()
        };
        assert!(after_a_look().await.is_empty());
        write(0, "2");
        assert!(after_a_look().await.is_empty());
        write(1, "2");
        assert_eq!(after_a_look().await, ["22"]);
        std::fs::remove_file(&files[0]).unwrap();
        assert_eq!(after_a_look().await, ["22"]);
        write(0, "3");
        write(1, "3");
        assert_eq!(after_a_look().await, ["22", "33"]);
        following.abort();
    }
}
