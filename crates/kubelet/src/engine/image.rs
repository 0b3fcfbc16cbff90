//! Images: whether to pull, waiting after failures, and the user that an image brings.

use std::time::Duration;

use client::EventKind;
use k8s_cri::v1::{Image, Int64Value, LinuxContainerSecurityContext, PodSandboxConfig};
use k8s_openapi::api::core::v1::Container;
use runtime::engine::Credentials;

use crate::{
    kubelet::Kubelet,
    pod::{
        backoff::{Backoff, Pull},
        desired::DesiredPod,
        memory::{Cause, Memory},
        waiting,
    },
    volumes::sources::Sources,
};

/// An image on this node.
pub struct Held {
    pub id: String,
    user: Option<i64>,
    user_name: String,
}

/// The user that a container runs as when its Pod does not say.
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
        // An image that names nobody runs as root.
        let nobody = image.uid.is_none() && image.username.is_empty();
        let user = image.uid.map(|u| u.value).or(nobody.then_some(0));
        Held { id: image.id, user, user_name: image.username }
    }

    /// The image's own user, refused if the Pod must not run as root and this is or may be root.
    pub fn user_of(&self, desired: &DesiredPod, container: &Container) -> Result<User, String> {
        let pod = desired.spec().security_context.as_ref();
        let own = container.security_context.as_ref();
        let non_root = own.and_then(|c| c.run_as_non_root).or(pod.and_then(|c| c.run_as_non_root));
        let stated = own.and_then(|c| c.run_as_user).or(pod.and_then(|c| c.run_as_user));
        if non_root == Some(true) {
            let (pod, name) = (desired.name(), &container.name);
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

/// The choice about an image, from the container's policy and whether the node holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Choice {
    Use,
    Pull,
    Refuse,
}

fn choose(container: &Container, image: &str, held: bool) -> Choice {
    match (policy(container, image), held) {
        ("Always", _) => Choice::Pull,
        (_, true) => Choice::Use,
        ("Never", false) => Choice::Refuse,
        (_, false) => Choice::Pull,
    }
}

/// `Always` for the tag `latest` or none, else `IfNotPresent`.
fn policy<'a>(container: &'a Container, image: &str) -> &'a str {
    let name = image.rsplit('/').next().unwrap_or(image);
    let latest = !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    container.image_pull_policy.as_deref().unwrap_or(if latest { "Always" } else { "IfNotPresent" })
}

/// Why a container's image is not there: what its status shows, and the event beside `Failed`.
struct Trouble {
    reason: &'static str,
    message: String,
    event: Option<&'static str>,
}

/// An image that no pull can mend is looked at again after this pause.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Makes sure that the container's image is here. `None` when it is not: then the memory says why, and events were recorded.
pub async fn ensure(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    container: &Container,
    sandbox: &PodSandboxConfig,
    memory: &mut Memory,
) -> Option<Held> {
    let image = container.image.as_deref().unwrap_or_default();
    let tell = |kind, reason: &str, text: &str| kubelet.events.container(desired, &container.name, kind, reason, text);
    match look(kubelet, container, image).await {
        Ok((Choice::Use, Some(held))) => {
            let text = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
            tell(EventKind::Normal, "Pulled", &text);
            Some(Held::of(held))
        }
        Ok(_) => pull(kubelet, desired, container, sandbox, memory).await,
        Err(trouble) => {
            if let Some(event) = trouble.event {
                tell(EventKind::Warning, event, &trouble.message);
            }
            tell(EventKind::Warning, "Failed", &format!("Error: {}", trouble.reason));
            let record = memory.container_mut(&container.name);
            record.waiting = Some(Cause::new(trouble.reason, trouble.message));
            record.retry_at = clock::now().checked_add(LOOK_AGAIN).ok();
            None
        }
    }
}

async fn look(kubelet: &Kubelet, container: &Container, image: &str) -> Result<(Choice, Option<Image>), Trouble> {
    if let Err(error) = check_reference(image) {
        let message =
            format!("Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {error}");
        return Err(Trouble { reason: "InvalidImageName", message, event: Some("InspectFailed") });
    }
    let held = kubelet.config.runtime.image(image).await.map_err(|error| Trouble {
        reason: "ImageInspectError",
        message: format!("Failed to inspect image \"{image}\": {error}"),
        event: Some("InspectFailed"),
    })?;
    match choose(container, image, held.is_some()) {
        Choice::Refuse => Err(Trouble {
            reason: "ErrImageNeverPull",
            message: format!("Container image \"{image}\" is not present with pull policy of Never"),
            event: Some("ErrImageNeverPull"),
        }),
        choice => Ok((choice, held)),
    }
}

