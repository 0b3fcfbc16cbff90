//! The programs that know credentials of registries: which of them are asked about an image, and how long their answers count.
//! Equal questions that are asked at once are one.
//! Upstream counterpart: pkg/credentialprovider/plugin.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clock::Instant;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared, join_all},
};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{
    counts::Counts,
    keyring::{self, Coordinates, Entry, Keyring, Source},
    program::{self, Answer, Question, Reach},
};
use crate::{
    configuration::credential_providers::{CacheType, CredentialProvider, TokenAttributes},
    volumes::sources::ApiSources,
};

/// A program is asked this many questions at once; further ones wait.
const AT_ONCE: usize = 16;
/// As many answers of one program are kept. Beyond that the one that ends first goes.
const ANSWERS: usize = 4096;

/// The service account on whose behalf a program is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    account: Coordinates,
    annotations: BTreeMap<String, String>,
    /// The digest of the token, where each has answers of its own.
    token: Option<[u8; 32]>,
}

/// The images for which a kept answer counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum For {
    Image(String),
    Registry(String),
    All,
}

/// The questions that are one: about an image, with the same token and annotations.
type Flown = (String, Option<[u8; 32]>, BTreeMap<String, String>);
type Flight = Shared<BoxFuture<'static, Result<Arc<Answer>, String>>>;

struct Kept {
    entries: BTreeMap<String, Entry>,
    until: Instant,
}

struct Provider {
    settings: CredentialProvider,
    kept: Mutex<BTreeMap<(For, Option<Owner>), Kept>>,
    flights: Mutex<BTreeMap<Flown, Flight>>,
    places: Semaphore,
    counts: Arc<Counts>,
}

fn registry(image: &str) -> &str {
    image.split('/').next().unwrap_or_default()
}

/// A Pod's service account as a program is told of it, with the token.
struct Account {
    coordinates: Coordinates,
    annotations: BTreeMap<String, String>,
    token: String,
}

/// Why a program is not asked on behalf of a Pod. Most Pods are none of it, so that is only said where it is an error.
enum Passed {
    NotMeant,
    Failed(String),
}

impl TokenAttributes {
    /// The account of a Pod; `None` is a Pod without one, which the program takes too.
    async fn account(&self, sources: &ApiSources, pod: &Pod) -> Result<Option<Account>, Passed> {
        let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
        if name.is_empty() {
            return if self.requires_account { Err(Passed::NotMeant) } else { Ok(None) };
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let found = sources.service_account(pod, name).await.map_err(|e| Passed::Failed(e.to_string()))?;
        let found = found.ok_or_else(|| Passed::Failed(format!("serviceaccounts {name:?} not found")))?;
        let held = found.metadata.annotations.unwrap_or_default();
        let mut annotations = BTreeMap::new();
        for key in &self.required_annotations {
            // By this annotation an account says that it wants to be asked for.
            let value = held.get(key).ok_or(Passed::NotMeant)?;
            annotations.insert(key.clone(), value.clone());
        }
        let optional = self.optional_annotations.iter().filter_map(|key| Some((key.clone(), held.get(key)?.clone())));
        annotations.extend(optional);
        let token = sources.registry_token(pod, &self.audience).await.map_err(|e| Passed::Failed(e.to_string()))?;
        let coordinates = Coordinates {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: found.metadata.uid.unwrap_or_default(),
        };
        Ok(Some(Account { coordinates, annotations, token: token.text.clone() }))
    }
}

impl Provider {
    /// The credentials for an image on behalf of a Pod, with their owner.
    async fn ask(
        self: &Arc<Self>,
        sources: &ApiSources,
        pod: &Pod,
        image: &str,
    ) -> Result<(Source, BTreeMap<String, Entry>), Passed> {
        if !self.settings.images.iter().any(|pattern| keyring::matches(pattern, image)) {
            return Err(Passed::NotMeant);
        }
        let account = match &self.settings.token {
            Some(token) => token.account(sources, pod).await?,
            None => None,
        };
        let digest = account.as_ref().map(|account| <[u8; 32]>::from(Sha256::digest(&account.token)));
        let by_token = self.settings.token.as_ref().is_some_and(|token| token.cache == CacheType::Token);
        let owner = account.as_ref().map(|account| Owner {
            account: account.coordinates.clone(),
            annotations: account.annotations.clone(),
            token: digest.filter(|_| by_token),
        });
        let source =
            account.as_ref().map_or(Source::Node, |account| Source::ServiceAccount(account.coordinates.clone()));
        if let Some(entries) = self.held(image, &owner) {
            return Ok((source, entries));
        }
        let (token, annotations) = account.map(|a| (a.token, a.annotations)).unzip();
        let question = Question { image: image.to_owned(), token, annotations: annotations.unwrap_or_default() };
        let answer = self.fly(question, digest, owner).await.map_err(Passed::Failed)?;
        Ok((source, answer.entries.clone()))
    }

