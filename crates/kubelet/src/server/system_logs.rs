//! `/logs/`: the files below `/var/log`, for who may read the node's logs. No link is followed.

use std::{io::Read, path::Path};

use bytes::Bytes;
use files::Dir;
use futures::StreamExt;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    answer::{Answer, text},
    journal::{self, Journal},
    log_query::Query,
};

const FOLDER: &str = "/var/log";

/// With `asks_services` the query of the URL may ask for services of the machine.
pub async fn answer(path: &str, query: &str, asks_services: bool) -> Answer {
    let folder = Path::new(FOLDER);
    match asked(folder, path, query, asks_services) {
        Ok(Asked::Files(path)) => answer_of(folder, &path),
        Ok(Asked::Services(query)) => journal::answer(Journal::of_this_machine(folder), query),
        Err((code, why)) => text(code, format!("{why}\n")),
    }
}

#[derive(Debug, PartialEq)]
enum Asked {
    Files(String),
    Services(Query),
}

fn asked(folder: &Path, path: &str, query: &str, asks_services: bool) -> Result<Asked, (StatusCode, String)> {
    let query = if asks_services { Query::read(query).map_err(|why| (StatusCode::BAD_REQUEST, why))? } else { None };
    let Some(query) = query else { return Ok(Asked::Files(path.to_owned())) };
    let refused = |why: String| (StatusCode::NOT_ACCEPTABLE, why);
    if !path.trim_matches('/').is_empty() {
        return Err(refused("path not allowed in query mode".to_owned()));
    }
    let root = Dir::open(folder).ok();
    let is_there = |file: &str| {
        let (file, root) = (file.replace('\\', "/"), root.as_ref());
        let file = Path::new(file.trim_start_matches('/'));
        root.is_some_and(|root| root.file(file).is_ok() || root.folder(file).is_ok())
    };
    query.check(is_there).map_err(refused)?;
    Ok(query.file().map_or_else(|| Asked::Services(query), Asked::Files))
}

fn answer_of(folder: &Path, path: &str) -> Answer {
    let below = Path::new(path.trim_matches('/'));
    let missing = || text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
    let Ok(root) = Dir::open(folder) else { return missing() };
    if below.as_os_str().is_empty() {
        return page(&root);
    }
    match (root.file(below), root.folder(below)) {
        (Ok(file), _) => send(file),
        (Err(_), Ok(folder)) => page(&folder),
        (Err(_), Err(_)) => missing(),
    }
}

/// The names in a folder, as Go's file server lists them.
fn page(folder: &Dir) -> Answer {
    let mut names: Vec<String> = folder
        .names()
        .map(|names| {
            let ending = |name: &std::ffi::OsString| {
                let is_folder = folder.meta_of(name).is_ok_and(|meta| files::beneath::is_folder(&meta));
                format!("{}{}", name.to_string_lossy(), if is_folder { "/" } else { "" })
            };
            names.map(|name| ending(&name)).collect()
        })
        .unwrap_or_default();
    names.sort();
    let escaped =
        |name: &str| name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let rows = names.iter().map(|name| format!("<a href=\"{0}\">{0}</a>\n", escaped(name)));
    let mut answer = text(StatusCode::OK, format!("<!doctype html>\n<pre>\n{}</pre>\n", rows.collect::<String>()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

/// The file as it is now; what is written to it meanwhile is not waited for.
fn send(file: std::fs::File) -> Answer {
    const PIECE: usize = 64 << 10;
    let length = file.metadata().map_or(0, |meta| meta.len());
    let (to, pieces) = mpsc::channel::<Bytes>(4);
    tokio::task::spawn_blocking(move || {
        let mut rest = file.take(length);
        let mut buffer = vec![0; PIECE];
        // A reader that has gone wants no more.
        while let Ok(read) = rest.read(&mut buffer) {
            if read == 0 || to.blocking_send(Bytes::copy_from_slice(&buffer[..read])).is_err() {
                break;
            }
        }
    });
    let frames = ReceiverStream::new(pieces).map(|bytes| Ok(Frame::data(bytes)));
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    async fn read(folder: &Path, path: &str) -> (u16, String) {
        let answer = answer_of(folder, path);
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn files_below_the_folder_are_read_and_no_link_leads_out() {
        let world = tempfile::tempdir().unwrap();
        let logs = world.path().join("log");
        fs::create_dir_all(logs.join("apt")).unwrap();
        fs::write(logs.join("syslog"), "x".repeat(200_000)).unwrap();
        fs::write(logs.join("apt/a<b"), "term").unwrap();
        fs::write(world.path().join("shadow"), "s3cret").unwrap();
        std::os::unix::fs::symlink(world.path().join("shadow"), logs.join("link")).unwrap();
        let (code, page) = read(&logs, "/").await;
        assert_eq!(code, 200);
        assert!(page.contains("<a href=\"apt/\">apt/</a>\n") && page.contains("syslog"), "{page}");
        assert!(read(&logs, "/apt").await.1.contains(">a&lt;b</a>"));
        assert_eq!(read(&logs, "/syslog").await.1.len(), 200_000);
        assert_eq!(read(&logs, "/apt/a<b").await, (200, "term".to_owned()));
        for path in ["/link", "/none", "/../shadow"] {
            assert_eq!(read(&logs, path).await.0, 404, "{path}");
        }
    }

    #[test]
    fn services_are_asked_for_only_where_that_is_switched_on() {
        let logs = tempfile::tempdir().unwrap();
        fs::write(logs.path().join("syslog"), "").unwrap();
        let check = |path: &str, query: &str, is_on: bool, expected: Result<&str, u16>| {
            let asked = asked(logs.path(), path, query, is_on);
            let got = asked.map(|asked| match asked {
                Asked::Files(path) => path,
                Asked::Services(query) => query.services.join(","),
            });
            assert_eq!(got.as_deref().map_err(|(code, _)| code.as_u16()), expected, "{path} {query}");
        };
        check("/syslog", "", true, Ok("/syslog"));
        check("/", "query=kubelet", false, Ok("/"));
        check("/", "query=kubelet", true, Ok("kubelet"));
        check("/", "query=/syslog", true, Ok("/syslog"));
        check("/", "query=%5Csyslog", true, Ok("/syslog"));
        check("/", "query=/none", true, Err(406));
        check("/", "query=/../etc/passwd", true, Err(406));
        check("/syslog", "query=kubelet", true, Err(406));
        check("/", "query=kubelet&boot=x", true, Err(400));
    }
}
