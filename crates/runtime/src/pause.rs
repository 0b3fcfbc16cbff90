//! The program that holds a Pod's namespaces open: it waits, reaps what is left to it as process 1, and ends on SIGTERM
//! or SIGINT.
//!
//! It is 220 bytes of machine code without a library, so that a Pod's sandbox costs one page of memory and its image is
//! built anywhere without a compiler. In words: block SIGCHLD, SIGTERM and SIGINT; wait for one of them; on
//! SIGCHLD reap until nothing is left and wait again; on an interruption wait again; on anything else exit with 0.
//! (A blocked signal reaches process 1 although it has no handler.)

const X86_64: &[u8] = &[
    0x31, 0xff, // xor edi, edi                 rt_sigprocmask(SIG_BLOCK, mask, 0, 8)
    0x48, 0x8d, 0x35, 0x57, 0, 0, 0, // lea rsi, [mask]
    0x31, 0xd2, // xor edx, edx
    0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
    0xb8, 14, 0, 0, 0, // mov eax, 14
    0x0f, 0x05, // syscall
    0x48, 0x8d, 0x3d, 0x41, 0, 0, 0, // again: lea rdi, [mask]   rt_sigtimedwait(mask, 0, 0, 8)
    0x31, 0xf6, // xor esi, esi
    0x31, 0xd2, // xor edx, edx
    0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
    0xb8, 128, 0, 0, 0, // mov eax, 128
    0x0f, 0x05, // syscall
    0x83, 0xf8, 17, // cmp eax, SIGCHLD
    0x75, 0x1a, // jne done
    0x83, 0xcf, 0xff, // reap: or edi, -1       wait4(-1, 0, WNOHANG, 0)
    0x31, 0xf6, // xor esi, esi
    0xba, 1, 0, 0, 0, // mov edx, 1
    0x45, 0x31, 0xd2, // xor r10d, r10d
    0xb8, 61, 0, 0, 0, // mov eax, 61
    0x0f, 0x05, // syscall
    0x85, 0xc0, // test eax, eax
    0x7f, 0xe8, // jg reap
    0xeb, 0xc9, // jmp again
    0x83, 0xf8, 0xfc, // done: cmp eax, -EINTR
    0x74, 0xc4, // je again
    0x31, 0xff, // xor edi, edi                 exit(0)
    0xb8, 60, 0, 0, 0, // mov eax, 60
    0x0f, 0x05, // syscall
    0x0f, 0x1f, 0, // padding
    0x02, 0x40, 1, 0, 0, 0, 0, 0, // mask: SIGINT, SIGTERM, SIGCHLD
];

const AARCH64: &[u32] = &[
    0xd2800000, // mov x0, #0                  rt_sigprocmask(SIG_BLOCK, mask, 0, 8)
    0x10000361, // adr x1, mask
    0xd2800002, // mov x2, #0
    0xd2800103, // mov x3, #8
    0xd28010e8, // mov x8, #135
    0xd4000001, // svc #0
    0x100002c0, // again: adr x0, mask         rt_sigtimedwait(mask, 0, 0, 8)
    0xd2800001, // mov x1, #0
    0xd2800002, // mov x2, #0
    0xd2800103, // mov x3, #8
    0xd2801128, // mov x8, #137
    0xd4000001, // svc #0
    0x7100441f, // cmp w0, #SIGCHLD
    0x54000141, // b.ne done
    0x92800000, // reap: mov x0, #-1           wait4(-1, 0, WNOHANG, 0)
    0xd2800001, // mov x1, #0
    0xd2800022, // mov x2, #1
    0xd2800003, // mov x3, #0
    0xd2802088, // mov x8, #260
    0xd4000001, // svc #0
    0x7100001f, // cmp w0, #0
    0x54ffff2c, // b.gt reap
    0x17fffff0, // b again
    0x3100101f, // done: cmn w0, #EINTR
    0x54fffdc0, // b.eq again
    0xd2800000, // mov x0, #0                  exit(0)
    0xd2800ba8, // mov x8, #93
    0xd4000001, // svc #0
    0x00014002, // mask: SIGINT, SIGTERM, SIGCHLD
    0x00000000,
];

/// Where the file is mapped; any page-aligned address does.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

/// The program as an ELF file for this machine's architecture, or `None` where it was never written down.
pub(crate) fn program() -> Option<Vec<u8>> {
    match std::env::consts::ARCH {
        "x86_64" => Some(elf(62, X86_64)),
        "aarch64" => Some(elf(183, &AARCH64.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())),
        _ => None,
    }
}

/// An ELF executable of one segment that is its own file, headers included.
fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
    let size = HEADERS + code.len() as u64;
    let mut file = Vec::with_capacity(size as usize);
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [2, machine] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1u32.to_le_bytes());
    // Entry point, program headers' offset, no section headers.
    for word in [BASE + HEADERS, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    // PT_LOAD, readable and executable, offset, addresses, sizes, alignment.
    file.extend_from_slice(&1u32.to_le_bytes());
    file.extend_from_slice(&5u32.to_le_bytes());
    for word in [0, BASE, BASE, size, size, 0x1000] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(code);
    file
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, process::Command};

    #[test]
    fn it_runs_and_ends_on_sigterm() {
        let Some(program) = super::program() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pause");
        std::fs::write(&path, program).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Before it waits in rt_sigtimedwait, SIGTERM would end it by default.
        let wait = if cfg!(target_arch = "x86_64") { "128 " } else { "137 " };
        let mut child = Command::new(&path).spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        while !std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap().starts_with(wait) {
            assert!(child.try_wait().unwrap().is_none(), "ended before it was told to");
            std::thread::yield_now();
        }
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