    /// The answer that is kept.
    fn held(&self, image: &str, owner: &Option<Owner>) -> Option<BTreeMap<String, Entry>> {
        let kept = self.kept.lock();
        let now = Instant::now();
        [For::Image(image.to_owned()), For::Registry(registry(image).to_owned()), For::All]
            .into_iter()
            .filter_map(|place| kept.get(&(place, owner.clone())))
            .find(|kept| now <= kept.until)
            .map(|kept| kept.entries.clone())
    }

    /// Asks the program, or waits for the answer to the same question.
    async fn fly(
        self: &Arc<Self>,
        question: Question,
        digest: Option<[u8; 32]>,
        owner: Option<Owner>,
    ) -> Result<Arc<Answer>, String> {
        let key: Flown = (question.image.clone(), digest, question.annotations.clone());
        let flight = {
            let mut flights = self.flights.lock();
            let begin = || {
                let (provider, key) = (self.clone(), key.clone());
                // It ends by itself, also when nobody waits any more: the program answers within its time.
                let work = tokio::spawn(async move {
                    let answer = provider.run(&question, owner).await;
                    provider.flights.lock().remove(&key);
                    answer
                });
                work.map(|done| done.unwrap_or_else(|_| Err("the question was given up".to_owned()))).boxed().shared()
            };
            flights.entry(key.clone()).or_insert_with(begin).clone()
        };
        flight.await
    }

    async fn run(&self, question: &Question, owner: Option<Owner>) -> Result<Arc<Answer>, String> {
        // It is never closed.
        let _place = self.places.acquire().await;
        let begun = Instant::now();
        let answer = program::ask(&self.settings, question).await;
        self.counts.asked(&self.settings.name, begun.elapsed(), answer.is_ok());
        let answer = answer?;
        self.keep(&question.image, owner, &answer);
        Ok(Arc::new(answer))
    }

    fn keep(&self, image: &str, owner: Option<Owner>, answer: &Answer) {
        let counts = answer.cache.unwrap_or(self.settings.cache);
        if counts.is_zero() {
            return;
        }
        let place = match answer.reach {
            Reach::Image => For::Image(image.to_owned()),
            Reach::Registry => For::Registry(registry(image).to_owned()),
            Reach::Global => For::All,
        };
        let mut kept = self.kept.lock();
        let now = Instant::now();
        kept.retain(|_, kept| now <= kept.until);
        if kept.len() >= ANSWERS
            && let Some(first) = kept.iter().min_by_key(|(_, kept)| kept.until).map(|(key, _)| key.clone())
        {
            kept.remove(&first);
        }
        let until = now.checked_add(counts).unwrap_or(now + Duration::from_secs(86_400));
        kept.insert((place, owner), Kept { entries: answer.entries.clone(), until });
    }
}

/// See the module.
pub struct Providers {
    all: Vec<Arc<Provider>>,
    sources: Arc<ApiSources>,
}

impl Providers {
    pub fn new(settings: &[CredentialProvider], sources: Arc<ApiSources>, counts: Arc<Counts>) -> Self {
        let one = |settings: &CredentialProvider| {
            Arc::new(Provider {
                settings: settings.clone(),
                kept: Mutex::default(),
                flights: Mutex::default(),
                places: Semaphore::new(AT_ONCE),
                counts: counts.clone(),
            })
        };
        Providers { all: settings.iter().map(one).collect(), sources }
    }

    /// The credentials of all programs for an image, those of the first one first.
    pub async fn keyring(&self, pod: &Pod, image: &str) -> Keyring {
        let asked = self.all.iter().map(|provider| provider.ask(&self.sources, pod, image));
        let mut keyring = Keyring::default();
        for (provider, answer) in self.all.iter().zip(join_all(asked).await) {
            match answer {
                Ok((source, entries)) => keyring.add(&source, entries),
                Err(Passed::NotMeant) => {}
                Err(Passed::Failed(why)) => {
                    let provider = &provider.settings.name;
                    tracing::warn!(provider, image, "no credentials from this provider: {why}");
                }
            }
        }
        keyring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        images::program::tests::shell,
        pod::fixture::{self, pod_of},
    };
    use json::{Value, json};

    const ANSWER: &str = r#""kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1""#;

