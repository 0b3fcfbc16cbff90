//! Volumes that one Pod alone may have (`ReadWriteOncePod`), and the Pods that have them. The scheduler sees to that too, but not for
//! Pods that name their node themselves.
//! Upstream counterpart: `IsVolumeMountedElsewhere` of pkg/kubelet/volumemanager/cache.

use std::{collections::BTreeMap, path::PathBuf};

use parking_lot::Mutex;

use crate::volumes::folder::PodFolder;

/// The Pods' folders by the volumes' names. A Pod has its volumes as long as its folder is there.
pub struct Exclusive(Mutex<BTreeMap<String, PathBuf>>);

impl Exclusive {
    /// The holders are those that an earlier kubelet has left.
    pub fn new(holders: BTreeMap<String, PathBuf>) -> Self {
        Exclusive(Mutex::new(holders))
    }

    /// Takes a volume for a Pod, unless another has it.
    pub fn take(&self, volume: &str, pod: &PodFolder) -> bool {
        let mut holders = self.0.lock();
        if holders.get(volume).is_some_and(|held| held != pod.path() && held.exists()) {
            return false;
        }
        holders.insert(volume.to_owned(), pod.path().to_owned());
        true
    }

    /// The Pod did not get it.
    pub fn give_up(&self, volume: &str, pod: &PodFolder) {
        self.0.lock().retain(|name, held| name != volume || held != pod.path());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_volume_is_one_pods_as_long_as_its_folder_is_there() {
        let root = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|uid| PodFolder::new(root.path(), uid));
        for pod in [&a, &b] {
            fs::create_dir_all(pod.path()).unwrap();
        }
        let exclusive = Exclusive::new([("old".to_owned(), a.path().to_owned())].into());
        assert!(!exclusive.take("old", &b), "the earlier kubelet's Pod has it");
        assert!(exclusive.take("v", &a) && exclusive.take("v", &a) && exclusive.take("w", &b));
        assert!(!exclusive.take("v", &b));
        exclusive.give_up("v", &b);
        assert!(!exclusive.take("v", &b), "it is not b's to give up");
        exclusive.give_up("v", &a);
        assert!(exclusive.take("v", &b) && !exclusive.take("v", &a));
        fs::remove_dir_all(b.path()).unwrap();
        assert!(exclusive.take("v", &a));
    }
}
