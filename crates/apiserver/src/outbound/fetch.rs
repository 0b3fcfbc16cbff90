//! Documents that are fetched over HTTPS, from where an administrator, or a document of somebody trusted, says. Redirects are
//! followed as Go's client follows them, but to HTTPS alone; credentials are shown at the first place only. An answer has a bound
//! and a fetch an end.

use std::sync::Arc;

use bytes::Bytes;
use clock::Duration;
use dialer::Endpoint;
use http::{Request, Response, Uri, header, uri::Authority};
use hyper::body::Incoming;

use super::dialer::{Dialer, why};
use crate::http::body::Body;

/// A fetch ends within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// The requests that a fetch makes at most, each behind the first one for a redirect.
const REQUESTS: usize = 10;

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
        let fetched = clock::timeout(PATIENCE, self.fetch(url, bearer, limit)).await;
        fetched.map_err(|_| failed(url, "context deadline exceeded"))?
    }

    async fn fetch(&self, url: &str, bearer: Option<&str>, limit: usize) -> Result<Bytes, String> {
        let mut url = url.to_owned();
        let mut first = None;
        for _ in 0..REQUESTS {
            let failed = |why: &str| failed(&url, why);
            let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| failed(&error.to_string()))?;
            let to = place(&uri).map_err(failed)?;
            let first = first.get_or_insert_with(|| to.authority());
            let shown = bearer.filter(|_| *first == to.authority());
            let answer = self.ask(&to, &uri, shown).await.map_err(|why| failed(&why))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return whole(answer, limit).await.map_err(|why| failed(&why));
            }
            let location = answer.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
            let missing = || failed(&format!("{} response missing Location header", answer.status().as_u16()));
            url = resolved(&uri, &to, location.ok_or_else(missing)?);
        }
        Err(failed(&url, &format!("stopped after {REQUESTS} redirects")))
    }

    async fn ask(&self, to: &Endpoint, uri: &Uri, bearer: Option<&str>) -> Result<Response<Incoming>, String> {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path)
            .header(header::HOST, to.authority())
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver");
        if let Some(token) = bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        self.0.forward(to, request).await.map_err(|error| why(&error).to_owned())
    }
}

fn failed(url: &str, why: &str) -> String {
    format!("Get {url:?}: {why}")
}

fn place(uri: &Uri) -> Result<Endpoint, &'static str> {
    if uri.scheme_str() != Some("https") {
        return Err("only https is spoken");
    }
    let authority: &Authority = uri.authority().ok_or("no Host in request URL")?;
    Ok(Endpoint::new(authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(443)))
}

/// The URL of a Location, which may leave out what is as before.
fn resolved(from: &Uri, to: &Endpoint, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = location.split_once(':').map_or("", |(scheme, _)| scheme);
    if !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) {
        return location.to_owned();
    }
    if location.starts_with("//") {
        return format!("https:{location}");
    }
    let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = match location.chars().next() {
        Some('/') => location.to_owned(),
        Some('?') | None => format!("{}{location}", from.path()),
        Some(_) => format!("{folder}/{location}"),
    };
    format!("https://{}{path}", to.authority())
}

/// The content of a good answer.
async fn whole(answer: Response<Incoming>, limit: usize) -> Result<Bytes, String> {
    let (parts, body) = answer.into_parts();
    let whole = Body::Network(body).read(limit, |_| Ok(())).await;
    let whole = whole.map_err(|error| match error.code {
        413 => format!("the answer has more than {limit} bytes"),
        _ => error.message.to_string(),
    })?;
    if !parts.status.is_success() {
        return Err(format!("it answered {}", parts.status));
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::idp::{Idp, Page};

    #[tokio::test]
    async fn redirects_are_followed_to_https_without_credentials() {
        let (here, there) = (Idp::start(&[]).await, Idp::start(&[]).await);
        let fetcher = Fetcher::new(Some(&format!("{}{}", here.authorities(), there.authorities()))).unwrap();
        there.be("/there", Page::Text("good".to_owned()));
        here.be("/d/here", Page::Text("good".to_owned()));
        let get = async |to: &str| {
            here.be("/d/a", Page::Redirecting(to.to_owned()));
            let got = fetcher.get(&format!("{}/d/a", here.url()), Some("t"), 100).await;
            got.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        for to in ["here", "/d/here", "/d/here#x", &format!("{}/d/here", here.url())] {
            assert_eq!(get(to).await, Ok("good".to_owned()), "{to}");
        }
        assert!(here.asked().iter().all(|(_, shown)| shown == "Bearer t"), "it is the same place");
        for to in [format!("{}/there", there.url()), format!("{}/there", there.url().replacen("https:", "", 1))] {
            assert_eq!(get(&to).await, Ok("good".to_owned()), "{to}");
        }
        let shown: Vec<String> = there.asked().into_iter().map(|(_, shown)| shown).collect();
        assert_eq!(shown, ["", ""], "another place is shown no credentials");
        here.asked();
        for (to, why) in [
            ("http://localhost/", "only https is spoken"),
            ("file:///etc/passwd", "invalid format"),
            ("/nowhere", "it answered 404"),
            ("a", "stopped after 10 redirects"),
        ] {
            let said = get(to).await.unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert_eq!(here.asked().len(), 1 + 1 + 2 + 10);
    }
}
