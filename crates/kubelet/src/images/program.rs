//! One question to a program that knows credentials of registries: it reads a CredentialProviderRequest and writes a
//! CredentialProviderResponse. Its time and its answer are bounded.
//! Upstream counterpart: the type execPlugin of pkg/credentialprovider/plugin.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use json::{Value, json};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command,
};

use super::keyring::Entry;
use crate::configuration::{credential_providers::CredentialProvider, time};

/// A program that takes longer is ended.
const LONGEST: Duration = Duration::from_secs(60);
/// Longer answers are refused, and longer complaints are cut off.
const ANSWER_BYTES: usize = 1 << 20;
const WORDS_BYTES: usize = 4 << 10;

/// The thing that a program is asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    pub image: String,
    pub token: Option<String>,
    pub annotations: BTreeMap<String, String>,
}

/// The images for which an answer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Reach {
    Image,
    Registry,
    Global,
}

/// Credentials by the registries that they are for.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    pub reach: Reach,
    /// How long it counts, where it says so itself.
    pub cache: Option<Duration>,
    pub entries: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Response {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    cache_key_type: Reach,
    cache_duration: Option<String>,
    auth: Option<BTreeMap<String, Auth>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Auth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

fn request(provider: &CredentialProvider, question: &Question) -> Vec<u8> {
    let mut request = json!({
        "kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": question.image,
    });
    if let Some(token) = &question.token {
        request["serviceAccountToken"] = token.as_str().into();
    }
    if !question.annotations.is_empty() {
        let pairs = question.annotations.iter();
        request["serviceAccountAnnotations"] =
            Value::Object(pairs.map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect());
    }
    request.to_string().into_bytes()
}

/// Reads an answer. No error shows what is in it.
pub(super) fn answer(provider: &CredentialProvider, bytes: &[u8]) -> Result<Answer, String> {
    let undecodable = || "error decoding credential provider plugin response from stdout".to_owned();
    let text = std::str::from_utf8(bytes).map_err(|_| undecodable())?;
    let value: Value = json::from_text(text).map_err(|_| undecodable())?;
    let said = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    if said("apiVersion") != provider.api_version {
        return Err(format!(
            "apiVersion from credential plugin response did not match expected apiVersion:{}, actual apiVersion:{:?}",
            provider.api_version,
            said("apiVersion").chars().take(64).collect::<String>()
        ));
    }
    if said("kind") != "CredentialProviderResponse" {
        return Err("the answer is no CredentialProviderResponse".to_owned());
    }
    let response: Response = json::from_value(value).map_err(|_| undecodable())?;
    let cache = response.cache_duration.map(|text| time::duration(&text)).transpose();
    let entry = |Auth { username, password }| Entry { username, password, email: String::new() };
    Ok(Answer {
        reach: response.cache_key_type,
        cache: cache.map_err(|why| format!("cacheDuration: {why}"))?,
        entries: response.auth.unwrap_or_default().into_iter().map(|(name, auth)| (name, entry(auth))).collect(),
    })
}

/// The first bytes of a stream, which is read to its end.
async fn beginning(stream: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut stream = stream;
    let mut first = Vec::new();
    (&mut stream).take(WORDS_BYTES as u64).read_to_end(&mut first).await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(first)
}

async fn bounded(stream: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.take(ANSWER_BYTES as u64 + 1).read_to_end(&mut all).await?;
    if all.len() > ANSWER_BYTES {
        return Err(std::io::Error::other(format!("its answer has more than {ANSWER_BYTES} bytes")));
    }
    Ok(all)
}

/// The answer of the program as it wrote it.
async fn run(provider: &CredentialProvider, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut command = Command::new(&provider.program);
    command.args(&provider.args).envs(provider.env.iter().map(|(name, value)| (name, value)));
    // The token that a node joined with is nobody else's.
    command.env_remove("SKIFF_TOKEN");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let missing = || std::io::Error::other("a stream of the program is missing");
    let mut input = child.stdin.take().ok_or_else(missing)?;
    let (output, words) = (child.stdout.take().ok_or_else(missing)?, child.stderr.take().ok_or_else(missing)?);
    let write = async move {
        // A program need not read the question.
        let _ = input.write_all(request).await;
        Ok(())
    };
    let ((), answer, words) = tokio::try_join!(write, bounded(output), beginning(words))?;
    let status = child.wait().await?;
    if status.success() {
        return Ok(answer);
    }
    Err(std::io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&words).trim())))
}

