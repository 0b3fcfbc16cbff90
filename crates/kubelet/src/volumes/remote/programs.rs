//! Programs of the machine that know file systems and protocols which the kubelet does not.

use std::{
    fmt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
};

/// Programs of administrators, which a service's search path may leave out.
const MORE: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"];
/// A server that does not answer holds up its Pods no longer; then it is tried again. Longer than mount.nfs tries itself.
const LONGEST: Duration = Duration::from_secs(150);
/// The bytes that are read of a program's words.
const MOST_WORDS: u64 = 4096;

/// Where programs are looked for, in this order.
pub struct Programs(Vec<PathBuf>);

/// A program that did not do what it was asked for.
#[derive(Debug)]
pub struct Failed {
    pub code: Option<i32>,
    pub output: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "exit status {code}, output: {}", self.output),
            None => f.write_str(&self.output),
        }
    }
}

impl Programs {
    pub fn of_this_machine() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Programs::of(std::env::split_paths(&path).chain(MORE.map(PathBuf::from)).collect())
    }

    pub fn of(folders: Vec<PathBuf>) -> Self {
        Programs(folders)
    }

    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let runs = |path: &Path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        self.0.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(|path| runs(path))
    }

    /// Runs a program to its end. Its output, also the one of errors, is for people, or for who knows the program.
    pub async fn run(&self, name: &str, arguments: &[&str]) -> Result<String, Failed> {
        let failed = |output: String| Failed { code: None, output };
        let program = self.find(name).ok_or_else(|| failed(format!("{name} is not on this node")))?;
        let path = std::env::join_paths(&self.0).unwrap_or_default();
        let mut command = Command::new(program);
        command.args(arguments).env("PATH", path).env("LC_ALL", "C").kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(format!("{name} cannot be started: {error}")))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let ended = clock::timeout(LONGEST, async {
            let (out, err) = tokio::join!(words(out), words(err));
            (child.wait().await, [out, err].concat())
        });
        let Ok((status, output)) = ended.await else {
            return Err(failed(format!("{name} did not end within {} seconds", LONGEST.as_secs())));
        };
        match status {
            Ok(status) if status.success() => Ok(output),
            Ok(status) => Err(Failed { code: Some(status.code().unwrap_or(-1)), output: output.trim().to_owned() }),
            Err(error) => Err(failed(format!("{name}: {error}"))),
        }
    }
}

/// The first words of a stream; the others are passed over, so that the program can end.
async fn words(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut kept = Vec::new();
    // Words that cannot be read were not said.
    let _ = (&mut stream).take(MOST_WORDS).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).into_owned()
}

/// Scripts in the place of programs, for tests: what they are called with is written down.
#[cfg(test)]
pub struct Fakes {
    pub folder: tempfile::TempDir,
}

#[cfg(test)]
impl Fakes {
    pub fn in_a_new_folder() -> Self {
        Fakes { folder: tempfile::tempdir().unwrap() }
    }

    /// A program with this shell script as its work.
    pub fn add(&self, name: &str, script: &str) -> &Self {
        let (path, log) = (self.folder.path().join(name), self.log());
        let text = format!(
            "#!/bin/sh\necho \"{name} $*\" >>{}\ncd {}\n{script}\n",
            log.display(),
            self.folder.path().display()
        );
        // Written by a child, so that no other test's fork holds the file open for writing while it is run.
        let mut writer = std::process::Command::new("sh")
            .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut writer.stdin.take().unwrap(), text.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        self
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("calls")
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.log()).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    pub fn programs(&self) -> Programs {
        // The scripts need the tools of a shell.
        Programs::of(vec![self.folder.path().to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_is_found_and_its_words_are_kept_within_bounds() {
        let fakes = Fakes::in_a_new_folder();
        fakes.add("good", "echo out; echo err >&2").add("bad", "echo why >&2; exit 32");
        fakes.add("loud", "i=0; while [ $i -lt 2000 ]; do echo 0123456789; i=$((i+1)); done");
        let programs = fakes.programs();
        assert_eq!(programs.run("good", &["a", "b c"]).await.unwrap(), "out\nerr\n");
        let failed = programs.run("bad", &[]).await.unwrap_err();
        assert_eq!((failed.code, failed.to_string().as_str()), (Some(32), "exit status 32, output: why"));
        assert_eq!(programs.run("none", &[]).await.unwrap_err().to_string(), "none is not on this node");
        assert_eq!(programs.run("loud", &[]).await.unwrap().len() as u64, MOST_WORDS);
        assert_eq!(fakes.calls(), ["good a b c", "bad ", "loud "]);
        assert!(Programs::of(vec!["relative".into()]).find("good").is_none());
    }
}
