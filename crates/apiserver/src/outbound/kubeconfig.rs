//! Servers of the administrator's that kubeconfig files name: they are sent audit events, and asked for rights and for users. The
//! file says where one is, whom to believe there and what to show. Redirects are not followed, an answer has a bound, and a
//! question ends in time, so that a server that hangs or floods harms the requests that ask it and no others.
//!
//! Upstream counterpart: apiserver/pkg/util/webhook.

use std::{error::Error, io, path::Path};

use bytes::{Bytes, BytesMut};
pub use client::ConfigError;
use client::{Client, Kubeconfig};
use clock::Duration;
use http::{Request, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::BodyExt;

use super::webhook::refused;

/// A question ends within this time, unless its asker says another.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often a question is put that may be put again. Each pause is longer by half, and by a fifth at random.
const TRIES: u32 = 5;

/// A server that a kubeconfig file names. Its URL is where questions go.
pub struct Server {
    client: Client,
    /// Path and query.
    path: String,
    patience: Duration,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub message: String,
    /// The code of an answer that is no success.
    pub code: Option<u16>,
    /// The time was over, here or there.
    pub late: bool,
    /// The question may be put again.
    pub again: bool,
}

impl Server {
    pub fn of_file(file: &Path, patience: Duration) -> Result<Self, ConfigError> {
        let mut config = Kubeconfig::current_of(file)?;
        let mut parts = std::mem::take(&mut config.server).into_parts();
        let path = parts.path_and_query.replace(PathAndQuery::from_static("/"));
        let path = path.as_ref().map_or("/", PathAndQuery::path);
        let path = format!("{path}?timeout={}s", patience.as_secs().max(1));
        config.server = Uri::from_parts(parts).map_err(|error| ConfigError::Wrong(error.to_string()))?;
        Ok(Server { client: client::from_config(&config)?, path, patience })
    }

    /// Sends a document in JSON, and reads an answer of at most `limit` bytes.
    pub async fn post(&self, agent: &'static str, document: Bytes, limit: usize) -> Result<Bytes, Failure> {
        let late = Failure { message: "context deadline exceeded".to_owned(), code: None, late: true, again: false };
        clock::timeout(self.patience, self.ask(agent, document, limit)).await.map_err(|_| late)?
    }

    async fn ask(&self, agent: &'static str, document: Bytes, limit: usize) -> Result<Bytes, Failure> {
        let request = Request::post(&self.path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, agent)
            .body(client::Body::from(document))
            .map_err(|error| broken(&error))?;
        let (parts, mut body) = self.client.send(request).await.map_err(|error| broken(&error))?.into_parts();
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
            if whole.len() + data.len() > limit {
                let message = format!("the answer has more than {limit} bytes");
                return Err(Failure { message, code: None, late: false, again: false });
            }
            whole.extend_from_slice(&data);
        }
        if parts.status.is_success() {
            return Ok(whole.freeze());
        }
        let media_type = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("text/");
        let code = parts.status.as_u16();
        let asked_to = parts.headers.contains_key(header::RETRY_AFTER);
        let passing = code == 429 || code >= 500 && code != 503;
        Err(Failure {
            message: refused(code, media_type, &whole),
            code: Some(code),
            late: parts.status == StatusCode::GATEWAY_TIMEOUT,
            again: passing || asked_to && code >= 500,
        })
    }
}

/// The failure of a connection. Only one that the other side cut may be better the next time.
fn broken(error: &(dyn Error + 'static)) -> Failure {
    let mut cause = Some(error);
    let mut again = false;
    while let Some(at) = cause {
        again |= at.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionReset);
        cause = at.source();
    }
    Failure { message: error.to_string(), code: None, late: false, again }
}

/// An error about a file with its causes.
pub fn sentence(error: &ConfigError) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(at) = cause {
        said = format!("{said}: {at}");
        cause = at.source();
    }
    said
}

/// Asks until there is an answer, or the error is not one after which `again` asks, or it was asked often enough.
pub async fn retried<T, E, F>(
    first_pause: Duration,
    again: impl Fn(&E) -> bool,
    mut ask: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut pause = first_pause;
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if again(&error) => {}
            over => return over,
        }
        let jitter = clock::random_range(0..(pause.as_millis() as u64 / 5).max(1));
        clock::sleep(pause + Duration::from_millis(jitter)).await;
        pause += pause / 2;
    }
    ask().await
}
