//! How many files and connections this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The number that every Unix lets a process have, for when the system does not say.
const USUAL: u64 = 1024;

/// Raises the limit to the highest that the system allows: servers hold many connections, and the low limit of a login
/// is for programs that cannot take high numbers. Best effort, as with what cannot be raised the server still works.
pub fn raise() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, hard, "cannot raise the number of files that may be open");
    }
}

/// The limit as it is.
pub fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| soft)
}
