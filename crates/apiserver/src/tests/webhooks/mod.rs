//! Admission webhooks over HTTPS, in the whole server.

mod again;
mod answers;
mod asked;
mod cases;
mod shown;
mod traced;
mod waiting;

use std::sync::Arc;

use api::Value;
use json::json;

use super::assembled::Talk;
use super::hook::{Hook, Mood, patched};
use crate::special::connect::connector::Connector;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

struct Scene {
    talk: Talk,
    hook: Hook,
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

fn rule(operations: &[&str], group: &str, resources: &[&str]) -> Value {
    json!([{"operations": operations, "apiGroups": [group], "apiVersions": ["*"], "resources": resources}])
}

impl Scene {
    async fn start() -> Self {
        let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
        let connector = Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]);
        Scene { talk: Talk::with(Some(connector)).await, hook: Hook::start().await }
    }

    /// A webhook about creates and updates of ConfigMaps, but for these fields. It is asked at `/NAME`.
    fn webhook(&self, name: &str, fields: Value) -> Value {
        let mut webhook = json!({"name": format!("{name}.example.com"), "clientConfig": self.hook.at(&format!("/{name}")),
            "rules": rule(&["CREATE", "UPDATE"], "", &["configmaps"]), "sideEffects": "None",
            "admissionReviewVersions": ["v1"]});
        for (field, value) in fields.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        webhook
    }

    /// Puts a configuration in force.
    async fn configure(&self, sort: &str, name: &str, webhooks: &[Value]) {
        let path = format!("{GROUP}/{sort}webhookconfigurations");
        let configuration = json!({"metadata": {"name": name}, "webhooks": webhooks});
        let (code, warnings, answer) = self.talk.hear("+root", &format!("POST {path}"), configuration).await;
        assert_eq!((code, warnings), (201, Vec::new()), "{answer}");
        self.talk.0.objects().caught_up().await.unwrap();
    }

    async fn one(&self, sort: &str, fields: Value) {
        self.configure(sort, "one", &[self.webhook("one", fields)]).await;
    }

    async fn ok(&self, head: &str, body: Value) -> Value {
        self.talk.ok("+root", head, body).await
    }

    /// The code and message of a refusal, or an empty one.
    async fn refusal(&self, head: &str, body: Value) -> (u16, String) {
        let (code, answer) = self.talk.say("+root", head, body).await;
        (code, if code < 300 { String::new() } else { answer["message"].as_str().unwrap_or_default().to_owned() })
    }

    /// The request that was asked about last, and nothing before it.
    fn request(&self) -> Value {
        let questions = self.hook.questions();
        assert_eq!(questions.len(), 1, "{questions:?}");
        questions[0].2["request"].clone()
    }
}
