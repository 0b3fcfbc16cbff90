//! The seats of one priority level, and the queues in which requests wait for them.
//!
//! A flow is dealt a hand of queues by its hash and takes the shortest of them, so that one which sends a lot fills few queues, and
//! hardly ever all those of another one. Queues are served fairly: the next request is that of the queue which would be done first if
//! all were served at once, each at the same pace. Pure but for the time, which is handed in.
//! Upstream counterpart: apiserver/pkg/util/flowcontrol/fairqueuing.

use std::collections::VecDeque;

/// How long a request is taken to need its seats before it is known, in seconds.
pub const GUESSED: f64 = 0.003;

/// How a level's queues are shaped. Without queues whoever finds no seat is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    pub queues: usize,
    pub hand: usize,
    pub length: usize,
}

/// A request that waits. Whoever sent it is told by `tell`.
#[derive(Debug)]
pub struct Waiting<T> {
    pub number: u64,
    pub seats: u32,
    /// Seconds.
    pub since: f64,
    pub tell: T,
}

#[derive(Debug)]
pub struct Queue<T> {
    pub waiting: VecDeque<Waiting<T>>,
    pub executing: u32,
    pub seats: u32,
    /// When its next request begins, in virtual seconds.
    pub next: f64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { waiting: VecDeque::new(), executing: 0, seats: 0, next: 0.0 }
    }
}

impl<T> Queue<T> {
    /// The virtual seconds that it is charged with for work that is not done.
    fn charged(&self) -> f64 {
        f64::from(self.seats) * GUESSED
    }

    fn demand(&self) -> u32 {
        self.seats + self.waiting.iter().map(|waiting| waiting.seats).sum::<u32>()
    }
}

/// The last request that got its seats, in virtual seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Last {
    /// The time when it did.
    pub at: f64,
    /// When it began, as its queue has it.
    pub began: f64,
    /// The earliest and the latest beginning of the first ones that waited then.
    pub next: (f64, f64),
    /// The same without the work that their queues are charged with and that is not done.
    pub discounted: (f64, f64),
}

/// The place of a request that comes.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It has its seats, in the name of this queue.
    Seated(usize),
    /// It waits under this number in this queue.
    Queued(usize, u64),
    /// The reason, in upstream's word.
    Refused(&'static str),
}

#[derive(Debug)]
pub struct Queues<T> {
    shape: Shape,
    pub all: Vec<Queue<T>>,
    /// How many seats there are.
    pub limit: u32,
    pub seats: u32,
    pub executing: u32,
    pub waiting: u32,
    waiting_seats: u32,
    numbers: u64,
    /// Virtual seconds, and the real ones at which they were reckoned.
    pub virtual_now: f64,
    at: f64,
    turn: usize,
    pub last: Option<Last>,
    /// The queue whose first found too few free seats at the last look.
    unfit: Option<usize>,
}

impl<T> Queues<T> {
    pub fn new(shape: Shape, limit: u32) -> Self {
        let all = (0..shape.queues.max(1)).map(|_| Queue::default()).collect();
        Queues {
            shape,
            all,
            limit,
            seats: 0,
            executing: 0,
            waiting: 0,
            waiting_seats: 0,
            numbers: 0,
            virtual_now: 0.0,
            at: 0.0,
            turn: 0,
            last: None,
            unfit: None,
        }
    }

    /// Takes another shape. Queues that are no more are served until they are empty.
    pub fn reshape(&mut self, shape: Shape) {
        if self.all.len() < shape.queues {
            self.all.resize_with(shape.queues, Queue::default);
        }
        self.shape = shape;
    }

    /// Seats in use and waited for.
    pub fn demand(&self) -> u32 {
        self.seats + self.waiting_seats
    }

    /// Takes a request in. `tell` is asked for only where it has to wait.
    pub fn arrive(&mut self, now: f64, flow: u64, seats: u32, tell: impl FnOnce() -> T) -> Arrival {
        self.advance(now);
        if self.shape.queues == 0 {
            if !self.fits(seats) {
                return Arrival::Refused("concurrency-limit");
            }
            self.seat(0, seats);
            return Arrival::Seated(0);
        }
        let index = self.choose(flow);
        self.catch_up(index);
        if self.waiting == 0 && self.has_free() && self.fits(seats) {
            let (began, done) = (self.all[index].next, self.all[index].charged());
            let (next, discounted) = ((began, began), (began - done, began - done));
            self.last = Some(Last { at: self.virtual_now, began, next, discounted });
            self.seat(index, seats);
            return Arrival::Seated(index);
        }
        if self.all[index].waiting.len() >= self.shape.length {
            return Arrival::Refused("queue-full");
        }
        self.numbers += 1;
        let number = self.numbers;
        self.all[index].waiting.push_back(Waiting { number, seats, since: now, tell: tell() });
        self.waiting += 1;
        self.waiting_seats += seats;
        Arrival::Queued(index, number)
    }

