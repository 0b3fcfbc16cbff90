//! ImagePolicyWebhook: a server of the administrator's says whether the images of Pods may be used.
//! Upstream counterpart: plugin/pkg/admission/imagepolicy.

use api::{Value, meta, status::StatusError};
use json::{Map, json};

use crate::{
    admission::{
        attributes::{Attributes, Operation},
        plugin::{Context, Plugin, forbid, is, items, text},
    },
    http::places::outside,
};

pub const PLUGIN: Plugin = Plugin {
    name: NAME,
    concerns: |attributes| {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && (is(attributes, "", "pods", "") || is(attributes, "", "pods", DEBUGGING))
    },
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const NAME: &str = "ImagePolicyWebhook";
const DEBUGGING: &str = "ephemeralcontainers";
/// The part of a key that marks annotations as meant for the server.
const MEANT: &str = ".image-policy.k8s.io/";
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io";

/// The question to the server about a Pod.
fn spec(attributes: &Attributes<'_>, pod: &Value) -> Value {
    let lists: &[&str] = if attributes.subresource.is_empty() {
        &["/spec/containers", "/spec/initContainers"]
    } else {
        &["/spec/ephemeralContainers"]
    };
    let containers = lists.iter().flat_map(|list| items(pod, list));
    let images: Vec<Value> = containers.map(|container| json!({"image": text(container, "/image")})).collect();
    let given = meta::at(pod, "/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    let meant = given.filter(|(key, _)| key.contains(MEANT));
    let annotations: Map = meant.map(|(key, value)| (key.to_string(), value.clone())).collect();
    let mut spec = json!({"containers": images, "namespace": attributes.namespace});
    if !annotations.is_empty() {
        spec["annotations"] = Value::Object(annotations);
    }
    spec
}

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let policy = &context.optional.image_policy;
    let said = match outside::wait_for(NAME, policy.ask(spec(attributes, pod))).await? {
        Ok(said) => said,
        Err(_) if policy.is_open() => {
            attributes.trail.annotate(format!("{AUDIT}/failed-open"), "true");
            return Ok(());
        }
        Err(why) => return Err(forbid(attributes, why)),
    };
    for (key, value) in &said.annotations {
        attributes.trail.annotate(format!("{AUDIT}/{key}"), value.clone());
    }
    match (said.allowed, &*said.reason) {
        (true, _) => Ok(()),
        (false, "") => Err(forbid(attributes, "one or more images rejected by webhook backend")),
        (false, reason) => {
            Err(forbid(attributes, format!("image policy webhook backend denied one or more images: {reason}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use base64::Engine as _;
    use clock::Duration;
    use pki::{Authority, Serving, Subject};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::admission::Configuration;
    use crate::tests::{
        admission::{Write, context},
        hook::{Hook, Mood},
    };

    fn judging(review: &Value) -> Value {
        let bad = |container: &Value| container["image"].as_str().is_some_and(|image| image.starts_with("evil"));
        let found = review["spec"]["containers"].as_array().unwrap().iter().any(bad);
        let status = if found {
            json!({"allowed": false, "reason": "it is evil"})
        } else {
            json!({"allowed": true, "auditAnnotations": {"a": "b"}})
        };
        json!({"kind": "ImageReview", "apiVersion": review["apiVersion"], "status": status})
    }

    async fn scene(hook: &Hook, more: &str) -> (tempfile::TempDir, Context) {
        let (folder, file) = hook.kubeconfig("/", "");
        (folder, of_file(&file, more).await)
    }

    async fn of_file(file: &std::path::Path, more: &str) -> Context {
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{{name: ImagePolicyWebhook, \
             configuration: {{imagePolicy: {{kubeConfigFile: {}{more}}}}}}}]}}",
            file.display()
        );
        let configuration = Configuration::load(std::path::Path::new("f"), |_| Ok(text.clone())).unwrap();
        Context { optional: configuration.optional, ..context(Vec::new()).await }
    }

    fn pod(image: &str) -> Write {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "annotations": {"a.image-policy.k8s.io/b": "c", "other": "x"}},
            "spec": {"containers": [{"name": "c", "image": "fine"}], "initContainers": [{"name": "i", "image": image}],
                "ephemeralContainers": [{"name": "e", "image": "evil/debugger"}]}});
        Write { kind: ("", "pods", ""), ..Write::create("", pod) }
    }

    #[tokio::test]
    async fn images_are_used_as_the_server_says() {
        let hook = Hook::start().await;
        hook.be("/", Mood::Lying(judging));
        let (_folder, context) = scene(&hook, "").await;
        for _ in 0..2 {
            pod("fine").through(&context, &PLUGIN).await.unwrap();
        }
        let asked = hook.questions();
        assert_eq!(asked.len(), 1, "what was allowed is remembered");
        let spec = json!({"containers": [{"image": "fine"}, {"image": "fine"}], "namespace": "ns",
            "annotations": {"a.image-policy.k8s.io/b": "c"}});
        assert_eq!((&asked[0].2["kind"], &asked[0].2["spec"]), (&json!("ImageReview"), &spec));
        let refused = pod("evil/one").through(&context, &PLUGIN).await.unwrap_err();
        assert!(refused.contains("image policy webhook backend denied one or more images: it is evil"), "{refused}");
        let debugging = Write { kind: ("", "pods", DEBUGGING), ..pod("fine") };
        assert!(debugging.through(&context, &PLUGIN).await.is_err());
    }

    #[tokio::test]
    async fn a_server_that_fails_is_open_or_closed_as_the_file_says() {
        let hook = Hook::start().await;
        for (mood, why) in [
            (Mood::Text(200, "{}"), "not an ImageReview"),
            (Mood::Text(403, ""), "403"),
            (Mood::Endless, "has more than"),
            (Mood::Redirecting, "307"),
            (
                Mood::Lying(
                    |_| json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": {"allowed": "yes"}}),
                ),
                "neither true nor false",
            ),
        ] {
            hook.be("/", mood);
            let (_folder, closed) = scene(&hook, "").await;
            let said = pod("fine").through(&closed, &PLUGIN).await.unwrap_err();
            assert!(said.contains(why), "{said}");
            let (_folder, open) = scene(&hook, ", defaultAllow: true").await;
            pod("fine").through(&open, &PLUGIN).await.unwrap();
        }
    }

    /// Upstream: TestContainerCombinations.
    #[tokio::test]
    async fn every_image_that_a_write_brings_in_is_asked_about() {
        fn judging(review: &Value) -> Value {
            let bad = items(review, "/spec/containers").any(|container| text(container, "/image") == "bad");
            let status = json!({"allowed": !bad, "reason": if bad { "not allowed" } else { "" }});
            json!({"kind": "ImageReview", "apiVersion": review["apiVersion"], "status": status})
        }
        let hook = Hook::start().await;
        hook.be("/", Mood::Lying(judging));
        let (_folder, context) = scene(&hook, ", allowTTL: -1, denyTTL: -1").await;
        let list = |images: &str| {
            images.split_whitespace().map(|image| json!({"name": "c", "image": image})).collect::<Vec<_>>()
        };
        for (main, init, ephemeral, subresource, allowed) in [
            ("good", "", "", "", true),
            ("bad", "", "", "", false),
            ("bad good", "", "", "", false),
            ("good good", "", "", "", true),
            ("bad bad", "", "", "", false),
            ("good", "bad", "", "", false),
            ("bad", "good", "", "", false),
            ("good", "good", "", "", true),
            ("good", "good", "bad", DEBUGGING, false),
            ("good", "good", "bad", "", true),
            ("bad", "", "good", DEBUGGING, true),
            ("", "", "good", DEBUGGING, true),
            ("bad", "", "bad", "status", true),
        ] {
            let spec =
                json!({"containers": list(main), "initContainers": list(init), "ephemeralContainers": list(ephemeral)});
            let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
            let write = Write { kind: ("", "pods", subresource), ..Write::create("", pod.clone()) };
            let write = match subresource {
                "" => write,
                _ => Write { operation: Operation::Update, old: Some(pod), ..write },
            };
            let told = write.through(&context, &PLUGIN).await.map_or_else(|refusal| refusal, |_| String::new());
            let expected =
                "pods \"p\" is forbidden: image policy webhook backend denied one or more images: not allowed";
            assert_eq!(told, if allowed { "" } else { expected }, "{main} {init} {ephemeral} {subresource}");
        }
    }

    /// Upstream: TestWebhookCache.
    #[tokio::test]
    async fn answers_are_remembered_for_their_time_and_errors_never() {
        fn allowing(review: &Value) -> Value {
            json!({"kind": "ImageReview", "apiVersion": review["apiVersion"], "status": {"allowed": true}})
        }
        fn denying(review: &Value) -> Value {
            json!({"kind": "ImageReview", "apiVersion": review["apiVersion"], "status": {"allowed": false}})
        }
        let hook = Hook::start().await;
        let (_folder, context) = scene(&hook, ", allowTTL: 200, denyTTL: 100, retryBackoff: 1").await;
        let check = async |image: &str, mood: Mood, allowed: bool, asked: bool| {
            hook.be("/", mood);
            assert_eq!(pod(image).through(&context, &PLUGIN).await.is_ok(), allowed, "{image}");
            assert_eq!(!hook.questions().is_empty(), asked, "{image}");
        };
        let broken = |code: u16| Mood::Text(code, "HTTP Error");
        for code in [500, 404, 403, 401] {
            check("a", broken(code), false, true).await;
        }
        check("a", Mood::Lying(allowing), true, true).await;
        check("a", broken(500), true, false).await;
        check("b", broken(500), false, true).await;
        check("b", Mood::Lying(denying), false, true).await;
        check("b", Mood::Lying(allowing), false, false).await;
        let pass = async |seconds: u64| {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            tokio::time::resume();
        };
        pass(101).await;
        check("b", Mood::Lying(allowing), true, true).await;
        check("a", broken(500), true, false).await;
        pass(101).await;
        check("a", broken(500), false, true).await;
        check("b", broken(500), true, false).await;
    }

    /// Upstream: TestDefaultAllow, TestReturnedAnnotationAdd, TestAnnotationFiltering.
    #[tokio::test]
    async fn annotations_go_to_the_server_and_to_the_audit_log() {
        fn answer(review: &Value) -> Value {
            let wanted = &review["spec"]["annotations"];
            let status = json!({"allowed": wanted["ask.image-policy.k8s.io/allow"] == "yes",
                "auditAnnotations": if wanted["ask.image-policy.k8s.io/note"] == "no" { Value::Null } else {
                    json!({"foo-test": "true", "bar-test": "false"}) }});
            json!({"kind": "ImageReview", "apiVersion": review["apiVersion"], "status": status})
        }
        let hook = Hook::start().await;
        let ask = async |more: &str, annotations: Value| {
            let (_folder, context) = scene(&hook, &format!(", retryBackoff: 1{more}")).await;
            let spec = json!({"containers": [{"name": "c", "image": "i"}]});
            let meta = json!({"name": "p", "namespace": "ns", "annotations": annotations});
            let write = Write::create("pods", json!({"metadata": meta, "spec": spec}));
            let (done, notes) = write.noted(&context, &PLUGIN, false).await;
            let notes = notes.into_iter().map(|(key, value)| format!("{key}={value}"));
            (done.map_err(|refusal| refusal.message).err(), notes.collect::<Vec<_>>().join(" "))
        };
        hook.be("/", Mood::Lying(answer));
        let both = format!("{AUDIT}/bar-test=false {AUDIT}/foo-test=true");
        let (allow, quiet) = ("ask.image-policy.k8s.io/allow", "ask.image-policy.k8s.io/note");
        assert_eq!(ask("", json!({allow: "yes", "other": "x"})).await, (None, both.clone()));
        assert_eq!(hook.questions()[0].2["spec"]["annotations"], json!({allow: "yes"}));
        assert_eq!(ask("", json!({allow: "yes", quiet: "no"})).await, (None, String::new()));
        hook.questions();
        let refused = "pods \"p\" is forbidden: one or more images rejected by webhook backend";
        assert_eq!(ask("", json!({"test": "test"})).await, (Some(refused.to_owned()), both));
        assert_eq!(hook.questions()[0].2["spec"].get("annotations"), None);
        hook.be("/", Mood::Text(500, "HTTP Error"));
        let open = ask(", defaultAllow: true", json!({})).await;
        assert_eq!(open, (None, format!("{AUDIT}/failed-open=true")));
        let (refused, notes) = ask("", json!({})).await;
        let refused = refused.unwrap();
        assert!(refused.starts_with("pods \"p\" is forbidden: ") && refused.contains("HTTP Error"), "{refused}");
        assert_eq!(notes, "");
    }

    /// A server with a certificate of `own` that talks only to those who show one of `theirs`, and allows everything.
    async fn strict(own: &Authority, theirs: &Authority) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        const BODY: &str =
            r#"{"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": {"allowed": true}}"#;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        pki::inspect::chain(theirs.certificate()).unwrap().into_iter().for_each(|one| roots.add(one).unwrap());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let serving = Serving::new(&own.issue(&Subject::server("s", vec!["localhost".to_owned()])).unwrap()).unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(verifier.build().unwrap()).with_cert_resolver(serving);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let Ok(mut io) = acceptor.accept(tcp.accept().await.unwrap().0).await else { continue };
                // All of it is read, so that the answer is not lost with the rest.
                let mut question = Vec::new();
                while !question.ends_with(b"}") && io.read_buf(&mut question).await.is_ok_and(|read| read > 0) {}
                if question.ends_with(b"}") {
                    let head =
                        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", BODY.len());
                    let _ = io.write_all(format!("{head}{BODY}").as_bytes()).await;
                    let _ = io.shutdown().await;
                }
            }
        });
        (address, task)
    }

    /// Upstream: TestTLSConfig.
    #[tokio::test]
    async fn both_sides_believe_only_whom_they_know() {
        let encoded = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        let (known, other) = (Authority::create("known").unwrap(), Authority::create("other").unwrap());
        let (address, task) = strict(&known, &known).await;
        let hook = Hook::start().await;
        hook.be("/", Mood::Lying(judging));
        let folder = tempfile::tempdir().unwrap();
        let ask = async |port: u16, believed: &str, shown: Option<&Authority>| {
            let user = shown.map_or_else(String::new, |authority| {
                let client = authority.issue(&Subject::client("apiserver", None)).unwrap();
                let (certificate, key) = (encoded(&client.certificate), encoded(&client.key));
                format!("client-certificate-data: {certificate}, client-key-data: {key}")
            });
            let cluster =
                format!("server: 'https://localhost:{port}', certificate-authority-data: {}", encoded(believed));
            let file = folder.path().join("config");
            let text = format!(
                "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
                 clusters: [{{name: k, cluster: {{{cluster}}}}}], users: [{{name: u, user: {{{user}}}}}]}}"
            );
            std::fs::write(&file, text).unwrap();
            let context = of_file(&file, ", retryBackoff: 1").await;
            pod("fine").through(&context, &PLUGIN).await.is_ok()
        };
        assert!(ask(address.port(), known.certificate(), Some(&known)).await);
        assert!(!ask(address.port(), known.certificate(), Some(&other)).await, "the server does not know the client");
        assert!(!ask(address.port(), known.certificate(), None).await, "the server wants a certificate");
        assert!(!ask(address.port(), other.certificate(), Some(&known)).await, "the client does not know the server");
        task.abort();
        let easy = hook.address.port();
        assert!(ask(easy, hook.authority.certificate(), None).await);
        assert!(ask(easy, hook.authority.certificate(), Some(&known)).await);
        assert!(!ask(easy, known.certificate(), Some(&known)).await);
    }

    /// Upstream: TestNewFromConfig.
    #[test]
    fn the_kubeconfig_has_a_context_and_what_it_names() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("known").unwrap();
        let client = authority.issue(&Subject::client("apiserver", None)).unwrap();
        let files =
            [("ca", authority.certificate()), ("cert", client.certificate.as_str()), ("key", client.key.as_str())];
        let paths = files.map(|(name, pem)| {
            let path = folder.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path.display().to_string()
        });
        let [authority, certificate, key] = paths;
        let cluster = |name: &str, authority: &str| {
            format!("{{name: {name}, cluster: {{server: 'https://a.example', certificate-authority: '{authority}'}}}}")
        };
        let load = |clusters: &[(&str, &str)], current: &str| {
            let clusters: Vec<String> = clusters.iter().map(|(name, authority)| cluster(name, authority)).collect();
            let user = format!("{{name: u, user: {{client-certificate: {certificate}, client-key: {key}}}}}");
            let contexts = match current {
                "" => String::new(),
                name => format!(", current-context: c, contexts: [{{name: c, context: {{cluster: {name}, user: u}}}}]"),
            };
            let file = folder.path().join("config");
            std::fs::write(&file, format!("{{clusters: [{}], users: [{user}]{contexts}}}", clusters.join(", ")))
                .unwrap();
            let text = format!(
                "{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{{name: ImagePolicyWebhook, \
                 configuration: {{imagePolicy: {{kubeConfigFile: {}, allowTTL: 500, denyTTL: 500, retryBackoff: 500, \
                 defaultAllow: true}}}}}}]}}",
                file.display()
            );
            Configuration::load(std::path::Path::new("f"), |_| Ok(text.clone())).err().unwrap_or_default()
        };
        let (good, bad) = (authority.as_str(), "a bad certificate path");
        assert!(load(&[("foobar", good)], "").contains("it has no current-context"));
        assert!(load(&[("foobar", good), ("barfoo", bad)], "").contains("it has no current-context"));
        assert_eq!(load(&[("foobar", bad), ("barfoo", good)], "barfoo"), "");
        assert!(load(&[("foobar", bad), ("barfoo", good)], "foobar").contains(bad));
        assert!(load(&[("foobar", good)], "gone").contains("it has no cluster \"gone\""));
    }
}
