//! The labels that Pods want for a volume, and when those of two Pods are in conflict. Pure.
//! Upstream counterparts: pkg/controller/volume/selinuxwarning/cache and /translator, pkg/volume/util/selinux.go.

use client::Key;
use k8s_openapi::api::core::v1::{Pod, PodSpec, SELinuxOptions, SecurityContext, VolumeMount};

const RECURSIVE: &str = "Recursive";
const MOUNT_OPTION: &str = "MountOption";

/// How a Pod wants the files of a volume to get their label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wish {
    /// The label that the volume is mounted with; empty where it is mounted with none.
    pub label: String,
    pub policy: &'static str,
}

/// The containers of one Pod want different labels for one volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Multiple;

/// The parts of a label that are given. Nobody but the nodes knows the others.
fn label(options: &SELinuxOptions) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    let parts = [&options.user, &options.role, &options.type_, &options.level].map(part);
    if parts.iter().all(String::is_empty) { String::new() } else { parts.join(":") }
}

/// The mounts and the security of each container, those among them that were added to look into the Pod.
fn containers(spec: &PodSpec) -> impl Iterator<Item = (&[VolumeMount], Option<&SecurityContext>)> {
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let plain = plain.map(|c| (c.volume_mounts.as_deref(), c.security_context.as_ref()));
    let added = spec.ephemeral_containers.iter().flatten();
    let added = added.map(|c| (c.volume_mounts.as_deref(), c.security_context.as_ref()));
    plain.chain(added).map(|(mounts, context)| (mounts.unwrap_or_default(), context))
}

/// The wish of a Pod for a volume that its node can mount with a label; none if no container mounts it. With `asks_policy` Pods may say
/// that they want their files relabelled instead.
pub fn wish(pod: &Pod, volume: &str, asks_policy: bool) -> Option<Result<Wish, Multiple>> {
    let spec = pod.spec.as_ref()?;
    let context = spec.security_context.as_ref();
    let of_pod = context.and_then(|context| context.se_linux_options.as_ref());
    let mut users = containers(spec).filter(|(mounts, _)| mounts.iter().any(|mount| mount.name == volume)).peekable();
    users.peek()?;
    let own = |context: Option<&'_ SecurityContext>| context.and_then(|context| context.se_linux_options.clone());
    let mut labels: Vec<String> =
        users.filter_map(|(_, context)| own(context).or(of_pod.cloned())).map(|options| label(&options)).collect();
    labels.sort();
    labels.dedup();
    if labels.len() > 1 {
        return Some(Err(Multiple));
    }
    let asked = context.and_then(|context| context.se_linux_change_policy.as_deref());
    let label = labels.pop().filter(|_| !(asks_policy && asked == Some(RECURSIVE))).unwrap_or_default();
    let policy = if asked == Some(RECURSIVE) || label.is_empty() { RECURSIVE } else { MOUNT_OPTION };
    Some(Ok(Wish { label, policy }))
}

/// The thing about which two Pods do not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    Policy,
    Label,
}

impl Property {
    pub fn name(self) -> &'static str {
        match self {
            Property::Policy => "SELinuxChangePolicy",
            Property::Label => "SELinux label",
        }
    }

    /// The reason of the events.
    pub fn reason(self) -> &'static str {
        match self {
            Property::Policy => "SELinuxChangePolicyConflict",
            Property::Label => "SELinuxLabelConflict",
        }
    }

    pub fn of(self, wish: &Wish) -> &str {
        match self {
            Property::Policy => wish.policy,
            Property::Label => &wish.label,
        }
    }
}

/// Whether two labels differ in a part that both have.
fn differ(one: &str, other: &str) -> bool {
    // The level is the rest: it has colons of its own.
    let (one, other) = (one.splitn(4, ':'), other.splitn(4, ':'));
    one.zip(other).any(|(one, other)| one != other && !one.is_empty() && !other.is_empty())
}

/// The properties that two Pods with one volume do not agree on.
pub fn conflicts(one: &Wish, other: &Wish) -> impl Iterator<Item = Property> + use<> {
    let policy = (one.policy != other.policy).then_some(Property::Policy);
    let label = differ(&one.label, &other.label).then_some(Property::Label);
    policy.into_iter().chain(label)
}

