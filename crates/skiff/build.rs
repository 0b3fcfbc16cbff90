//! The program is loaded anywhere in memory, and 100,000 of its pointers are corrected at each start. Written out in full
//! (24 bytes each) their list is 2 MB that every process reads and keeps; packed, it is some 50 KB.

use std::{env, process::Command};

/// The C library that reads packed lists first.
const READS_PACKED: (u32, u32) = (2, 36);

/// The version of this machine's C library. `None` where it is another one than GNU's.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) = std::str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_native = env::var("HOST").ok() == env::var("TARGET").ok();
    if is_native && glibc().is_some_and(|version| version >= READS_PACKED) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
