//! Reads static Pods from a URL, which is asked now and then. Upstream counterpart: pkg/kubelet/config/http.go.

use std::{path::Path, sync::Arc, time::Duration};

use api::codec::decode::{Format, raw};
use bytes::Bytes;
use dialer::{Dialer, Endpoint};
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use json::Value;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use crate::{
    configuration::settings::StaticUrl,
    sources::{Heard, Home, Source, manifests::parse},
};

/// The server has this long to answer, and this much to say.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST: usize = 10 << 20;

/// Sends all Pods of the place at the start and whenever they have changed. What is wrong there keeps the Pods of before. Runs for
/// ever.
pub async fn watch(place: StaticUrl, home: Home, to: mpsc::Sender<Heard>) {
    let dialer = match pki::client_config_of_machine(None, &["http/1.1"]) {
        Ok(tls) if place.url.starts_with("https:") => Dialer::tls(Arc::new(tls)),
        _ => Dialer::plain(),
    };
    let dialer = dialer.patient(PATIENCE);
    let (mut sent, mut told) = (None, String::new());
    loop {
        match read(&dialer, &place, &home).await {
            Ok(pods) => {
                told.clear();
                let uids: Vec<_> = pods.iter().map(|pod| pod.metadata.uid.clone()).collect();
                if sent.as_ref() != Some(&uids) {
                    if to.send(Heard { source: Source::Web, pods }).await.is_err() {
                        return;
                    }
                    sent = Some(uids);
                }
            }
            Err(error) if error != told => {
                tracing::warn!(url = place.url, error, "the static Pods of a URL cannot be read, trying again");
                told = error;
            }
            Err(_) => {}
        }
        clock::sleep(place.interval).await;
    }
}

async fn read(dialer: &Dialer<Empty<Bytes>>, place: &StaticUrl, home: &Home) -> Result<Vec<Arc<Pod>>, String> {
    let fetched = clock::timeout(PATIENCE, fetch(dialer, place)).await;
    let body = fetched.map_err(|_| "it does not answer in time".to_owned())??;
    pods(&body, &place.url, home)
}

async fn fetch(dialer: &Dialer<Empty<Bytes>>, place: &StaticUrl) -> Result<Bytes, String> {
    let uri: Uri = place.url.parse().map_err(|_| "it is no URL".to_owned())?;
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let to = Endpoint::new(host, uri.port_u16().unwrap_or(usual));
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path).header(header::HOST, to.authority()).header(header::USER_AGENT, "kubelet");
    for (name, value) in &place.headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
    let answer = dialer.open(&to, request).await.map_err(|error| error.to_string())?;
    // A redirect is not followed: headers may be credentials.
    if answer.status() != StatusCode::OK {
        return Err(format!("{}: {}", place.url, answer.status()));
    }
    let body = Limited::new(answer.into_body(), MOST).collect().await.map_err(|error| error.to_string())?.to_bytes();
    if body.is_empty() { Err(format!("zero-length data received from {}", place.url)) } else { Ok(body) }
}

/// One Pod, or a list of them. One that is wrong spoils the whole.
fn pods(body: &[u8], url: &str, home: &Home) -> Result<Vec<Arc<Pod>>, String> {
    let value = raw(body, Format::Yaml).map_err(|problem| format!("it sent no YAML or JSON: {problem:?}"))?.0;
    let items = match value["kind"].as_str() {
        Some("PodList") => value["items"].as_array().cloned().unwrap_or_default(),
        _ => vec![value],
    };
    let whole = |item: Value| {
        let mut item = item;
        if item["kind"].is_null() {
            (item["kind"], item["apiVersion"]) = ("Pod".into(), "v1".into());
        }
        parse(&item.to_string(), home, (Path::new(url), Source::Web)).map(Arc::new)
    };
    items.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}"#;

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect()
    }

    fn home() -> Home {
        Home { node_name: "n1".into(), may_refer: false }
    }

    #[test]
    fn one_pod_or_a_list_is_read_and_a_wrong_one_spoils_it() {
        let read = |text: &str| pods(text.as_bytes(), "http://x/", &home());
        let one = read(POD).unwrap();
        assert_eq!(names(&one), ["a-n1"]);
        let notes = one[0].metadata.annotations.as_ref().unwrap();
        assert_eq!(notes[api::rules::pod::SOURCE_ANNOTATION], "http");
        let bare = r#"{"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}"#;
        let list = format!(r#"{{"apiVersion": "v1", "kind": "PodList", "items": [{POD}, {bare}]}}"#);
        assert_eq!(names(&read(&list).unwrap()), ["a-n1", "b-n1"]);
        for wrong in ["", "kind: [", &list.replace("\"i\"}]}}]}", "3}]}}]}"), r#"{"kind": "Node"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn the_place_is_asked_with_its_headers_and_nothing_but_a_good_answer_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = StaticUrl {
            url: format!("http://{}/pods?x=1", listener.local_addr().unwrap()),
            headers: vec![("X-Key".into(), "k".into())],
            interval: Duration::from_millis(5),
        };
        let server = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in [
                "HTTP/1.1 500 x\r\ncontent-length: 0",
                "HTTP/1.1 302 x\r\nlocation: /y\r\ncontent-length: 0",
                "HTTP/1.1 200 OK",
            ] {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 4096];
                let read = client.read(&mut buffer).await.unwrap();
                asked.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
                let body = if answer.contains("200") { POD } else { "" };
                let length =
                    if body.is_empty() { String::new() } else { format!("\r\ncontent-length: {}", body.len()) };
                client.write_all(format!("{answer}{length}\r\n\r\n{body}").as_bytes()).await.unwrap();
            }
            asked
        });
        let (to, mut heard) = mpsc::channel(1);
        let watcher = tokio::spawn(watch(place, home(), to));
        assert_eq!(names(&heard.recv().await.unwrap().pods), ["a-n1"]);
        watcher.abort();
        let asked = server.await.unwrap();
        assert_eq!(asked.len(), 3);
        assert!(
            asked[0].starts_with("GET /pods?x=1 HTTP/1.1\r\n") && asked[0].contains("x-key: k\r\n"),
            "{}",
            asked[0]
        );
    }
}
