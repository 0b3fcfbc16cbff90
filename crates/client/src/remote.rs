//! An API server elsewhere: how it is reached, and as whom.

use std::sync::Arc;

use dialer::{Dialer, Endpoint};
use http::{HeaderName, HeaderValue, Request, Response, header};

use crate::{
    body::Body,
    config::Config,
    connect,
    error::{ConfigError, Error, wrong},
    shown::Shown,
};

impl Config {
    pub(crate) fn connect(&self) -> Result<Remote, ConfigError> {
        let host = self.server.host().unwrap_or_default();
        let encrypted = self.server.scheme_str() == Some("https");
        let port = self.server.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let mut to = Endpoint::new(host.trim_matches(['[', ']']), port);
        to.server_name.clone_from(&self.server_name);
        let shown = Shown::of(self)?;
        let certificate = shown.certificate().cloned();
        let mut dialer = if encrypted { Dialer::tls(Arc::new(self.tls(certificate)?)) } else { Dialer::plain() };
        if let Some(patience) = self.patience {
            dialer = dialer.patient(patience);
        }
        let host = HeaderValue::from_str(&to.authority()).map_err(|_| wrong("its server has a strange name"))?;
        Ok(Remote { dialer, to, base: self.server.path().trim_end_matches('/').to_owned(), host, shown })
    }
}

/// A request says by this header which trace it is of.
const TRACE: HeaderName = HeaderName::from_static("traceparent");

/// The way to a server elsewhere.
pub(crate) struct Remote {
    dialer: Dialer<Body>,
    to: Endpoint,
    /// The beginning of every URL: scheme, host and base path.
    base: String,
    host: HeaderValue,
    shown: Shown,
}

impl Remote {
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        let asked = request.uri().path_and_query().map_or("/", |asked| asked.as_str());
        *request.uri_mut() =
            format!("{}{asked}", self.base).parse().map_err(http::Error::from).map_err(Error::transport)?;
        request.headers_mut().insert(header::HOST, self.host.clone());
        self.shown.stamp(request.headers_mut());
        tracing::trace!(method = %request.method(), server = self.to.host, uri = %request.uri(), "request");
        let mut span = spans::ask(request.method().as_str(), &self.to.host).map(|(span, context)| {
            request.headers_mut().extend(context.parse().ok().map(|context| (TRACE.clone(), context)));
            span
        });
        let patience = connect::patience(&request);
        let Ok(answer) = clock::timeout(patience, self.dialer.send(&self.to, request)).await else {
            let text = format!("{} did not begin to answer within {patience:?}", self.to.authority());
            return Err(Error::transport(std::io::Error::new(std::io::ErrorKind::TimedOut, text)));
        };
        if let Some(span) = &mut span {
            span.answered(answer.as_ref().ok().map(|answer| answer.status().as_u16()));
        }
        Ok(answer.map_err(Error::transport)?.map(Body::Network))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::{body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{connect::from_config, rest};

    /// A server that answers with what it was asked.
    async fn server() -> String {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", tcp.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (io, _) = tcp.accept().await.unwrap();
                let service = service_fn(|request: Request<Incoming>| async move {
                    let text = |name: &str| request.headers().get(name).map_or("-", |value| value.to_str().unwrap());
                    let said = format!("{} {} {}", request.uri(), text("authorization"), text("impersonate-user"));
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(said))))
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service));
            }
        });
        url
    }

    async fn said(config: &Config) -> String {
        let client = from_config(config).unwrap();
        let read = rest::read(&client, "/api/v1/pods?limit=1", rest::Form::Whole).await.unwrap();
        String::from_utf8(read.to_vec()).unwrap()
    }

    /// A server that has stopped still has its connections made by the kernel.
    #[tokio::test]
    async fn a_server_that_does_not_answer_is_not_waited_for() {
        let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", stopped.local_addr().unwrap());
        let patient = |url: &str| from_config(&Config::new(url).unwrap()).unwrap();
        let client = patient(&url).patient(clock::Duration::from_millis(20));
        let error = rest::read(&client, "/api/v1/pods", rest::Form::Whole).await.unwrap_err();
        assert!(error.to_string().contains("did not begin to answer within"), "{error}");
        let both = crate::connect::server_list(vec![patient(&url), patient(&server().await)]);
        let both = both.patient(clock::Duration::from_millis(500));
        let read = rest::read(&both, "/api/v1/pods", rest::Form::Whole).await.unwrap();
        assert!(read.starts_with(b"/api/v1/pods"), "the next one is asked");
    }

    #[tokio::test]
    async fn requests_within_a_trace_are_spans() {
        let (tracer, mut spans) = spans::Tracer::new(1_000_000);
        let config = Config::new(&server().await).unwrap();
        let work = tracer.root("syncPod");
        work.around(said(&config)).await;
        let asked = spans.recv().await.unwrap();
        assert_eq!((&*asked.name, asked.parent, asked.failed), ("HTTP GET", Some(work.context().span), false));
    }

    #[tokio::test]
    async fn requests_say_who_sends_them() {
        let url = server().await;
        let plain = Config::new(&url).unwrap();
        assert_eq!(said(&plain).await, "/api/v1/pods?limit=1 - -");
        let mut config =
            Config { password: Some(("u".into(), "p".into())), ..Config::new(&format!("{url}/base/")).unwrap() };
        config.say("impersonate-user", "a").unwrap();
        assert_eq!(said(&config).await, "/base/api/v1/pods?limit=1 Basic dTpw a");
        config.token = Some("t".to_owned());
        assert_eq!(said(&config).await, "/base/api/v1/pods?limit=1 Bearer t a");
    }
}
