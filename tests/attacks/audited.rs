//! A server that writes an audit log, in which each attack is looked for: what was refused, of whom, and by whose decision.

use std::path::PathBuf;

use json::{Value, json};

use crate::{caller::Answer, server::Server};

/// A server, and the log of all its requests. Events are there before their answers.
pub struct Audited {
    pub server: Server,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Audited {
    pub async fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
        let text =
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
        std::fs::write(&policy, text).unwrap();
        let policy = format!("--audit-policy-file={}", policy.display());
        let path = format!("--audit-log-path={}", log.display());
        let all = [&[policy.as_str(), path.as_str(), "--audit-log-mode=blocking"], flags].concat();
        Audited { server: Server::with(&all).await, log, _folder: folder }
    }

    /// The events of a request.
    pub fn events(&self, answer: &Answer) -> Vec<Value> {
        let id = answer.headers.get("audit-id").expect("each answer has an Audit-Id").to_str().unwrap();
        let log = std::fs::read_to_string(&self.log).unwrap();
        let events = log.lines().filter(|line| line.contains(id)).map(|line| serde_json::from_str(line).unwrap());
        events.filter(|event: &Value| event["auditID"] == json!(id)).collect()
    }

    /// A refusal with this code, of which the log tells: who it was, and that the authorizers forbade it where they did.
    #[track_caller]
    pub fn refused(&self, what: &str, answer: &Answer, code: u16, user: Option<&str>) -> Value {
        assert_eq!(answer.code, code, "{what}: {}", answer.text());
        let events = self.events(answer);
        let event = events.last().unwrap_or_else(|| panic!("{what}: nothing is said of it"));
        assert_eq!(event["responseStatus"]["code"], code, "{what}: {event}");
        assert_eq!(event["user"].get("username").and_then(Value::as_str), user, "{what}: {event}");
        event.clone()
    }

    /// As [`Self::refused`], by the authorizers.
    #[track_caller]
    pub fn forbidden(&self, what: &str, answer: &Answer, user: &str) {
        let event = self.refused(what, answer, 403, Some(user));
        assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid", "{what}: {event}");
    }
}
