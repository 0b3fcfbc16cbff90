//! The variables, mounts and device nodes that devices bring into a container, as the engine is told them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_cri::v1::Device;
use runtime::container::Mount;

use crate::devices::messages::ContainerAllocateResponse;

/// All that a container's devices need, whoever gave them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices, each once.
    pub cdi: BTreeSet<String>,
}

impl Given {
    /// Adds what one resource needs. A part whose name or place is taken is left out: the first one wins, as upstream.
    pub fn add(&mut self, answer: &ContainerAllocateResponse) {
        for (name, value) in &answer.envs {
            self.envs.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (name, value) in &answer.annotations {
            self.annotations.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for mount in &answer.mounts {
            if !self.mounts.iter().any(|held| held.container_path == mount.container_path) {
                self.mounts.push(Mount {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    readonly: mount.read_only,
                    ..Default::default()
                });
            }
        }
        for device in &answer.devices {
            if !self.devices.iter().any(|held| held.container_path == device.container_path) {
                self.devices.push(Device {
                    container_path: device.container_path.clone(),
                    host_path: device.host_path.clone(),
                    permissions: device.permissions.clone(),
                });
            }
        }
        self.cdi.extend(answer.cdi_devices.iter().map(|device| device.name.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::messages::{CdiDevice, DeviceSpec, Mount as Asked};

    #[test]
    fn of_two_for_the_same_place_the_first_one_counts() {
        let answer = |text: &str| ContainerAllocateResponse {
            envs: [("E".to_owned(), text.to_owned())].into(),
            annotations: [("a".to_owned(), text.to_owned())].into(),
            mounts: vec![Asked { container_path: "/m".into(), host_path: text.into(), read_only: true }],
            devices: vec![DeviceSpec {
                container_path: "/dev/x".into(),
                host_path: text.into(),
                permissions: "rw".into(),
            }],
            cdi_devices: vec![CdiDevice { name: "v/c=1".into() }, CdiDevice { name: text.into() }],
        };
        let mut given = Given::default();
        given.add(&answer("1"));
        given.add(&answer("2"));
        assert_eq!((given.envs["E"].as_str(), given.annotations["a"].as_str()), ("1", "1"));
        let [mount] = &given.mounts[..] else { panic!("{:?}", given.mounts) };
        assert_eq!((mount.container_path.as_str(), mount.host_path.as_str(), mount.readonly), ("/m", "1", true));
        let [device] = &given.devices[..] else { panic!("{:?}", given.devices) };
        assert_eq!((device.host_path.as_str(), device.permissions.as_str()), ("1", "rw"));
        assert_eq!(given.cdi, ["1", "2", "v/c=1"].map(str::to_owned).into());
    }
}
