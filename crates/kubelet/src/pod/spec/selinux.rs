//! Labels of files for SELinux. The engine relabels a volume's files one by one, unless the volume is mounted with the label
//! that its Pod's processes may use: which label that is, and for which volumes, is decided here.
//! Upstream counterpart: pkg/volume/util/selinux.go.

use std::{
    fmt::{self, Display},
    fs,
    path::Path,
    sync::Arc,
};

use api::features::{Feature, Features};
use k8s_openapi::api::core::v1::{Container, Pod, SELinuxOptions};

use crate::pod::spec::hardening::Modules;

const CONFIG: &str = "etc/selinux/config";
const USUAL_POLICY: &str = "targeted";

/// The parts of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    user: String,
    role: String,
    sort: String,
}

impl Context {
    /// The label that files of containers usually have on a machine with this root folder, as its policy says.
    pub fn of_files(root: &Path) -> Option<Context> {
        let config = fs::read_to_string(root.join(CONFIG)).unwrap_or_default();
        let policy = setting(&config, "SELINUXTYPE").unwrap_or(USUAL_POLICY);
        let contexts = format!("etc/selinux/{policy}/contexts/lxc_contexts");
        let contexts = fs::read_to_string(root.join(contexts)).ok()?;
        let mut parts = setting(&contexts, "file")?.splitn(4, ':').map(str::to_owned);
        Some(Context { user: parts.next()?, role: parts.next()?, sort: parts.next()? })
    }

    #[cfg(test)]
    pub fn usual() -> Context {
        let [user, role, sort] = ["system_u", "object_r", "container_file_t"].map(str::to_owned);
        Context { user, role, sort }
    }

    /// The label of files that a process with these options may use. One without a level of its own gets another level
    /// with each container, so no mount has it.
    fn of(&self, options: &SELinuxOptions) -> Result<Option<String>, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let Some(level) = given(&options.level) else { return Ok(None) };
        let user = given(&options.user).unwrap_or_else(|| self.user.clone());
        let label = [user.as_str(), &self.role, &self.sort, &level].join(":");
        // It becomes a mount option, and nobody but the label's author decides what that is.
        let is_label = label.chars().all(|c| c.is_ascii_alphanumeric() || ":,.-_".contains(c));
        if is_label { Ok(Some(label)) } else { Err(format!("{label:?} is no SELinux label")) }
    }
}

impl Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { user, role, sort } = self;
        write!(f, "{user}:{role}:{sort}")
    }
}

/// The label that files of containers usually have here, or why there is none.
pub fn of_this_machine() -> Result<Context, &'static str> {
    if !Modules::of_this_kernel().selinux {
        return Err("SELinux is not at work on this machine");
    }
    Context::of_files(Path::new("/"))
        .ok_or("the machine's SELinux policy knows no containers; install container-selinux")
}

/// The value of a key in lines such as `key = "value"`.
fn setting<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let mut found = pairs.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().trim_matches('"'));
    found.next()
}

/// The volumes that a node mounts with a label.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// The usual label of containers' files; none where SELinux is not at work.
    usual: Option<Arc<Context>>,
    /// Also volumes that several Pods may use are mounted with a label.
    shared: bool,
    /// Pods may say that they want their files relabelled.
    by_policy: bool,
}

impl Labels {
    pub fn new(usual: Option<Arc<Context>>, features: Features) -> Labels {
        Labels {
            usual: usual.filter(|_| features.enabled(Feature::SELinuxMountReadWriteOncePod)),
            shared: features.enabled(Feature::SELinuxMount),
            by_policy: features.enabled(Feature::SELinuxChangePolicy),
        }
    }

    /// The label that a Pod's persistent volume is to be mounted with, if it can be mounted with one. A device has none: no container
    /// mounts it.
    pub fn mount(&self, pod: &Pod, volume: &str, access_modes: &[String]) -> Result<Option<String>, String> {
        let (Some(usual), Some(spec)) = (&self.usual, &pod.spec) else { return Ok(None) };
        if !self.shared && access_modes != ["ReadWriteOncePod"] {
            return Ok(None);
        }
        let of_pod = spec.security_context.as_ref();
        let recursive = of_pod.and_then(|c| c.se_linux_change_policy.as_deref()) == Some("Recursive");
        if self.by_policy && recursive {
            return Ok(None);
        }
        let of_pod = of_pod.and_then(|context| context.se_linux_options.as_ref());
        let uses = |c: &&Container| c.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
        let options = |c: &Container| {
            let own = c.security_context.as_ref().and_then(|context| context.se_linux_options.clone());
            own.or_else(|| of_pod.cloned())
        };
        let users = spec.init_containers.iter().flatten().chain(&spec.containers).filter(uses).filter_map(options);
        let mut labels = users.map(|options| usual.of(&options)).collect::<Result<Vec<_>, _>>()?;
        labels.sort();
        labels.dedup();
        match labels.as_mut_slice() {
            [] => Ok(None),
            [label] => Ok(label.take()),
            _ => {
                let labels: Vec<String> = labels.into_iter().map(Option::unwrap_or_default).collect();
                Err(format!("multiple SELinux labels found: {}", labels.join(",")))
            }
        }
    }
}

