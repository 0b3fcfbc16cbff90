//! Network namespaces: those that stay because a file holds them, and work inside of one.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use files::modes;
use nix::{
    mount::{MntFlags, MsFlags},
    sched::{CloneFlags, setns, unshare},
    sys::statfs::{NSFS_MAGIC, statfs},
};

use crate::error::{LinkError, system};

/// Whether the file holds a namespace.
fn is_held(file: &Path) -> bool {
    statfs(file).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

/// Makes the file hold a network namespace, if it does not yet. Says whether the namespace is a new one.
pub async fn keep(file: &Path) -> Result<bool, LinkError> {
    if is_held(file) {
        return Ok(false);
    }
    let file = file.to_owned();
    // A namespace is a thread's property, so a thread of its own is put into the new one, and ends.
    let made = std::thread::spawn(move || make(&file));
    let failed = || LinkError::Missing("the thread that makes a network namespace".to_owned());
    tokio::task::spawn_blocking(|| made.join()).await.ok().and_then(Result::ok).ok_or_else(failed)??;
    Ok(true)
}

fn make(file: &PathBuf) -> Result<(), LinkError> {
    modes::write(file, modes::PRIVATE_FILE, "").map_err(system("write the file of a network namespace"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| system("make a network namespace")(e.into()))?;
    let own = Some("/proc/thread-self/ns/net");
    nix::mount::mount(own, file, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| system("hold a network namespace")(e.into()))
}

/// Lets go of the namespace; it ends with the last process in it. Nothing there is fine.
pub fn let_go(file: &Path) -> io::Result<()> {
    if is_held(file) {
        nix::mount::umount2(file, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    Ok(())
}

/// Puts this thread, and those that it starts from now on, into the namespace that the file holds.
pub fn enter(file: &Path) -> io::Result<()> {
    Ok(setns(File::open(file)?, CloneFlags::CLONE_NEWNET)?)
}

/// Runs a future inside another network namespace: on a thread of its own, because the namespace is a thread's property.
pub(crate) async fn inside<F, T>(netns: File, work: impl FnOnce() -> F + Send + 'static) -> Result<T, LinkError>
where
    F: Future<Output = Result<T, LinkError>>,
    T: Send + 'static,
{
    let (tx, rx) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let outcome = setns(&netns, CloneFlags::CLONE_NEWNET)
            .map_err(|e| system("enter a network namespace")(e.into()))
            .and_then(|()| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.map_err(system("start a thread in a network namespace"))?.block_on(work())
            });
        // The receiver is gone only when the caller was cancelled.
        let _ = tx.send(outcome);
    });
    rx.await.unwrap_or_else(|_| Err(LinkError::Missing("the thread in a network namespace".to_owned())))
}
