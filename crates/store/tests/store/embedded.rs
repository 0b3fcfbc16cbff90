//! The embedded store against the list that every backend must pass, on a real folder and in memory.

use std::sync::Arc;

use crate::behaviour::{Shared, put, soon};
use futures::{StreamExt, future::join_all};
use store::{
    Expect,
    embedded::{Embedded, Options},
};
use tokio::runtime;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behaviour_on_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    crate::behaviour::all(Arc::new(Embedded::open(folder.path(), Options::default()).unwrap())).await;
}

#[tokio::test]
async fn behaviour_in_memory() {
    crate::behaviour::all(Arc::new(Embedded::memory())).await;
}

/// The outcome of commits is told in the runtime that the store was opened in. That one goes while others write: each gets its
/// answer, and a watcher sees everything once and in order.
#[test]
fn answers_and_events_outlive_the_runtime_of_the_store() {
    const WRITERS: usize = 4;
    const EACH: usize = 100;
    let runtime = || runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let folder = tempfile::tempdir().unwrap();
    let store: Shared = first.block_on(async { Arc::new(Embedded::open(folder.path(), Options::default()).unwrap()) });
    second.block_on(async {
        let mut watch = store.watch("/", None).await.unwrap();
        let writers = (0..WRITERS).map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for at in 0..EACH {
                    put(&store, &format!("/{writer}/{at}"), "x", Expect::Absent).await.unwrap();
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut seen = Vec::new();
        let mut first = Some(first);
        while seen.len() < WRITERS * EACH {
            let batch = soon(watch.next()).await.unwrap().unwrap();
            seen.extend(batch.events.iter().map(|event| event.revision));
            if seen.len() >= EACH
                && let Some(first) = first.take()
            {
                first.shutdown_background();
            }
        }
        assert!(seen.is_sorted_by(|before, after| before < after));
        assert!(soon(join_all(writers)).await.into_iter().all(|writer| writer.is_ok()));
        assert_eq!(store.revision().await.unwrap(), *seen.last().unwrap());
    });
}