/// The message of the event about a Pod. Pods of other namespaces stay unnamed.
pub fn message(property: Property, (pod, wish): (&Key, &Wish), (other, theirs): (&Key, &Wish)) -> String {
    const END: &str = "If both pods land on the same node, only one of them may access the volume.";
    let (name, value) = (property.name(), property.of(wish));
    if pod.namespace == other.namespace {
        let (other, theirs) = (&other.name, property.of(theirs));
        return format!(
            "{name} \"{value}\" conflicts with pod {other} that uses the same volume as this pod with {name} \"{theirs}\". {END}"
        );
    }
    format!(
        "{name}\"{value}\" conflicts with another pod that uses the same volume as this pod with a different {name}. {END}"
    )
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    /// A Pod whose containers have these options and mount the volume `v`.
    fn pod(of_pod: Value, of_containers: &[Value]) -> Pod {
        let mount = json!([{"name": "v", "mountPath": "/v"}]);
        let containers: Vec<Value> = of_containers
            .iter()
            .map(|options| json!({"name": "c", "volumeMounts": mount, "securityContext": {"seLinuxOptions": options}}))
            .collect();
        json::from_value(
            json!({"metadata": {"name": "p"}, "spec": {"securityContext": of_pod, "containers": containers}}),
        )
        .unwrap()
    }

    #[test]
    fn a_pod_wants_the_label_that_its_containers_agree_on() {
        let check = |of_pod: Value, of_containers: &[Value], expected: Result<(&str, &str), Multiple>| {
            let got = wish(&pod(of_pod.clone(), of_containers), "v", true).unwrap();
            let expected = expected.map(|(label, policy)| (label.to_owned(), policy));
            assert_eq!(got.map(|wish| (wish.label, wish.policy)), expected, "{of_pod} {of_containers:?}");
        };
        let level = |level: &str| json!({"level": level});
        let of_pod = json!({"seLinuxOptions": {"level": "s0:c1,c2"}});
        check(json!({}), &[Value::Null], Ok(("", "Recursive")));
        check(of_pod.clone(), &[Value::Null], Ok((":::s0:c1,c2", "MountOption")));
        check(of_pod.clone(), &[level("s0:c3")], Ok((":::s0:c3", "MountOption")));
        check(of_pod.clone(), &[Value::Null, level("s0:c3")], Err(Multiple));
        check(json!({}), &[Value::Null, level("s0:c3")], Ok((":::s0:c3", "MountOption")));
        check(json!({"seLinuxOptions": {}}), &[Value::Null], Ok(("", "Recursive")));
        let whole = json!({"user": "u", "role": "r", "type": "t", "level": "s0"});
        check(json!({"seLinuxOptions": whole}), &[Value::Null], Ok(("u:r:t:s0", "MountOption")));
        let mut recursive = of_pod;
        recursive["seLinuxChangePolicy"] = "Recursive".into();
        check(recursive.clone(), &[Value::Null], Ok(("", "Recursive")));
        let without_gate = wish(&pod(recursive, &[Value::Null]), "v", false).unwrap().unwrap();
        assert_eq!((without_gate.label.as_str(), without_gate.policy), (":::s0:c1,c2", "Recursive"));
        assert_eq!(wish(&pod(json!({}), &[Value::Null]), "w", true), None);
    }

    #[test]
    fn labels_differ_in_parts_that_both_have() {
        let check = |one: &str, other: &str, expected: bool| {
            assert_eq!((differ(one, other), differ(other, one)), (expected, expected), "{one} {other}");
        };
        check("", "", false);
        check("", ":::s0:c1", false);
        check(":::s0:c1", ":::s0:c1", false);
        check(":::s0:c1", ":::s0:c2", true);
        check("system_u:system_r:container_t:s0:c1,c2", ":::s0:c1,c2", false);
        check("system_u:system_r:container_t:s0:c1,c2", ":::s0:c98,c99", true);
        check("a:::", "b:::", true);
        check("a:::", ":b::", false);
    }

    #[test]
    fn a_conflict_is_told_without_names_of_other_namespaces() {
        let wish = |label: &str, policy| Wish { label: label.to_owned(), policy };
        let (one, two) = (wish(":::s0:c1", MOUNT_OPTION), wish(":::s0:c2", MOUNT_OPTION));
        let properties = |one: &Wish, other: &Wish| conflicts(one, other).collect::<Vec<_>>();
        assert_eq!(properties(&one, &two), [Property::Label]);
        assert_eq!(properties(&one, &wish("", RECURSIVE)), [Property::Policy]);
        assert_eq!(properties(&one, &one), []);
        let (here, near, far) = (Key::new("a", "p"), Key::new("a", "q"), Key::new("b", "secret"));
        let end = "If both pods land on the same node, only one of them may access the volume.";
        assert_eq!(
            message(Property::Label, (&here, &one), (&near, &two)),
            format!(
                "SELinux label \":::s0:c1\" conflicts with pod q that uses the same volume as this pod with SELinux label \":::s0:c2\". {end}"
            )
        );
        assert_eq!(
            message(Property::Policy, (&here, &one), (&far, &wish("", RECURSIVE))),
            format!(
                "SELinuxChangePolicy\"MountOption\" conflicts with another pod that uses the same volume as this pod with a different SELinuxChangePolicy. {end}"
            )
        );
    }
}
