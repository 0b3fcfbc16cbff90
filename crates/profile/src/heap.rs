//! Records who asks for memory, over any allocator: one allocation in 512 KiB, with its stack, and whether it is given back. A record that
//! was begun goes on for as long as the process runs: only so it knows who holds what was asked for long ago.
//!
//! Before that, an allocation looks at one number more, and a release at its own address. A recorded allocation begins a page of memory, so
//! that of all releases only those of such addresses can be of one, and most of these are none by a mark of their page's number.
//!
//! The record is kept in memory of the same allocator: what a thread asks for while it writes there is not recorded, which also keeps
//! it from waiting for itself.

#![allow(unsafe_code, reason = "an allocator, and the walk up a stack, have no safe interface")]

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    collections::BTreeMap,
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
};

use crate::{
    Refusal,
    sampler::{END, GO_ON, SUPPORTED, unwind},
};

/// The bytes between two recorded allocations, on the average; Go's number.
pub const RATE: usize = 512 << 10;
/// Recorded allocations begin at multiples of this.
const PAGE: usize = 4096;
const DEPTH: usize = 64;
/// Different stacks of one record, and allocations that it follows until they are given back. Further ones are not recorded.
const STACKS: usize = 20_000;
const LIVE: usize = 200_000;

/// Marks of pages. Pages whose numbers differ by a multiple of this share one.
const MARKS: usize = 1 << 14;

/// The number of bytes between two records, and 0 before the record begins.
static EVERY: AtomicUsize = AtomicUsize::new(0);
/// The number of recorded allocations that begin a page of this mark; what cannot be counted stays as it is.
static MARKED: [AtomicU8; MARKS] = [const { AtomicU8::new(0) }; MARKS];
/// The allocator of this process is one that records, as far as it was asked for anything.
static IS_THERE: AtomicBool = AtomicBool::new(false);
static RECORD: Mutex<Record> = Mutex::new(Record::EMPTY);

thread_local! {
    static WRITES: Cell<bool> = const { Cell::new(false) };
    /// The bytes that this thread may still ask for before its next record, once that was drawn.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static CHANCE: Cell<u64> = const { Cell::new(0) };
}

/// The memory that was asked for on one stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub asked: usize,
    pub asked_bytes: usize,
    /// Not given back until now.
    pub held: usize,
    pub held_bytes: usize,
}

struct Record {
    stacks: BTreeMap<Vec<u64>, usize>,
    totals: Vec<Totals>,
    /// The stacks and sizes of allocations, by their addresses.
    live: BTreeMap<usize, (usize, usize)>,
}

impl Record {
    const EMPTY: Record = Record { stacks: BTreeMap::new(), totals: Vec::new(), live: BTreeMap::new() };

    fn add(&mut self, at: usize, size: usize, frames: &[u64]) {
        let stack = match self.stacks.get(frames) {
            Some(known) => *known,
            None if self.totals.len() == STACKS => return,
            None => {
                self.stacks.insert(frames.to_vec(), self.totals.len());
                self.totals.push(Totals::default());
                self.totals.len() - 1
            }
        };
        let totals = &mut self.totals[stack];
        totals.asked += 1;
        totals.asked_bytes += size;
        if self.live.len() < LIVE {
            totals.held += 1;
            totals.held_bytes += size;
            self.live.insert(at, (stack, size));
            mark(at, 1);
        }
    }

    fn remove(&mut self, at: usize) {
        if let Some((stack, size)) = self.live.remove(&at) {
            self.totals[stack].held -= 1;
            self.totals[stack].held_bytes -= size;
            mark(at, -1);
        }
    }
}

fn mark_of(at: usize) -> &'static AtomicU8 {
    &MARKED[at / PAGE % MARKS]
}

/// Counts a recorded allocation; only who writes to the record does.
fn mark(at: usize, by: i8) {
    let mark = mark_of(at);
    let count = mark.load(Ordering::Relaxed);
    if count != u8::MAX {
        mark.store(count.saturating_add_signed(by), Ordering::Relaxed);
    }
}

/// Notices that memory is given back.
#[inline]
fn give_back(at: usize) {
    if at.is_multiple_of(PAGE) && mark_of(at).load(Ordering::Relaxed) != 0 {
        write(|mut record| record.remove(at));
    }
}

