//! The server that ImagePolicyWebhook asks about images, and what it said lately.

use std::{collections::HashMap, path::Path, sync::Arc};

use api::{
    codec::decode::{self, Format},
    validation::section::Section,
};
use bytes::Bytes;
use clock::{Duration, Instant};
use json::{Map, Value, json};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::outbound::kubeconfig::{self, Failure, PATIENCE, Server, retried};

const API_VERSION: &str = "imagepolicy.k8s.io/v1alpha1";
/// The most that is read of an answer, and of one that is remembered.
const ANSWER: usize = 1 << 20;
const REMEMBERED_BYTES: usize = 16 << 10;
/// With one more, all begin anew.
const REMEMBERED: usize = 1024;

#[derive(Debug, Clone, PartialEq)]
struct Settings {
    kubeconfig: String,
    allowed: Duration,
    denied: Duration,
    backoff: Duration,
    /// Whether images are taken that it could not be asked about.
    open: bool,
}

/// The content of the file, with the way to the server; nothing where the plugin is not configured.
#[derive(Clone, Default)]
pub struct ImagePolicy(Option<Arc<Asked>>);

struct Asked {
    settings: Settings,
    server: Server,
    remembered: Mutex<HashMap<[u8; 32], (Instant, Said)>>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub allowed: bool,
    pub reason: String,
    pub annotations: Vec<(String, String)>,
}

impl std::fmt::Debug for ImagePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ImagePolicy").field(&self.settings()).finish()
    }
}

impl PartialEq for ImagePolicy {
    fn eq(&self, other: &Self) -> bool {
        self.settings() == other.settings()
    }
}

impl ImagePolicy {
    fn settings(&self) -> Option<&Settings> {
        self.0.as_deref().map(|asked| &asked.settings)
    }

    pub fn is_configured(&self) -> bool {
        self.0.is_some()
    }

    pub fn is_open(&self) -> bool {
        self.settings().is_some_and(|settings| settings.open)
    }

    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        section.has_only(&["imagePolicy"])?;
        let section = section.section("imagePolicy")?;
        section.has_only(&["kubeConfigFile", "allowTTL", "denyTTL", "retryBackoff", "defaultAllow"])?;
        let file = section.text("kubeConfigFile")?.unwrap_or_default();
        let second = Duration::from_secs(1);
        let longest = Duration::from_secs(1800);
        let settings = Settings {
            kubeconfig: file.to_owned(),
            allowed: time(&section, "allowTTL", second, second..longest, Duration::from_secs(300))?,
            denied: time(&section, "denyTTL", second, second..longest, Duration::from_secs(30))?,
            backoff: time(
                &section,
                "retryBackoff",
                Duration::from_millis(1),
                Duration::ZERO..Duration::from_secs(300),
                Duration::from_millis(500),
            )?,
            open: section.flag("defaultAllow")?.unwrap_or_default(),
        };
        let server = Server::of_file(Path::new(file), PATIENCE)
            .map_err(|error| section.wrong("kubeConfigFile", &kubeconfig::sentence(&error)))?;
        Ok(ImagePolicy(Some(Arc::new(Asked { settings, server, remembered: Mutex::default() }))))
    }

    /// The server's answer to a review's spec.
    pub async fn ask(&self, spec: Value) -> Result<Said, String> {
        let asked = self.0.as_deref().ok_or("no server is configured")?;
        let key: [u8; 32] = Sha256::digest(spec.to_string()).into();
        if let Some((until, said)) = asked.remembered.lock().get(&key)
            && *until > Instant::now()
        {
            return Ok(said.clone());
        }
        let review = json!({
            "kind": "ImageReview", "apiVersion": API_VERSION, "metadata": {}, "spec": spec, "status": {"allowed": false},
        });
        let question = Bytes::from(review.to_string());
        let put = || asked.server.post("kube-apiserver", question.clone(), ANSWER);
        let answer = retried(asked.settings.backoff, |failure: &Failure| failure.again, put).await;
        let answer = answer.map_err(|failure| failure.message)?;
        let said = read(&answer)?;
        let time = if said.allowed { asked.settings.allowed } else { asked.settings.denied };
        if !time.is_zero() && answer.len() <= REMEMBERED_BYTES {
            let mut remembered = asked.remembered.lock();
            if remembered.len() >= REMEMBERED {
                remembered.clear();
            }
            remembered.insert(key, (Instant::now() + time, said.clone()));
        }
        Ok(said)
    }
}

