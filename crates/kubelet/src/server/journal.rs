//! The words of the machine's services, from its journal or from their files below `/var/log`. The journal's own program reads it.
//! Upstream counterpart: pkg/kubelet/kubelet_server_journal.go and its part for Linux.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use files::Dir;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    sync::{Semaphore, mpsc},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use super::{
    answer::{Answer, text},
    log_query::Query,
};
use crate::volumes::{folder::blocking, remote::programs::Programs};

const PROGRAM: &str = "journalctl";
/// An answer takes no longer than that.
const LONGEST: Duration = Duration::from_secs(30);
/// Answers that are made at once: each is a process that reads much.
const AT_ONCE: usize = 4;
const PIECE: usize = 64 << 10;
/// The list of the journal's services is not read further.
const MOST_SERVICES: u64 = 4 << 20;

static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_ONCE)));

/// The journal of this machine, and the folder of its logs.
pub struct Journal {
    programs: Programs,
    folder: &'static Path,
    places: Arc<Semaphore>,
}

impl Journal {
    pub fn of_this_machine(folder: &'static Path) -> Journal {
        Journal { programs: Programs::of_this_machine(), folder, places: PLACES.clone() }
    }
}

type Pieces = mpsc::Sender<Bytes>;

/// The words of the services that are asked for.
pub fn answer(journal: Journal, query: Query) -> Answer {
    let Journal { programs, folder, places } = journal;
    let Ok(place) = places.try_acquire_owned() else {
        return text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.".to_owned());
    };
    let (to, pieces) = mpsc::channel::<Bytes>(4);
    tokio::spawn(async move {
        let _place = place;
        // A reader that has gone wants no more, and one that is slow gets what there is by then.
        let _ = clock::timeout(LONGEST, tell(&programs, folder, &query, &to)).await;
    });
    let frames = ReceiverStream::new(pieces).map(|bytes| Ok(Frame::data(bytes)));
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    let sort = HeaderValue::from_static("text/plain;charset=UTF-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, sort);
    answer
}

/// A sentence between what was found; false when nobody reads any more.
async fn say(to: &Pieces, words: String) -> bool {
    to.send(Bytes::from(words)).await.is_ok()
}

async fn tell(programs: &Programs, folder: &'static Path, query: &Query, to: &Pieces) {
    let units = units(programs).await;
    let is_native = |service: &&str| units.contains(&format!("{service}.service"));
    let all = query.services.iter().map(String::as_str);
    let (native, by_file): (Vec<&str>, Vec<&str>) = all.partition(is_native);
    if !native.is_empty() && !journal(programs, &query.arguments(&native), to).await {
        return;
    }
    if !by_file.is_empty() && query.has_options() {
        let names = by_file.join(" ");
        let words = format!(
            "\noptions present and query resolved to log files for [{names}]\ntry without specifying options\n"
        );
        say(to, words).await;
        return;
    }
    for service in by_file {
        if !of_file(folder, service, to).await {
            return;
        }
    }
}

fn command(programs: &Programs) -> Option<Command> {
    let mut command = Command::new(programs.find(PROGRAM)?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    Some(command)
}

/// The units that the journal knows, a line for each. None where there is no journal.
async fn units(programs: &Programs) -> String {
    let Some(mut command) = command(programs) else { return String::new() };
    command.args(["--field", "_SYSTEMD_UNIT"]).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return String::new() };
    let mut units = Vec::new();
    if let Some(out) = child.stdout.take() {
        let _ = out.take(MOST_SERVICES).read_to_end(&mut units).await;
    }
    String::from_utf8_lossy(&units).into_owned()
}

/// The words of the journal's program, with its complaints at the end; false when nobody reads any more.
async fn journal(programs: &Programs, arguments: &[String], to: &Pieces) -> bool {
    let child = command(programs).map(|mut command| command.args(arguments).spawn());
    let Some(Ok(mut child)) = child else {
        return say(to, "\nerror: journal output not available\n".to_owned()).await;
    };
    let (out, complaints) = (child.stdout.take(), child.stderr.take());
    let complaints = async {
        let mut words = Vec::new();
        if let Some(complaints) = complaints {
            let _ = complaints.take(PIECE as u64).read_to_end(&mut words).await;
        }
        words
    };
    let (is_read, complaints) = tokio::join!(copy(out, to), complaints);
    is_read && (complaints.is_empty() || to.send(complaints.into()).await.is_ok())
}

async fn copy(from: Option<impl AsyncRead + Unpin>, to: &Pieces) -> bool {
    let Some(mut from) = from else { return true };
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if to.send(Bytes::copy_from_slice(&piece[..read])).await.is_err() {
            return false;
        }
    }
    true
}

