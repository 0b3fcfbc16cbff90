//! Places: a bound on how many there are in all, and on how many each client has. No client waits for a place: one that
//! finds none is told at once.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

use parking_lot::Mutex;

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
        let mut place = Place { places: self.clone(), who: self.hasher.hash_one(who), size: 0 };
        place.grow(1)?;
        Ok(place)
    }

    /// How many are taken, by everybody.
    pub fn taken(&self) -> usize {
        self.taken.lock().all
    }
}

/// The place that a client has. It is given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    who: u64,
    size: usize,
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
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= self.size;
        if let Some(own) = taken.by.get_mut(&self.who) {
            *own -= self.size;
            if *own == 0 {
                taken.by.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
