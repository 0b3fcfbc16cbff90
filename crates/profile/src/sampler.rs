//! Looks at the stacks of running threads: a timer of the process's processor time sends SIGPROF to a thread that runs, and the
//! handler of the signal walks its stack into memory that was set aside before.
//!
//! The handler may interrupt anything, an allocation too. So it allocates nothing, takes no lock, and only writes what is its own.

#![allow(unsafe_code, reason = "signals, timers and the walk up a stack have no safe interface")]

use std::{
    ffi::{c_int, c_void},
    fs, mem, ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering},
};

use crate::Refusal;

/// The deepest stack that is recorded whole.
const DEPTH: usize = 64;
/// The number of samples in a profile; further ones are lost.
pub const SAMPLES: usize = 20_000;

/// One stack, from the innermost address on. All but the first are those of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    pub thread: u32,
    pub frames: Vec<u64>,
}

impl Stack {
    /// The places in code. The address of a call is the one behind it: the call itself is the last byte before.
    pub fn places(&self) -> Vec<u64> {
        let frames = self.frames.iter().enumerate();
        frames.map(|(index, at)| if index == 0 { *at } else { at.saturating_sub(1) }).collect()
    }
}

/// The place where the handler writes one stack.
struct Slot {
    thread: AtomicU32,
    /// Set when the rest is written.
    depth: AtomicUsize,
    frames: [AtomicUsize; DEPTH],
}

struct Buffer {
    next: AtomicUsize,
    slots: Vec<Slot>,
}

/// Where handlers write; null while nobody samples.
static BUFFER: AtomicPtr<Buffer> = AtomicPtr::new(ptr::null_mut());
/// The handlers that are at work.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);
/// Somebody samples.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The walk up a stack, by the tables that panics need.
pub mod unwind {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        pub fn _Unwind_Backtrace(frame: extern "C" fn(*mut c_void, *mut c_void) -> c_int, of: *mut c_void) -> c_int;
        pub fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }
}

pub const GO_ON: c_int = 0;
pub const END: c_int = 5;

/// A walk up one stack.
struct Walk<'a> {
    slot: &'a Slot,
    /// Where the signal came. The frames below it are the handler's.
    interrupted: usize,
    found: bool,
    depth: usize,
}

