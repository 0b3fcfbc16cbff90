//! How one connection gets on: whether anything is asked, and whether the answers are read.
//!
//! Time is counted in turns of a few seconds, so that an answer costs no clock and no timer of its own: each notes the
//! turn in which its bytes last moved, and a turn that comes round again while somebody still stands in it shows an
//! answer that has not moved for a whole round.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use bytes::{Buf, Bytes};
use clock::Duration;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    barrier::{Barrier, Record},
    places::Place,
};

/// One turn.
const TURN: Duration = Duration::from_secs(5);
/// A connection on which nothing was asked by then is ended: 10 seconds.
const FIRST: u32 = 2;
/// The turns without a request after which a connection on which nothing is open is ended, as upstream does: 90 seconds.
const IDLE: u32 = 18;
/// An answer of which the client takes nothing is cut after a round of turns: 30 to 35 seconds.
const ROUND: usize = 7;
/// One of those that people look at, such as a log, has a round of longer turns: 4 hours and some minutes.
const PATIENCE: u32 = 480;

/// The facts about one connection.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    begun: AtomicU64,
    open: AtomicUsize,
    hasty: Round,
    patient: Round,
    leaving: CancellationToken,
    pub barrier: Barrier,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Idle,
    Stalled,
}

impl Pace {
    /// Returns when it is time to end the connection.
    pub async fn watch(&self) -> Verdict {
        let (mut turn, mut quiet, mut begun) = (0_u32, 0, 0);
        loop {
            clock::sleep(TURN).await;
            turn = turn.wrapping_add(1);
            if self.hasty.advance() || (turn.is_multiple_of(PATIENCE) && self.patient.advance()) {
                return Verdict::Stalled;
            }
            let busy = self.is_busy() || self.begun.load(Ordering::Relaxed) != begun;
            begun = self.begun.load(Ordering::Relaxed);
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet >= if begun == 0 { FIRST } else { IDLE } {
                return Verdict::Idle;
            }
        }
    }

    /// Returns when a request has asked for the end of its connection.
    pub async fn is_left(&self) {
        self.leaving.cancelled().await;
    }

    /// Whether a request is open.
    pub fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }
}

/// The connection of a request, for those that outlive the request.
#[derive(Debug, Clone)]
pub struct Connection(Arc<Pace>);

impl Connection {
    /// No more bytes leave before this entry of the record is written, or cannot be. The entry is to be there already.
    pub fn waits_for(&self, record: &Arc<dyn Record>, entry: u64) {
        self.0.barrier.raise(record, entry);
    }
}

/// How many answers last moved in which turn.
#[derive(Debug, Default)]
struct Round {
    turns: [AtomicUsize; ROUND],
    now: AtomicUsize,
}

impl Round {
    fn enter(&self) -> usize {
        let now = self.now.load(Ordering::Relaxed);
        self.turns[now].fetch_add(1, Ordering::Relaxed);
        now
    }

    fn leave(&self, turn: usize) {
        self.turns[turn].fetch_sub(1, Ordering::Relaxed);
    }

    /// The next turn; true if somebody has stood in it since it was last there.
    fn advance(&self) -> bool {
        let next = (self.now.load(Ordering::Relaxed) + 1) % ROUND;
        self.now.store(next, Ordering::Relaxed);
        self.turns[next].load(Ordering::Relaxed) > 0
    }
}

/// One request until its answer is sent or given up. Handlers find it among the extensions of every request that came
/// over a connection.
#[derive(Debug, Clone)]
pub struct Answering(Arc<Answer>);

#[derive(Debug)]
struct Answer {
    pace: Arc<Pace>,
    /// The connection ends with this answer.
    is_last: AtomicBool,
    patient: AtomicBool,
    waiting: Mutex<Waiting>,
    place: Mutex<Option<Place>>,
    kept: Mutex<Vec<Kept>>,
}

