//! The certificates that a control plane issues to itself, kept valid while it runs.
//!
//! Each one has a use: a server that shows it, a file that holds it. Now and then every use asks for its certificate
//! again and gets the one at hand, or a new one when that is old or not valid at this time: clocks are set, forwards and
//! back, while a machine runs.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use pki::Pki;

/// How often certificates are looked at. A look reads a few small files.
pub const LOOK: clock::Duration = clock::Duration::from_secs(60);

type Use = Box<dyn Fn(&Pki) -> anyhow::Result<()> + Send>;

#[derive(Clone)]
pub struct Fresh {
    folder: PathBuf,
    uses: Arc<Mutex<Vec<Use>>>,
}

impl Fresh {
    /// `folder` is the one of the keys.
    pub fn new(folder: PathBuf) -> Self {
        Fresh { folder, uses: Arc::default() }
    }

    /// Does this now, where an error is the caller's, and again at each look.
    pub fn keep(&self, pki: &Pki, used: impl Fn(&Pki) -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
        used(pki)?;
        self.uses.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(used));
        Ok(())
    }

    /// A certificate to show, from now on always a valid one.
    pub fn shown(
        &self,
        pki: &Pki,
        issue: impl Fn(&Pki) -> pki::Result<pki::Credential> + Send + 'static,
    ) -> anyhow::Result<Arc<pki::Serving>> {
        let shown = pki::Serving::new(&issue(pki)?)?;
        let replaced = shown.clone();
        self.keep(pki, move |pki| Ok(replaced.replace(&issue(pki)?)?))?;
        Ok(shown)
    }

    /// Looks again and again until cancelled. A failure is said once, until it is another one.
    pub async fn run(self) {
        let mut said = String::new();
        loop {
            clock::sleep(LOOK).await;
            let wrong = self.look().err().map(|e| format!("{e:#}")).unwrap_or_default();
            if wrong != said && !wrong.is_empty() {
                tracing::error!("cannot renew certificates: {wrong}");
            }
            said = wrong;
        }
    }

    fn look(&self) -> anyhow::Result<()> {
        let pki = Pki::open(&self.folder)?;
        self.uses.lock().unwrap_or_else(PoisonError::into_inner).iter().try_for_each(|used| used(&pki))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_while_running_renews_what_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let right = 1_700_000_000;
        let at = |second: i64| clock::simulate(clock::Timestamp::from_second(second).unwrap(), second.unsigned_abs());
        let file = folder.path().join("held");
        for wrong in [0, right - 400 * 86_400, right + 400 * 86_400] {
            at(wrong);
            let fresh = Fresh::new(folder.path().join(format!("pki-{wrong}")));
            let pki = Pki::open(&fresh.folder).unwrap();
            let held = file.clone();
            fresh.keep(&pki, move |pki| Ok(std::fs::write(&held, pki.admin()?.certificate)?)).unwrap();
            let valid = || pki::inspect::facts(&std::fs::read_to_string(&file).unwrap()).unwrap().is_valid(right);
            assert!(!valid(), "{wrong}");
            let running = tokio::spawn(fresh.run());
            at(right);
            clock::sleep(LOOK * 2).await;
            assert!(valid(), "{wrong}");
            running.abort();
        }
    }
}