/// Asks a program.
pub async fn ask(provider: &CredentialProvider, question: &Question) -> Result<Answer, String> {
    let wrong = |why: String| {
        format!("error execing credential provider plugin {} for image {}: {why}", provider.name, question.image)
    };
    match clock::timeout(LONGEST, run(provider, &request(provider, question))).await {
        Err(_) => Err(wrong("context deadline exceeded".to_owned())),
        Ok(Err(error)) => Err(wrong(error.to_string())),
        Ok(Ok(bytes)) => answer(provider, &bytes),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A program that is a line of shell.
    pub fn shell(line: &str) -> CredentialProvider {
        CredentialProvider {
            name: "p".into(),
            program: "/bin/sh".into(),
            images: vec!["r.io".into()],
            cache: Duration::ZERO,
            api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
            args: vec!["-c".into(), line.into()],
            env: vec![("OWN".into(), "value".into())],
            token: None,
        }
    }

    const HEAD: &str = r#""kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1""#;

    async fn check(line: &str, expected: Result<(Reach, Option<u64>, &str), &str>) {
        let question = Question { image: "r.io/a".into(), ..Question::default() };
        let got = ask(&shell(line), &question).await;
        match (got, expected) {
            (Ok(answer), Ok((reach, seconds, user))) => {
                let users: Vec<&str> = answer.entries.values().map(|entry| entry.username.as_str()).collect();
                let cache = answer.cache.map(|cache| cache.as_secs());
                assert_eq!((answer.reach, cache, users.concat()), (reach, seconds, user.to_owned()), "{line}");
            }
            (Err(why), Err(part)) => assert!(why.contains(part), "{line}: {why}"),
            (got, _) => panic!("{line}: {:?}", got.map(|answer| answer.reach)),
        }
    }

    #[tokio::test]
    async fn a_program_is_told_the_image_and_answers_with_credentials() {
        let auth = r#""auth":{"r.io":{"username":"USER","password":"p"}}"#;
        let echo = |fields: &str| format!("cat >/dev/null; printf '%s' '{{{HEAD},{fields}}}'");
        check(
            &echo(&format!(r#""cacheKeyType":"Registry","cacheDuration":"1m30s",{auth}"#)),
            Ok((Reach::Registry, Some(90), "USER")),
        )
        .await;
        check(&echo(r#""cacheKeyType":"Global""#), Ok((Reach::Global, None, ""))).await;
        // It may answer without reading, and finds what the configuration sets.
        let own =
            format!(r#"printf '{{%s,"cacheKeyType":"Image","auth":{{"r.io":{{"username":"%s"}}}}}}' '{HEAD}' "$OWN""#);
        check(&own, Ok((Reach::Image, None, "value"))).await;
        let asked = r#"test "$(cat)" = '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"r.io/a","kind":"CredentialProviderRequest"}' || exit 7; "#;
        check(&format!("{asked}{}", echo(r#""cacheKeyType":"Image""#)), Ok((Reach::Image, None, ""))).await;
        let question = Question {
            image: "r.io/a".into(),
            token: Some("t".into()),
            annotations: [("k".to_owned(), "v".to_owned())].into(),
        };
        let sent = String::from_utf8(request(&shell(""), &question)).unwrap();
        assert!(sent.contains(r#""serviceAccountAnnotations":{"k":"v"},"serviceAccountToken":"t""#), "{sent}");
    }

    #[tokio::test]
    async fn wrong_answers_are_refused_without_showing_them() {
        let echo = |text: &str| format!("cat >/dev/null; printf '%s' '{text}'");
        check("echo hidden; echo why >&2; exit 3", Err("for image r.io/a: exit status: 3: why")).await;
        check(&echo("s3cret"), Err("error decoding credential provider plugin response from stdout")).await;
        let other = HEAD.replace("/v1", "/v1beta1");
        check(&echo(&format!("{{{other}}}")), Err("did not match expected apiVersion")).await;
        check(&echo(&format!(r#"{{{},"cacheKeyType":"Image"}}"#, HEAD.replace("Response", "Request"))), Err("is no"))
            .await;
        for fields in [r#""cacheKeyType":"Pod""#, r#""cacheKeyType":"Image","more":1"#, r#""auth":{}"#] {
            check(&echo(&format!("{{{HEAD},{fields}}}")), Err("error decoding")).await;
        }
        check(&echo(&format!(r#"{{{HEAD},"cacheKeyType":"Image","cacheDuration":"-1s"}}"#)), Err("cacheDuration: "))
            .await;
        check("head -c 1100000 /dev/zero", Err("more than 1048576 bytes")).await;
        check("head -c 3000000 /dev/zero >&2; exit 1", Err("exit status: 1")).await;
        let mut missing = shell("");
        missing.program = "/nowhere/p".into();
        assert!(ask(&missing, &Question::default()).await.is_err());
    }
}
