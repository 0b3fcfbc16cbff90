//! The operating system's random numbers, replaced for threads that simulate.
//!
//! The hash maps of the standard library draw their keys, and with them the order of their entries, from `getrandom(2)`,
//! as do generators in libraries that know nothing of `clock`. A program with this crate in it has the function below in
//! the place of libc's; on a thread that called [`seed`] its bytes follow from the seed, elsewhere the kernel is asked.
#![allow(unsafe_code)] // The signature is C's.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's random bytes follow from `seed`. A thread draws the keys of its hash maps once, so this
/// comes before anything else that it does.
pub fn seed(seed: u64) {
    STATE.set(Some(seed));
}

/// The next step of SplitMix64.
fn next(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, mixed ^ (mixed >> 31))
}

fn fill(buffer: &mut [u8], mut state: u64) -> u64 {
    for chunk in buffer.chunks_mut(8) {
        let (after, bytes) = next(state);
        chunk.copy_from_slice(&bytes.to_le_bytes()[..chunk.len()]);
        state = after;
    }
    state
}

/// In the place of libc's function of this name.
///
/// # Safety
/// As for the original: `buffer` points to `length` bytes that the caller owns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: u32) -> isize {
    // SAFETY: these are the caller's own arguments, which the system call checks.
    let ask_the_kernel = || unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    // A thread that is just ending has no state any more.
    match STATE.try_with(Cell::get) {
        Ok(Some(state)) if !buffer.is_null() => {
            // SAFETY: the caller owns the `length` bytes behind `buffer`, which is not null.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
            STATE.set(Some(fill(bytes, state)));
            isize::try_from(length).unwrap_or(isize::MAX)
        }
        _ => ask_the_kernel(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    fn order(seed: Option<u64>) -> Vec<u32> {
        let on_a_new_thread = std::thread::spawn(move || {
            seed.into_iter().for_each(super::seed);
            (0..100).collect::<HashSet<u32>>().into_iter().collect()
        });
        on_a_new_thread.join().unwrap()
    }

    #[test]
    fn hash_maps_follow_the_seed() {
        assert_eq!(order(Some(1)), order(Some(1)));
        assert_ne!(order(Some(1)), order(Some(2)));
        assert_ne!(order(None), order(None));
    }
}
