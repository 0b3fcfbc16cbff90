//! The credentials that a user of a kubeconfig file shows to a server: a certificate, a token that may be renewed in a file, a
//! password, and the headers of each of its requests.

use std::{fs, path::PathBuf, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use clock::{Duration, Instant};
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use pki::Serving;

use crate::{
    config::Config,
    error::{ConfigError, wrong},
};

/// A token in a file is read anew after this time.
const TOKEN_AGE: Duration = Duration::from_secs(60);

/// The credentials of one user.
pub struct Shown {
    certificate: Option<Arc<Serving>>,
    headers: HeaderMap,
    token: Option<TokenFile>,
}

impl Shown {
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        let mut headers = config.headers.clone();
        if let Some(value) = authorization(config)? {
            headers.insert(header::AUTHORIZATION, value);
        }
        let token = match &config.token_file {
            None => None,
            Some(path) => Some(TokenFile::open(path.clone(), config.token.is_some())?),
        };
        let certificate = config.credential.as_ref().map(Serving::new).transpose()?;
        Ok(Shown { certificate, headers, token })
    }

    /// The certificate that is shown while the connection begins.
    pub fn certificate(&self) -> Option<&Arc<Serving>> {
        self.certificate.as_ref()
    }

    /// Adds what every request says to one.
    pub fn stamp(&self, headers: &mut HeaderMap) {
        headers.extend(self.headers.clone());
        if let Some(token) = self.token.as_ref().and_then(TokenFile::current) {
            headers.insert(header::AUTHORIZATION, token);
        }
    }
}

fn authorization(config: &Config) -> Result<Option<HeaderValue>, ConfigError> {
    match (&config.token, &config.password) {
        (Some(token), _) => bearer(token).map(Some).ok_or_else(|| wrong("its token holds what no token can hold")),
        (None, Some((name, password))) if config.token_file.is_none() => {
            let basic = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
            let mut basic = HeaderValue::from_str(&basic).map_err(|_| wrong("its password fits into no header"))?;
            basic.set_sensitive(true);
            Ok(Some(basic))
        }
        _ => Ok(None),
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(Shown::of(&config).is_err());
    }
}
