//! Images: whether to pull, waiting after failures, and the user that an image brings.

use std::{collections::BTreeMap, time::Duration};

use client::EventKind;
use k8s_cri::v1::{Image, ImageSpec, Int64Value, LinuxContainerSecurityContext, PodSandboxConfig};
use k8s_openapi::api::core::v1::Container;
use runtime::reference;

use crate::{
    engine::pull::ImagePull,
    images::Named,
    kubelet::Kubelet,
    pod::{
        backoff::{Backoff, Pauses, Pull},
        desired::DesiredPod,
        memory::{Cause, Memory},
        waiting,
    },
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
            let pod = desired.name_in_messages();
            let name = &container.name;
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
fn policy<'a>(said: Option<&'a str>, image: &str) -> &'a str {
    let name = image.rsplit('/').next().unwrap_or(image);
    let latest = !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    said.unwrap_or(if latest { "Always" } else { "IfNotPresent" })
}

/// Why a container's image is not there: what its status shows, and the event beside `Failed`.
struct Trouble {
    reason: &'static str,
    message: String,
    event: Option<&'static str>,
}

impl Trouble {
    /// Nothing could be asked of a registry yet.
    fn before_pull(message: String) -> Self {
        Trouble { reason: "ErrImagePull", message, event: None }
    }
}

/// An image that no pull can mend is looked at again after this pause.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// A container's need of its image.
struct Need<'a> {
    kubelet: &'a Kubelet,
    desired: &'a DesiredPod,
    container: &'a Container,
    image: &'a str,
    /// The image's whole name without tag and digest.
    repository: String,
    policy: &'a str,
}

/// The facts found on the way, for the figures: the image is on the node, and it has to be pulled.
#[derive(Default)]
struct Seen {
    is_present: Option<bool>,
    is_pulled: Option<bool>,
}

/// Makes sure that the container's image is here. `None` when it is not: then the memory says why, and events were recorded.
pub async fn ensure(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    container: &Container,
    sandbox: &PodSandboxConfig,
    memory: &mut Memory,
) -> Option<Held> {
    let wanted = (container.image.as_deref().unwrap_or_default(), container.image_pull_policy.as_deref());
    one(kubelet, desired, container, wanted, (sandbox, memory)).await.map(Held::of)
}

/// Makes sure that the images which the container mounts are here: each as the engine is told, by the names of their volumes. `None` as
/// above.
pub async fn ensure_mounted(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    container: &Container,
    sandbox: &PodSandboxConfig,
    memory: &mut Memory,
) -> Option<BTreeMap<String, ImageSpec>> {
    let mut all = BTreeMap::new();
    for (volume, source) in desired.image_volumes(container) {
        let wanted = (source.reference.as_deref().unwrap_or_default(), source.pull_policy.as_deref());
        let image = one(kubelet, desired, container, wanted, (sandbox, memory)).await?.id;
        let annotations = desired.pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect();
        let user_specified_image = wanted.0.to_owned();
        all.insert(volume.to_owned(), ImageSpec { image, user_specified_image, annotations, ..Default::default() });
    }
    Some(all)
}

/// Makes sure that an image is here, which is `wanted` with such a policy.
async fn one(
    kubelet: &Kubelet,
    desired: &DesiredPod,
    container: &Container,
    (image, said): (&str, Option<&str>),
    (sandbox, memory): (&PodSandboxConfig, &mut Memory),
) -> Option<Image> {
    let (policy, mut seen) = (policy(said, image), Seen::default());
    let met = match reference::parse(image) {
        Ok(name) => {
            let repository = name.repository;
            Need { kubelet, desired, container, image, repository, policy }.meet(sandbox, memory, &mut seen).await
        }
        Err(error) => {
            let message = format!(
                "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {error}"
            );
            Err(Trouble { reason: "InvalidImageName", message, event: Some("InspectFailed") })
        }
    };
    kubelet.images.counts.ensured(policy, seen.is_present, seen.is_pulled);
    met.unwrap_or_else(|trouble| {
        let tell = |reason, text: &str| {
            kubelet.events.container(desired, &container.name, EventKind::Warning, reason, text);
        };
        if let Some(event) = trouble.event {
            tell(event, &trouble.message);
        }
        tell("Failed", &format!("Error: {}", trouble.reason));
        let record = memory.container_mut(&container.name);
        record.waiting = Some(Cause::new(trouble.reason, trouble.message));
        record.retry_at = clock::now().checked_add(LOOK_AGAIN).ok();
        None
    })
}

