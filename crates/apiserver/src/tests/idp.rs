//! An issuer of tokens, for tests: it publishes its documents over HTTPS and signs whatever it is asked to sign.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use api::Value;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Request, Response, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use json::{Map, json};
use parking_lot::Mutex;
use pki::{Authority, Serving, SigningKey, Subject, VerifyingKey};
use tokio::sync::Notify;

use crate::{http::body::Body, tests::over_tls};

/// The answer to those who ask for a path.
#[derive(Clone)]
pub enum Page {
    Text(String),
    Status(u16),
    Hanging,
    Endless,
    Redirecting(String),
}

#[derive(Default)]
struct Shared {
    pages: Mutex<HashMap<String, Page>>,
    /// The paths that were asked for, with what was shown there.
    asked: Mutex<Vec<(String, String)>>,
    notify: Notify,
}

pub struct Idp {
    address: SocketAddr,
    authority: Authority,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Idp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub const DISCOVERY: &str = "/.well-known/openid-configuration";
pub const KEYS: &str = "/keys";

impl Idp {
    /// An issuer that publishes these keys.
    pub async fn start(keys: &[&VerifyingKey]) -> Self {
        let authority = Authority::create("idp").unwrap();
        let names = vec!["localhost".to_owned()];
        let serving = Serving::new(&authority.issue(&Subject::server("idp", names)).unwrap()).unwrap();
        let shared = Arc::<Shared>::default();
        let served = shared.clone();
        let (address, task) = over_tls::listen(serving, None, move |io| {
            let shared = served.clone();
            let service = service_fn(move |request: Request<Incoming>| answer(request, shared.clone()));
            async { drop(http1::Builder::new().serve_connection(TokioIo::new(io), service).await) }
        })
        .await;
        let idp = Idp { address, authority, shared, task };
        idp.publish(DISCOVERY, &json!({"issuer": idp.url(), "jwks_uri": format!("{}{KEYS}", idp.url())}));
        idp.use_keys(keys);
        idp
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    pub fn authorities(&self) -> String {
        self.authority.certificate().to_owned()
    }

    pub fn publish(&self, path: &str, document: &Value) {
        self.be(path, Page::Text(document.to_string()));
    }

    pub fn be(&self, path: &str, page: Page) {
        self.shared.pages.lock().insert(path.to_owned(), page);
    }

    pub fn use_keys(&self, keys: &[&VerifyingKey]) {
        let jwk = |key: &&VerifyingKey| -> Value {
            key.jwk().into_iter().map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<Map>().into()
        };
        self.publish(KEYS, &json!({"keys": keys.iter().map(jwk).collect::<Vec<Value>>()}));
    }

    /// The paths that were asked for since this was last called, with the credentials shown.
    pub fn asked(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.shared.asked.lock())
    }

    /// Waits until it is asked for something.
    pub async fn is_asked(&self) {
        self.shared.notify.notified().await;
    }

    /// The claims of a token that is good for an hour.
    pub fn claims(&self, more: Value) -> Value {
        let now = clock::now().as_second();
        let mut claims = json!({"iss": self.url(), "aud": "us", "sub": "jane", "exp": now + 3600, "iat": now});
        for (name, value) in more.as_object().into_iter().flatten() {
            claims[name.to_string().as_str()] = value.clone();
        }
        claims
    }
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, std::io::Error> {
    let path = request.uri().path().to_owned();
    let shown = request.headers().get("authorization").map_or("", |value| value.to_str().unwrap()).to_owned();
    let page = shared.pages.lock().get(&path).cloned();
    shared.asked.lock().push((path, shown));
    shared.notify.notify_one();
    let status = |code: u16| Response::builder().status(code);
    Ok(match page {
        None => status(404).body(Body::empty()).unwrap(),
        Some(Page::Text(text)) => Response::new(Body::from(text)),
        Some(Page::Status(code)) => status(code).body(Body::empty()).unwrap(),
        Some(Page::Hanging) => std::future::pending().await,
        Some(Page::Endless) => {
            let piece = bytes::Bytes::from(vec![b' '; 1 << 16]);
            Response::new(Body::stream(futures::stream::repeat_with(move || Ok(piece.clone()))))
        }
        Some(Page::Redirecting(to)) => status(302).header(header::LOCATION, to).body(Body::empty()).unwrap(),
    })
}

/// A token with exactly this header and these claims, signed with a key.
pub fn token(key: &SigningKey, header: &str, claims: &str) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = key.for_jwt().unwrap().sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// A token as an issuer makes it.
pub fn signed(key: &SigningKey, claims: &Value) -> String {
    token(key, &json!({"alg": "ES256", "kid": key.public.id}).to_string(), &claims.to_string())
}
