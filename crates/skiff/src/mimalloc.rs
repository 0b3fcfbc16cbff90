//! mimalloc as Rust's allocator. The crate of that name asks for each piece of memory by its alignment, which is a longer way in the
//! library, and for pieces of some kilobytes twice as long; nearly all pieces want no other alignment than any piece has.

#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys as library;

pub struct MiMalloc;

/// Every piece that is at least as long is aligned to this.
const WORD: usize = size_of::<usize>();

#[inline]
fn is_plain(layout: Layout) -> bool {
    layout.align() <= WORD && layout.align() <= layout.size()
}

// SAFETY: the library keeps the contract of the functions of the same names, with any alignment that is a power of two, and finds out by
// a piece's address what it is: which of its functions made it makes no difference to those that take it.
unsafe impl GlobalAlloc for MiMalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: both take any size.
        unsafe { if is_plain(layout) { library::mi_malloc(size) } else { library::mi_malloc_aligned(size, align) } }
            .cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: both take any size.
        unsafe { if is_plain(layout) { library::mi_zalloc(size) } else { library::mi_zalloc_aligned(size, align) } }
            .cast()
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: the caller's promise: the piece is one of the library's.
        unsafe { library::mi_free(at.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // A piece that becomes shorter than its alignment would lose it.
        let is_plain = is_plain(layout) && layout.align() <= size;
        let align = layout.align();
        // SAFETY: as above.
        unsafe {
            if is_plain {
                library::mi_realloc(at.cast(), size)
            } else {
                library::mi_realloc_aligned(at.cast(), size, align)
            }
        }
        .cast()
    }
}

// SAFETY: this is its declaration in mimalloc.h, which the crate has among others that nobody here needs; any thread may call it at any time.
unsafe extern "C" {
    safe fn mi_collect(force: bool);
}

/// Gives back the memory of this thread that nothing is in.
pub fn collect() {
    mi_collect(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_as_asked_for_and_keep_what_they_hold() {
        for size in (1..600).chain([1024, 1025, 4000, 4096, 5000, 70_000, 1 << 20]) {
            for align in [1, 2, 4, 8, 16, 32, 64, 128, 4096] {
                let layout = Layout::from_size_align(size, align).expect("a layout");
                let is_right = |at: *mut u8| !at.is_null() && (at as usize).is_multiple_of(align);
                // SAFETY: each piece is taken back once, with the layout that it has by then, and used within its size.
                unsafe {
                    let zeroed = MiMalloc.alloc_zeroed(layout);
                    assert!(is_right(zeroed) && (0..size).all(|i| *zeroed.add(i) == 0), "{layout:?}");
                    MiMalloc.dealloc(zeroed, layout);
                    let at = MiMalloc.alloc(layout);
                    assert!(is_right(at), "{layout:?}");
                    at.write_bytes(7, size);
                    for other in [size * 2, size.div_ceil(3), 1] {
                        let moved = MiMalloc.realloc(MiMalloc.alloc(layout), layout, other);
                        assert!(is_right(moved), "{layout:?} to {other}");
                        MiMalloc.dealloc(moved, Layout::from_size_align(other, align).expect("a layout"));
                    }
                    let longer = MiMalloc.realloc(at, layout, size + 1);
                    assert!(is_right(longer) && (0..size).all(|i| *longer.add(i) == 7), "{layout:?}");
                    MiMalloc.dealloc(longer, Layout::from_size_align(size + 1, align).expect("a layout"));
                }
            }
        }
    }
}