/// The reason and the message of a pull that failed, from the engine's words.
fn reason_of(image: &str, words: String) -> (&'static str, String) {
    for (reason, why) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = words.strip_prefix(reason) {
            return (reason, format!("image pull failed for {image} because {why}{rest}"));
        }
    }
    ("ErrImagePull", words)
}

impl Need<'_> {
    fn tell(&self, kind: EventKind, reason: &str, text: &str) {
        self.kubelet.events.container(self.desired, &self.container.name, kind, reason, text);
    }

    /// An image that is not there, and one that this Pod may not use, look alike.
    fn never_pulled(&self) -> Trouble {
        Trouble {
            reason: "ErrImageNeverPull",
            message: format!("Container image \"{}\" is not present with pull policy of Never", self.image),
            event: Some("ErrImageNeverPull"),
        }
    }

    async fn meet(
        &self,
        sandbox: &PodSandboxConfig,
        memory: &mut Memory,
        seen: &mut Seen,
    ) -> Result<Option<Image>, Trouble> {
        if self.policy != "Always" {
            let image = self.image;
            let held = self.kubelet.config.runtime.image(image).await.map_err(|error| Trouble {
                reason: "ImageInspectError",
                message: format!("Failed to inspect image \"{image}\": {error}"),
                event: Some("InspectFailed"),
            })?;
            seen.is_present = Some(held.is_some());
            if let Some(held) = held {
                let named = Named { given: image, repository: &self.repository };
                let must_pull = self.kubelet.images.must_pull(&self.desired.pod, &named, &held.id).await;
                let must_pull = must_pull.map_err(Trouble::before_pull)?;
                seen.is_pulled = Some(must_pull);
                if !must_pull {
                    let accessible =
                        if self.kubelet.images.verifies() { " and can be accessed by the pod" } else { "" };
                    let text = format!("Container image \"{image}\" already present on machine{accessible}");
                    self.tell(EventKind::Normal, "Pulled", &text);
                    return Ok(Some(held));
                }
            }
            if self.policy == "Never" {
                return Err(self.never_pulled());
            }
        }
        seen.is_pulled = Some(true);
        self.pull(sandbox, memory).await
    }

    async fn pull(&self, sandbox: &PodSandboxConfig, memory: &mut Memory) -> Result<Option<Image>, Trouble> {
        let (image, images, name) = (self.image, &self.kubelet.images, &self.container.name);
        // Another container of this Pod has just failed to get it.
        if let Some(failed) = memory.pulls.get(image).filter(|p| p.due() > clock::now()) {
            let wait = waiting::image_wait(name, image, failed);
            self.kubelet.events.waits(self.desired, &wait);
            memory.container_mut(name).waiting = Some(Cause::new(wait.reason, wait.message));
            return Ok(None);
        }
        let credentials = images.credentials(&self.desired.pod, &self.repository).await;
        let credentials = credentials.map_err(Trouble::before_pull)?;
        if !credentials.unread.is_empty() {
            let names = credentials.unread.join(", ");
            let text = format!(
                "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
            );
            let events = &self.kubelet.events;
            events.pod(self.desired, EventKind::Warning, "FailedToRetrieveImagePullSecret", &text);
        }
        self.tell(EventKind::Normal, "Pulling", &format!("Pulling image \"{image}\""));
        let asked = clock::Instant::now();
        let place = images.limits.place().await;
        let begun = clock::Instant::now();
        let intent = images.verifies().then(|| images.records.intend(image)).transpose().map_err(|error| {
            let why = format!("failed to record image pull intent: {error}");
            Trouble::before_pull(format!("Failed to record image pull intent for container image \"{image}\": {why}"))
        })?;
        let pull = ImagePull {
            engine: self.kubelet.config.runtime.clone(),
            images: images.clone(),
            image: image.to_owned(),
            credentials: credentials.found,
            sandbox: sandbox.clone(),
            place,
            intent,
        };
        let fetched = pull.carry_out().await;
        let (took, with_waiting) = (begun.elapsed(), asked.elapsed());
        self.kubelet.figures.pulled(self.desired.uid(), with_waiting);
        match fetched {
            Ok(held) => {
                images.counts.pulled(held.size, with_waiting);
                memory.pulls.remove(image);
                let text = format!(
                    "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {} bytes.",
                    in_words(took),
                    in_words(with_waiting),
                    held.size
                );
                self.tell(EventKind::Normal, "Pulled", &text);
                Ok(Some(held))
            }
            Err(words) => {
                self.tell(EventKind::Warning, "Failed", &format!("Failed to pull image \"{image}\": {words}"));
                let (reason, error) = reason_of(image, words);
                self.tell(EventKind::Warning, "Failed", &format!("Error: {reason}"));
                let now = clock::now();
                let backoff = Backoff::next(memory.pulls.get(image).map(|p| p.backoff), now, now, Pauses::USUAL);
                memory.pulls.insert(image.to_owned(), Pull { backoff, reason, error: error.clone() });
                memory.container_mut(name).waiting = Some(Cause::new(reason, error));
                Ok(None)
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        configuration::pulls::{Pulls, Verification},
        pod::fixture,
    };
    use base64::Engine;
    use json::json;
    use runtime::fake::Fake;

    #[test]
    fn images_without_a_fixed_tag_are_pulled_always_where_nothing_is_said() {
        for (said, image, expected) in [
            (None, "a:1", "IfNotPresent"),
            (None, "a", "Always"),
            (None, "a:latest", "Always"),
            (None, "r:5000/a", "Always"),
            (None, "a@sha256:0", "IfNotPresent"),
            (Some("Never"), "a", "Never"),
        ] {
            assert_eq!(policy(said, image), expected, "{said:?} {image}");
        }
    }

    #[test]
    fn failures_that_engines_name_have_reasons_of_their_own() {
        let check =
            |words: &str, reason, message: &str| assert_eq!(reason_of("x", words.into()), (reason, message.into()));
        check("no such host", "ErrImagePull", "no such host");
        let unavailable = "image pull failed for x because the registry is unavailable: down";
        check("RegistryUnavailable: down", "RegistryUnavailable", unavailable);
        let unsigned = "image pull failed for x because the signature validation failed";
        check("SignatureValidationFailed", "SignatureValidationFailed", unsigned);
    }

    #[test]
    fn whoever_must_not_be_root_is_not() {
        let container = Container { name: "c".into(), ..Default::default() };
        let of_pod = "(pod: \"p_d(u)\", container: c)";
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
    fn the_time_that_a_pull_took_reads_as_in_go() {
        for (millis, expected) in [(42, "42ms"), (1042, "1.042s"), (2000, "2s"), (61_500, "1m1.5s")] {
            assert_eq!(in_words(Duration::from_millis(millis)), expected);
        }
    }

    /// A node with this engine where the Secret `s` opens the registry r.io, and `t` would with another password.
    fn node(folder: &std::path::Path, engine: &Fake, pulls: Pulls) -> std::sync::Arc<Kubelet> {
        let answer = |_: &http::Method, path: &str| {
            let name = path.strip_prefix("/api/v1/namespaces/d/secrets/")?;
            let password = match name {
                "s" => "right",
                "t" => "wrong",
                _ => return None,
            };
            let text = json!({"auths": {"r.io": {"username": "u", "password": password}}}).to_string();
            let data = json!({".dockerconfigjson": base64::engine::general_purpose::STANDARD.encode(text)});
            let metadata = json!({"name": name, "namespace": "d", "uid": name});
            Some(json!({"metadata": metadata, "type": "kubernetes.io/dockerconfigjson", "data": data}))
        };
        fixture::kubelet_with(folder, engine.clone(), answer, |config| config.settings.pulls = pulls)
    }

    /// The reason and the message that a container waits with, where it does not get its image.
    async fn wants(kubelet: &Kubelet, policy: &str, secrets: &[&str]) -> Result<(), (String, String)> {
        let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
        let containers = json!([{"name": "c", "image": "r.io/a:1", "imagePullPolicy": policy}]);
        let spec = json!({"containers": containers, "imagePullSecrets": secrets});
        let desired = fixture::pod(&spec.to_string());
        let mut memory = Memory::default();
        let container = &desired.spec().containers[0];
        match ensure(kubelet, &desired, container, &PodSandboxConfig::default(), &mut memory).await {
            Some(_) => Ok(()),
            None => {
                let cause = memory.container("c").waiting.clone().unwrap();
                Err((cause.reason, cause.message))
            }
        }
    }

    #[tokio::test]
    async fn a_pulled_image_is_for_those_who_could_pull_it_also_after_a_restart() {
        let (folder, engine) = (tempfile::tempdir().unwrap(), Fake::default());
        engine.lock_image("r.io/a:1", "right");
        let denied = || Err(("ErrImagePull".to_owned(), "pull access denied for r.io/a:1".to_owned()));
        let usual = node(folder.path(), &engine, Pulls::default());
        assert_eq!(wants(&usual, "IfNotPresent", &["t"]).await, denied());
        // The first credentials that the registry takes are used.
        assert_eq!(wants(&usual, "IfNotPresent", &["t", "s"]).await, Ok(()));
        let pulls = engine.calls().len();
        assert_eq!(wants(&usual, "IfNotPresent", &["s"]).await, Ok(()));
        assert_eq!(wants(&usual, "Never", &["s"]).await, Ok(()));
        assert_eq!(engine.calls().len(), pulls, "nothing was pulled again");
        drop(usual);
        let next = node(folder.path(), &engine, Pulls::default());
        assert_eq!(wants(&next, "IfNotPresent", &[]).await, denied());
        assert_eq!(wants(&next, "IfNotPresent", &["t"]).await, denied());
        let absent = "Container image \"r.io/a:1\" is not present with pull policy of Never".to_owned();
        assert_eq!(wants(&next, "Never", &["t"]).await, Err(("ErrImageNeverPull".to_owned(), absent)));
        let open = Pulls { verification: Verification::Never, ..Pulls::default() };
        assert_eq!(wants(&node(folder.path(), &engine, open), "Never", &[]).await, Ok(()));
    }

    #[tokio::test]
    async fn an_image_that_was_there_before_is_for_all_unless_everything_is_verified() {
        let (folder, engine) = (tempfile::tempdir().unwrap(), Fake::default());
        engine.add_image("r.io/a:1");
        engine.lock_image("r.io/a:1", "right");
        assert_eq!(wants(&node(folder.path(), &engine, Pulls::default()), "Never", &[]).await, Ok(()));
        let strict = || Pulls { verification: Verification::Always, ..Pulls::default() };
        assert!(wants(&node(folder.path(), &engine, strict()), "Never", &["s"]).await.is_err());
        assert_eq!(wants(&node(folder.path(), &engine, strict()), "IfNotPresent", &["s"]).await, Ok(()));
        assert_eq!(wants(&node(folder.path(), &engine, strict()), "Never", &["s"]).await, Ok(()));
    }

    #[tokio::test]
    async fn pulls_beyond_the_limit_fail_in_upstreams_words() {
        let (folder, engine) = (tempfile::tempdir().unwrap(), Fake::default());
        let slow = node(folder.path(), &engine, Pulls { per_second: 1, burst: 1, ..Pulls::default() });
        assert_eq!(wants(&slow, "Always", &[]).await, Ok(()));
        let exceeded = ("ErrImagePull".to_owned(), "pull QPS exceeded".to_owned());
        assert_eq!(wants(&slow, "Always", &[]).await, Err(exceeded));
    }
}
