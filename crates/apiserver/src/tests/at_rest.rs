//! Objects whose values are encrypted in the store, and values there that nobody can read.

use std::sync::Arc;

use encryption::{Current, Encrypted, configuration};
use json::json;
use store::{Change, Commit, Expect, Store, embedded::Embedded};

use crate::{special::table::Specials, tests::conversation::Conversation};

const SECRETS: &str = "/api/v1/namespaces/a/secrets";
const KEY: &str = "/registry/secrets/a/x";

/// Secrets with these keys of AES-GCM, each with its name; the first one writes.
fn keys(names: &[&str]) -> encryption::Table {
    let keys: Vec<String> =
        names.iter().map(|name| format!("{{name: {name}, secret: AAECAwQFBgcICQoLDA0ODw==}}")).collect();
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{{aesgcm: {{keys: [{}]}}}}]\n",
        keys.join(", ")
    );
    configuration::parse(&text, &|_| unreachable!("no plugin is named")).unwrap()
}

/// A server with one Secret, the store below it and the keys that it uses.
async fn start() -> (Conversation, Arc<Embedded>, Arc<Current>) {
    let (below, current) = (Arc::new(Embedded::memory()), Current::new(keys(&["one"])));
    let c = Conversation::over(Arc::new(Encrypted::new(below.clone(), current.clone())), Specials::default()).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"k": "djE="}});
    assert_eq!(c.say(&format!("POST {SECRETS}"), &secret.to_string()).await.code, 201);
    (c, below, current)
}

async fn stored_with(below: &Embedded, name: &str) -> bool {
    let stored = below.get(KEY).await.unwrap().0.unwrap().value;
    stored.starts_with(format!("k8s:enc:aesgcm:v1:{name}:").as_bytes())
}

#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_brings_the_new_key() {
    let (c, below, current) = start().await;
    let put = async || {
        let object = c.say(&format!("GET {SECRETS}/x"), "").await;
        let put = c.say(&format!("PUT {SECRETS}/x"), &object.text).await;
        assert_eq!((put.code, put.at("/data/k")), (200, json!("djE=")));
        put.at("/metadata/resourceVersion") != object.at("/metadata/resourceVersion")
    };
    assert!(!put().await && stored_with(&below, "one").await);
    current.replace(keys(&["two", "one"]));
    assert!(put().await && stored_with(&below, "two").await);
    assert!(!put().await);
    // A dry run brings nothing.
    current.replace(keys(&["one", "two"]));
    let object = c.say(&format!("GET {SECRETS}/x"), "").await;
    assert_eq!(c.say(&format!("PUT {SECRETS}/x?dryRun=All"), &object.text).await.code, 200);
    assert!(stored_with(&below, "two").await);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_cannot_be_read_is_an_error_of_its_own() {
    let (c, below, _) = start().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    assert_eq!(c.say("POST /api/v1/namespaces/a/configmaps", &map.to_string()).await.code, 201);
    // Somebody puts a copy where they may read it.
    let value = below.get(KEY).await.unwrap().0.unwrap().value;
    let change = Change::Put { value, ttl_seconds: None };
    below.commit(Commit { key: "/registry/secrets/mine/y".into(), expect: Expect::Absent, change }).await.unwrap();
    let why = "cipher: message authentication failed";
    for (request, among) in [
        ("GET /api/v1/namespaces/mine/secrets/y", ""),
        ("GET /api/v1/namespaces/mine/secrets", "unable to transform key \"/registry/secrets/mine/y\": "),
        ("GET /api/v1/secrets", "unable to transform key \"/registry/secrets/mine/y\": "),
        ("DELETE /api/v1/namespaces/mine/secrets/y", ""),
        ("DELETE /api/v1/namespaces/mine/secrets", "unable to transform key \"/registry/secrets/mine/y\": "),
    ] {
        let words = format!("Internal error occurred: {among}{why}");
        let answer = c.say(request, "").await;
        assert_eq!(
            (answer.code, answer.at("/reason"), answer.message()),
            (500, json!("InternalError"), words),
            "{request}"
        );
    }
    // Other objects, and the same kind elsewhere.
    for request in [format!("GET {SECRETS}"), format!("GET {SECRETS}/x"), "GET /api/v1/configmaps".to_owned()] {
        assert_eq!(c.say(&request, "").await.code, 200, "{request}");
    }
}