/// The mount option of a label. A label may have commas.
pub fn option(label: &str) -> String {
    format!("context=\"{label}\"")
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let contexts = root.path().join("etc/selinux/mls/contexts");
        fs::create_dir_all(&contexts).unwrap();
        fs::write(root.path().join(CONFIG), "# of this machine\nSELINUX=enforcing\nSELINUXTYPE=mls\n").unwrap();
        let lines =
            "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";
        fs::write(contexts.join("lxc_contexts"), lines).unwrap();
        root
    }

    #[test]
    fn the_usual_label_is_that_of_the_policy_at_work() {
        let root = machine();
        assert_eq!(Context::of_files(root.path()), Some(Context::usual()));
        fs::remove_file(root.path().join(CONFIG)).unwrap();
        assert_eq!(Context::of_files(root.path()), None, "the usual policy is not there");
    }

    /// `pod` is the Pod's security context, and each of `containers` that of a container which uses the volume.
    fn label(
        changed: &[(Feature, bool)],
        modes: &[&str],
        pod: Value,
        containers: &[Value],
    ) -> Result<Option<String>, String> {
        let root = machine();
        let features = changed.iter().fold(Features::default(), |all, (feature, on)| all.with(*feature, *on));
        let labels = Labels::new(Context::of_files(root.path()).map(Arc::new), features);
        let mut all: Vec<Value> =
            vec![json!({"name": "other", "securityContext": {"seLinuxOptions": {"level": "s9"}}})];
        all.extend(containers.iter().map(|context| {
            json!({"name": "c", "securityContext": context, "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
        }));
        let pod = json::from_value(json!({"spec": {"securityContext": pod, "containers": all}})).unwrap();
        labels.mount(&pod, "v", &modes.iter().map(|mode| (*mode).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_volume_of_one_pod_is_mounted_with_the_label_of_its_processes() {
        let check = |pod: Value, containers: &[Value], expected: Result<Option<&str>, &str>| {
            let got = label(&[], &["ReadWriteOncePod"], pod.clone(), containers);
            assert_eq!(got, expected.map(|l| l.map(str::to_owned)).map_err(str::to_owned), "{pod} {containers:?}");
        };
        let level = json!({"seLinuxOptions": {"level": "s0:c1,c2"}});
        let usual = "system_u:object_r:container_file_t:s0:c1,c2";
        check(level.clone(), &[json!({})], Ok(Some(usual)));
        check(json!({}), &[level.clone(), level.clone()], Ok(Some(usual)));
        check(json!({}), &[level.clone(), json!({})], Ok(Some(usual)));
        // A container's options stand for the Pod's as a whole; the type is that of processes, and files keep theirs.
        let user = json!({"seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "s0"}});
        check(level.clone(), std::slice::from_ref(&user), Ok(Some("u:object_r:container_file_t:s0")));
        // No level, no label.
        check(json!({"seLinuxOptions": {"type": "spc_t"}}), &[json!({})], Ok(None));
        check(json!({}), &[json!({})], Ok(None));
        check(level.clone(), &[], Ok(None));
        let both = format!("multiple SELinux labels found: {usual},u:object_r:container_file_t:s0");
        check(level, &[json!({}), user], Err(&both));
        // A label is no way to other mount options.
        let trick = json!({"seLinuxOptions": {"level": "s0\",suid,dev=\""}});
        let why = r#""system_u:object_r:container_file_t:s0\",suid,dev=\"" is no SELinux label"#;
        check(trick, &[json!({})], Err(why));
    }

    #[test]
    fn other_volumes_and_pods_that_say_so_are_relabelled() {
        let level = json!({"seLinuxOptions": {"level": "s0"}});
        let recursive = json!({"seLinuxOptions": {"level": "s0"}, "seLinuxChangePolicy": "Recursive"});
        let check = |changed: &[(Feature, bool)], modes: &[&str], pod: &Value, expected: bool| {
            let got = label(changed, modes, pod.clone(), &[json!({})]).unwrap().is_some();
            assert_eq!(got, expected, "{changed:?} {modes:?} {pod}");
        };
        let once = &["ReadWriteOncePod"][..];
        check(&[], once, &level, true);
        check(&[], &["ReadWriteOnce"], &level, false);
        check(&[], &["ReadWriteOncePod", "ReadWriteOnce"], &level, false);
        check(&[(Feature::SELinuxMount, true)], &["ReadWriteMany"], &level, true);
        check(&[], once, &recursive, false);
        check(&[(Feature::SELinuxMountReadWriteOncePod, false)], once, &level, false);
        check(&[(Feature::SELinuxChangePolicy, false)], once, &recursive, true);
    }
}
