//! The statements of the engine about itself, as the Node object shows them. Upstream counterpart: `updateRuntimeUp` in pkg/kubelet/kubelet.go, and
//! `RuntimeHandlers` and `NodeFeatures` of pkg/kubelet/nodestatus.

use k8s_cri::v1::{Image, RuntimeCondition, RuntimeFeatures, RuntimeHandler};
use k8s_openapi::api::core::v1::{ContainerImage, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures};

use crate::{kubelet::Kubelet, node::network};

/// An image may have any number of names; upstream's status has these many (`MaxNamesPerImageInNodeStatus`).
const NAMES_OF_AN_IMAGE: usize = 5;

/// The engine's statements: its version, what keeps the node from being ready, its images and its abilities.
pub struct Engine {
    pub version: String,
    pub trouble: Vec<String>,
    pub images: Vec<ContainerImage>,
    /// Those of its handlers, and of all together; `None` when it has not answered.
    pub abilities: Option<(Vec<NodeRuntimeHandler>, Option<NodeFeatures>)>,
}

pub async fn ask(kubelet: &Kubelet) -> Engine {
    let engine = &kubelet.config.runtime;
    // One that hangs is waited for once, not for each of its answers.
    let (version, status, images) = tokio::join!(engine.version(), engine.status(), engine.images());
    let version = match version {
        Ok(v) => format!("{}://{}", v.runtime_name, v.runtime_version.trim_start_matches('v')),
        Err(_) => "unknown".to_owned(),
    };
    let (trouble, abilities) = match status {
        Ok(status) => {
            let mut handlers: Vec<_> = status.runtime_handlers.into_iter().map(handler).collect();
            handlers.sort_by(|a, b| a.name.cmp(&b.name));
            let conditions = status.status.unwrap_or_default().conditions;
            kubelet.network.note(&conditions).await;
            let trouble = troubles(&conditions);
            (trouble, Some((handlers, status.features.map(shown))))
        }
        Err(error) => (vec![format!("container runtime is down: {error}")], None),
    };
    let most = kubelet.config.settings.status_images.unwrap_or(usize::MAX);
    let images = shown_images(images.unwrap_or_default(), most);
    Engine { version, trouble, images, abilities }
}

/// The largest images, as many as the status has room for. An engine lists them in no order: told as they come, each look would change
/// the Node.
fn shown_images(mut images: Vec<Image>, most: usize) -> Vec<ContainerImage> {
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| b.id.cmp(&a.id)));
    let shown = |image: Image| ContainerImage {
        names: Some(image.repo_digests.into_iter().chain(image.repo_tags).take(NAMES_OF_AN_IMAGE).collect()),
        size_bytes: i64::try_from(image.size).ok(),
    };
    images.into_iter().take(most).map(shown).collect()
}

/// Why the engine, or its network, is not ready. Engines have further conditions, such as that somebody should change their configuration:
/// the node is ready all the same.
fn troubles(conditions: &[RuntimeCondition]) -> Vec<String> {
    let all = [network::unmet(conditions, "RuntimeReady", "container runtime"), network::trouble(conditions)];
    all.into_iter().flatten().collect()
}

/// The abilities of one of the engine's handlers.
fn handler(handler: RuntimeHandler) -> NodeRuntimeHandler {
    let features = handler.features.unwrap_or_default();
    NodeRuntimeHandler {
        name: Some(handler.name),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
            user_namespaces: Some(features.user_namespaces),
        }),
    }
}

/// The engine's abilities, whichever handler a Pod has.
fn shown(features: RuntimeFeatures) -> NodeFeatures {
    NodeFeatures { supplemental_groups_policy: Some(features.supplemental_groups_policy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_told_in_one_order_the_largest_first() {
        let image = |id: &str, size: u64, names: usize| Image {
            id: id.to_owned(),
            size,
            repo_digests: vec![format!("{id}@sha256:0")],
            repo_tags: (1..names).map(|i| format!("{id}:{i}")).collect(),
            ..Image::default()
        };
        let all = [image("a", 10, 1), image("b", 30, 9), image("c", 10, 2), image("d", 20, 1)];
        let told = |order: [usize; 4], most: usize| {
            let images = shown_images(order.map(|i| all[i].clone()).into(), most);
            images.iter().map(|image| image.names.clone().unwrap().join(" ")).collect::<Vec<_>>()
        };
        let expected = ["b@sha256:0 b:1 b:2 b:3 b:4", "d@sha256:0", "c@sha256:0 c:1", "a@sha256:0"];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            assert_eq!(told(order, usize::MAX), expected);
            assert_eq!(told(order, 2), expected[..2]);
        }
        assert!(told([0, 1, 2, 3], 0).is_empty());
    }

    #[test]
    fn a_node_is_ready_whatever_else_its_engine_complains_of() {
        let condition = |kind: &str, status: bool| RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: "R".to_owned(),
            message: "m".to_owned(),
        };
        let check = |list: &[(&str, bool)], expected: &[&str]| {
            let list: Vec<_> = list.iter().map(|(kind, status)| condition(kind, *status)).collect();
            assert_eq!(troubles(&list), expected);
        };
        let (runtime, network) = (("RuntimeReady", true), ("NetworkReady", true));
        check(&[runtime, network], &[]);
        check(&[runtime, network, ("ContainerdHasNoDeprecationWarnings", false)], &[]);
        let words = "container runtime network not ready: NetworkReady=false reason:R message:m";
        check(&[runtime, ("NetworkReady", false)], &[words]);
        check(
            &[("RuntimeReady", false), network],
            &["container runtime not ready: RuntimeReady=false reason:R message:m"],
        );
        check(&[network], &["container runtime not ready: nil"]);
    }
}
