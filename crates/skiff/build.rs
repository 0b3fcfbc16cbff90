//! Two things that only a build knows: which source it is of, and what the C library here can read.
//!
//! The program is loaded anywhere in memory, and 100,000 of its pointers are corrected at each start. Written out in full
//! (24 bytes each) their list is 2 MB that every process reads and keeps; packed, it is some 50 KB.

use std::{env, path::Path, process::Command};

/// The C library that reads packed lists first.
const READS_PACKED: (u32, u32) = (2, 36);

/// The output of a command. `None` where it is missing or fails.
fn says(program: &str, args: &[&str]) -> Option<String> {
    let done = Command::new(program).args(args).env("TZ", "UTC").output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8(done.stdout).ok()?.trim().to_owned())
}

/// The version of this machine's C library. `None` where it is another one than GNU's.
fn glibc() -> Option<(u32, u32)> {
    let said = says("getconf", &["GNU_LIBC_VERSION"])?;
    let (major, minor) = said.strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// Tells the program its commit, whether there was more than that, and the commit's time: for `/version`. Source that is
/// no clone (an archive of a release) has none of them.
fn tell_source() {
    let git = |args: &[&str]| says("git", args);
    let time = |format: &str| git(&["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", format]);
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|changes| changes.is_empty());
    let tree = if commit.is_empty() {
        ""
    } else if clean {
        "clean"
    } else {
        "dirty"
    };
    let date = time("--format=%cd").unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned());
    println!("cargo:rustc-env=SKIFF_COMMIT={commit}");
    println!("cargo:rustc-env=SKIFF_TREE={tree}");
    println!("cargo:rustc-env=SKIFF_DATE={date}");
    // A debug build is told when it is made anyway: it would be linked again with each commit.
    let logs = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|logs| Path::new(logs).exists());
    if let Some(logs) = logs.filter(|_| env::var("PROFILE").is_ok_and(|profile| profile == "release")) {
        println!("cargo:rerun-if-changed={logs}");
    }
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    tell_source();
    let is_native = env::var("HOST").ok() == env::var("TARGET").ok();
    if is_native && glibc().is_some_and(|version| version >= READS_PACKED) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
