//! Settings that libraries read from the environment before `main` begins: a process that stays starts itself once more with them.

use std::{os::unix::process::CommandExt, process::Command};

use crate::allocator;

/// glibc compares short pieces of memory with loads of AVX-512 of which all or most bytes are masked out. Where the address is not one
/// to load from, as that of every empty string of Rust, the processor takes its time to find that nothing was asked for: a tenth of
/// what a get costs. The functions for AVX2 look at the length first. Others are as fast without it.
///
/// All of AVX-512 goes: without these two extensions alone, memory is moved by a function that leaves the upper parts of registers
/// in use, and whatever was compiled for SSE is slower behind it (a get by half, on an Emerald Rapids).
const LIBC: (&str, &str) = ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW");

/// Makes sure that this process runs with these settings; returns when it does. A value that the user set is left alone.
pub fn settle() {
    let all = allocator::SETTINGS.into_iter().chain([LIBC]);
    let missing: Vec<_> = all.filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return;
    }
    let Ok(binary) = std::env::current_exe() else { return };
    let mut args = std::env::args_os();
    let mut again = Command::new(binary);
    if let Some(name) = args.next() {
        again.arg0(name);
    }
    // Only a failure returns, and then this process goes on as it is: larger and slower, but right.
    let error = again.args(args).envs(missing).exec();
    eprintln!("skiff: cannot start again with settings of its libraries: {error}");
}
