//! The links by which agents have found logs since before there were folders of Pods: `<pod>_<namespace>_<container>-<id>.log` in
//! `/var/log/containers`. Each leads to the log of one container. A Pod may be able to write there: no link is followed.
//! Upstream counterpart: pkg/kubelet/kuberuntime/legacy.go.

use std::{
    ffi::OsStr,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use files::Dir;

const END: &str = ".log";
/// File systems take no longer names.
const LONGEST: usize = 255;

/// The name of a container's link.
pub fn name(pod: &str, namespace: &str, container: &str, id: &str) -> String {
    let whole = format!("{pod}_{namespace}_{container}-{id}");
    let length = whole.floor_char_boundary(LONGEST - END.len());
    format!("{}{END}", &whole[..length])
}

/// The id of a link's container, as far as the name was not cut.
pub fn id_of(name: &str) -> Option<&str> {
    let (_, id) = name.strip_suffix(END)?.rsplit_once('-')?;
    Some(id).filter(|id| !id.is_empty())
}

/// Makes a container's link. Nobody else may use a name with its id, so what has that is replaced.
pub fn put(links: &Path, name: &str, log: &Path) -> io::Result<()> {
    let (links, name) = (Dir::open_plain(links)?, OsStr::new(name));
    if links.link_target(name).is_ok_and(|target| target == log) {
        return Ok(());
    }
    links.remove(name)?;
    links.link(log, name)
}

/// A folder of links.
pub struct Links {
    pub folder: Dir,
    /// The names and the targets of those to logs.
    pub found: Vec<(String, PathBuf)>,
}

/// The links in a folder, if that is there.
pub fn all(links: &Path) -> io::Result<Option<Links>> {
    let folder = match Dir::open_plain(links) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        folder => folder?,
    };
    let names = folder.names()?.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(END));
    let found = names.filter_map(|name| {
        let target = folder.link_target(OsStr::new(&name)).ok()?;
        Some((name, target.into()))
    });
    let found = found.collect();
    Ok(Some(Links { folder, found }))
}

/// Removes the links, by their names and where they lead, that are of a sort.
pub fn remove(links: &Path, is_of_it: impl Fn(&str, &Path) -> bool) -> io::Result<()> {
    let Some(Links { folder, found }) = all(links)? else { return Ok(()) };
    let mut of_it = found.iter().filter(|(name, target)| is_of_it(name, target));
    of_it.try_for_each(|(name, _)| folder.remove(OsStr::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn links_are_named_as_upstream_and_cut_at_the_longest_name() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(name("web-0", "default", "main", &id), format!("web-0_default_main-{id}.log"));
        assert_eq!(id_of(&name("web-0", "default", "main", &id)), Some(&*id));
        let long = name(&"p".repeat(200), "default", "main", &id);
        assert_eq!((long.len(), long.ends_with("cdef.log")), (255, false));
        assert!(long.starts_with("ppp") && long.contains("_default_main-0123") && long.ends_with(".log"), "{long}");
        for none in ["a_b_c-.log", "a_b_c-0123456789", "no.log"] {
            assert_eq!(id_of(none), None, "{none}");
        }
    }

    #[test]
    fn a_link_is_put_in_the_place_of_whatever_has_its_name_and_none_is_followed() {
        let world = tempfile::tempdir().unwrap();
        let (links, log) = (world.path().join("containers"), world.path().join("pods/d_p_u/c/0.log"));
        fs::create_dir(&links).unwrap();
        let (other, mine) = (world.path().join("other"), links.join("p_d_c-abcdef.log"));
        fs::write(&other, "theirs").unwrap();
        std::os::unix::fs::symlink(&other, &mine).unwrap();
        for _ in 0..2 {
            put(&links, "p_d_c-abcdef.log", &log).unwrap();
            assert_eq!(fs::read_link(&mine).unwrap(), log);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "theirs");
        std::os::unix::fs::symlink(&other, links.join("q_d_c-abcdef.log")).unwrap();
        remove(&links, |_, target| target.starts_with(world.path().join("pods"))).unwrap();
        assert!(!mine.is_symlink() && links.join("q_d_c-abcdef.log").is_symlink());
        // Somebody puts a link in the place of the folder.
        let planted = world.path().join("planted");
        std::os::unix::fs::symlink(&links, &planted).unwrap();
        assert!(put(&planted, "p_d_c-abcdef.log", &log).is_err());
        remove(&planted, |_, _| true).unwrap();
        assert!(links.join("q_d_c-abcdef.log").is_symlink());
    }
}
