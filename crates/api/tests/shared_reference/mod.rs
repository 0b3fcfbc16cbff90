//! The folder `shared/reference`, with upstream's tables and fixtures. It is no part of the repository: some machines have
//! it in a folder above, others not.

use std::path::{Path, PathBuf};

/// The path of a file there. Where the whole folder is absent, or the file outside of CI, `None` skips the test, aloud; in
/// CI a folder that cannot be read is a failure.
pub fn path(name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.ancestors().map(|above| above.join("shared/reference")).find(|folder| folder.exists());
    let Some(path) = folder.map(|folder| folder.join(name)) else {
        eprintln!("SKIPPED: no shared/reference above {}", here.display());
        return None;
    };
    match std::fs::File::open(&path) {
        Ok(_) => Some(path),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{}: {error}", path.display());
            eprintln!("SKIPPED: {}: {error}", path.display());
            None
        }
    }
}
