//! Objects as the API server told of them last, for each Pod that was started with them: its containers begin anew while the server is
//! away. Nothing that the server says is put off: an object that it says is gone is gone.
//! Upstream counterpart: pkg/kubelet/util/manager (the cache of ConfigMaps and Secrets that Pods refer to).

use std::collections::HashMap;

use api::object::Kind;
use client::{Api, Client, Error};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

/// Objects of one kind, by the Pod's uid and their name.
pub struct LastKnown<K> {
    held: Mutex<HashMap<(String, String), K>>,
}

impl<K> Default for LastKnown<K> {
    fn default() -> Self {
        LastKnown { held: Mutex::default() }
    }
}

/// Whether this is no answer about the object.
fn is_away(error: &Error) -> bool {
    match error {
        Error::Api(status) => status.code == 429 || status.code >= 500,
        Error::Transport(_) => true,
        Error::Decode(_) => false,
    }
}

impl<K: Kind + Clone> LastKnown<K> {
    /// The object in the Pod's namespace as it is, or as it was when the server last answered for this Pod.
    pub async fn find(&self, client: &Client, pod: &Pod, name: &str) -> Result<Option<K>, Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let key = (pod.metadata.uid.clone().unwrap_or_default(), name.to_owned());
        let answer = Api::<K>::namespaced(client.clone(), namespace).find(name).await;
        let mut held = self.held.lock();
        match &answer {
            Ok(Some(object)) => drop(held.insert(key, object.clone())),
            Ok(None) => drop(held.remove(&key)),
            Err(error) if is_away(error) => {
                if let Some(object) = held.get(&key) {
                    let kind = K::KIND;
                    tracing::warn!(kind, namespace, name, %error, "taken as it was: the API server does not answer");
                    return Ok(Some(object.clone()));
                }
            }
            Err(_) => {}
        }
        answer
    }

    /// Drops what is held for a Pod that is over.
    pub fn forget(&self, pod_uid: &str) {
        self.held.lock().retain(|(uid, _), _| uid != pod_uid);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use json::json;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    /// The text that is found when the server answers so; `None` is an error.
    async fn asked(
        server: &Arc<Mutex<u16>>,
        known: &LastKnown<ConfigMap>,
        uid: &str,
        code: u16,
    ) -> Option<Option<String>> {
        *server.lock() = code;
        let server = server.clone();
        let client = client::connect::in_process(tower::service_fn(move |_: Request<client::Body>| {
            let code = *server.lock();
            let object =
                json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}, "data": {"k": "v"}});
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
            let body = Bytes::from(if code == 200 { object } else { status }.to_string());
            async move {
                match code {
                    0 => Err(std::io::Error::other("nobody there")),
                    _ => Ok(Response::builder().status(code).body(Full::new(body)).expect("a plain answer")),
                }
            }
        }));
        let mut pod = Pod::clone(&crate::pod::fixture::pod(r#"{"containers": []}"#).pod);
        pod.metadata.uid = Some(uid.to_owned());
        let found = known.find(&client, &pod, "c").await.ok()?;
        Some(found.and_then(|map| map.data?.remove("k")))
    }

    #[tokio::test]
    async fn only_a_server_that_does_not_answer_is_answered_for() {
        let (server, known) = (Arc::new(Mutex::new(0)), LastKnown::default());
        let text = Some(Some("v".to_owned()));
        // (the Pod, what the server answers, what is found)
        let steps = [
            ("a", 0, None),
            ("a", 200, text.clone()),
            ("a", 0, text.clone()),
            ("a", 503, text.clone()),
            ("a", 429, text),
            ("b", 0, None),
            ("a", 403, None),
            ("a", 404, Some(None)),
            ("a", 0, None),
        ];
        for (uid, code, found) in steps {
            assert_eq!(asked(&server, &known, uid, code).await, found, "{uid} {code}");
        }
        asked(&server, &known, "a", 200).await;
        known.forget("a");
        assert_eq!(asked(&server, &known, "a", 0).await, None);
    }
}
