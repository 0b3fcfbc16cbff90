//! The pages of the plugins health, ready and prometheus: on the node's loopback, for probes and scrapers there.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use listener::{Accepted, Bounds, Listener};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::plugins::{Around, Chains};

/// Connections at once.
const CONNECTIONS: Bounds = Bounds { remote: 16, each: 8 };
/// The longest head of a request, and how long it may take.
const MAX_HEAD: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Health,
    Ready,
    Metrics,
}

/// Serves the pages that the chains ask for until the set is dropped. A port that is taken is told, and left.
pub async fn serve(chains: &Arc<Chains>, around: &Around) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (address, page) in wanted(chains) {
        match TcpListener::bind(address).await {
            Ok(tcp) => {
                let (chains, around) = (Arc::downgrade(chains), around.clone());
                tasks.spawn(async move {
                    let mut listener = Listener::new(tcp, "DNS pages", CONNECTIONS, Arc::default());
                    loop {
                        let Accepted { socket, place, .. } = listener.accept().await;
                        let Some(chains) = chains.upgrade() else { return };
                        let around = around.clone();
                        tokio::spawn(async move {
                            let answering = answer(socket, page, &chains, &around);
                            let _ = clock::timeout(PATIENCE, answering).await;
                            drop(place);
                        });
                    }
                });
            }
            Err(error) => tracing::warn!(%address, ?page, %error, "a page of cluster DNS cannot be served"),
        }
    }
    tasks
}

/// Each address once, for the first block that names it.
fn wanted(chains: &Chains) -> Vec<(SocketAddr, Page)> {
    let mut wanted: Vec<(SocketAddr, Page)> = Vec::new();
    for settings in chains.settings() {
        let of_block =
            [(settings.health, Page::Health), (settings.ready, Page::Ready), (settings.prometheus, Page::Metrics)];
        for (address, page) in of_block.into_iter().filter_map(|(a, p)| Some((a?, p))) {
            if !wanted.iter().any(|(taken, _)| *taken == address) {
                wanted.push((address, page));
            }
        }
    }
    wanted
}

async fn answer(mut socket: TcpStream, page: Page, chains: &Chains, around: &Around) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() >= MAX_HEAD || socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, body) = match (method, page, path) {
        ("GET" | "HEAD", Page::Health, "/health") => ("200 OK", "OK".to_owned()),
        ("GET" | "HEAD", Page::Ready, "/ready") if around.cluster.read().synced => ("200 OK", "OK".to_owned()),
        ("GET" | "HEAD", Page::Ready, "/ready") => ("503 Service Unavailable", "kubernetes".to_owned()),
        ("GET" | "HEAD", Page::Metrics, "/metrics") => ("200 OK", around.figures.page(chains.kept())),
        _ => ("404 Not Found", "404 page not found\n".to_owned()),
    };
    let length = body.len();
    let body = if method == "HEAD" { String::new() } else { body };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    socket.write_all(response.as_bytes()).await?;
    socket.shutdown().await
}