extern "C" fn frame(context: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: the unwinder hands on the walk that it was given, which outlives it, and a context of its own.
    let (walk, at) = unsafe { (&mut *walk.cast::<Walk<'_>>(), unwind::_Unwind_GetIP(context)) };
    walk.found |= at == walk.interrupted;
    if walk.found && walk.depth < DEPTH {
        walk.slot.frames[walk.depth].store(at, Ordering::Relaxed);
        walk.depth += 1;
    }
    if walk.depth == DEPTH { END } else { GO_ON }
}

#[cfg(target_arch = "x86_64")]
fn interrupted(context: &libc::ucontext_t) -> Option<usize> {
    usize::try_from(context.uc_mcontext.gregs[libc::REG_RIP as usize]).ok()
}

#[cfg(target_arch = "aarch64")]
fn interrupted(context: &libc::ucontext_t) -> Option<usize> {
    usize::try_from(context.uc_mcontext.pc).ok()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn interrupted(_: &libc::ucontext_t) -> Option<usize> {
    None
}

pub const SUPPORTED: bool = cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno belongs to the thread, which must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    AT_WORK.fetch_add(1, Ordering::SeqCst);
    // SAFETY: whoever takes the buffer away waits until no handler is at work before it frees it.
    if let Some(buffer) = unsafe { BUFFER.load(Ordering::SeqCst).as_ref() } {
        // SAFETY: the system hands a context to handlers that ask for one, as this one does.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        if let Some(at) = interrupted(context) {
            sample(buffer, at);
        }
    }
    AT_WORK.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn sample(buffer: &Buffer, interrupted: usize) {
    let Some(slot) = buffer.slots.get(buffer.next.fetch_add(1, Ordering::Relaxed)) else { return };
    let mut walk = Walk { slot, interrupted, found: false, depth: 0 };
    // SAFETY: the walk outlives the call. The unwinder reads the tables of the loaded files, which nothing unloads, and allocates
    // nothing for a walk.
    unsafe { unwind::_Unwind_Backtrace(frame, ptr::from_mut(&mut walk).cast()) };
    if walk.depth == 0 {
        slot.frames[0].store(interrupted, Ordering::Relaxed);
        walk.depth = 1;
    }
    // SAFETY: asking for the thread's number has no conditions.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    slot.thread.store(u32::try_from(thread).unwrap_or(0), Ordering::Relaxed);
    slot.depth.store(walk.depth, Ordering::Release);
}

/// Sampling at work. It ends when this is dropped.
pub struct Sampling(());

impl Sampling {
    /// Samples the process at this rate, by the seconds of its processor time.
    pub fn begin(per_second: u32) -> Result<Sampling, Refusal> {
        let sampling = Self::with(SAMPLES)?;
        timer(1_000_000 / i64::from(per_second));
        Ok(sampling)
    }

    /// Gets ready to ask threads where they are.
    pub fn threads() -> Result<Sampling, Refusal> {
        Self::with(threads_of_process().len() + 64)
    }

    /// Gets ready to ask threads that wait, again and again.
    pub fn waits() -> Result<Sampling, Refusal> {
        Self::with(SAMPLES)
    }

    pub fn threads_now(&self) -> usize {
        threads_of_process().len()
    }

    fn with(slots: usize) -> Result<Sampling, Refusal> {
        if !SUPPORTED {
            return Err(Refusal::Unsupported);
        }
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(Refusal::Busy);
        }
        let sampling = Sampling(());
        let slot = || Slot {
            thread: AtomicU32::new(0),
            depth: AtomicUsize::new(0),
            frames: std::array::from_fn(|_| AtomicUsize::new(0)),
        };
        let buffer = Buffer { next: AtomicUsize::new(0), slots: std::iter::repeat_with(slot).take(slots).collect() };
        // The first walk may load what it needs. That is not left to a handler.
        sample(&Buffer { next: AtomicUsize::new(0), slots: vec![slot()] }, 0);
        BUFFER.store(Box::into_raw(Box::new(buffer)), Ordering::SeqCst);
        listen();
        Ok(sampling)
    }

    /// Asks every thread of the process for its stack; returns how many there are.
    pub fn ask_threads(&self) -> usize {
        let threads = threads_of_process();
        threads.iter().copied().for_each(ask);
        threads.len()
    }

    /// Asks every thread of the process that does not run.
    pub fn ask_waiting(&self) {
        threads_of_process().into_iter().filter(|thread| waits(*thread)).for_each(ask);
    }

    /// How many stacks were looked at.
    pub fn taken(&self) -> usize {
        // SAFETY: only dropping this frees the buffer.
        let Some(buffer) = (unsafe { BUFFER.load(Ordering::SeqCst).as_ref() }) else { return 0 };
        buffer.slots.iter().filter(|slot| slot.depth.load(Ordering::Acquire) > 0).count()
    }

    /// Ends it; returns what was seen.
    pub fn end(self) -> Vec<Stack> {
        let Some(buffer) = stop() else { return Vec::new() };
        let seen = buffer.slots.iter().filter_map(|slot| {
            let depth = slot.depth.load(Ordering::Acquire);
            let frames = slot.frames[..depth].iter().map(|at| at.load(Ordering::Relaxed) as u64).collect();
            (depth > 0).then(|| Stack { thread: slot.thread.load(Ordering::Relaxed), frames })
        });
        seen.collect()
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        stop();
        TAKEN.store(false, Ordering::SeqCst);
    }
}

/// Takes the buffer away from the handlers.
fn stop() -> Option<Box<Buffer>> {
    timer(0);
    let buffer = BUFFER.swap(ptr::null_mut(), Ordering::SeqCst);
    while AT_WORK.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    // SAFETY: it came from a box, is nobody else's since it was swapped out, and no handler reads it any more.
    (!buffer.is_null()).then(|| unsafe { Box::from_raw(buffer) })
}

/// Sends SIGPROF each time that the process has worked for so long; not at all for 0.
fn timer(microseconds: i64) {
    let time = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the value is read during the call alone.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, ptr::null_mut()) };
}

/// The handler stays: a signal that comes late would end the process without one. It works on the stack of the thread that it
/// interrupts: the other stack that threads have for signals is too small for a walk.
fn listen() {
    // SAFETY: all fields of the structure may be zero, and it is read during the call alone. Calls that the signal interrupts are
    // begun again by the system.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &action, ptr::null_mut());
    }
}

/// Asks a thread for its stack.
fn ask(thread: i32) {
    // SAFETY: a signal to a thread of this process that is gone reaches nobody, and is an error that says so.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGPROF) };
}

/// Whether a thread is neither running nor waiting for a processor alone. Its state follows its name, which may hold anything.
fn waits(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['S', 'D']))
}

fn threads_of_process() -> Vec<i32> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The name of a thread, as long as it is there.
pub fn name_of(thread: u32) -> String {
    let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
