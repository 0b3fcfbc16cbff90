//! A container, as CRI of Kubernetes 1.35 describes it to the engine and the engine describes it back: the crate `k8s-cri` knows an older
//! form, without parts of images as mounts and without signals that end a container. An engine that is older than a field passes it over,
//! and tells nothing of it.

use std::collections::HashMap;

use k8s_cri::v1::{
    CdiDevice, ContainerMetadata, ContainerResources, ContainerState, ContainerUser, Device, IdMapping, ImageSpec,
    KeyValue, LinuxContainerConfig, PodSandboxConfig,
};

/// runtime.v1.Mount
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Empty where an image is mounted.
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub readonly: bool,
    #[prost(bool, tag = "4")]
    pub selinux_relabel: bool,
    /// A `MountPropagation`.
    #[prost(int32, tag = "5")]
    pub propagation: i32,
    #[prost(message, repeated, tag = "6")]
    pub uid_mappings: Vec<IdMapping>,
    #[prost(message, repeated, tag = "7")]
    pub gid_mappings: Vec<IdMapping>,
    #[prost(bool, tag = "8")]
    pub recursive_read_only: bool,
    #[prost(message, optional, tag = "9")]
    pub image: Option<ImageSpec>,
    /// The folder of the image that is mounted; all of it when this is empty.
    #[prost(string, tag = "10")]
    pub image_sub_path: String,
}

/// runtime.v1.ContainerConfig, without what is Windows' alone.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub args: Vec<String>,
    #[prost(string, tag = "5")]
    pub working_dir: String,
    #[prost(message, repeated, tag = "6")]
    pub envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "8")]
    pub devices: Vec<Device>,
    #[prost(map = "string, string", tag = "9")]
    pub labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "10")]
    pub annotations: HashMap<String, String>,
    #[prost(string, tag = "11")]
    pub log_path: String,
    #[prost(bool, tag = "12")]
    pub stdin: bool,
    #[prost(bool, tag = "13")]
    pub stdin_once: bool,
    #[prost(bool, tag = "14")]
    pub tty: bool,
    #[prost(message, optional, tag = "15")]
    pub linux: Option<LinuxContainerConfig>,
    #[prost(message, repeated, tag = "17")]
    pub cdi_devices: Vec<CdiDevice>,
    /// As of [`signal`]; 0 is the image's own, or else the engine's.
    #[prost(int32, tag = "18")]
    pub stop_signal: i32,
}

/// runtime.v1.CreateContainerRequest
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<PodSandboxConfig>,
}

/// runtime.v1.ContainerStatus
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(enumeration = "ContainerState", tag = "3")]
    pub state: i32,
    /// This time and the next two are nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    #[prost(int64, tag = "6")]
    pub finished_at: i64,
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    #[prost(message, optional, tag = "8")]
    pub image: Option<ImageSpec>,
    #[prost(string, tag = "9")]
    pub image_ref: String,
    #[prost(string, tag = "10")]
    pub reason: String,
    #[prost(string, tag = "11")]
    pub message: String,
    #[prost(map = "string, string", tag = "12")]
    pub labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "13")]
    pub annotations: HashMap<String, String>,
    #[prost(message, repeated, tag = "14")]
    pub mounts: Vec<Mount>,
    #[prost(string, tag = "15")]
    pub log_path: String,
    #[prost(message, optional, tag = "16")]
    pub resources: Option<ContainerResources>,
    #[prost(string, tag = "17")]
    pub image_id: String,
    #[prost(message, optional, tag = "18")]
    pub user: Option<ContainerUser>,
    /// The number of the signal that ends it, as [`signal_name`] reads it; 0 where the engine does not tell.
    #[prost(int32, tag = "19")]
    pub stop_signal: i32,
}

/// runtime.v1.ContainerStatusResponse, without what is for people to read.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
}

/// CRI's signals in the order of their numbers, from 1 on, up to the first of real time.
const SIGNALS: &str = "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL SIGPIPE SIGPOLL \
    SIGPROF SIGPWR SIGQUIT SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM \
    SIGWINCH SIGXCPU SIGXFSZ SIGRTMIN";