async fn pull(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    container: &Container,
    sandbox: &PodSandboxConfig,
    memory: &mut Memory,
) -> Option<Held> {
    let image = container.image.as_deref().unwrap_or_default();
    let tell = |kind, reason: &str, text: &str| kubelet.events.container(desired, &container.name, kind, reason, text);
    // Another container of this Pod has just failed to get it.
    if let Some(failed) = memory.pulls.get(image).filter(|p| p.due() > clock::now()) {
        let wait = waiting::image_wait(&container.name, image, &failed.error);
        kubelet.events.waits(desired, &wait);
        memory.container_mut(&container.name).waiting = Some(Cause::new(wait.reason, wait.message));
        return None;
    }
    tell(EventKind::Normal, "Pulling", &format!("Pulling image \"{image}\""));
    let begun = clock::Instant::now();
    match fetch(kubelet, desired, sandbox, image).await {
        Ok(held) => {
            memory.pulls.remove(image);
            let spent = in_words(begun.elapsed());
            let text = format!(
                "Successfully pulled image \"{image}\" in {spent} ({spent} including waiting). Image size: {} bytes.",
                held.size
            );
            tell(EventKind::Normal, "Pulled", &text);
            Some(Held::of(held))
        }
        Err(error) => {
            tell(EventKind::Warning, "Failed", &format!("Failed to pull image \"{image}\": {error}"));
            tell(EventKind::Warning, "Failed", "Error: ErrImagePull");
            let now = clock::now();
            let backoff = Backoff::next(memory.pulls.get(image).map(|p| p.backoff), now, now);
            memory.pulls.insert(image.to_owned(), Pull { backoff, error: error.clone() });
            memory.container_mut(&container.name).waiting = Some(Cause::new("ErrImagePull", error));
            None
        }
    }
}

async fn fetch(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    sandbox: &PodSandboxConfig,
    image: &str,
) -> Result<Image, String> {
    // A failure that the engine gives no code reads without one, as upstream's does.
    let words = |error: runtime::Error| {
        let text = error.to_string();
        text.strip_prefix("rpc error: code = Unknown desc = ").map_or(text.clone(), str::to_owned)
    };
    let engine = &kubelet.config.runtime;
    let credentials = credentials(kubelet, desired, image).await;
    let reference = engine.pull_image(image, credentials, sandbox.clone()).await.map_err(words)?;
    engine.image(&reference).await.map_err(words)?.ok_or_else(|| format!("the engine lost {reference} after its pull"))
}

/// A duration in thousandths as Go prints it: `42ms`, `1.042s`, `1m1.5s`.
fn in_words(spent: Duration) -> String {
    let (minutes, millis) = (spent.as_secs() / 60, spent.as_millis() % 60_000);
    match (minutes, millis) {
        (0, 0..1000) => format!("{millis}ms"),
        (0, _) => format!("{}s", millis as f64 / 1000.0),
        _ => format!("{minutes}m{}s", millis as f64 / 1000.0),
    }
}

/// Whether this is a name that a registry could have, in the words of the reference grammar.
fn check_reference(image: &str) -> Result<(), String> {
    let invalid = || Err("invalid reference format".to_owned());
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
    if digest.is_some_and(|d| !d.split_once(':').is_some_and(|(_, hex)| hex.len() >= 32 && is_hex(hex))) {
        return invalid();
    }
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if tag.is_some_and(|t| !t.starts_with(word) || t.len() > 128 || !t.chars().all(|c| word(c) || ".-".contains(c))) {
        return invalid();
    }
    let (host, name) = match path.split_once('/') {
        Some((host, name)) if registry(path) == host => (Some(host), name),
        _ => (None, path),
    };
    if host.is_none() && name.chars().any(|c| c.is_ascii_uppercase()) {
        let shown = if name.contains('/') { name.to_owned() } else { format!("library/{name}") };
        return Err(format!("invalid reference format: repository name ({shown}) must be lowercase"));
    }
    let part = |p: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        p.starts_with(plain) && p.ends_with(plain) && p.chars().all(|c| plain(c) || "._-".contains(c))
    };
    if name.split('/').all(part) { Ok(()) } else { invalid() }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The registry that a reference names.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