/// The file of a service, at one of the usual places; no link leads out of the folder.
async fn of_file(folder: &'static Path, service: &str, to: &Pieces) -> bool {
    let places = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
    let found = blocking(move || {
        let root = Dir::open(folder).ok()?;
        places.iter().find_map(|place| root.file(Path::new(place)).ok())
    });
    match found.await {
        Some(file) => {
            let length = file.metadata().map_or(0, |meta| meta.len());
            copy(Some(tokio::fs::File::from_std(file).take(length)), to).await
        }
        None => say(to, format!("\nlog not found for {service}\n")).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::remote::programs::Fakes;

    const JOURNAL: &str = r#"case "$*" in *--field*) echo kubelet.service; echo other.service ;; *grep=wrong*) echo bad >&2; exit 1 ;; *) echo words ;; esac"#;

    async fn asked(fakes: &Fakes, folder: &'static Path, query: &str) -> String {
        let query = Query::read(query).unwrap().unwrap();
        query.check(|_| true).unwrap();
        let journal = Journal { programs: fakes.programs(), folder, places: Arc::new(Semaphore::new(1)) };
        let body = answer(journal, query).into_body().collect().await.unwrap().to_bytes();
        String::from_utf8_lossy(&body).into_owned()
    }

    #[tokio::test]
    async fn services_are_asked_of_the_journal_and_others_have_files() {
        let fakes = Fakes::in_a_new_folder();
        fakes.add(PROGRAM, JOURNAL);
        let logs: &'static Path = Box::leak(tempfile::tempdir().unwrap().keep().into_boxed_path());
        std::fs::create_dir(logs.join("apt")).unwrap();
        std::fs::write(logs.join("apt/apt.log"), "installed\n").unwrap();
        std::fs::write(logs.join("dpkg.log"), "configured\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", logs.join("link")).unwrap();
        assert_eq!(asked(&fakes, logs, "query=kubelet&tailLines=3").await, "words\n");
        let call = "journalctl --utc --no-pager --pager-end --lines=3 --unit=kubelet --output=short-precise";
        assert_eq!(fakes.calls(), ["journalctl --field _SYSTEMD_UNIT", call]);
        assert_eq!(asked(&fakes, logs, "query=apt&query=dpkg").await, "installed\nconfigured\n");
        assert_eq!(asked(&fakes, logs, "query=kubelet&query=link").await, "words\n\nlog not found for link\n");
        assert_eq!(asked(&fakes, logs, "query=kubelet&pattern=wrong").await, "bad\n");
        let options = "\noptions present and query resolved to log files for [apt]\ntry without specifying options\n";
        assert_eq!(asked(&fakes, logs, "query=apt&boot=0").await, options);
        // Without a journal each has its file.
        let none = Fakes::in_a_new_folder();
        assert_eq!(asked(&none, logs, "query=dpkg").await, "configured\n");
        std::fs::remove_dir_all(logs).unwrap();
    }

    #[tokio::test]
    async fn no_more_answers_are_made_at_once_than_the_machine_should_bear() {
        let query = || Query::read("query=kubelet").unwrap().unwrap();
        let places = Arc::new(Semaphore::new(1));
        let journal =
            || Journal { programs: Programs::of(Vec::new()), folder: Path::new("/none"), places: places.clone() };
        let held = places.clone().try_acquire_owned().unwrap();
        assert_eq!(answer(journal(), query()).status(), StatusCode::TOO_MANY_REQUESTS);
        drop(held);
        assert_eq!(answer(journal(), query()).status(), StatusCode::OK);
    }
}