    /// A program that answers with how often it was asked, and keeps that count in a file.
    fn counting(folder: &std::path::Path, fields: &str) -> CredentialProvider {
        let file = folder.join("asked").display().to_string();
        let line = format!(
            "cat >> '{file}'; echo >> '{file}'; printf '{{{ANSWER},{fields},\"auth\":{{\"r.io\":{{\"username\":\"%s\"}}}}}}' $(wc -l < '{file}')"
        );
        CredentialProvider { images: vec!["*.io".into()], cache: Duration::from_secs(600), ..shell(&line) }
    }

    fn providers(folder: &std::path::Path, settings: &[CredentialProvider]) -> Providers {
        let kubelet = fixture::kubelet(folder, runtime::fake::Fake::default(), |method, path| {
            let account = json!({"metadata": {"name": "a", "uid": "ua", "annotations": {"x.io/role": "r"}}});
            let end = "2099-01-01T00:00:00Z";
            let token = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"audiences": []},
                "status": {"token": "t0ken", "expirationTimestamp": end}});
            match (method.as_str(), path) {
                ("GET", "/api/v1/namespaces/d/serviceaccounts/a") => Some(account),
                ("POST", "/api/v1/namespaces/d/serviceaccounts/a/token") => Some(token),
                _ => None,
            }
        });
        Providers::new(settings, kubelet.sources.clone(), Arc::default())
    }

    async fn users(providers: &Providers, spec: Value, image: &str) -> String {
        let pod = pod_of(json!({"spec": spec})).pod;
        let found = providers.keyring(&pod, image).await.find(image);
        found.into_iter().map(|found| format!("{} {:?}", found.entry.username, found.source)).collect()
    }

    #[tokio::test]
    async fn an_answer_counts_for_the_images_that_it_says() {
        for (fields, expected) in [
            (r#""cacheKeyType":"Image""#, ["1", "1", "2", "", "1"]),
            (r#""cacheKeyType":"Registry""#, ["1", "1", "1", "", "1"]),
            (r#""cacheKeyType":"Global""#, ["1", "1", "1", "", "1"]),
            (r#""cacheKeyType":"Global","cacheDuration":"0s""#, ["1", "2", "3", "", "4"]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let all = providers(folder.path(), &[counting(folder.path(), fields)]);
            let mut seen = Vec::new();
            for image in ["r.io/a", "r.io/a", "r.io/b", "r.example/a", "r.io/a"] {
                seen.push(users(&all, json!({"containers": []}), image).await);
            }
            let expected = expected.map(|user| if user.is_empty() { String::new() } else { format!("{user} Node") });
            assert_eq!(seen, expected, "{fields}");
        }
    }

    #[tokio::test]
    async fn equal_questions_at_once_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let all =
            providers(folder.path(), &[counting(folder.path(), r#""cacheKeyType":"Image","cacheDuration":"0s""#)]);
        let spec = || json!({"containers": []});
        let asked: Vec<String> = join_all((0..8).map(|_| users(&all, spec(), "r.io/a"))).await;
        assert_eq!(asked, vec!["1 Node"; 8]);
        assert_eq!(users(&all, spec(), "r.io/a").await, "2 Node");
    }

    #[tokio::test]
    async fn a_program_is_asked_for_a_service_account_only_as_that_wants() {
        let folder = tempfile::tempdir().unwrap();
        let token = |requires_account, required: &[&str]| TokenAttributes {
            audience: "r".into(),
            requires_account,
            cache: CacheType::ServiceAccount,
            required_annotations: required.iter().map(|key| (*key).to_owned()).collect(),
            optional_annotations: vec!["x.io/none".into()],
        };
        let of = |token| CredentialProvider {
            token: Some(token),
            ..counting(folder.path(), r#""cacheKeyType":"Image","cacheDuration":"0s""#)
        };
        let with_account = || json!({"containers": [], "serviceAccountName": "a"});
        let bound = "ServiceAccount(Coordinates { namespace: \"d\", name: \"a\", uid: \"ua\" })";
        let check = async |settings: CredentialProvider, spec: Value, expected: &str| {
            let all = providers(folder.path(), &[settings]);
            assert_eq!(users(&all, spec, "r.io/a").await, expected);
        };
        check(of(token(true, &["x.io/role"])), with_account(), &format!("1 {bound}")).await;
        let sent = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        assert!(
            sent.contains(r#""serviceAccountAnnotations":{"x.io/role":"r"},"serviceAccountToken":"t0ken""#),
            "{sent}"
        );
        check(of(token(true, &["x.io/other"])), with_account(), "").await;
        check(of(token(true, &[])), json!({"containers": []}), "").await;
        check(of(token(true, &[])), json!({"containers": [], "serviceAccountName": "gone"}), "").await;
        // Static Pods have none.
        check(of(token(false, &[])), json!({"containers": []}), "2 Node").await;
    }
}
