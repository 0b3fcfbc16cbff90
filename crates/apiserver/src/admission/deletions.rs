//! The namespaces that were deleted a moment ago through this server. A live copy may still have them as they were before, so that
//! NamespaceLifecycle asks the store about them.

use std::collections::HashMap;

use clock::{Duration, Instant};
use parking_lot::Mutex;

/// No live copy lags for so long.
const REMEMBERED: Duration = Duration::from_secs(30);
/// With more of them the one that was deleted longest ago is forgotten.
const MOST: usize = 100;

#[derive(Default)]
pub struct Deletions(Mutex<HashMap<String, Instant>>);

impl Deletions {
    pub fn add(&self, namespace: &str) {
        let mut all = self.0.lock();
        if all.len() >= MOST
            && !all.contains_key(namespace)
            && let Some(oldest) = all.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone())
        {
            all.remove(&oldest);
        }
        all.insert(namespace.to_owned(), Instant::now());
    }

    pub fn contain(&self, namespace: &str) -> bool {
        let mut all = self.0.lock();
        let is_recent = all.get(namespace).map(|at| at.elapsed() <= REMEMBERED);
        if is_recent == Some(false) {
            all.remove(namespace);
        }
        is_recent == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deletion_is_remembered_for_a_while() {
        let deletions = Deletions::default();
        deletions.add("a");
        assert!(deletions.contain("a") && !deletions.contain("b"));
        clock::sleep(REMEMBERED - Duration::from_millis(5)).await;
        assert!(deletions.contain("a"));
        clock::sleep(Duration::from_millis(10)).await;
        assert!(!deletions.contain("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_deletions_is_bounded_and_the_oldest_goes_first() {
        let deletions = Deletions::default();
        for number in 0..=MOST {
            deletions.add(&number.to_string());
            clock::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(deletions.0.lock().len(), MOST);
        assert!(!deletions.contain("0") && deletions.contain("1") && deletions.contain(&MOST.to_string()));
    }
}
