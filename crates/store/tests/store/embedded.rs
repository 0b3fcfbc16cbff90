//! The embedded store against the list that every backend must pass, on a real folder and in memory.

use std::sync::Arc;

use store::embedded::{Embedded, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behaviour_on_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    crate::behaviour::all(Arc::new(Embedded::open(folder.path(), Options::default()).unwrap())).await;
}

#[tokio::test]
async fn behaviour_in_memory() {
    crate::behaviour::all(Arc::new(Embedded::memory())).await;
}