/// A time in units: 0 is the usual one, and -1 none at all.
fn time(
    section: &Section<'_>,
    field: &str,
    unit: Duration,
    range: std::ops::Range<Duration>,
    usual: Duration,
) -> Result<Duration, String> {
    let wrong = |why: String| section.wrong(field, &why);
    let given = match section.get(field) {
        None => 0,
        Some(value) => value.as_i64().ok_or_else(|| wrong("it must be a whole number".to_owned()))?,
    };
    match given {
        -1 => Ok(Duration::ZERO),
        0 => Ok(usual),
        given => {
            let count = u32::try_from(given).ok();
            let time = count.and_then(|count| unit.checked_mul(count)).filter(|t| *t > range.start && *t <= range.end);
            time.ok_or_else(|| wrong(format!("valid value is between {:?} and {:?}", range.start, range.end)))
        }
    }
}

/// Reads an answer once. A field that is not of its type counts for nothing.
fn read(answer: &[u8]) -> Result<Said, String> {
    let (review, _) = decode::raw(answer, Format::Json)
        .map_err(|why| format!("couldn't get version/kind; json parse error: {why}"))?;
    let text = |field: &str| review.get(field).and_then(Value::as_str).unwrap_or_default();
    if (text("kind"), text("apiVersion")) != ("ImageReview", API_VERSION) {
        return Err(format!("the answer is a {:?} of {:?}, not an ImageReview", text("kind"), text("apiVersion")));
    }
    let status = review.get("status").and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
    let allowed = match status.get("allowed") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(allowed)) => *allowed,
        Some(_) => return Err("status.allowed of the answer is neither true nor false".to_owned()),
    };
    let annotations = status.get("auditAnnotations").and_then(Value::as_object).into_iter().flatten();
    let annotations = annotations.filter_map(|(key, value)| Some((key.to_string(), value.as_str()?.to_owned())));
    let reason = status.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Said { allowed, reason, annotations: annotations.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream: TestConfigNormalization.
    #[test]
    fn times_are_numbers_of_seconds_and_milliseconds_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let config = "{current-context: c, contexts: [{name: c, context: {cluster: k}}], \
                      clusters: [{name: k, cluster: {server: 'https://a.example'}}]}";
        std::fs::write(&file, config).unwrap();
        let parse = |field: &str, given: Value| -> Result<[u128; 3], String> {
            let mut settings = json!({"kubeConfigFile": file.display().to_string()});
            settings[field] = given;
            let policy = ImagePolicy::parse(&Section::of("", &json!({"imagePolicy": settings})).unwrap())?;
            let settings = policy.settings().unwrap();
            Ok([settings.allowed, settings.denied, settings.backoff].map(|time| time.as_millis()))
        };
        let usual = [300_000, 30_000, 500];
        assert_eq!(parse("defaultAllow", json!(false)), Ok(usual));
        for (at, (field, unit, most)) in
            [("allowTTL", 1000_u64, 1800_u64), ("denyTTL", 1000, 1800), ("retryBackoff", 1, 300_000)]
                .into_iter()
                .enumerate()
        {
            let changed = |millis: u128| {
                let mut times = usual;
                times[at] = millis;
                Ok(times)
            };
            assert_eq!(parse(field, json!(most / 2)), changed(u128::from(most / 2 * unit)), "{field}");
            assert_eq!(parse(field, json!(most)), changed(u128::from(most * unit)), "{field}");
            assert_eq!(parse(field, json!(0)), Ok(usual), "{field}");
            assert_eq!(parse(field, json!(-1)), changed(0), "{field}");
            for wrong in [json!(most + 1), json!(-2), json!(u64::MAX), json!("5"), json!(1.5)] {
                let said = parse(field, wrong.clone()).unwrap_err();
                assert!(said.starts_with(&format!("imagePolicy.{field}: ")), "{wrong}: {said}");
            }
        }
        // A second is the bound that an answer is to be remembered beyond.
        assert!(parse("allowTTL", json!(1)).is_err() && parse("denyTTL", json!(1)).is_err());
        assert_eq!(parse("retryBackoff", json!(1)), Ok([300_000, 30_000, 1]));
    }
}
