//! Large documents: work on them is bound by the processor, so it happens beside the threads that serve requests, and only
//! few requests do it at once. Small ones never come here.
//!
//! A request enters when it turns out to carry, or to change, something large. From then on each of its steps runs in
//! `block_in_place`: the thread's other tasks move to another thread. Between two steps its deadline still ends it, and no
//! step is long, since sizes are bounded where documents are read.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    hash::{DefaultHasher, Hash, Hasher},
    pin::pin,
    sync::Arc,
};

use api::status::StatusError;
use listener::Places;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError},
};

/// Documents from this size on are large.
const LARGE_BYTES: usize = 64 * 1024;

/// Requests with something large that wait for their turn, in all and of one user; one more gets 429.
const WAITING: (usize, usize) = (64, 8);

tokio::task_local! {
    static TURN: Turn;
}

/// How many requests with something large go on at once.
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    waiting: Arc<Places>,
}

impl Default for Gate {
    /// Half of the processors, but two at least: one slow document does not hold up all others.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Gate::new((processors / 2).max(2), WAITING)
    }
}

impl Gate {
    fn new(places: usize, (waiting, of_one): (usize, usize)) -> Self {
        Gate { places: Arc::new(Semaphore::new(places)), waiting: Places::new(waiting, of_one) }
    }

    async fn place(&self, asker: u64) -> Result<OwnedSemaphorePermit, StatusError> {
        match self.places.clone().try_acquire_owned() {
            Ok(place) => return Ok(place),
            Err(TryAcquireError::Closed) => return Err(StatusError::internal("the gate is closed")),
            Err(TryAcquireError::NoPermits) => {}
        }
        let _waiting = self
            .waiting
            .take(&asker)
            .map_err(|_| StatusError::too_many_requests("Too many large requests, please try again later.", 1))?;
        self.places.clone().acquire_owned().await.map_err(StatusError::internal)
    }
}

/// The turn of one request at the gate.
struct Turn {
    /// `None` for callers inside this process, who bound themselves.
    gate: Option<Arc<Gate>>,
    /// The user that it is of, by a hash.
    asker: Cell<u64>,
    large: Cell<bool>,
    /// The size of its large documents.
    bytes: Cell<usize>,
    /// Held until the request is answered, since what it made of its document lives as long, but for times of waiting that are
    /// bounded elsewhere.
    place: RefCell<Option<OwnedSemaphorePermit>>,
}

/// Runs a request, beside the serving threads from where it enters. Without a gate it never waits for a place.
pub(crate) async fn guarded<F: Future>(gate: Option<Arc<Gate>>, work: F) -> F::Output {
    let turn = Turn {
        gate,
        asker: Cell::default(),
        large: Cell::default(),
        bytes: Cell::default(),
        place: RefCell::default(),
    };
    let mut work = pin!(work);
    let step = poll_fn(move |cx| {
        if TURN.with(|turn| turn.large.get()) && can_step_aside() {
            tokio::task::block_in_place(|| work.as_mut().poll(cx))
        } else {
            work.as_mut().poll(cx)
        }
    });
    TURN.scope(turn, step).await
}

/// A runtime with one thread (simulations and tests) has no other to move tasks to.
fn can_step_aside() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// Says of whom the request is: its part of those that wait is bounded.
pub(crate) fn is_of(asker: &impl Hash) {
    let mut hasher = DefaultHasher::new();
    asker.hash(&mut hasher);
    let _ = TURN.try_with(|turn| turn.asker.set(hasher.finish()));
}

/// Called by a request that is about to work on a document of that size; waits for its turn if that is large.
pub(crate) async fn enter(bytes: usize) -> Result<(), StatusError> {
    if bytes < LARGE_BYTES {
        return Ok(());
    }
    let enters = |turn: &Turn| {
        turn.bytes.set(turn.bytes.get() + bytes);
        (!turn.large.get()).then(|| (turn.gate.clone(), turn.asker.get()))
    };
    let (gate, asker) = match TURN.try_with(enters) {
        Ok(Some(gate)) => gate,
        // Not within a request, or in already.
        Ok(None) | Err(_) => return Ok(()),
    };
    let place = match gate {
        Some(gate) => Some(gate.place(asker).await?),
        None => None,
    };
    TURN.with(|turn| {
        turn.large.set(true);
        *turn.place.borrow_mut() = place;
    });
    // The work that comes next belongs to a new step.
    tokio::task::yield_now().await;
    Ok(())
}

