//! The allocator: mimalloc, without huge pages, and soon giving back what it does not need. Who asks it for memory can be recorded.
//!
//! It asks the kernel for huge pages where the kernel gives them on request, which makes an idle process half as large
//! again. And it gives memory back when it is next used after a second, which after a burst of work may be never: with a
//! tenth of that the burst itself gives most of it back, and each request costs the same.
//!
//! Each thread looks after memory of its own, and looks through it when it needs more. What a burst has left in it is given back by
//! threads that have nothing to do.

use std::cell::Cell;

use clock::{Duration, Instant};

use crate::mimalloc::{self, MiMalloc};
use profile::heap::Recorded;

#[global_allocator]
#[allow(unsafe_code, reason = "a promise about mimalloc")]
// SAFETY: mimalloc knows by its address what a piece of memory is, and takes no notice of the layout that it is given back with.
static ALLOCATOR: Recorded<MiMalloc> = unsafe { Recorded::over(MiMalloc) };

/// Read by mimalloc from the environment. The delay is in milliseconds.
pub const SETTINGS: [(&str, &str); 2] = [("MIMALLOC_ALLOW_THP", "0"), ("MIMALLOC_PURGE_DELAY", "100")];

/// A thread looks through its memory no more often than this: the pages that it gives back and needs again cost a fault each.
const PAUSE: Duration = Duration::from_secs(5);

thread_local! {
    static COLLECTED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Called by a thread that is about to wait for work: gives back the memory of this thread that nothing is in.
pub fn give_back() {
    let now = Instant::now();
    if COLLECTED.get().is_none_or(|last| now.duration_since(last) >= PAUSE) {
        COLLECTED.set(Some(now));
        mimalloc::collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let read = std::fs::read_to_string("/proc/self/statm").expect("the kernel tells");
        read.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
    }

    #[test]
    fn a_thread_that_waits_gives_back_what_a_burst_has_left() {
        const PIECES: usize = 100_000;
        // More than other tests take and leave meanwhile.
        let burst = || (0..PIECES).map(|_| vec![1_u8; 2000]).collect::<Vec<_>>();
        let pages = PIECES * 2000 / 4096;
        let begun = resident_pages();
        drop(std::hint::black_box(burst()));
        give_back();
        let left = resident_pages().saturating_sub(begun);
        assert!(left < pages / 2, "{left} of {pages} pages are still there");
    }
}
