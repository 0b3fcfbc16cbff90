//! Documents that are fetched over HTTPS, from where an administrator, or a document of somebody trusted, says. Redirects are not
//! followed, an answer has a bound and a fetch an end.

use std::sync::Arc;

use bytes::Bytes;
use clock::Duration;
use dialer::Endpoint;
use http::{Request, Uri, header};

use super::dialer::{Dialer, why};
use crate::http::body::Body;

/// A fetch ends within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Fetches from servers of one trust.
pub struct Fetcher(Dialer);

impl Fetcher {
    /// `authorities` are those that are believed, in PEM; the machine's where there are none.
    pub fn new(authorities: Option<&str>) -> Result<Self, String> {
        const PROTOCOLS: &[&str] = &["http/1.1"];
        let tls = match authorities {
            Some(authorities) => pki::client_config_of_bundle(authorities, None, PROTOCOLS),
            None => pki::client_config_of_machine(None, PROTOCOLS),
        };
        Ok(Fetcher(Dialer::tls(Arc::new(tls.map_err(|error| error.to_string())?))))
    }

    /// The document at a URL, at most `limit` bytes of it.
    pub async fn get(&self, url: &str, bearer: Option<&str>, limit: usize) -> Result<Bytes, String> {
        let failed = |why: &str| format!("Get {url:?}: {why}");
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| failed(&error.to_string()))?;
        if uri.scheme_str() != Some("https") {
            return Err(failed("only https is spoken"));
        }
        let authority = uri.authority().ok_or_else(|| failed("no Host in request URL"))?;
        let to = Endpoint::new(authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(443));
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path)
            .header(header::HOST, to.authority())
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver");
        if let Some(token) = bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).map_err(|error| failed(&error.to_string()))?;
        let asked = async {
            let answer = self.0.forward(&to, request).await.map_err(|error| failed(why(&error)))?;
            let (parts, body) = answer.into_parts();
            let whole = Body::Network(body).read(limit, |_| Ok(())).await;
            let whole = whole.map_err(|error| match error.code {
                413 => failed(&format!("the answer has more than {limit} bytes")),
                _ => failed(&error.message),
            })?;
            Ok::<_, String>((parts.status, whole))
        };
        let late = |_| failed("context deadline exceeded");
        let (status, whole) = clock::timeout(PATIENCE, asked).await.map_err(late)??;
        if !status.is_success() {
            return Err(failed(&format!("it answered {status}")));
        }
        Ok(whole)
    }
}
