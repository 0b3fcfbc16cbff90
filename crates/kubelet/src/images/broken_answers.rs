//! Answers of programs that know credentials, and Docker's files in Secrets of users, that are nearly right: read or refused, and
//! no refusal shows what must stay secret.

use std::path::Path;

use fuzz::Target;

use super::{
    keyring::{self, Form},
    program,
};

const SECRET: &str = "s3cr3t";

fn found() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found"))
}

#[test]
fn provider_answers() {
    let head = r#""kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1""#;
    let seeds = [
        format!(
            r#"{{{head},"cacheKeyType":"Registry","cacheDuration":"1m30s","auth":{{"r.io":{{"username":"u","password":"{SECRET}"}}}}}}"#
        ),
        format!(
            r#"{{{head},"cacheKeyType":"Global","auth":{{"*.r.io":{{}},"r.io:5000/x":{{"password":"{SECRET}"}}}}}}"#
        ),
        format!(r#"{{{head},"cacheKeyType":"Image"}}"#),
    ];
    let words = [head, "\"Image\"", "\"cacheDuration\":\"-1s\"", "\"auth\":null", "{}", "null", ",", SECRET];
    let provider = program::tests::shell("");
    let seeds = seeds.map(String::into_bytes).into();
    fuzz::run(&Target { name: "provider-answers", seeds, words: &words, found: found() }, |input| {
        match program::answer(&provider, input) {
            Ok(answer) => {
                for pattern in answer.entries.keys() {
                    let _ = keyring::matches(pattern, "r.io:5000/x/y");
                }
                format!("{:?} {} {}", answer.reach, answer.cache.is_some(), "x".repeat(answer.entries.len().min(9)))
            }
            Err(why) => {
                // A version and a time are shown.
                let is_shown = why.contains("did not match expected apiVersion") || why.starts_with("cacheDuration: ");
                assert!(!why.contains(SECRET) || is_shown, "{why}");
                why
            }
        }
    });
}

#[test]
fn docker_files() {
    let seeds = [
        r#"{"auths":{"https://r.io/v1/":{"auth":"dTpw"},"*.r.io":{"username":"u","password":"p","email":"e"}}}"#,
        r#"{"r.io:5000":{"auth":"dTpw\u0000"},"[::1]:5000/a":{}}"#,
    ];
    let words = ["\"auths\":", "\"auth\":\"", "dTpw", "=", "null", "{}", "*", "https://", "\"\":{}"];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    fuzz::run(&Target { name: "docker-files", seeds, words: &words, found: found() }, |input| {
        let read = |form| {
            let entries = keyring::entries(input, form)?;
            Some(entries.keys().filter(|name| keyring::matches(name, "r.io/a/b")).count())
        };
        format!("{:?} {:?}", read(Form::Json).map(|n| n.min(3)), read(Form::Older).map(|n| n.min(3)))
    });
}
