//! An API server elsewhere: how it is reached, and as whom.

use std::{fs, path::PathBuf, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use clock::{Duration, Instant};
use dialer::{Dialer, Endpoint};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use parking_lot::Mutex;
use pki::{Credential, Serving};

use crate::{
    body::Body,
    error::{ConfigError, Error, wrong},
};

/// A token in a file is read anew after this time.
const TOKEN_AGE: Duration = Duration::from_secs(60);

/// How a server is reached, and as whom.
#[derive(Clone)]
pub struct Config {
    /// `https://host:port`, and perhaps a path below which everything is. Without TLS it is `http://`.
    pub server: Uri,
    pub trust: Trust,
    /// The name in its certificate, where that is not the host.
    pub server_name: Option<String>,
    pub credential: Option<Credential>,
    pub token: Option<String>,
    /// Its content comes before `token`, as long as it can be read.
    pub token_file: Option<PathBuf>,
    /// A user and its password, where no token is.
    pub password: Option<(String, String)>,
    /// The headers that every request carries.
    pub headers: HeaderMap,
    /// How long connecting may take, and a TLS handshake, where that is not half a minute.
    pub patience: Option<Duration>,
}

/// The authorities whose certificates are believed.
#[derive(Clone)]
pub enum Trust {
    /// Those of these authorities, in PEM.
    Authorities(String),
    /// Those of the authorities that this machine knows.
    Machine,
    /// Anybody's: whoever asks for that gave up knowing whom it speaks to.
    Anybody,
}

impl Config {
    /// The server, known by the authorities of this machine, for nobody in particular.
    pub fn new(server: &str) -> Result<Self, ConfigError> {
        let uri = server.parse::<Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("https" | "http")));
        let server = uri.ok_or_else(|| wrong(format!("its server {server:?} is no URL such as https://host:6443")))?;
        Ok(Config {
            server,
            trust: Trust::Machine,
            server_name: None,
            credential: None,
            token: None,
            token_file: None,
            password: None,
            headers: HeaderMap::new(),
            patience: None,
        })
    }

    /// Adds a header to every request.
    pub fn say(&mut self, header: &'static str, value: &str) -> Result<(), ConfigError> {
        let value = HeaderValue::from_str(value);
        let value = value.map_err(|_| wrong(format!("{header} has characters that no header can have")))?;
        self.headers.append(HeaderName::from_static(header), value);
        Ok(())
    }

    pub(crate) fn connect(&self) -> Result<Remote, ConfigError> {
        let host = self.server.host().unwrap_or_default();
        let encrypted = self.server.scheme_str() == Some("https");
        let port = self.server.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let mut to = Endpoint::new(host.trim_matches(['[', ']']), port);
        to.server_name.clone_from(&self.server_name);
        let mut dialer = if encrypted { Dialer::tls(Arc::new(self.tls()?)) } else { Dialer::plain() };
        if let Some(patience) = self.patience {
            dialer = dialer.patient(patience);
        }
        let mut headers = self.headers.clone();
        let authority = HeaderValue::from_str(&to.authority()).map_err(|_| wrong("its server has a strange name"))?;
        headers.insert(header::HOST, authority);
        if let Some(value) = self.authorization()? {
            headers.insert(header::AUTHORIZATION, value);
        }
        let token = match &self.token_file {
            None => None,
            Some(path) => Some(TokenFile::open(path.clone(), self.token.is_some())?),
        };
        Ok(Remote { dialer, to, base: self.server.path().trim_end_matches('/').to_owned(), headers, token })
    }

    fn tls(&self) -> Result<rustls::ClientConfig, ConfigError> {
        let shown = self.credential.as_ref().map(Serving::new).transpose()?;
        Ok(match (&self.trust, shown) {
            (Trust::Authorities(pem), Some(shown)) => pki::client_config_showing(pem, shown, &[])?,
            (Trust::Authorities(pem), None) => pki::client_config(pem, None, &[])?,
            (Trust::Machine, shown) => pki::client_config_of_machine(shown, &[])?,
            (Trust::Anybody, shown) => pki::client_config_believing_all(shown, &[])?,
        })
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, ConfigError> {
        match (&self.token, &self.password) {
            (Some(token), _) => bearer(token).map(Some).ok_or_else(|| wrong("its token holds what no token can hold")),
            (None, Some((name, password))) if self.token_file.is_none() => {
                let basic = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
                Ok(HeaderValue::from_str(&basic).ok())
            }
            _ => Ok(None),
        }
    }
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A token that somebody else renews in a file.
struct TokenFile {
    path: PathBuf,
    /// The content of the file, and when it was read.
    held: Mutex<(Option<HeaderValue>, Instant)>,
}

impl TokenFile {
    fn open(path: PathBuf, may_miss: bool) -> Result<Self, ConfigError> {
        let held = match fs::read_to_string(&path) {
            Ok(text) => bearer(text.trim()),
            Err(_) if may_miss => None,
            Err(source) => return Err(ConfigError::Unreadable { path, source }),
        };
        Ok(TokenFile { path, held: Mutex::new((held, clock::Instant::now())) })
    }

    /// The token of now. One that cannot be read any more stays what it was.
    fn current(&self) -> Option<HeaderValue> {
        let mut held = self.held.lock();
        if held.1.elapsed() >= TOKEN_AGE {
            let fresh = fs::read_to_string(&self.path).ok().and_then(|text| bearer(text.trim()));
            *held = (fresh.or_else(|| held.0.take()), Instant::now());
        }
        held.0.clone()
    }
}

/// The way to a server elsewhere.
pub(crate) struct Remote {
    dialer: Dialer<Body>,
    to: Endpoint,
    /// The beginning of every URL: scheme, host and base path.
    base: String,
    headers: HeaderMap,
    token: Option<TokenFile>,
}

impl Remote {
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Error> {
        let asked = request.uri().path_and_query().map_or("/", |asked| asked.as_str());
        *request.uri_mut() =
            format!("{}{asked}", self.base).parse().map_err(http::Error::from).map_err(Error::transport)?;
        request.headers_mut().extend(self.headers.clone());
        if let Some(token) = self.token.as_ref().and_then(TokenFile::current) {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        tracing::trace!(method = %request.method(), server = self.to.host, uri = %request.uri(), "request");
        let answer = self.dialer.send(&self.to, request).await.map_err(Error::transport)?;
        Ok(answer.map(Body::Network))
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

    #[tokio::test]
    async fn a_token_is_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let missing = TokenFile::open(path.clone(), false).err().unwrap();
        assert!(missing.to_string().contains("cannot read"));
        assert!(TokenFile::open(path.clone(), true).unwrap().current().is_none());
        tokio::time::pause();
        fs::write(&path, "one\n").unwrap();
        let file = TokenFile::open(path.clone(), false).unwrap();
        fs::write(&path, "two\n").unwrap();
        assert_eq!(file.current().unwrap(), "Bearer one", "it is not old yet");
        tokio::time::advance(TOKEN_AGE).await;
        assert_eq!(file.current().unwrap(), "Bearer two");
        fs::remove_file(&path).unwrap();
        tokio::time::advance(TOKEN_AGE).await;
        assert_eq!(file.current().unwrap(), "Bearer two", "what was read last holds");
    }

    #[test]
    fn a_token_must_fit_into_a_header() {
        let config = Config { token: Some("a\nb".to_owned()), ..Config::new("http://h").unwrap() };
        assert!(config.connect().is_err());
    }
}
