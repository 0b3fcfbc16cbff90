//! The tasks of a hollow part: for each object one thing, after a while.

use std::collections::BTreeMap;

use clock::{Duration, Instant};

/// After how long something is tried again.
pub const RETRY: Duration = Duration::from_millis(500);

/// By the UID of the object.
pub struct Agenda<N>(BTreeMap<String, (N, Instant)>);

impl<N> Default for Agenda<N> {
    fn default() -> Self {
        Agenda(BTreeMap::new())
    }
}

impl<N: Copy + PartialEq> Agenda<N> {
    /// Notes what each object needs and after how long; of what is not among them nothing is kept. Returns what is due,
    /// by UID. It is due again after a while, in case that it does not work or that a write is lost.
    pub fn due(&mut self, needs: impl IntoIterator<Item = (String, N)>, delay: impl Fn(N) -> Duration) -> Vec<String> {
        let mut before = std::mem::take(&mut self.0);
        let (now, mut due) = (Instant::now(), Vec::new());
        for (uid, need) in needs {
            let planned = before.remove(&uid).filter(|(planned, _)| *planned == need).map(|(_, at)| at);
            let mut at = planned.unwrap_or_else(|| now + delay(need));
            if at <= now {
                at = now + RETRY;
                due.push(uid.clone());
            }
            self.0.insert(uid, (need, at));
        }
        due
    }

    /// When something is due, at the latest after `longest`.
    pub fn next(&self, longest: Duration) -> Instant {
        self.0.values().map(|(_, at)| *at).min().unwrap_or_else(|| Instant::now() + longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn things_are_due_after_a_while_and_again() {
        let mut agenda = Agenda::default();
        let mut due = |needs: &[(&str, char)]| {
            let needs: Vec<(String, char)> = needs.iter().map(|(uid, need)| ((*uid).to_owned(), *need)).collect();
            agenda.due(needs, |_| Duration::from_secs(2)).concat()
        };
        assert_eq!(due(&[("a", 'x'), ("b", 'x')]), "");
        clock::sleep(Duration::from_secs(2)).await;
        assert_eq!(due(&[("a", 'x'), ("b", 'y')]), "a");
        assert_eq!(due(&[("a", 'x')]), "", "a moment ago");
        clock::sleep(RETRY).await;
        assert_eq!(due(&[("a", 'x'), ("b", 'y')]), "a", "what was gone begins anew");
    }
}
