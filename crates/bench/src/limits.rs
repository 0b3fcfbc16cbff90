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
    report.add("raw: fdatasync of 1 KiB appended, one after another", syncs_per_second()?, "/s", None, "");
    constant_server(report).await
}

/// Appends and syncs for a second.
fn syncs_per_second() -> anyhow::Result<f64> {
    let path = crate::subject::scratch("sync")?;
    let mut file = std::fs::File::create(&path)?;
    // Room is made before, as a log would do it: the figure is about the data, not about the file's length.
    file.write_all(&vec![0; 32 << 20])?;
    file.sync_all()?;
    file.rewind()?;
    let (block, start) = ([7u8; 1024], Instant::now());
    let mut count = 0;
    while start.elapsed() < Duration::from_secs(1) && count < 30_000 {
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// The throughput of this load generator against an HTTPS server that answers from constant bytes.
async fn constant_server(report: &mut Report) -> anyhow::Result<()> {
    let authority = pki::Authority::create("bench")?;
    let credential = authority.issue(&pki::Subject::server("bench", vec!["localhost".to_owned()]))?;
    let tls = pki::server_config(pki::Serving::new(&credential)?, None, &["h2"])?;
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls))));
    let api = Api::connect(address, authority.certificate(), "", 4).await?;
    let run = load::drive(40_000, 32, |_| {
        let api = api.clone();
        async move { api.get("/small").await }
    })
    .await?;
    report.add("raw: constant answer of 2 KiB over HTTPS, 32 in flight", run.per_second(), "/s", None, run.latencies());
    let run = load::drive(10, 1, |_| {
        let api = api.clone();
        async move { api.get("/large").await }
    })
    .await?;
    report.add("raw: constant answer of 26 MB over HTTPS", run.quantile(0.5), "ms", None, "");
    server.abort();
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
