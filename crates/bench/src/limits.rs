//! The machine's raw limits: what no server on it could exceed.

use std::{
    io::{Seek, Write},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{api::Api, load, report::Report};

pub async fn measure(report: &mut Report) -> anyhow::Result<()> {
    let (rate, cpu) = syncs_per_second()?;
    report.add(
        "raw: fdatasync of 1 KiB appended, one after another",
        rate,
        "/s",
        None,
        format!("{cpu:.0} µs of CPU each"),
    );
    constant_server(report).await
}

/// The CPU time that a thread of this process has used, in microseconds.
fn cpu_micros(thread: &str) -> f64 {
    let told = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok());
    nanos.unwrap_or(f64::NAN) / 1000.0
}

/// Appends and syncs for a second: how often, and the CPU time of each.
fn syncs_per_second() -> anyhow::Result<(f64, f64)> {
    let path = crate::subject::scratch("sync")?;
    let mut file = std::fs::File::create(&path)?;
    // Room is made before, as a log would do it: the figure is about the data, not about the file's length.
    file.write_all(&vec![0; 32 << 20])?;
    file.sync_all()?;
    file.rewind()?;
    let (block, start, before) = ([7u8; 1024], Instant::now(), cpu_micros("thread-self"));
    let mut count = 0;
    while start.elapsed() < Duration::from_secs(1) && count < 30_000 {
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    let cpu = (cpu_micros("thread-self") - before) / f64::from(count);
    std::fs::remove_file(path)?;
    Ok((rate, cpu))
}

/// The throughput of this load generator against an HTTPS server that answers from constant bytes. It has a thread of its own, whose CPU
/// time is what no server of HTTPS gets below: a thread that sleeps between requests has everything to fetch anew for each.
async fn constant_server(report: &mut Report) -> anyhow::Result<()> {
    let authority = pki::Authority::create("bench")?;
    let credential = authority.issue(&pki::Subject::server("bench", vec!["localhost".to_owned()]))?;
    let tls = pki::server_config(pki::Serving::new(&credential)?, None, &["h2"])?;
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?;
    let (listener, acceptor) = (listener.into_std()?, TlsAcceptor::from(Arc::new(tls)));
    let (own, named) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = own.send(format!("self/task/{}", nix::unistd::gettid()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            serve(TcpListener::from_std(listener)?, acceptor).await;
            Ok::<_, std::io::Error>(())
        })
    });
    let thread = named.await?;
    let api = Api::connect(address, authority.certificate(), "", 4).await?;
    let run = load::drive(40_000, 32, |_| {
        let api = api.clone();
        async move { api.get("/small").await }
    })
    .await?;
    report.add("raw: constant answer of 2 KiB over HTTPS, 32 in flight", run.per_second(), "/s", None, run.latencies());
    let before = cpu_micros(&thread);
    let run = load::drive(3000, 1, |_| {
        let api = api.clone();
        async move { api.get("/small").await }
    })
    .await?;
    let cpu = (cpu_micros(&thread) - before) / 3000.0;
    let note = format!("{cpu:.0} µs of CPU each, {}", run.latencies());
    report.add("raw: the same, one after another", run.per_second(), "/s", None, note);
    let run = load::drive(10, 1, |_| {
        let api = api.clone();
        async move { api.get("/large").await }
    })
    .await?;
    report.add("raw: constant answer of 26 MB over HTTPS", run.quantile(0.5), "ms", None, "");
    Ok(())
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) {
    let (small, large) = (Bytes::from(vec![b'x'; 2048]), Bytes::from(vec![b'x'; 26_000_000]));
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, small, large) = (tls.clone(), small.clone(), large.clone());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let Ok(stream) = tls.accept(stream).await else { return };
            let answer = service_fn(move |request: Request<Incoming>| {
                let body = if request.uri().path() == "/large" { large.clone() } else { small.clone() };
                async move { Ok::<_, std::convert::Infallible>(Response::new(Full::new(body))) }
            });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}
