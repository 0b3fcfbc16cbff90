//! Which Pod has which ids. No two of them ever share one: what an earlier kubelet gave is known before anything is given, and
//! what is given is on the disk before it is used.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use k8s_cri::v1::{IdMapping, NamespaceMode, UserNamespace};
use k8s_openapi::api::core::v1::PodSpec;
use parking_lot::Mutex;

use super::{
    range::{Ids, Range},
    record,
};

/// A Pod's users from 0 on, as the engine is told.
pub fn mapping(ids: Ids) -> Vec<IdMapping> {
    vec![IdMapping { host_id: ids.first, container_id: 0, length: ids.length }]
}

/// The users of a Pod, as the engine is told: the node's, if it has none of its own.
pub fn namespace(own: Option<Ids>) -> UserNamespace {
    let (mode, ids) = match own {
        Some(ids) => (NamespaceMode::Pod, mapping(ids)),
        None => (NamespaceMode::Node, Vec::new()),
    };
    UserNamespace { mode: mode as i32, uids: ids.clone(), gids: ids }
}

/// Whether a Pod wants users that are none of the node's.
pub fn wants(spec: &PodSpec) -> bool {
    spec.host_users == Some(false)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "create user namespace manager: record pod mappings for existing pod \"{uid}\": {source}; end that pod's containers and \
     remove {}",
    .path.display()
)]
pub struct Unreadable {
    uid: String,
    path: PathBuf,
    source: io::Error,
}

struct State {
    range: Range,
    /// By the uids of Pods.
    held: BTreeMap<String, Ids>,
}

/// See the module.
pub struct Users {
    /// Where the Pods' folders are.
    folder: PathBuf,
    state: Mutex<State>,
}

impl Users {
    /// Nothing is given before [`Users::begin`] knows what was.
    pub fn new(kubelet_root: &Path, length: u32) -> Users {
        let state = State { range: Range { count: 0, ..Range::usual(length) }, held: BTreeMap::new() };
        Users { folder: kubelet_root.join("pods"), state: Mutex::new(state) }
    }

    /// Begins to give ids of this range. Those that a Pod has from an earlier kubelet stay its own, wherever they lie.
    pub fn begin(&self, range: Range) -> Result<(), Unreadable> {
        let mut state = self.state.lock();
        state.range = range;
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (uid, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let refused = |source| Unreadable { uid: uid.clone(), path: path.join(record::NAME), source };
            let Some(ids) = record::read(&path).map_err(refused)? else { continue };
            if state.held.values().any(|other| other.overlaps(&ids)) {
                return Err(refused(io::Error::other(format!("range picked for pod \"{uid}\" already taken"))));
            }
            state.held.insert(uid.clone(), ids);
        }
        Ok(())
    }

    /// The ids of a Pod, which it gets if it has none yet. Its folder is there.
    pub fn take(&self, uid: &str) -> Result<Ids, String> {
        let mut state = self.state.lock();
        if let Some(ids) = state.held.get(uid) {
            return Ok(*ids);
        }
        let Range { first, count, length } = state.range;
        let free = |ids: &Ids| !state.held.values().any(|other| other.overlaps(ids));
        let next = (0..count).map(|place| Ids { first: first + place * length, length }).find(free);
        let ids = next.ok_or("create user namespace: could not find an empty slot to allocate a user namespace")?;
        record::write(&self.folder.join(uid), ids).map_err(|error| format!("create user namespace: {error}"))?;
        state.held.insert(uid.to_owned(), ids);
        Ok(ids)
    }

    pub fn held(&self, uid: &str) -> Option<Ids> {
        self.state.lock().held.get(uid).copied()
    }

    /// The ids of a Pod that runs; `None` for one whose users are the node's.
    pub fn of(&self, uid: &str, spec: &PodSpec) -> Result<Option<Ids>, String> {
        if !wants(spec) {
            return Ok(None);
        }
        self.held(uid).map(Some).ok_or_else(|| "user namespace: the Pod's sandbox has none".to_owned())
    }

    /// Nothing of the Pod is left, its folder neither.
    pub fn release(&self, uid: &str) {
        self.state.lock().held.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::users::range::UNIT;

    fn range(count: u32) -> Range {
        Range { count, ..Range::usual(UNIT) }
    }

    /// A kubelet that finds this folder.
    fn started(root: &Path, range: Range) -> Users {
        let users = Users::new(root, UNIT);
        users.begin(range).unwrap();
        users
    }

    fn folder(root: &Path, uid: &str) -> PathBuf {
        let folder = root.join("pods").join(uid);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn each_pod_has_ids_of_its_own_over_restarts() {
        let root = tempfile::tempdir().unwrap();
        for uid in ["a", "b", "c"] {
            folder(root.path(), uid);
        }
        let users = started(root.path(), range(2));
        let (a, b) = (users.take("a").unwrap(), users.take("b").unwrap());
        assert_eq!((a.first, b.first, a.length), (UNIT, 2 * UNIT, UNIT));
        assert_eq!(users.take("a"), Ok(a));
        let full = "create user namespace: could not find an empty slot to allocate a user namespace";
        assert_eq!(users.take("c"), Err(full.to_owned()));
        let users = started(root.path(), range(2));
        assert_eq!((users.held("a"), users.held("b"), users.held("c")), (Some(a), Some(b), None));
        fs::remove_dir_all(root.path().join("pods/a")).unwrap();
        users.release("a");
        assert_eq!(users.take("c"), Ok(a), "what is free is given again");
        // A range of other lengths, over what was given: it is passed over.
        let wide = Range { first: 2 * UNIT, count: 3, length: 2 * UNIT };
        let users = started(root.path(), wide);
        folder(root.path(), "d");
        assert_eq!(users.take("d"), Ok(Ids { first: 4 * UNIT, length: 2 * UNIT }));
    }

    #[test]
    fn what_is_not_on_the_disk_is_not_given() {
        let root = tempfile::tempdir().unwrap();
        let users = Users::new(root.path(), UNIT);
        folder(root.path(), "a");
        assert!(users.take("a").is_err(), "nothing is known yet");
        users.begin(range(1)).unwrap();
        assert!(users.take("without a folder").is_err());
        assert_eq!(users.take("a").unwrap().first, UNIT);
        // Two Pods that have the same: nobody says whose they are.
        fs::copy(root.path().join("pods/a/userns"), folder(root.path(), "b").join("userns")).unwrap();
        let error = Users::new(root.path(), UNIT).begin(range(1)).unwrap_err().to_string();
        assert!(error.contains("already taken") && error.contains("userns"), "{error}");
        fs::write(root.path().join("pods/b/userns"), "{").unwrap();
        let error = Users::new(root.path(), UNIT).begin(range(1)).unwrap_err().to_string();
        assert!(error.contains("existing pod \"b\""), "{error}");
    }

    #[test]
    fn the_engine_is_told_whose_users_they_are() {
        let own = namespace(Some(Ids { first: UNIT, length: UNIT }));
        assert_eq!((own.mode(), own.uids[0].host_id, own.gids[0].length), (NamespaceMode::Pod, UNIT, UNIT));
        let nodes = namespace(None);
        assert_eq!((nodes.mode(), nodes.uids.len()), (NamespaceMode::Node, 0));
        let root = tempfile::tempdir().unwrap();
        let users = started(root.path(), range(1));
        let spec = |host_users| PodSpec { host_users, ..PodSpec::default() };
        assert_eq!((users.of("a", &spec(None)), users.of("a", &spec(Some(true)))), (Ok(None), Ok(None)));
        assert!(users.of("a", &spec(Some(false))).is_err(), "never as the node's");
    }
}
