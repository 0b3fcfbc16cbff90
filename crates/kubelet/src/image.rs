//! Images: whether to pull, waiting after failures, and the user that an image brings.

use std::time::Duration;

use client::EventKind;
use k8s_cri::v1::{Image, Int64Value, LinuxContainerSecurityContext, PodSandboxConfig};
use k8s_openapi::api::core::v1::Container;
use runtime::engine::Credentials;

use crate::{
    decide::{Backoff, Memory},
    node::Node,
    wanted::Wanted,
    worker::in_words,
};

/// An image on this node.
pub struct Held {
    pub id: String,
    user: Option<i64>,
    user_name: String,
}

/// As whom a container runs when its Pod does not say.
pub struct User {
    id: Option<i64>,
    name: String,
}

impl User {
    pub fn put(self, security: &mut LinuxContainerSecurityContext) {
        if security.run_as_user.is_some() {
            return;
        }
        match self.id {
            Some(value) => security.run_as_user = Some(Int64Value { value }),
            None => security.run_as_username = self.name,
        }
    }
}

impl Held {
    fn of(image: Image) -> Self {
        Held { id: image.id, user: image.uid.map(|u| u.value), user_name: image.username }
    }

    /// The image's own user, refused if the Pod must not run as root and this is or may be root.
    pub fn user_of(&self, wanted: &Wanted, container: &Container) -> Result<User, String> {
        let pod = wanted.spec().security_context.as_ref();
        let own = container.security_context.as_ref();
        let non_root = own.and_then(|c| c.run_as_non_root).or(pod.and_then(|c| c.run_as_non_root));
        let stated = own.and_then(|c| c.run_as_user).or(pod.and_then(|c| c.run_as_user));
        if non_root == Some(true) {
            let (pod, name) = (wanted.name(), &container.name);
            match (stated, self.user) {
                (Some(0), _) => {
                    return Err(format!(
                        "container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {name})"
                    ));
                }
                (None, Some(0)) => {
                    return Err(format!(
                        "container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {name})"
                    ));
                }
                (None, None) if !self.user_name.is_empty() => {
                    return Err(format!(
                        "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root \
                         (pod: \"{pod}\", container: {name})",
                        self.user_name
                    ));
                }
                _ => {}
            }
        }
        Ok(User { id: self.user, name: self.user_name.clone() })
    }
}

/// `Always` for the tag `latest` or none, else `IfNotPresent`.
fn policy<'a>(container: &'a Container, image: &str) -> &'a str {
    let name = image.rsplit('/').next().unwrap_or(image);
    let latest = !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    container.image_pull_policy.as_deref().unwrap_or(if latest { "Always" } else { "IfNotPresent" })
}

/// Makes sure that the container's image is here. `None` when it is not; why is in the memory, and an event was told.
pub async fn ensure(
    node: &Node,
    wanted: &Wanted,
    container: &Container,
    sandbox: &PodSandboxConfig,
    memory: &mut Memory,
) -> Option<Held> {
    let image = container.image.as_deref().unwrap_or_default();
    let tell = |kind, reason: &str, text: &str| node.pod_event(wanted, Some(&container.name), kind, reason, text);
    let held = node.config.runtime.image(image).await.ok().flatten();
    match (policy(container, image), held) {
        ("Never", None) => {
            let text = format!("Container image \"{image}\" is not present with pull policy of Never");
            tell(EventKind::Warning, "ErrImageNeverPull", &text);
            fail(memory, container, "ErrImageNeverPull", text, Duration::from_secs(10));
            return None;
        }
        ("Always", _) | (_, None) => {}
        (_, Some(held)) => {
            tell(EventKind::Normal, "Pulled", &format!("Container image \"{image}\" already present on machine"));
            return Some(Held::of(held));
        }
    }
    pull(node, wanted, container, sandbox, memory, image).await
}

fn fail(memory: &mut Memory, container: &Container, reason: &str, text: String, wait: Duration) {
    memory.waiting.insert(container.name.clone(), (reason.to_owned(), text));
    let at = clock::now().checked_add(wait).unwrap_or_else(|_| clock::now());
    memory.retry_at.insert(container.name.clone(), at);
}

async fn pull(
    node: &Node,
    wanted: &Wanted,
    container: &Container,
    sandbox: &PodSandboxConfig,
    memory: &mut Memory,
    image: &str,
) -> Option<Held> {
    let tell = |kind, reason: &str, text: &str| node.pod_event(wanted, Some(&container.name), kind, reason, text);
    tell(EventKind::Normal, "Pulling", &format!("Pulling image \"{image}\""));
    let begun = clock::Instant::now();
    let engine = &node.config.runtime;
    let credentials = credentials(node, wanted, image).await;
    let outcome = engine.pull_image(image, credentials, sandbox.clone()).await;
    let key = format!("image {}", container.name);
    match outcome {
        Ok(reference) => {
            memory.backoff.remove(&key);
            let held = engine.image(&reference).await.ok().flatten()?;
            let spent = begun.elapsed().as_millis();
            let text = format!(
                "Successfully pulled image \"{image}\" in {spent}ms ({spent}ms including waiting). Image size: {} bytes.",
                held.size
            );
            tell(EventKind::Normal, "Pulled", &text);
            Some(Held::of(held))
        }
        Err(error) => {
            tell(EventKind::Warning, "Failed", &format!("Failed to pull image \"{image}\": {error}"));
            tell(EventKind::Warning, "Failed", "Error: ErrImagePull");
            let backoff = Backoff::next(memory.backoff.get(&key).copied(), clock::now());
            let again = memory.backoff.insert(key, backoff).is_some();
            tell(EventKind::Normal, "BackOff", &format!("Back-off pulling image \"{image}\""));
            let text = format!("Back-off pulling image \"{image}\": ErrImagePull: {error}");
            let (reason, text) = if again { ("ImagePullBackOff", text) } else { ("ErrImagePull", error.to_string()) };
            tracing::debug!(image, wait = in_words(backoff.delay), "the image will be pulled again");
            fail(memory, container, reason, text, backoff.delay);
            None
        }
    }
}

/// The registry that a reference names.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

/// The first credentials among the Pod's pull secrets that are for the image's registry.
async fn credentials(node: &Node, wanted: &Wanted, image: &str) -> Option<Credentials> {
    use base64::Engine;
    let registry = registry(image);
    for reference in wanted.spec().image_pull_secrets.iter().flatten() {
        let Ok(Some(secret)) = node.secret(wanted.namespace(), &reference.name).await else { continue };
        let data = secret.data.unwrap_or_default();
        let Some(text) = data.get(".dockerconfigjson").or(data.get(".dockercfg")) else { continue };
        let Ok(config) = serde_json::from_slice::<serde_json::Value>(&text.0) else { continue };
        let servers = config.get("auths").unwrap_or(&config).as_object().cloned().unwrap_or_default();
        for (server, entry) in servers {
            let host = server.trim_start_matches("https://").trim_start_matches("http://").split('/').next();
            if host.map(|h| h.replace("index.docker.io", "docker.io")).as_deref() != Some(registry) {
                continue;
            }
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let decoded = base64::engine::general_purpose::STANDARD.decode(text("auth")).unwrap_or_default();
            let decoded = String::from_utf8_lossy(&decoded).into_owned();
            let (username, password) = match decoded.split_once(':') {
                Some((user, password)) => (user.to_owned(), password.to_owned()),
                None => (text("username"), text("password")),
            };
            return Some(Credentials { username, password, server });
        }
    }
    None
}
