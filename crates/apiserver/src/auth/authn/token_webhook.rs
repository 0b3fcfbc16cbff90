//! Bearer tokens that somebody else's server knows: it is asked with a TokenReview, and what it says is remembered for a while.
//!
//! Upstream counterpart: apiserver/plugin/pkg/authenticator/token/webhook.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use api::codec::decode::{self, Format};
use bytes::Bytes;
use clock::{Duration, Instant};
use futures::future::BoxFuture;
use json::{Value, json};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::token::{Identity, Refusal, Rejected, Tokens};
use crate::{
    auth::User,
    outbound::kubeconfig::{self, PATIENCE, Server, retried},
};

/// The most that is read of an answer. One that is longer than the other is not remembered.
const ANSWER: usize = 1 << 20;
const REMEMBERED_BYTES: usize = 16 << 10;
/// With one more, all begin anew.
const REMEMBERED: usize = 4096;
/// The pause before a question is put again.
const BACKOFF: Duration = Duration::from_millis(500);

/// The settings of the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub kubeconfig: PathBuf,
    /// `v1` or `v1beta1`.
    pub version: String,
    /// How long its answers are remembered; not at all where this is nothing.
    pub remembered: Duration,
}

pub struct TokenWebhook {
    server: Server,
    api_version: String,
    time: Duration,
    /// The audiences of a token whose review names none: those of this API server.
    own: Vec<String>,
    remembered: Mutex<Answers>,
}

/// Answers by the SHA-256 of their questions, each until its end.
type Answers = std::collections::HashMap<[u8; 32], (Instant, Said)>;

/// The answer, so far as it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Known {
        user: Arc<User>,
        audiences: Vec<String>,
    },
    /// Why not, where that is said.
    Unknown(String),
}

impl TokenWebhook {
    pub fn new(settings: &Settings, own: Vec<String>) -> Result<Self, String> {
        let server = Server::of_file(&settings.kubeconfig, PATIENCE).map_err(|error| kubeconfig::sentence(&error))?;
        let api_version = format!("authentication.k8s.io/{}", settings.version);
        Ok(TokenWebhook { server, api_version, time: settings.remembered, own, remembered: Mutex::default() })
    }

    async fn ask(&self, token: &str, audiences: &[String]) -> Result<Said, Rejected> {
        let question = json!({
            "kind": "TokenReview",
            "apiVersion": self.api_version,
            "metadata": {},
            "spec": {"token": token, "audiences": audiences},
            "status": {"user": {}},
        });
        let question = Bytes::from(question.to_string());
        let key: [u8; 32] = Sha256::digest(&question).into();
        let now = Instant::now();
        if let Some((until, said)) = self.remembered.lock().get(&key)
            && *until > now
        {
            return Ok(said.clone());
        }
        let put = || self.server.post("kube-apiserver", question.clone(), ANSWER);
        let answer = retried(BACKOFF, |failure: &kubeconfig::Failure| failure.again, put).await;
        let answer = answer.map_err(|failure| failure.message)?;
        let said = read(&self.api_version, &answer)?;
        // An error may be over at the next question.
        let lasts = !matches!(&said, Said::Unknown(why) if !why.is_empty());
        if lasts && !self.time.is_zero() && answer.len() <= REMEMBERED_BYTES {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= REMEMBERED {
                remembered.clear();
            }
            remembered.insert(key, (Instant::now() + self.time, said.clone()));
        }
        Ok(said)
    }
}

impl Tokens for TokenWebhook {
    fn check<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Option<Identity>, Refusal>> {
        Box::pin(async move {
            match self.ask(token, audiences).await? {
                Said::Unknown(why) if why.is_empty() => Ok(None),
                Said::Unknown(why) => Err(why.into()),
                Said::Known { user, audiences: named } => {
                    let named = if named.is_empty() { &self.own } else { &named };
                    let both: Vec<String> = audiences.iter().filter(|one| named.contains(one)).cloned().collect();
                    Ok((!both.is_empty()).then_some(Identity { user, audiences: both, notes: Vec::new() }))
                }
            }
        })
    }
}

/// Reads an answer once. An answer that is not of its type is refused whole: half of a user is another one.
fn read(api_version: &str, answer: &[u8]) -> Result<Said, Rejected> {
    let (review, _) = decode::raw(answer, Format::Json)
        .map_err(|why| format!("couldn't get version/kind; json parse error: {why}"))?;
    let (kind, given) = (text(&review, "kind")?, text(&review, "apiVersion")?);
    if (&*kind, &*given) != ("TokenReview", api_version) {
        return Err(format!("the answer is a {kind:?} of {given:?}, not a TokenReview of {api_version:?}"));
    }
    let nothing = Value::Null;
    let status = review.get("status").unwrap_or(&nothing);
    let known = match status.get("authenticated") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(known)) => *known,
        Some(_) => return Err("status.authenticated of the answer is neither true nor false".to_owned()),
    };
    if !known {
        return text(status, "error").map(Said::Unknown);
    }
    let user = status.get("user").unwrap_or(&nothing);
    let mut extra = BTreeMap::new();
    for (key, values) in user.get("extra").and_then(Value::as_object).into_iter().flatten() {
        extra.insert(key.to_string(), texts(key, Some(values))?);
    }
    let user = User {
        name: text(user, "username")?,
        uid: text(user, "uid")?,
        groups: texts("groups", user.get("groups"))?,
        extra,
    };
    if user.name.is_empty() {
        return Err("the answer names no user".to_owned());
    }
    Ok(Said::Known { user: Arc::new(user), audiences: texts("audiences", status.get("audiences"))? })
}

