//! The allocator: mimalloc, without huge pages.
//!
//! It asks the kernel for huge pages where the kernel gives them on request, which makes an idle process half as large
//! again. It reads its settings from the environment before `main` begins, so a process that stays starts itself once more.

use std::{ffi::OsStr, os::unix::process::CommandExt, process::Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SETTING: &str = "MIMALLOC_ALLOW_THP";

/// Makes sure that this process runs without huge pages; returns when it does. A value that the user set is left alone.
pub fn settle() {
    if std::env::var_os(SETTING).is_some() {
        return;
    }
    let Ok(binary) = std::env::current_exe() else { return };
    let mut args = std::env::args_os();
    let mut again = Command::new(binary);
    if let Some(name) = args.next() {
        again.arg0(name);
    }
    // Only a failure returns, and then this process goes on as it is: larger, but right.
    let error = again.args(args).env(SETTING, OsStr::new("0")).exec();
    eprintln!("skiff: cannot start again without huge pages: {error}");
}
