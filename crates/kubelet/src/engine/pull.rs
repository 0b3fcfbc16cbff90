//! One pull of an image. It goes on to its end when the Pod that wanted it goes: a pull that is cut off leaves open whether the engine
//! got the image with somebody's credentials, and one that was on the node before would be for nobody from then on.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_cri::v1::{Image, PodSandboxConfig};
use runtime::{Runtime, engine::Credentials};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};

use crate::images::{Images, keyring::Tracked, records::Intent};

/// A pull whose Pod has gone is cut off after this time, as upstream does with any call of the engine. Until then it holds its place
/// among the parallel ones.
const AFTERWARDS: Duration = Duration::from_secs(120);
/// A registry is asked with as many different credentials at the most.
const CREDENTIALS: usize = 32;

/// A pull that is about to begin.
pub struct ImagePull {
    pub engine: Arc<dyn Runtime>,
    pub images: Arc<Images>,
    pub image: String,
    pub credentials: Vec<Tracked>,
    pub sandbox: PodSandboxConfig,
    pub place: Option<OwnedSemaphorePermit>,
    /// `None` where nobody looks at records.
    pub intent: Option<Intent>,
}

impl ImagePull {
    /// The image, or the engine's words. How it ended is written down before that is known.
    pub async fn carry_out(self) -> Result<Image, String> {
        let work = async move {
            let fetched = self.fetch().await;
            drop(self.place);
            match (&fetched, self.intent) {
                (Ok((held, used)), Some(intent)) => self.images.records.succeeded(intent, &held.id, used.as_ref()),
                (Err(_), Some(intent)) => self.images.records.failed(intent),
                (_, None) => {}
            }
            fetched.map(|(held, _)| held)
        };
        Lasting(Some(Box::pin(work))).await
    }

    /// Pulls the image with the first credentials that its registry takes.
    async fn fetch(&self) -> Result<(Image, Option<Tracked>), String> {
        // A failure that the engine gives no code reads without one, as upstream's does.
        let words = |error: runtime::Error| {
            let text = error.to_string();
            text.strip_prefix("rpc error: code = Unknown desc = ").map_or(text.clone(), str::to_owned)
        };
        if !self.images.limits.allows() {
            return Err("pull QPS exceeded".to_owned());
        }
        let mut tries: Vec<Option<&Tracked>> = self.credentials.iter().take(CREDENTIALS).map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut failures: Vec<String> = Vec::new();
        for used in tries {
            let given = used.map(|used| Credentials {
                username: used.entry.username.clone(),
                password: used.entry.password.clone(),
                server: String::new(),
            });
            match self.engine.pull_image(&self.image, given, self.sandbox.clone()).await.map_err(words) {
                Ok(reference) => {
                    let held = self.engine.image(&reference).await.map_err(words)?;
                    let held = held.ok_or_else(|| format!("the engine lost {reference} after its pull"))?;
                    return Ok((held, used.cloned()));
                }
                Err(failure) if failures.contains(&failure) => {}
                Err(failure) => failures.push(failure),
            }
        }
        Err(if failures.len() == 1 { failures.remove(0) } else { format!("[{}]", failures.join(", ")) })
    }
}

/// Work that goes on for a while where nobody waits for it any more.
struct Lasting<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send> Future for Lasting<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.0 else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: Send> Drop for Lasting<T> {
    fn drop(&mut self) {
        // Where the kubelet itself ends there may be nobody to go on: the intent stays on disk for the next one.
        if let (Some(work), Ok(here)) = (self.0.take(), Handle::try_current()) {
            here.spawn(clock::timeout(AFTERWARDS, work));
        }
    }
}