    /// A request is done with its seats, which it had for `took` seconds.
    pub fn leave(&mut self, now: f64, index: usize, seats: u32, took: f64) {
        self.advance(now);
        self.seats -= seats;
        self.executing -= 1;
        if let Some(queue) = self.all.get_mut(index) {
            queue.seats = queue.seats.saturating_sub(seats);
            queue.executing = queue.executing.saturating_sub(1);
            // Its queue was charged with a guess.
            queue.next += f64::from(seats) * (took - GUESSED);
        }
    }

    /// A request that left has its seats again, in the name of its queue, whether or not there is room.
    pub fn take_back(&mut self, now: f64, index: usize, seats: u32) {
        self.advance(now);
        self.catch_up(index);
        self.seat(index, seats);
    }

    /// A queue with nothing to do has nothing to catch up with.
    fn catch_up(&mut self, index: usize) {
        let queue = &mut self.all[index];
        if queue.waiting.is_empty() && queue.executing == 0 {
            queue.next = queue.next.max(self.virtual_now);
        }
    }

    /// A request waits no longer. False when it does not wait.
    pub fn give_up(&mut self, index: usize, number: u64) -> bool {
        let Some(queue) = self.all.get_mut(index) else { return false };
        let Some(at) = queue.waiting.iter().position(|waiting| waiting.number == number) else { return false };
        let seats = queue.waiting.remove(at).map_or(0, |waiting| waiting.seats);
        self.waiting -= 1;
        self.waiting_seats -= seats;
        true
    }

