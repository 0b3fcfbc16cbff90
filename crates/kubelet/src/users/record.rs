//! The ids of a Pod, in a file in its folder: a kubelet that starts again gives them to nobody else. The layout is upstream's.

use std::{fs, io, path::Path};

use files::modes;
use serde::{Deserialize, Serialize};

use super::range::Ids;

pub const NAME: &str = "userns";
/// No file of ours has more.
const MOST: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(rename = "uidMappings")]
    uids: Vec<Mapping>,
    #[serde(rename = "gidMappings")]
    gids: Vec<Mapping>,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// The ids of the Pod of this folder, if it has any.
pub fn read(folder: &Path) -> io::Result<Option<Ids>> {
    let path = folder.join(NAME);
    let bytes = match fs::metadata(&path) {
        Ok(meta) if meta.len() > MOST => return Err(io::Error::other("it is too long")),
        Ok(_) => fs::read(&path)?,
        // Whatever is no folder is no Pod's.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    parse(&serde_json::from_slice(&bytes)?).map(Some).map_err(io::Error::other)
}

fn parse(document: &Document) -> Result<Ids, &'static str> {
    let ([uids], [gids]) = (&document.uids[..], &document.gids[..]) else {
        return Err("invalid user namespace configuration: no more than one mapping allowed");
    };
    if uids != gids {
        return Err("invalid user namespace configuration: GID and UID mapping should be identical");
    }
    if uids.container_id != 0 {
        return Err("invalid user namespace configuration: UID 0 must be mapped");
    }
    let ids = Ids { first: uids.host_id, length: uids.length };
    match ids.first.checked_add(ids.length) {
        Some(_) if ids.length > 0 && ids.first > 0 => Ok(ids),
        _ => Err("invalid user namespace configuration: these are no IDs of a Pod"),
    }
}

/// Writes them down. They are on the disk afterwards.
pub fn write(folder: &Path, ids: Ids) -> io::Result<()> {
    let mapping = vec![Mapping { host_id: ids.first, container_id: 0, length: ids.length }];
    let document = Document { uids: mapping.clone(), gids: mapping };
    modes::replace_durably(&folder.join(NAME), modes::PRIVATE_FILE, serde_json::to_vec(&document)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_upstreams_and_what_nobody_wrote_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let ids = Ids { first: 131_072, length: 65536 };
        write(folder.path(), ids).unwrap();
        let text = r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#;
        assert_eq!(fs::read_to_string(folder.path().join(NAME)).unwrap(), text);
        assert_eq!(read(folder.path()).unwrap(), Some(ids));
        assert_eq!(read(&folder.path().join(NAME)).unwrap(), None, "no folder");
        for broken in [
            "".to_owned(),
            "{}".to_owned(),
            " ".repeat(5000),
            text.replace("\"containerId\":0", "\"containerId\":1"),
            text.replacen("131072", "65536", 1),
            text.replace("131072", "0"),
            text.replace("131072", "4294967295"),
            text.replace("65536}", "0}"),
            text.replace("],", ",{\"hostId\":1,\"containerId\":1,\"length\":1}],"),
        ] {
            fs::write(folder.path().join(NAME), &broken).unwrap();
            assert!(read(folder.path()).is_err(), "{broken}");
        }
    }
}
