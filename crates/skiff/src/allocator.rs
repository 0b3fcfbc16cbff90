//! The allocator: mimalloc, without huge pages, and soon giving back what it does not need. Who asks it for memory can be recorded.
//!
//! It asks the kernel for huge pages where the kernel gives them on request, which makes an idle process half as large
//! again. And it gives memory back when it is next used after a second, which after a burst of work may be never: with a
//! tenth of that the burst itself gives most of it back, and each request costs the same. It reads its settings from the
//! environment before `main` begins, so a process that stays starts itself once more.

use std::{os::unix::process::CommandExt, process::Command};

use mimalloc::MiMalloc;
use profile::heap::Recorded;

#[global_allocator]
#[allow(unsafe_code, reason = "a promise about mimalloc")]
// SAFETY: mimalloc knows by its address what a piece of memory is, and takes no notice of the layout that it is given back with.
static ALLOCATOR: Recorded<MiMalloc> = unsafe { Recorded::over(MiMalloc) };

/// The delay is in milliseconds.
const SETTINGS: [(&str, &str); 2] = [("MIMALLOC_ALLOW_THP", "0"), ("MIMALLOC_PURGE_DELAY", "100")];

/// Makes sure that this process runs with these settings; returns when it does. A value that the user set is left alone.
pub fn settle() {
    let missing: Vec<_> = SETTINGS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return;
    }
    let Ok(binary) = std::env::current_exe() else { return };
    let mut args = std::env::args_os();
    let mut again = Command::new(binary);
    if let Some(name) = args.next() {
        again.arg0(name);
    }
    // Only a failure returns, and then this process goes on as it is: larger, but right.
    let error = again.args(args).envs(missing).exec();
    eprintln!("skiff: cannot start again with settings of the allocator: {error}");
}
