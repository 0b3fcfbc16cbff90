//! The program's own code in memory. Starting runs through most of it once (schemas, definitions, certificates), and the
//! kernel maps a window around each page that is touched: forty megabytes stay with a process that soon needs five.
//!
//! So they are let go soon after the start, and then more and more rarely, as its work fades. The code stays in the page cache, from where the next
//! call maps it again without reading the disk: about a millisecond for all that a busy server uses.
#![allow(unsafe_code)] // One system call.

use std::{convert::Infallible, ops::Range, os::raw::c_void, path::Path};

use clock::Duration;

/// The first wait; each is twice the one before.
const AFTER_START: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// Lets the code go that is not in use, again and again.
pub async fn keep_small() -> Infallible {
    let mut wait = AFTER_START;
    loop {
        clock::sleep(wait).await;
        let_go();
        wait = (wait * 2).min(LONGEST);
    }
}

fn let_go() {
    let (Ok(maps), Ok(program)) = (std::fs::read_to_string("/proc/self/maps"), std::env::current_exe()) else { return };
    for range in code(&maps, &program) {
        // SAFETY: the range is code of this program, mapped from its file and never writable. The pages that are let go
        // there are read again from the same file when they are needed, also by threads that are just running them.
        let done = unsafe { libc::madvise(range.start as *mut c_void, range.len(), libc::MADV_DONTNEED) };
        if done != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "the program's code stays in memory");
        }
    }
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
    }

    #[test]
    fn the_program_runs_on() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ranges = code(&maps, &std::env::current_exe().unwrap());
        let here = the_program_runs_on as fn() as usize;
        assert!(ranges.iter().any(|range| range.contains(&here)), "{maps}");
        let_go();
        assert!(code(&maps, Path::new("/nowhere")).is_empty());
    }
}
