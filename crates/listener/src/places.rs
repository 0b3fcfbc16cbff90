//! Places: a bound on how many there are in all, and on how many each client has. Whoever finds none is told at once, or waits for
//! one: the places that get free go to the clients by turns, and among those of one client to who came first.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// For each place, of one client and in all, this many may wait.
const WAITING: usize = 4;

/// A number of places, for clients of any type that can be told apart by its hash.
#[derive(Debug)]
pub struct Places {
    all: usize,
    each: usize,
    hasher: RandomState,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only those who have a place: the table is never larger than the number of places.
    by: HashMap<u64, usize>,
    waiting: Waiting,
}

/// Those who wait: there was no place for them.
#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    by: HashMap<u64, VecDeque<oneshot::Sender<Place>>>,
    /// The clients in the order of their turns.
    turns: VecDeque<u64>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The client has all places that one client may have.
    Each,
    All,
}

impl Places {
    pub fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Places { all, each, hasher: RandomState::new(), taken: Mutex::default() })
    }

    /// One place, until it is dropped.
    pub fn take(self: &Arc<Self>, who: &(impl Hash + ?Sized)) -> Result<Place, Full> {
        let mut place = Place { places: self.clone(), who: self.hasher.hash_one(who), size: 0, is_lent: false };
        place.grow(1)?;
        Ok(place)
    }

    /// One place, as soon as it is this one's turn. It says at once where too many wait already.
    pub async fn wait(self: &Arc<Self>, who: &(impl Hash + ?Sized)) -> Result<Place, Full> {
        let full = match self.take(who) {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        let (sender, receiver) = oneshot::channel();
        self.queue(self.hasher.hash_one(who), sender).map_err(|()| full)?;
        receiver.await.map_err(|_| full)
    }

    fn queue(self: &Arc<Self>, who: u64, sender: oneshot::Sender<Place>) -> Result<(), ()> {
        let mut taken = self.taken.lock();
        taken.waiting.push(who, sender, (WAITING * self.each, WAITING * self.all))?;
        // A place may have got free since there was none.
        let given = self.give(&mut taken);
        drop(taken);
        drop(given);
        Ok(())
    }

    /// Gives the places that are free to those whose turn it is. Returns those that were not taken any more, which give
    /// theirs back in their turn: the lock has to be open for that.
    #[must_use]
    fn give(self: &Arc<Self>, taken: &mut Taken) -> Vec<Place> {
        let mut unwanted = Vec::new();
        while taken.all < self.all
            && let Some((who, sender)) = taken.waiting.next(|who| taken.by.get(&who).is_none_or(|own| *own < self.each))
        {
            taken.all += 1;
            *taken.by.entry(who).or_default() += 1;
            unwanted.extend(sender.send(Place { places: self.clone(), who, size: 1, is_lent: false }).err());
        }
        unwanted
    }

    /// How many are taken, by everybody.
    pub fn taken(&self) -> usize {
        self.taken.lock().all
    }
}

impl Waiting {
    fn push(&mut self, who: u64, sender: oneshot::Sender<Place>, (each, all): (usize, usize)) -> Result<(), ()> {
        let full = |waiting: &Self| waiting.all >= all || waiting.by.get(&who).is_some_and(|own| own.len() >= each);
        if full(self) {
            self.forget();
        }
        if full(self) {
            return Err(());
        }
        self.all += 1;
        let own = self.by.entry(who).or_default();
        if own.is_empty() {
            self.turns.push_back(who);
        }
        own.push_back(sender);
        Ok(())
    }

    /// Forgets those who do not wait any more.
    fn forget(&mut self) {
        self.by.retain(|_, own| {
            own.retain(|sender| !sender.is_closed());
            !own.is_empty()
        });
        self.turns.retain(|who| self.by.contains_key(who));
        self.all = self.by.values().map(VecDeque::len).sum();
    }

    /// The next one, of a client that may have one more. Only few are passed over: those that have all of theirs.
    fn next(&mut self, may: impl Fn(u64) -> bool) -> Option<(u64, oneshot::Sender<Place>)> {
        let at = self.turns.iter().position(|who| may(*who))?;
        let who = self.turns.remove(at)?;
        let own = self.by.get_mut(&who)?;
        let sender = own.pop_front()?;
        self.all -= 1;
        if own.is_empty() {
            self.by.remove(&who);
        } else {
            self.turns.push_back(who);
        }
        Some((who, sender))
    }
}

/// The place that a client has. It is given back when this is dropped, and may be lent before.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    who: u64,
    size: usize,
    is_lent: bool,
}

impl Place {
    /// Takes more for the same asker: places may be bytes.
    pub fn grow(&mut self, by: usize) -> Result<(), Full> {
        let mut taken = self.places.taken.lock();
        let own = taken.by.get(&self.who).copied().unwrap_or(0);
        if own + by > self.places.each {
            return Err(Full::Each);
        }
        if taken.all + by > self.places.all {
            return Err(Full::All);
        }
        taken.all += by;
        taken.by.insert(self.who, own + by);
        self.size += by;
        Ok(())
    }

