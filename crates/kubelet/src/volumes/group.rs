//! The group that a Pod's volumes are given to.

use std::{io, path::Path};

use files::{Dir, beneath};
use k8s_openapi::api::core::v1::Pod;

/// Whether the Pod wants its volumes looked through only when their root is not the group's.
pub fn is_by_root(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    context.is_some_and(|context| context.fs_group_change_policy.as_deref() == Some("OnRootMismatch"))
}

/// Everything in the folder becomes the group's to read and write; what is made there later is the group's as well. Another
/// Pod may be changing it: no link is followed, and what goes away meanwhile is passed over.
/// With `by_root`, nothing is changed when the folder itself is the group's already.
pub fn give(path: &Path, group: u32, by_root: bool) -> io::Result<()> {
    let folder = &Dir::open(path)?;
    let meta = folder.meta()?;
    if by_root && meta.st_gid == group && meta.st_mode & 0o2770 == 0o2770 {
        return Ok(());
    }
    give_below(folder, group)?;
    // The folder itself is last: it says that all that is in it was given, also to a kubelet that starts after one that was killed.
    own(folder, group)
}

fn own(folder: &Dir, group: u32) -> io::Result<()> {
    folder.set_group(group)?;
    folder.set_mode((folder.meta()?.st_mode & 0o7777) | 0o2770)
}

fn give_below(folder: &Dir, group: u32) -> io::Result<()> {
    folder.walk(|path, meta| {
        let given = if beneath::is_folder(meta) {
            folder.folder(path).and_then(|inner| own(&inner, group))
        } else if beneath::is_file(meta) {
            folder.share(path, group)
        } else {
            Ok(())
        };
        if let Err(error) = given {
            tracing::debug!(path = %path.display(), %error, "not given to the Pod's group");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions, set_permissions},
        os::unix::fs::PermissionsExt,
    };

    #[test]
    fn the_group_of_a_pod_gets_what_is_in_the_volume_and_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(root.join("inner")).unwrap();
        for file in [&root.join("inner/file"), &outside] {
            fs::write(file, "x").unwrap();
            set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let group = nix::unistd::getgid().as_raw();
        give(&root, group, false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&root) & 0o2770, 0o2770);
        assert_eq!(mode(&root.join("inner")) & 0o2770, 0o2770);
        assert_eq!(mode(&root.join("inner/file")), 0o660);
        assert_eq!(mode(&outside), 0o600, "a link is not followed");
        // The root says that all of it was given before.
        set_permissions(root.join("inner/file"), Permissions::from_mode(0o600)).unwrap();
        give(&root, group, true).unwrap();
        assert_eq!(mode(&root.join("inner/file")), 0o600);
        set_permissions(&root, Permissions::from_mode(0o750)).unwrap();
        give(&root, group, true).unwrap();
        assert_eq!(mode(&root.join("inner/file")), 0o660);
    }

    #[test]
    fn a_pass_that_was_cut_off_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let group = nix::unistd::getgid().as_raw();
        // All is given but the end, and a file comes that the pass has not seen.
        give_below(&Dir::open(dir.path()).unwrap(), group).unwrap();
        set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        give(dir.path(), group, true).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o660);
    }
}
