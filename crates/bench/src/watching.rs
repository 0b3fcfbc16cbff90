//! The rows of many watchers of one namespace.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use parking_lot::Mutex;

use crate::{
    api::Api,
    load::Run,
    objects::config_map,
    report::{
        Goal::{AtLeast, AtMost},
        Report,
    },
    subject::Server,
};

/// The events that a number of watchers on one namespace saw.
struct Seen {
    /// Milliseconds from sending an object to each event of it, sorted.
    delays: Vec<f64>,
    seconds: f64,
    /// The creates that the watchers saw.
    creates: Run,
}

impl Seen {
    fn per_second(&self) -> f64 {
        self.delays.len() as f64 / self.seconds
    }

    fn p99(&self) -> String {
        format!("p99 {:.1} ms", self.delays[self.delays.len() * 99 / 100])
    }
}

pub async fn hundred(server: &Server, api: &Api, what: &str, report: &mut Report) -> anyhow::Result<()> {
    let namespace = if api.is_binary() { "benchbinary" } else { "benchwatch" };
    let seen = watch(server, api, namespace, 100, 2000).await?;
    report.add(what, seen.per_second(), "events/s", Some(AtLeast(300_000.0)), seen.p99());
    if !api.is_binary() {
        let cost = seen.creates.cpu_micros;
        report.add("create seen by 100 watchers: CPU in the server", cost, "µs", Some(AtMost(400.0)), "for each");
    }
    Ok(())
}

pub async fn thousand(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let seen = watch(server, &server.api, "benchcrowd", 1000, 200).await?;
    report.add("watch, 1,000 watchers on one namespace", seen.per_second(), "events/s", None, seen.p99());
    Ok(())
}

/// Watchers on one namespace while objects are created.
async fn watch(server: &Server, api: &Api, namespace: &str, watchers: usize, events: usize) -> anyhow::Result<Seen> {
    let path = &format!("/api/v1/namespaces/{namespace}/configmaps");
    api.namespace(namespace).await?;
    let origin = Instant::now();
    let sent = Arc::new(Mutex::new(vec![0.0; events]));
    let opened = Arc::new(AtomicUsize::new(0));
    let open: Vec<_> = (0..watchers)
        .map(|_| {
            let (api, sent, opened, path) = (api.clone(), sent.clone(), opened.clone(), path.clone());
            tokio::spawn(async move {
                let url = format!("{path}?watch=true&labelSelector=bench%3Dwatch");
                let mut body = api.open(Method::GET, &url, "", Bytes::new()).await?.into_body();
                opened.fetch_add(1, Ordering::Relaxed);
                let (mut delays, mut rest) = (Vec::with_capacity(events), Vec::new());
                while delays.len() < events {
                    let frame = body.frame().await.context("the watch ended")??;
                    let now = origin.elapsed().as_secs_f64() * 1000.0;
                    rest.extend_from_slice(frame.data_ref().context("data")?);
                    let (events, complete) = complete_events(&rest, api.is_binary());
                    let sent = sent.lock();
                    // The name is enough: parsing every event would measure this client.
                    delays.extend(events.into_iter().filter_map(number_in).map(|i| now - sent[i]));
                    drop(sent);
                    rest.drain(..complete);
                }
                anyhow::Ok(delays)
            })
        })
        .collect();
    while opened.load(Ordering::Relaxed) < watchers {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (begun, cpu) = (Instant::now(), server.cpu_seconds());
    let creates = server.drive(events, 32, |i| {
        sent.lock()[i] = origin.elapsed().as_secs_f64() * 1000.0;
        async move { api.post(path, &config_map(format!("w-{i}"))).await }
    });
    let mut creates = creates.await?;
    let mut delays = Vec::new();
    for watcher in open {
        delays.extend(
            tokio::time::timeout(Duration::from_secs(60), watcher).await.context("a watcher missed events")???,
        );
    }
    let seconds = begun.elapsed().as_secs_f64();
    creates.cpu_micros = (server.cpu_seconds() - cpu) / events as f64 * 1e6;
    delays.sort_by(f64::total_cmp);
    Ok(Seen { delays, seconds, creates })
}

/// The events that have arrived as a whole, and how many bytes they are: lines, or frames with their length before them.
fn complete_events(bytes: &[u8], binary: bool) -> (Vec<&[u8]>, usize) {
    if !binary {
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
        return (bytes[..end].split(|b| *b == b'\n').filter(|line| !line.is_empty()).collect(), end);
    }
    let (mut events, mut rest) = (Vec::new(), bytes);
    while let Some((length, more)) = rest.split_first_chunk::<4>()
        && let Some((event, more)) = more.split_at_checked(u32::from_be_bytes(*length) as usize)
    {
        events.push(event);
        rest = more;
    }
    (events, bytes.len() - rest.len())
}

/// The number in the name `w-123`, of an event in JSON (behind a quote) or in protobuf (behind a length).
fn number_in(event: &[u8]) -> Option<usize> {
    let at = event.windows(2).position(|w| w == b"w-")? + 2;
    let digits = event[at..].iter().take_while(|b| b.is_ascii_digit());
    Some(digits.fold(0, |n, b| n * 10 + usize::from(b - b'0')))
}