    /// Lets others have it until it is taken back.
    pub fn lend(&mut self) {
        if std::mem::replace(&mut self.is_lent, true) {
            return;
        }
        let mut taken = self.places.taken.lock();
        taken.all -= self.size;
        if let Some(own) = taken.by.get_mut(&self.who) {
            *own -= self.size;
            if *own == 0 {
                taken.by.remove(&self.who);
            }
        }
        let given = self.places.give(&mut taken);
        drop(taken);
        drop(given);
    }

    /// Has it again, at once: there may be more than there are places for as long as it and those that were let in have theirs.
    pub fn take_back(&mut self) {
        if std::mem::replace(&mut self.is_lent, false) {
            let mut taken = self.places.taken.lock();
            taken.all += self.size;
            *taken.by.entry(self.who).or_default() += self.size;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lend();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn each_has_a_part_and_all_together_the_whole() {
        let places = Places::new(5, 2);
        let mut held: Vec<Place> = ["a", "a", "b", "b"].iter().map(|who| places.take(*who).unwrap()).collect();
        assert_eq!(places.take("a").unwrap_err(), Full::Each);
        held.push(places.take("c").unwrap());
        assert_eq!(places.take("d").unwrap_err(), Full::All);
        held.remove(0);
        places.take("a").unwrap();
        held.clear();
        assert_eq!((places.taken(), places.taken.lock().by.len()), (0, 0), "nothing stays behind");
    }

    /// Those who got their place, of those who wait in this order.
    fn served(waiting: &mut Vec<(&'static str, Waits)>) -> Vec<(&'static str, Place)> {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut served = Vec::new();
        waiting.retain_mut(|(who, wait)| match wait.as_mut().poll(cx) {
            Poll::Ready(place) => {
                served.push((*who, place.unwrap()));
                false
            }
            Poll::Pending => true,
        });
        served
    }

    type Waits = Pin<Box<dyn Future<Output = Result<Place, Full>>>>;

    fn waits(places: &Arc<Places>, who: &'static str) -> (&'static str, Waits) {
        let places = places.clone();
        (who, Box::pin(async move { places.wait(who).await }))
    }

    #[test]
    fn free_places_go_to_the_clients_by_turns() {
        let places = Places::new(4, 2);
        let mut waiting: Vec<_> = ["a", "a", "a", "a", "b", "b", "b", "c"].map(|who| waits(&places, who)).into();
        let mut held = served(&mut waiting);
        let mut order: Vec<&str> = held.iter().map(|(who, _)| *who).collect();
        assert_eq!(order, ["a", "a", "b", "b"], "there is room for them");
        while !held.is_empty() {
            held.remove(0);
            let next = served(&mut waiting);
            order.extend(next.iter().map(|(who, _)| *who));
            held.extend(next);
        }
        assert_eq!(order[4..], ["a", "c", "b", "a"], "whoever has two is passed over");
        let taken = places.taken.lock();
        assert_eq!((taken.all, taken.by.len(), taken.waiting.all, taken.waiting.turns.len()), (0, 0, 0, 0));
    }

    #[test]
    fn whoever_does_not_wait_any_more_is_passed_over() {
        let places = Places::new(2, 1);
        let held = places.take("a").unwrap();
        let mut waiting: Vec<_> = (0..WAITING).map(|_| waits(&places, "a")).collect();
        assert!(served(&mut waiting).is_empty());
        assert_eq!(refused(&places), Full::Each, "as many wait as may");
        drop(waiting.remove(0));
        waiting.push(waits(&places, "a"));
        assert!(served(&mut waiting).is_empty());
        waiting.drain(..2);
        drop(held);
        let got = served(&mut waiting);
        assert_eq!((got.len(), waiting.len(), places.taken()), (1, 1, 1));
        drop(waiting);
        drop(got);
        assert_eq!(places.taken(), 0);
    }

    fn refused(places: &Arc<Places>) -> Full {
        let (_, mut wait) = waits(places, "a");
        match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.unwrap_err(),
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn a_lent_place_is_free_until_it_is_taken_back() {
        let places = Places::new(1, 1);
        let mut lent = places.take("a").unwrap();
        let mut waiting = vec![waits(&places, "b")];
        assert!(served(&mut waiting).is_empty());
        lent.lend();
        lent.lend();
        let let_in = served(&mut waiting);
        assert_eq!((let_in.len(), places.taken()), (1, 1));
        lent.take_back();
        lent.take_back();
        assert_eq!(
            (places.taken(), places.take("c").unwrap_err()),
            (2, Full::All),
            "more than there are, and nobody more"
        );
        drop(let_in);
        assert_eq!((places.taken(), places.take("c").unwrap_err()), (1, Full::All));
        lent.lend();
        drop(lent);
        assert_eq!((places.taken(), places.taken.lock().by.len()), (0, 0));
    }

    #[test]
    fn a_place_that_cannot_grow_keeps_what_it_has() {
        let bytes = Places::new(100, 60);
        let (mut one, mut two) = (bytes.take("a").unwrap(), bytes.take("b").unwrap());
        one.grow(59).unwrap();
        assert_eq!((one.grow(1), two.grow(40)), (Err(Full::Each), Err(Full::All)));
        assert_eq!(bytes.taken(), 61);
        drop(one);
        two.grow(40).unwrap();
        assert_eq!(bytes.taken(), 41);
    }
}