/// How large the documents of this request are that are large.
pub(crate) fn bytes() -> usize {
    TURN.try_with(|turn| turn.bytes.get()).unwrap_or(0)
}

/// Gives the request's place to another one: it waits for somebody, who may take his time.
pub(crate) fn leave() {
    let _ = TURN.try_with(|turn| drop(turn.place.borrow_mut().take()));
}

/// A request that left waits for its turn again, as long as that takes: nobody may come again but those who had a place.
pub(crate) async fn enter_again() -> Result<(), StatusError> {
    let has_left = |turn: &Turn| turn.gate.clone().filter(|_| turn.large.get() && turn.place.borrow().is_none());
    let Some(gate) = TURN.try_with(has_left).ok().flatten() else { return Ok(()) };
    let place = gate.places.clone().acquire_owned().await.map_err(StatusError::internal)?;
    TURN.with(|turn| *turn.place.borrow_mut() = Some(place));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;

    /// On a runtime with a single worker, work that holds its thread until another task releases it would hang.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_work_leaves_the_serving_threads_to_others() {
        let (release, held) = mpsc::channel();
        let gate = Arc::new(Gate::new(1, (2, 1)));
        let large = tokio::spawn(guarded(Some(gate), async move {
            enter(LARGE_BYTES).await?;
            held.recv().map_err(StatusError::internal)
        }));
        let other = tokio::spawn(async move { release.send(()) });
        assert!(other.await.expect("runs").is_ok());
        assert_eq!(large.await.expect("runs"), Ok(()));
    }

    #[tokio::test]
    async fn few_go_on_at_once_and_few_wait() {
        let gate = Arc::new(Gate::new(1, (2, 1)));
        let request = |bytes| {
            let work = async move {
                enter(bytes).await?;
                enter(bytes).await?;
                std::future::pending::<Result<(), StatusError>>().await
            };
            Box::pin(guarded(Some(gate.clone()), work))
        };
        let (mut first, mut second, mut third) = (request(LARGE_BYTES), request(LARGE_BYTES), request(LARGE_BYTES));
        assert!((&mut first).now_or_never().is_none() && gate.places.available_permits() == 0);
        assert!((&mut second).now_or_never().is_none() && gate.waiting.taken() == 1);
        assert_eq!((&mut third).now_or_never().map(|r| r.map_err(|e| e.code)), Some(Err(429)));
        let mut other = Box::pin(guarded(Some(gate.clone()), async {
            is_of(&"another user");
            enter(LARGE_BYTES).await
        }));
        assert!((&mut other).now_or_never().is_none() && gate.waiting.taken() == 2, "he has a part of his own");
        drop(other);
        let inside = guarded(None, enter(LARGE_BYTES));
        assert_eq!(inside.await, Ok(()), "callers inside the process never wait");
        assert_eq!(guarded(Some(gate.clone()), enter(LARGE_BYTES - 1)).await, Ok(()), "nor does anything small");
        drop(first);
        assert!((&mut second).now_or_never().is_none() && gate.waiting.taken() == 0);
        drop(second);
        assert_eq!(gate.places.available_permits(), 1);
    }

    #[tokio::test]
    async fn whoever_waits_for_others_leaves_and_enters_again() {
        let gate = Arc::new(Gate::new(1, (2, 1)));
        let waits = async {
            enter(LARGE_BYTES).await?;
            enter(LARGE_BYTES).await?;
            leave();
            assert_eq!((gate.places.available_permits(), bytes()), (1, 2 * LARGE_BYTES));
            let other = gate.place(1).await?;
            let mut again = Box::pin(enter_again());
            assert!((&mut again).now_or_never().is_none(), "it is the other's turn");
            drop(other);
            again.await?;
            assert_eq!(gate.places.available_permits(), 0);
            Ok::<_, StatusError>(())
        };
        assert_eq!(guarded(Some(gate.clone()), waits).await, Ok(()));
        let small = async {
            enter(LARGE_BYTES - 1).await?;
            leave();
            enter_again().await.map(|()| bytes())
        };
        assert_eq!(guarded(Some(gate.clone()), small).await, Ok(0), "one that never had a place needs none");
        assert_eq!(gate.places.available_permits(), 1);
    }
}
