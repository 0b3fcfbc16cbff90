//! The program's own code in memory. Starting runs through most of it once (schemas, definitions, certificates), and the
//! kernel maps a window of sixteen pages around each that is touched: forty megabytes stay with a process that soon needs five.
//!
//! So all of it is let go soon after the start, and then more and more rarely, as the program's work fades; and from the first time on
//! the kernel is asked to map what is touched and nothing around it. The code stays in the page cache, from where the next call maps it again
//! without reading the disk: a microsecond a page. Pages that nobody maps are the first that a kernel short of memory takes back.
#![allow(unsafe_code)] // Three system calls.

use std::{
    convert::Infallible,
    fs, io,
    ops::Range,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        raw::c_void,
    },
    path::Path,
};

use clock::Duration;

/// The first wait; each is twice the one before.
const AFTER_START: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// Lets the code go that is not in use, again and again.
pub async fn keep_small() -> Infallible {
    clock::sleep(AFTER_START).await;
    // For as long as this is open.
    let _single = single_pages(&own_code()).inspect_err(|error| {
        tracing::debug!(%error, "this kernel maps windows of the program's code");
    });
    let mut wait = AFTER_START;
    loop {
        let_go(&own_code());
        wait = (wait * 2).min(LONGEST);
        clock::sleep(wait).await;
    }
}

fn own_code() -> Vec<Range<usize>> {
    match (fs::read_to_string("/proc/self/maps"), std::env::current_exe()) {
        (Ok(maps), Ok(program)) => code(&maps, &program),
        _ => Vec::new(),
    }
}

fn let_go(code: &[Range<usize>]) {
    for range in code {
        // SAFETY: the range is code of this program, mapped from its file and never writable. The pages that are let go
        // there are read again from the same file when they are needed, also by threads that are just running them.
        let done = unsafe { libc::madvise(range.start as *mut c_void, range.len(), libc::MADV_DONTNEED) };
        if done != 0 {
            tracing::debug!(error = %io::Error::last_os_error(), "the program's code stays in memory");
        }
    }
}

/// `struct uffdio_api`, `struct uffdio_register` and the numbers of <linux/userfaultfd.h>.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFD: u32 = 0xaa;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;

/// Has the kernel (6.7 and newer) map each page of these ranges by itself, as long as the result is open.
///
/// Writes to the ranges are registered to be followed by the kernel itself (`WP_ASYNC`). There are none to code, so nothing ever
/// has to be answered; but of memory that is followed so the kernel maps no page before it is touched.
fn single_pages(code: &[Range<usize>]) -> io::Result<OwnedFd> {
    let checked = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: the call takes flags and gives a descriptor that nobody else has.
    let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) };
    let opened = i32::try_from(checked(opened)?).map_err(io::Error::other)?;
    // SAFETY: as above; it is open.
    let fd = unsafe { OwnedFd::from_raw_fd(opened) };
    let mut api = UffdioApi { api: u64::from(UFFD), features: UFFD_FEATURE_WP_ASYNC, ioctls: 0 };
    // SAFETY: the request is the one for this structure, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::_IOWR::<UffdioApi>(UFFD, 0x3f), &raw mut api) };
    checked(done.into())?;
    for range in code {
        let mut ask = UffdioRegister {
            start: range.start as u64,
            len: range.len() as u64,
            mode: UFFDIO_REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: the request is the one for this structure, which outlives the call. The range stays as it is mapped, and can be
        // used as before.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::_IOWR::<UffdioRegister>(UFFD, 0), &raw mut ask) };
        checked(done.into())?;
    }
    Ok(fd)
}

/// Where the code of the program is, by the kernel's list of a process's mappings. Data is left out, also what cannot be
/// written any more: the loader may have changed it, and the file does not have that.
fn code(maps: &str, program: &Path) -> Vec<Range<usize>> {
    let range = |line: &str| {
        // 55d0c0a00000-55d0c3309000 r-xp 0105d000 fe:00 5816701      /usr/bin/skiff
        let mut parts = line.split_ascii_whitespace();
        let (addresses, rights) = (parts.next()?, parts.next()?);
        let path = parts.nth(3)?;
        let (start, end) = addresses.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        (rights == "r-xp" && Path::new(path) == program).then_some(range)
    };
    maps.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_code_is_let_go() {
        let maps = "\
            5620ef986000-5620f09e4000 r--p 00000000 fe:00 58 /bin/skiff\n\
            5620f09e4000-5620f32ed000 r-xp 0105d000 fe:00 58 /bin/skiff\n\
            5620f32ed000-5620f349f000 r--p 03965000 fe:00 58 /bin/skiff\n\
            5620f349f000-5620f34a9000 rw-p 03b16000 fe:00 58 /bin/skiff\n\
            5620f34aa000-5620f34ab000 rwxp 00000000 00:00 0\n\
            7f0000000000-7f0000001000 r-xp 00000000 fe:00 59 /usr/lib/libc.so.6\n\
            7fff00000000-7fff00001000 r-xp 00000000 00:00 0 [vdso]\n";
        let all = 0x5620_f09e_4000..0x5620_f32e_d000;
        assert_eq!(code(maps, Path::new("/bin/skiff")), [all]);
        assert!(code(maps, Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn the_program_runs_on() {
        let ranges = own_code();
        let here = the_program_runs_on as fn() as usize;
        assert!(ranges.iter().any(|range| range.contains(&here)), "{ranges:?}");
        let_go(&ranges);
        assert_eq!(own_code(), ranges);
    }

    /// Touches sixteen places of a file that is mapped as code is. Returns how much of it the kernel has mapped then.
    fn mapped_kib(file: &Path, single: bool) -> Option<u64> {
        // Less than one huge page, which would be mapped whole.
        const LENGTH: usize = 1 << 20;
        let file = fs::File::open(file).unwrap();
        let (rights, private, fd) = (libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd());
        // SAFETY: a new mapping, which nobody else knows of.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, rights, private, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let range = start as usize..start as usize + LENGTH;
        let fd = single.then(|| single_pages(std::slice::from_ref(&range)));
        if let Some(Err(error)) = &fd {
            eprintln!("SKIPPED: this kernel maps windows of code: {error}");
            return None;
        }
        for page in range.clone().step_by(LENGTH / 16) {
            // SAFETY: the page is mapped, and its file is as long.
            assert_eq!(unsafe { std::ptr::read_volatile(page as *const u8) }, 7);
        }
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let own = smaps.split_once(&format!("{:x}-", range.start)).unwrap().1;
        let resident = own.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        // SAFETY: the mapping is this function's, and nothing of it is used any more.
        assert_eq!(unsafe { libc::munmap(start, LENGTH) }, 0);
        Some(resident.split_whitespace().next().unwrap().parse().unwrap())
    }

    #[test]
    fn nothing_is_mapped_around_a_page_that_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("code");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let windows = mapped_kib(&file, false).unwrap();
        if let Some(single) = mapped_kib(&file, true) {
            // SAFETY: the call only answers.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            // A kernel that is short of memory may have taken some back.
            let most = 16 * page as u64 / 1024;
            assert!((1..=most).contains(&single), "{single} KiB; without: {windows} KiB");
        }
    }
}