/// The first credentials among the Pod's pull secrets that are for the image's registry.
async fn credentials(kubelet: &Kubelet, desired: &DesiredPod, image: &str) -> Option<Credentials> {
    use base64::Engine;
    let registry = registry(image);
    for reference in desired.spec().image_pull_secrets.iter().flatten() {
        let Ok(Some(data)) = kubelet.sources.secret(desired.namespace(), &reference.name).await else { continue };
        let Some(text) = data.get(".dockerconfigjson").or(data.get(".dockercfg")) else { continue };
        let Ok(config) = serde_json::from_slice::<json::Value>(text) else { continue };
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
            return Some(Credentials { username, password, server: server.to_string() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_decide_whether_an_image_is_pulled() {
        for (policy, image, held, expected) in [
            (None, "a:1", true, Choice::Use),
            (None, "a:1", false, Choice::Pull),
            (None, "a", true, Choice::Pull),
            (None, "a:latest", true, Choice::Pull),
            (None, "r:5000/a", true, Choice::Pull),
            (None, "a@sha256:0", true, Choice::Use),
            (Some("Always"), "a:1", true, Choice::Pull),
            (Some("IfNotPresent"), "a", true, Choice::Use),
            (Some("Never"), "a:1", true, Choice::Use),
            (Some("Never"), "a:1", false, Choice::Refuse),
        ] {
            let container = Container { image_pull_policy: policy.map(str::to_owned), ..Default::default() };
            assert_eq!(choose(&container, image, held), expected, "{policy:?} {image} {held}");
        }
    }

    #[test]
    fn whoever_must_not_be_root_is_not() {
        let container = Container { name: "c".into(), ..Default::default() };
        let of_pod = "(pod: \"p\", container: c)";
        for (context, uid, name, expected) in [
            ("{}", None, "", Ok((Some(0), ""))),
            ("{}", Some(7), "", Ok((Some(7), ""))),
            ("{}", None, "web", Ok((None, "web"))),
            (r#"{"runAsNonRoot": true}"#, Some(7), "", Ok((Some(7), ""))),
            (r#"{"runAsNonRoot": true}"#, None, "", Err("container has runAsNonRoot and image will run as root")),
            (r#"{"runAsNonRoot": true}"#, Some(0), "", Err("container has runAsNonRoot and image will run as root")),
            (
                r#"{"runAsNonRoot": true}"#,
                None,
                "web",
                Err("container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root"),
            ),
            (r#"{"runAsNonRoot": true, "runAsUser": 5}"#, None, "", Ok((Some(0), ""))),
            (
                r#"{"runAsNonRoot": true, "runAsUser": 0}"#,
                Some(7),
                "",
                Err("container's runAsUser breaks non-root policy"),
            ),
        ] {
            let desired = crate::pod::fixture::pod(&format!(r#"{{"securityContext": {context}, "containers": []}}"#));
            let uid = uid.map(|value| Int64Value { value });
            let held = Held::of(Image { uid, username: name.into(), ..Default::default() });
            let got = held.user_of(&desired, &container).map(|user| (user.id, user.name));
            let expected = match expected {
                Ok((id, name)) => Ok((id, name.to_owned())),
                Err(text) => Err(format!("{text} {of_pod}")),
            };
            assert_eq!(got, expected, "{context} {name}");
        }
    }

    #[test]
    fn names_that_no_registry_could_have_are_refused() {
        let bad = "invalid reference format";
        for (image, expected) in [
            ("busybox", ""),
            ("busybox:1.36", ""),
            ("r.example:5000/team/a_b-c.d:v1", ""),
            ("localhost/a", ""),
            ("a@sha256:0123456789abcdef0123456789abcdef", ""),
            ("a@sha256:01", bad),
            ("", bad),
            ("a:", bad),
            ("a b", bad),
            ("/a", bad),
            ("a:-x", bad),
            ("Nginx", "invalid reference format: repository name (library/Nginx) must be lowercase"),
            ("team/Nginx", "invalid reference format: repository name (team/Nginx) must be lowercase"),
        ] {
            assert_eq!(check_reference(image).err().unwrap_or_default(), expected, "{image}");
        }
    }

    #[test]
    fn the_time_that_a_pull_took_reads_as_in_go() {
        for (millis, expected) in [(42, "42ms"), (1042, "1.042s"), (2000, "2s"), (61_500, "1m1.5s")] {
            assert_eq!(in_words(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn the_registry_is_the_first_part_if_it_looks_like_a_host() {
        for (image, expected) in [
            ("a", "docker.io"),
            ("team/a", "docker.io"),
            ("r.io/a", "r.io"),
            ("r:5000/a", "r:5000"),
            ("localhost/a", "localhost"),
        ] {
            assert_eq!(registry(image), expected, "{image}");
        }
    }
}