fn text(value: &Value, field: &str) -> Result<String, Rejected> {
    match value.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.to_string()),
        Some(_) => Err(format!("{field} of the answer is no text")),
    }
}

fn texts(field: &str, value: Option<&Value>) -> Result<Vec<String>, Rejected> {
    let wrong = || format!("{field} of the answer is no list of texts");
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hook::{Hook, Mood};

    fn answering(review: &Value) -> Value {
        let mut status = match review["spec"]["token"].as_str().unwrap() {
            "good" => {
                json!({"authenticated": true, "user": {"username": "jane", "uid": "7", "groups": ["dev"], "extra": {"k": ["v"]}}})
            }
            "elsewhere" => json!({"authenticated": true, "user": {"username": "jane"}, "audiences": ["other"]}),
            "here" => json!({"authenticated": true, "user": {"username": "jane"}, "audiences": ["other", "api"]}),
            "nobody" => json!({"authenticated": true, "user": {"groups": ["system:masters"]}}),
            "half" => json!({"authenticated": true, "user": {"username": "jane", "groups": "dev"}}),
            "maybe" => json!({"authenticated": "true", "user": {"username": "jane"}}),
            _ => json!({"authenticated": false}),
        };
        if review["spec"]["token"] == "late" {
            status["error"] = json!("the token is over");
        }
        json!({"kind": "TokenReview", "apiVersion": review["apiVersion"], "status": status})
    }

    fn webhook(file: &std::path::Path, version: &str, seconds: u64) -> TokenWebhook {
        let remembered = Duration::from_secs(seconds);
        let settings = Settings { kubeconfig: file.to_owned(), version: version.to_owned(), remembered };
        TokenWebhook::new(&settings, vec!["api".to_owned()]).unwrap()
    }

    #[tokio::test]
    async fn tokens_are_whose_the_webhook_says() {
        let hook = Hook::start().await;
        hook.be("/", Mood::Lying(answering));
        let (_folder, file) = hook.kubeconfig("/", "");
        let tokens = webhook(&file, "v1", 60);
        let own = ["api".to_owned()];
        let check = async |token: &str, expected: Result<Option<&str>, &str>| {
            let found = tokens.check(token, &own).await;
            let found = found.as_ref().map(|found| found.as_ref().map(|identity| identity.user.name.as_str()));
            assert_eq!(found.map_err(|refusal| refusal.why.as_str()), expected, "{token}");
        };
        for _ in 0..2 {
            check("good", Ok(Some("jane"))).await;
            check("bad", Ok(None)).await;
        }
        let asked = hook.questions();
        assert_eq!(asked.len(), 2, "both answers are remembered");
        assert_eq!(asked[0].2["spec"], json!({"token": "good", "audiences": ["api"]}));
        hook.questions();
        for _ in 0..2 {
            check("late", Err("the token is over")).await;
        }
        assert_eq!(hook.questions().len(), 2, "an error is not remembered");
        check("here", Ok(Some("jane"))).await;
        check("elsewhere", Ok(None)).await;
        check("nobody", Err("the answer names no user")).await;
        check("half", Err("groups of the answer is no list of texts")).await;
        check("maybe", Err("status.authenticated of the answer is neither true nor false")).await;
        let whole = tokens.check("good", &own).await.unwrap().unwrap();
        let user =
            User { uid: "7".into(), extra: [("k".into(), vec!["v".into()])].into(), ..User::new("jane", ["dev"]) };
        assert_eq!((&*whole.user, &whole.audiences[..]), (&user, &own[..]));
        // Other audiences are another question, and a token for none of them is nobody's.
        assert_eq!(tokens.check("good", &["other".to_owned()]).await.unwrap(), None);
        let older = webhook(&file, "v1beta1", 0);
        for _ in 0..2 {
            assert!(older.check("good", &own).await.unwrap().is_some());
        }
        let versions: Vec<Value> =
            hook.questions().into_iter().map(|(.., review)| review["apiVersion"].clone()).collect();
        let count = versions.iter().filter(|version| **version == "authentication.k8s.io/v1beta1").count();
        assert_eq!(count, 2, "nothing is remembered where that is not wanted");
    }

    #[tokio::test]
    async fn a_webhook_that_answers_nonsense_knows_nobody() {
        let hook = Hook::start().await;
        let (_folder, file) = hook.kubeconfig("/", "");
        let tokens = webhook(&file, "v1", 60);
        for (mood, why) in [
            (Mood::Text(200, "yes"), "json parse error"),
            (
                Mood::Text(200, "{\"status\":{\"authenticated\":true,\"user\":{\"username\":\"root\"}}}"),
                "not a TokenReview",
            ),
            (Mood::Text(403, ""), "responded with the status code 403"),
            (Mood::Redirecting, "responded with the status code 307"),
            (Mood::Endless, "has more than 1048576 bytes"),
        ] {
            hook.be("/", mood);
            let said = tokens.check("good", &["api".to_owned()]).await.unwrap_err().why;
            assert!(said.contains(why), "{said}");
        }
        hook.be("/", Mood::Lying(answering));
        assert!(tokens.check("good", &["api".to_owned()]).await.unwrap().is_some(), "failures are not remembered");
    }
}