/// Writes to the record, unless this thread is at that already.
fn write(write: impl FnOnce(MutexGuard<'_, Record>)) {
    if WRITES.replace(true) {
        return;
    }
    write(RECORD.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    WRITES.set(false);
}

/// Whether an allocation of this size is to be recorded. The distance to the next one is drawn anew each time: the chance of a byte is
/// the same, whatever was asked for before.
fn is_due(size: usize, every: usize) -> bool {
    if !IS_THERE.load(Ordering::Relaxed) {
        IS_THERE.store(true, Ordering::Relaxed);
    }
    if WRITES.get() {
        return false;
    }
    let left = LEFT.get().unwrap_or_else(|| distance(every));
    let is_due = size >= left;
    LEFT.set(Some(if is_due { distance(every) } else { left - size }));
    is_due
}

/// A draw from the exponential distribution, by a generator that needs no quality but speed.
fn distance(every: usize) -> usize {
    let mut bits = CHANCE.get();
    if bits == 0 {
        // Threads differ by where their own things are.
        bits = CHANCE.with(|chance| ptr::from_ref(chance) as u64) | 1;
    }
    bits ^= bits << 13;
    bits ^= bits >> 7;
    bits ^= bits << 17;
    CHANCE.set(bits);
    let share = ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-share.ln() * every as f64) as usize
}

/// A walk up a stack.
struct Walk {
    frames: [u64; DEPTH],
    depth: usize,
}

extern "C" fn frame(context: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: the unwinder hands on the walk that it was given, which outlives it, and a context of its own.
    let (walk, at) = unsafe { (&mut *walk.cast::<Walk>(), unwind::_Unwind_GetIP(context)) };
    // The address of a call is the one behind it.
    walk.frames[walk.depth] = (at as u64).saturating_sub(1);
    walk.depth += 1;
    if walk.depth == DEPTH { END } else { GO_ON }
}

fn note(at: usize, size: usize) {
    write(|mut record| {
        let mut walk = Walk { frames: [0; DEPTH], depth: 0 };
        // SAFETY: the walk outlives the call, and the unwinder reads the tables of the loaded files, which nothing unloads.
        unsafe { unwind::_Unwind_Backtrace(frame, ptr::from_mut(&mut walk).cast()) };
        record.add(at, size, &walk.frames[..walk.depth]);
    });
}

/// An allocation that is recorded.
#[cold]
fn recorded_one(layout: Layout, allocate: impl Fn(Layout) -> *mut u8) -> *mut u8 {
    let Ok(page) = Layout::from_size_align(layout.size(), layout.align().max(PAGE)) else { return allocate(layout) };
    let at = allocate(page);
    if !at.is_null() {
        note(at as usize, layout.size());
    }
    at
}

/// An allocator whose allocations can be recorded.
pub struct Recorded<A>(A);

impl<A> Recorded<A> {
    /// # Safety
    /// The allocator must find out by its address alone how a piece of memory is aligned that is given back or resized.
    pub const unsafe fn over(allocator: A) -> Self {
        Recorded(allocator)
    }
}

impl<A: GlobalAlloc> Recorded<A> {
    /// An allocation of which there may be a record.
    #[inline]
    fn allocate(&self, layout: Layout, every: usize, allocate: impl Fn(Layout) -> *mut u8) -> *mut u8 {
        if is_due(layout.size(), every) { recorded_one(layout, allocate) } else { allocate(layout) }
    }
}

// SAFETY: what is handed out and taken back is the inner allocator's own; it is aligned as was asked for, or more.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Recorded<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match EVERY.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            0 => unsafe { self.0.alloc(layout) },
            // SAFETY: as above; only the alignment differs, and is larger.
            every => self.allocate(layout, every, |layout| unsafe { self.0.alloc(layout) }),
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match EVERY.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            0 => unsafe { self.0.alloc_zeroed(layout) },
            // SAFETY: as above; only the alignment differs, and is larger.
            every => self.allocate(layout, every, |layout| unsafe { self.0.alloc_zeroed(layout) }),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        give_back(at as usize);
        // SAFETY: the caller's promise, and that of who made this.
        unsafe { self.0.dealloc(at, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let every = EVERY.load(Ordering::Relaxed);
        if every == 0 || !is_due(size, every) {
            give_back(at as usize);
            // SAFETY: the caller's promise, and that of who made this.
            return unsafe { self.0.realloc(at, layout, size) };
        }
        let Ok(page) = Layout::from_size_align(size, layout.align().max(PAGE)) else { return ptr::null_mut() };
        // SAFETY: the size is not zero, which the caller has promised.
        let moved = unsafe { self.0.alloc(page) };
        if !moved.is_null() {
            note(moved as usize, size);
            // SAFETY: both pieces are at least that long, and one of them is new.
            unsafe { ptr::copy_nonoverlapping(at, moved, layout.size().min(size)) };
            // SAFETY: the caller's promise; nobody has the old piece any more.
            unsafe { self.dealloc(at, layout) };
        }
        moved
    }
}

/// Begins the record, unless that has been done.
pub fn record() -> Result<(), Refusal> {
    if !SUPPORTED {
        return Err(Refusal::Unsupported);
    }
    let before = EVERY.swap(RATE, Ordering::SeqCst);
    // An allocator that records notices by this that it does.
    drop(std::hint::black_box(Box::new(0u8)));
    if !IS_THERE.load(Ordering::SeqCst) {
        EVERY.store(before, Ordering::SeqCst);
        return Err(Refusal::Unrecorded);
    }
    Ok(())
}

/// The record so far, by stacks.
pub fn recorded() -> BTreeMap<Vec<u64>, Totals> {
    let mut found = BTreeMap::new();
    write(|record| found = record.stacks.iter().map(|(frames, at)| (frames.clone(), record.totals[*at])).collect());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    // SAFETY: the C library frees and resizes by the address alone.
    static ALLOCATOR: Recorded<std::alloc::System> = unsafe { Recorded::over(std::alloc::System) };

    const PIECE: usize = RATE / 2;
    const PIECES: usize = 2048;

    /// There is room for all of them: nothing else is asked for here.
    #[inline(never)]
    fn ask_for_the_profile(pieces: &mut Vec<Vec<u8>>) {
        pieces.extend((0..PIECES).map(|_| std::hint::black_box(Vec::with_capacity(PIECE))));
    }

    #[test]
    fn who_asks_for_memory_and_who_holds_it_is_recorded() {
        assert_eq!([record(), record()], [Ok(()), Ok(())]);
        let mut pieces = Vec::with_capacity(PIECES);
        ask_for_the_profile(&mut pieces);
        pieces.truncate(PIECES / 2);
        // A piece that grows is another one.
        pieces.iter_mut().take(8).for_each(|piece| piece.resize(4 * PIECE, 1));
        assert!(pieces.iter().take(8).all(|piece| piece.iter().all(|byte| *byte == 1)));
        let ours = || {
            let recorded = recorded();
            let addresses: Vec<u64> = recorded.keys().flatten().copied().collect();
            let found = crate::symbols::Found::of(&addresses);
            let is_ours = |at: &u64| found.symbol(*at).is_some_and(|name| name.contains("ask_for_the_profile"));
            let ours = recorded.into_iter().filter(|(frames, _)| frames.iter().any(is_ours));
            ours.map(|(_, totals)| totals).collect::<Vec<Totals>>()
        };
        let all = ours();
        let (asked, held) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.asked, sum.1 + one.held));
        // Of each piece the chance to be recorded is 1 - exp(-1/2). Beyond this lie twelve standard deviations.
        let expected = PIECES as f64 * (1.0 - (-0.5f64).exp());
        assert!((asked as f64 - expected).abs() < expected / 3.0, "{asked} of {expected}");
        assert!(held < asked * 2 / 3 && held > asked / 3, "{held} of {asked}");
        assert!(all.iter().all(|one| one.asked_bytes >= one.asked * PIECE));
        // Recorded memory is given back as any other is, and that it was asked for stays known.
        drop(pieces);
        let after = ours();
        assert_eq!(after.iter().map(|one| one.held).sum::<usize>(), 0);
        assert_eq!(after.iter().map(|one| one.asked).sum::<usize>(), asked);
    }
}