    /// The next request that gets its seats, if there are any for it, and its queue.
    pub fn next(&mut self, now: f64) -> Option<(usize, Waiting<T>)> {
        self.unfit = None;
        if self.waiting == 0 || !self.has_free() {
            return None;
        }
        self.advance(now);
        let count = self.all.len();
        let mut best: Option<(f64, usize)> = None;
        let none = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut next, mut discounted) = (none, none);
        let widen = |bounds: &mut (f64, f64), value: f64| *bounds = (bounds.0.min(value), bounds.1.max(value));
        for step in 1..=count {
            let index = (self.turn + step) % count;
            let Some(first) = self.all[index].waiting.front() else { continue };
            widen(&mut next, self.all[index].next);
            widen(&mut discounted, self.all[index].next - self.all[index].charged());
            let done = self.all[index].next + f64::from(first.seats) * GUESSED;
            if best.is_none_or(|(earliest, _)| done < earliest) {
                best = Some((done, index));
            }
        }
        let (_, index) = best?;
        let seats = self.all[index].waiting.front()?.seats;
        if !self.fits(seats) {
            self.unfit = Some(index);
            return None;
        }
        let waiting = self.all[index].waiting.pop_front()?;
        self.last = Some(Last { at: self.virtual_now, began: self.all[index].next, next, discounted });
        self.turn = index;
        self.waiting -= 1;
        self.waiting_seats -= seats;
        self.seat(index, seats);
        Some((index, waiting))
    }

    /// The request that would have been the next one, where the last look for it found too few free seats.
    pub fn unfit(&self) -> Option<&Waiting<T>> {
        self.all[self.unfit?].waiting.front()
    }

    /// Of a level without any seats nobody leaves a queue: it holds back all who are of it. (Without queues `fits` alone decides.)
    fn has_free(&self) -> bool {
        self.seats < self.limit
    }

    /// One that wants more than there is gets it when nobody else has any.
    fn fits(&self, seats: u32) -> bool {
        if seats > self.limit { self.executing == 0 } else { self.seats + seats <= self.limit }
    }

    fn seat(&mut self, index: usize, seats: u32) {
        self.seats += seats;
        self.executing += 1;
        let queue = &mut self.all[index];
        queue.seats += seats;
        queue.executing += 1;
        queue.next += f64::from(seats) * GUESSED;
    }

    /// Lets virtual time go on: as fast as each queue with something to do would be served.
    fn advance(&mut self, now: f64) {
        let passed = (now - self.at).max(0.0);
        self.at = now;
        if self.waiting == 0 && self.seats == 0 {
            return;
        }
        let active = if self.waiting == 0 {
            self.executing.min(self.all.len() as u32)
        } else {
            self.all.iter().filter(|queue| queue.executing > 0 || !queue.waiting.is_empty()).count() as u32
        };
        self.virtual_now += passed * f64::from(self.demand().min(self.limit)) / f64::from(active.max(1));
    }

    /// The shortest queue of a flow's hand.
    fn choose(&self, flow: u64) -> usize {
        let queues = self.shape.queues;
        let mut dealt = [usize::MAX; 16];
        let (mut rest, mut best) = (flow, 0);
        let mut shortest = u32::MAX;
        for card in 0..self.shape.hand.clamp(1, dealt.len().min(queues)) {
            let left = (queues - card) as u64;
            let mut index = (rest % left) as usize;
            rest /= left;
            // The cards before are out of the deck.
            let before = &mut dealt[..card];
            before.sort_unstable();
            for taken in before.iter() {
                if *taken <= index {
                    index += 1;
                }
            }
            dealt[card] = index;
            let demand = self.all[index].demand();
            if demand < shortest {
                (shortest, best) = (demand, index);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(limit: u32) -> Queues<char> {
        Queues::new(Shape { queues: 8, hand: 1, length: 50 }, limit)
    }

    #[test]
    fn a_flow_that_sends_a_lot_waits_behind_itself() {
        let mut all = queues(1);
        assert_eq!(all.arrive(0.0, 0, 1, || 'x'), Arrival::Seated(0));
        for _ in 0..10 {
            assert!(matches!(all.arrive(0.0, 0, 1, || 'a'), Arrival::Queued(0, _)));
        }
        for _ in 0..3 {
            assert!(matches!(all.arrive(0.0, 1, 1, || 'b'), Arrival::Queued(1, _)));
        }
        let mut served = String::new();
        let (mut now, mut at) = (0.0, 0);
        for _ in 0..8 {
            now += 0.01;
            all.leave(now, at, 1, 0.01);
            let (index, waiting) = all.next(now).unwrap();
            assert!(all.next(now).is_none());
            at = index;
            served.push(waiting.tell);
        }
        assert_eq!(served.matches('b').count(), 3, "{served}");
        assert!(served[..6].matches('b').count() >= 2, "{served}");
    }

    #[test]
    fn seats_are_never_more_than_there_are() {
        let mut all = queues(4);
        assert_eq!(all.arrive(0.0, 0, 3, || 'a'), Arrival::Seated(0));
        assert!(matches!(all.arrive(0.0, 1, 2, || 'b'), Arrival::Queued(1, _)));
        // One that would fit does not push ahead.
        assert!(matches!(all.arrive(0.0, 2, 1, || 'c'), Arrival::Queued(2, _)));
        assert_eq!((all.seats, all.demand(), all.waiting), (3, 6, 2));
        all.leave(1.0, 0, 3, 1.0);
        let first = all.next(1.0).unwrap().1.tell;
        let second = all.next(1.0).unwrap().1.tell;
        assert_eq!((first.min(second), first.max(second), all.seats), ('b', 'c', 3));
        assert!(all.unfit().is_none());
        // A request that wants more seats than there are waits for all.
        assert!(matches!(all.arrive(1.0, 3, 10, || 'd'), Arrival::Queued(3, _)));
        all.leave(2.0, 1, 2, 1.0);
        assert!(all.next(2.0).is_none());
        assert_eq!(all.unfit().map(|first| first.tell), Some('d'), "there are free seats, and too few");
        all.leave(2.0, 2, 1, 1.0);
        assert_eq!(all.next(2.0).unwrap().1.tell, 'd');
        let last = all.last.unwrap();
        assert!(last.at == all.virtual_now && last.next.0 <= last.began && last.began <= last.next.1, "{last:?}");
    }

    #[test]
    fn queues_have_an_end_and_can_be_left() {
        let mut all: Queues<()> = Queues::new(Shape { queues: 2, hand: 2, length: 1 }, 1);
        assert!(matches!(all.arrive(0.0, 0, 1, || ()), Arrival::Seated(_)));
        let Arrival::Queued(first, number) = all.arrive(0.0, 0, 1, || ()) else { panic!("it waits") };
        let Arrival::Queued(second, _) = all.arrive(0.0, 0, 1, || ()) else { panic!("it waits") };
        assert_ne!(first, second, "a flow takes the shorter queue");
        assert_eq!(all.arrive(0.0, 0, 1, || ()), Arrival::Refused("queue-full"));
        assert!(all.give_up(first, number) && !all.give_up(first, number));
        assert_eq!((all.waiting, all.demand()), (1, 2));
        let mut none: Queues<()> = Queues::new(Shape::default(), 1);
        assert_eq!(none.arrive(0.0, 7, 1, || ()), Arrival::Seated(0));
        assert_eq!(none.arrive(0.0, 7, 1, || ()), Arrival::Refused("concurrency-limit"));
    }

    #[test]
    fn without_seats_queues_hold_everyone_back() {
        let mut jail = queues(0);
        let Arrival::Queued(index, number) = jail.arrive(0.0, 0, 1, || 'a') else { panic!("it waits") };
        assert!(matches!(jail.arrive(0.0, 0, 5, || 'b'), Arrival::Queued(..)));
        assert!(jail.next(10.0).is_none());
        assert!(jail.give_up(index, number));
        jail.limit = 1;
        assert_eq!(jail.next(20.0).unwrap().1.tell, 'b');
        let mut none: Queues<()> = Queues::new(Shape::default(), 0);
        assert_eq!(none.arrive(0.0, 7, 1, || ()), Arrival::Seated(0));
        assert_eq!(none.arrive(0.0, 7, 1, || ()), Arrival::Refused("concurrency-limit"));
    }

    #[test]
    fn hands_differ_and_have_no_card_twice() {
        let all: Queues<()> = Queues::new(Shape { queues: 16, hand: 4, length: 1 }, 1);
        let mut chosen = std::collections::HashSet::new();
        for flow in 0..1000_u64 {
            chosen.insert(all.choose(flow.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        }
        assert!(chosen.len() > 12, "{chosen:?}");
    }
}