/// Something that goes when the answer has gone.
struct Kept(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Send>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

/// The pieces of an answer that are not sent.
#[derive(Debug, Default)]
struct Waiting {
    pieces: usize,
    /// Where the answer stands as long as there are any.
    patient: bool,
    turn: usize,
}

impl Answering {
    pub(crate) fn new(pace: &Arc<Pace>) -> Self {
        pace.begun.fetch_add(1, Ordering::Relaxed);
        pace.open.fetch_add(1, Ordering::Relaxed);
        let (waiting, place, kept) = (Mutex::default(), Mutex::default(), Mutex::default());
        let answer = Answer { pace: pace.clone(), is_last: false.into(), patient: false.into(), waiting, place, kept };
        Answering(Arc::new(answer))
    }

    /// Keeps the request's place until the answer is sent or given up; of an upgrade, until its connection ends.
    pub fn hold(&self, place: Place) {
        *self.0.place.lock() = Some(place);
    }

    /// Lets others have the request's place until it is taken back.
    pub fn lend(&self) {
        if let Some(place) = &mut *self.0.place.lock() {
            place.lend();
        }
    }

    pub fn take_back(&self) {
        if let Some(place) = &mut *self.0.place.lock() {
            place.take_back();
        }
    }

    /// Keeps other things as long.
    pub fn keep(&self, guard: Box<dyn Send>) {
        self.0.kept.lock().push(Kept(guard));
    }

    /// From this answer on the connection takes no more requests, and ends once those that are open are answered. Its client makes
    /// another one. The answer's head goes first: clients that hear of the end while they send a body may miss the answer.
    pub fn end_connection(&self) {
        self.0.is_last.store(true, Ordering::Relaxed);
    }

    /// The answer's head has gone.
    pub(crate) fn begins(&self) {
        self.0.part();
    }

    pub fn connection(&self) -> Connection {
        Connection(self.0.pace.clone())
    }

    /// A client may look at this answer for a while before it reads on. This has to be called before the answer begins.
    pub fn is_patient(&self) {
        self.0.patient.store(true, Ordering::Relaxed);
    }

    /// Bytes of the answer, noticed as they are sent.
    pub(crate) fn piece(&self, bytes: Bytes) -> Piece {
        let mut waiting = self.0.waiting.lock();
        if waiting.pieces == 0 {
            waiting.patient = self.0.patient.load(Ordering::Relaxed);
            waiting.turn = self.0.round(&waiting).enter();
        }
        waiting.pieces += 1;
        Piece { bytes, answering: self.clone() }
    }
}

impl Answer {
    fn round(&self, waiting: &Waiting) -> &Round {
        if waiting.patient { &self.pace.patient } else { &self.pace.hasty }
    }

    fn moved(&self, done: bool) {
        let mut waiting = self.waiting.lock();
        let round = self.round(&waiting);
        if !done && waiting.turn == round.now.load(Ordering::Relaxed) {
            return;
        }
        round.leave(waiting.turn);
        waiting.pieces -= usize::from(done);
        if waiting.pieces > 0 {
            waiting.turn = round.enter();
        }
    }
}

impl Answer {
    fn part(&self) {
        if self.is_last.load(Ordering::Relaxed) {
            self.pace.leaving.cancel();
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // A request may be given up before it is answered.
        self.part();
        self.pace.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A piece of an answer, until it is sent or given up.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    answering: Answering,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.answering.0.moved(false);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.answering.0.moved(true);
    }
}

#[cfg(test)]
mod tests {
    use clock::Instant;

    use super::*;
    use crate::places::Places;

    /// The verdict that ends a connection, and after how many seconds, with this going on beside it.
    async fn end(beside: impl AsyncFnOnce(Arc<Pace>)) -> (Verdict, u64) {
        let (pace, begun) = (Arc::<Pace>::default(), Instant::now());
        let work = beside(pace.clone());
        let work = async {
            work.await;
            std::future::pending().await
        };
        let verdict = tokio::select! {
            verdict = pace.watch() => verdict,
            () = work => unreachable!(),
        };
        (verdict, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_connection() {
        assert_eq!(end(async |_| {}).await, (Verdict::Idle, 10));
        let asked = async |pace: Arc<Pace>| {
            clock::sleep(Duration::from_secs(7)).await;
            drop(Answering::new(&pace));
        };
        assert_eq!(end(asked).await, (Verdict::Idle, 100));
        let open = async |pace: Arc<Pace>| {
            let _open = Answering::new(&pace);
            clock::sleep(Duration::from_secs(998)).await;
        };
        assert_eq!(end(open).await, (Verdict::Idle, 1085), "an open request is no silence");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_ends_a_connection() {
        let unread = async |pace: Arc<Pace>| {
            let piece = Answering::new(&pace).piece("bytes".into());
            clock::sleep(Duration::from_secs(1000)).await;
            drop(piece);
        };
        assert_eq!(end(unread).await, (Verdict::Stalled, 35));
        let masked = async |pace: Arc<Pace>| {
            let (_unread, other) = (Answering::new(&pace).piece("bytes".into()), Answering::new(&pace));
            loop {
                clock::sleep(Duration::from_secs(1)).await;
                drop(other.piece("more".into()));
            }
        };
        assert_eq!(end(masked).await, (Verdict::Stalled, 35), "others that are read do not hide it");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_slowly_is_none_of_those() {
        let slow = async |pace: Arc<Pace>| {
            let answering = Answering::new(&pace);
            let mut pieces = [answering.piece("bytes".into()), answering.piece("bytes".into())];
            for piece in &mut pieces {
                for _ in 0..5 {
                    clock::sleep(Duration::from_secs(29)).await;
                    piece.advance(1);
                }
            }
            clock::sleep(Duration::from_secs(2)).await;
        };
        assert_eq!(end(slow).await, (Verdict::Idle, 380));
        let patient = async |pace: Arc<Pace>| {
            let answering = Answering::new(&pace);
            answering.is_patient();
            let _piece = answering.piece("bytes".into());
            std::future::pending().await
        };
        assert_eq!(end(patient).await, (Verdict::Stalled, 7 * 2400));
    }

    #[test]
    fn a_place_goes_with_the_last_of_the_answer() {
        let (pace, places) = (Arc::<Pace>::default(), Places::new(1, 1));
        let answering = Answering::new(&pace);
        answering.hold(places.take("a").unwrap());
        let piece = answering.piece("bytes".into());
        drop(answering);
        assert_eq!((places.taken(), pace.is_busy()), (1, true));
        drop(piece);
        assert_eq!((places.taken(), pace.is_busy()), (0, false));
    }
}
