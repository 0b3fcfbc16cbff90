//! Requests that wait for somebody outside of this server, such as a webhook.
//!
//! Such a request does nothing here, for as long as the other one likes. So it gives back what others wait for, its seats, its place
//! and its turn among large documents, and has them again when it is answered: at once, even if others have them now, since they were
//! its own and it is nearly done. In between it has room of another sort, of which there is a bound for each of those that are waited
//! for, and for each user within that: whoever hangs takes the room of those that ask him, and of nobody else.
//!
//! Upstream has no counterpart: there the seats are held, and a webhook that hangs fills the priority level.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use api::status::StatusError;
use http::Extensions;
use listener::{Answering, Place, Places};

use super::asker::{Asker, full};
use crate::{
    fairness::Seat,
    http::{large, timing},
    pages::metrics::Metrics,
};

/// The room in all, the part of it for all that wait for one, and the part of that for one user.
const ROOM: (usize, usize, usize) = (2048, 512, 128);
/// A request takes one unit of it, and one more for each of these bytes of large documents.
const UNIT: usize = 32 * 1024;

/// The room of those that wait.
pub(super) struct Rooms {
    metrics: Arc<Metrics>,
    by_whom: Arc<Places>,
    by_asker: Arc<Places>,
}

impl Rooms {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        let (all, each, own) = ROOM;
        Rooms { metrics, by_whom: Places::new(all, each), by_asker: Places::new(all, own) }
    }

    fn room(&self, asker: &Asker, whom: &str, bytes: usize) -> Result<[Place; 2], StatusError> {
        let more = (bytes / UNIT).min(ROOM.2 - 1);
        let take = || {
            let mut room = [self.by_whom.take(whom)?, self.by_asker.take(&(asker, whom))?];
            room.iter_mut().try_for_each(|place| place.grow(more))?;
            Ok(room)
        };
        take().map_err(|_: listener::Full| {
            timing::broken_off();
            full(&self.metrics, &asker.user.name, "requests that wait for one webhook")
        })
    }
}

/// The things that a request has while it is worked on, and that it can do without while it waits.
pub struct Standing {
    rooms: Arc<Rooms>,
    /// Nobody for requests that did not come over a connection: their callers bound themselves.
    sender: Option<(Asker, Answering)>,
    seat: RefCell<Option<Seat>>,
    /// Those that it waits for now, each with the number of its questions to him and the room that it has for all of them.
    waits_for: RefCell<HashMap<String, (usize, [Place; 2])>>,
}

tokio::task_local! {
    static STANDING: Standing;
}

impl Standing {
    pub(super) fn new(rooms: &Arc<Rooms>, of: &Extensions, seat: Option<Seat>) -> Self {
        let sender = of.get::<Asker>().cloned().zip(of.get::<Answering>().cloned());
        Standing { rooms: rooms.clone(), sender, seat: RefCell::new(seat), waits_for: RefCell::default() }
    }

    /// Begins a wait, if it needs room.
    fn begin(&self, whom: &str) -> Result<Option<Wait>, StatusError> {
        let Some((asker, answering)) = &self.sender else { return Ok(None) };
        let mut waits = self.waits_for.borrow_mut();
        if let Some((questions, _)) = waits.get_mut(whom) {
            *questions += 1;
            return Ok(Some(Wait(whom.to_owned())));
        }
        let room = self.rooms.room(asker, whom, large::bytes())?;
        if waits.is_empty() {
            if let Some(seat) = &mut *self.seat.borrow_mut() {
                seat.leave();
            }
            answering.lend();
            large::leave();
        }
        waits.insert(whom.to_owned(), (1, room));
        Ok(Some(Wait(whom.to_owned())))
    }

    /// Ends one.
    fn end(&self, whom: &str) {
        let mut waits = self.waits_for.borrow_mut();
        let Some((questions, _)) = waits.get_mut(whom) else { return };
        *questions -= 1;
        if *questions > 0 {
            return;
        }
        waits.remove(whom);
        if !waits.is_empty() {
            return;
        }
        if let Some((_, answering)) = &self.sender {
            answering.take_back();
        }
        if let Some(seat) = &mut *self.seat.borrow_mut() {
            seat.take_back();
        }
    }

    fn waits(&self) -> bool {
        !self.waits_for.borrow().is_empty()
    }
}

/// Work on a request that stands like this.
pub fn within<W: Future>(standing: Standing, work: W) -> impl Future<Output = W::Output> {
    STANDING.scope(standing, work)
}

/// One wait of a request. When it ends, also by being given up, and is the last of them, the request has its own again.
struct Wait(String);

impl Drop for Wait {
    fn drop(&mut self) {
        // Where there is no standing any more, the whole request has been given up, and its own with it.
        let _ = STANDING.try_with(|standing| standing.end(&self.0));
    }
}

/// Waits for an answer of somebody outside, who is known by this name. The error says that too many wait for him.
pub async fn wait_for<A: Future>(whom: &str, answer: A) -> Result<A::Output, StatusError> {
    // Work that is on no request has nothing to give back.
    let wait = STANDING.try_with(|standing| standing.begin(whom)).ok().transpose()?.flatten();
    let answer = answer.await;
    if let Some(wait) = wait {
        drop(wait);
        if !STANDING.with(Standing::waits) {
            large::enter_again().await?;
        }
    }
    Ok(answer)
}