/// CRI's numbers of the first and the last signal of real time.
const FIRST: i32 = 35;
const LAST: i32 = 65;
/// How far the API counts up from the first of them.
const MOST_UP: i32 = 15;

/// CRI's number of a signal that goes by its name in the API, which is not the kernel's. `None` for one that is not known.
pub fn signal(name: &str) -> Option<i32> {
    let distance = |text: &str, most: i32| text.parse().ok().filter(|number| (1..=most).contains(number));
    match (name.strip_prefix("SIGRTMIN+"), name.strip_prefix("SIGRTMAX-")) {
        (Some(more), _) => Some(FIRST + distance(more, MOST_UP)?),
        (_, Some(less)) => Some(LAST - distance(less, LAST - FIRST - MOST_UP - 1)?),
        _ if name == "SIGRTMAX" => Some(LAST),
        _ => i32::try_from(SIGNALS.split(' ').position(|known| known == name)?).ok().map(|place| place + 1),
    }
}

/// The name in the API of a signal by its number in CRI. `None` for 0, with which an engine tells nothing, and for numbers that CRI does
/// not have.
pub fn signal_name(number: i32) -> Option<String> {
    match number {
        1..=FIRST => SIGNALS.split(' ').nth(usize::try_from(number - 1).ok()?).map(str::to_owned),
        LAST => Some("SIGRTMAX".to_owned()),
        number if (FIRST..=FIRST + MOST_UP).contains(&number) => Some(format!("SIGRTMIN+{}", number - FIRST)),
        number if (FIRST..LAST).contains(&number) => Some(format!("SIGRTMAX-{}", LAST - number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_cri::v1;
    use prost::Message;

    use super::*;

    #[test]
    fn an_older_engine_reads_all_but_what_is_new() {
        let mapping = vec![IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let mount = Mount {
            container_path: "/c".into(),
            host_path: "/h".into(),
            readonly: true,
            selinux_relabel: true,
            propagation: v1::MountPropagation::PropagationBidirectional as i32,
            uid_mappings: mapping.clone(),
            gid_mappings: mapping.clone(),
            recursive_read_only: true,
            image: Some(ImageSpec { image: "i".into(), ..Default::default() }),
            image_sub_path: "part".into(),
        };
        let of_old = v1::Mount::decode(mount.encode_to_vec().as_slice()).unwrap();
        let expected = v1::Mount {
            container_path: "/c".into(),
            host_path: "/h".into(),
            readonly: true,
            selinux_relabel: true,
            propagation: v1::MountPropagation::PropagationBidirectional as i32,
            uid_mappings: mapping.clone(),
            gid_mappings: mapping,
            recursive_read_only: true,
            image: Some(ImageSpec { image: "i".into(), ..Default::default() }),
        };
        assert_eq!(of_old, expected);
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "n".into(), attempt: 1 }),
            image: Some(ImageSpec { image: "i".into(), ..Default::default() }),
            command: vec!["c".into()],
            args: vec!["a".into()],
            working_dir: "/w".into(),
            envs: vec![KeyValue { key: "k".into(), value: "v".into() }],
            mounts: Vec::new(),
            devices: vec![Device { host_path: "/dev/d".into(), ..Default::default() }],
            labels: [("l".into(), "1".into())].into(),
            annotations: [("a".into(), "2".into())].into(),
            log_path: "log".into(),
            stdin: true,
            stdin_once: true,
            tty: true,
            linux: Some(LinuxContainerConfig::default()),
            cdi_devices: vec![CdiDevice { name: "v/c=d".into() }],
            stop_signal: 23,
        };
        let of_old = v1::ContainerConfig::decode(config.encode_to_vec().as_slice()).unwrap();
        let expected = v1::ContainerConfig {
            metadata: config.metadata.clone(),
            image: config.image.clone(),
            command: config.command.clone(),
            args: config.args.clone(),
            working_dir: config.working_dir.clone(),
            envs: config.envs.clone(),
            mounts: Vec::new(),
            devices: config.devices.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            log_path: config.log_path.clone(),
            stdin: true,
            stdin_once: true,
            tty: true,
            linux: config.linux.clone(),
            windows: None,
            cdi_devices: config.cdi_devices.clone(),
        };
        assert_eq!(of_old, expected);
        // Of the new ones, the places are the specification's.
        let alone = ContainerConfig { stop_signal: 1, ..Default::default() };
        assert_eq!(alone.encode_to_vec(), [0x90, 1, 1]);
        let alone = Mount { image_sub_path: "p".into(), ..Default::default() };
        assert_eq!(alone.encode_to_vec(), [0x52, 1, b'p']);
    }

    #[test]
    fn signals_have_the_numbers_of_cri() {
        for (name, expected) in [
            ("SIGABRT", Some(1)),
            ("SIGKILL", Some(13)),
            ("SIGTERM", Some(23)),
            ("SIGUSR1", Some(29)),
            ("SIGXFSZ", Some(34)),
            ("SIGRTMIN", Some(35)),
            ("SIGRTMIN+15", Some(50)),
            ("SIGRTMAX-14", Some(51)),
            ("SIGRTMAX-1", Some(64)),
            ("SIGRTMAX", Some(65)),
            ("SIGRTMIN+16", None),
            ("SIGRTMAX-0", None),
            ("SIGNONE", None),
            ("", None),
        ] {
            assert_eq!(signal(name), expected, "{name}");
        }
    }

    #[test]
    fn each_number_of_cri_has_the_name_of_the_api_and_no_other_has_one() {
        for (number, expected) in [
            (1, "SIGABRT"),
            (23, "SIGTERM"),
            (34, "SIGXFSZ"),
            (35, "SIGRTMIN"),
            (36, "SIGRTMIN+1"),
            (50, "SIGRTMIN+15"),
            (51, "SIGRTMAX-14"),
            (64, "SIGRTMAX-1"),
            (65, "SIGRTMAX"),
        ] {
            assert_eq!(signal_name(number).as_deref(), Some(expected));
        }
        for number in 1..=65 {
            assert_eq!(signal_name(number).and_then(|name| signal(&name)), Some(number));
        }
        for number in [i32::MIN, -1, 0, 66, i32::MAX] {
            assert_eq!(signal_name(number), None, "{number}");
        }
    }

    #[test]
    fn a_status_is_read_from_old_engines_and_from_new_ones() {
        let old = v1::ContainerStatus {
            id: "c".into(),
            metadata: Some(ContainerMetadata { name: "n".into(), attempt: 1 }),
            state: ContainerState::ContainerExited as i32,
            created_at: 1,
            started_at: 2,
            finished_at: 3,
            exit_code: 4,
            image: Some(ImageSpec { image: "i".into(), ..Default::default() }),
            image_ref: "r".into(),
            reason: "why".into(),
            message: "text".into(),
            labels: [("l".into(), "1".into())].into(),
            annotations: [("a".into(), "2".into())].into(),
            mounts: vec![v1::Mount { container_path: "/c".into(), ..Default::default() }],
            log_path: "log".into(),
            resources: Some(ContainerResources::default()),
            image_id: "d".into(),
            user: Some(ContainerUser::default()),
        };
        let expected = ContainerStatus {
            id: old.id.clone(),
            metadata: old.metadata.clone(),
            state: old.state,
            created_at: 1,
            started_at: 2,
            finished_at: 3,
            exit_code: 4,
            image: old.image.clone(),
            image_ref: old.image_ref.clone(),
            reason: old.reason.clone(),
            message: old.message.clone(),
            labels: old.labels.clone(),
            annotations: old.annotations.clone(),
            mounts: vec![Mount { container_path: "/c".into(), ..Default::default() }],
            log_path: old.log_path.clone(),
            resources: old.resources.clone(),
            image_id: old.image_id.clone(),
            user: old.user.clone(),
            stop_signal: 0,
        };
        let answer =
            v1::ContainerStatusResponse { status: Some(old), info: [("pid".to_owned(), "7".to_owned())].into() };
        let read = |bytes: &[u8]| ContainerStatusResponse::decode(bytes).unwrap().status.unwrap();
        assert_eq!(read(&answer.encode_to_vec()), expected);
        // The place of the new field is the specification's.
        assert_eq!(read(&[0x0a, 3, 0x98, 1, 29]).stop_signal, 29);
    }
}
