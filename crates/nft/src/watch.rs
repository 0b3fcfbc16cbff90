//! Tells when somebody else changes the rules of this network namespace. The kernel counts the transactions of a namespace; the
//! ones that are not this process' own are somebody else's. Asking for the count costs two small messages. (A transaction that changes
//! nothing is not counted; an own one looks like somebody else's then, which costs a look.)

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use tokio::sync::RwLock;

use crate::Census;

/// How often the kernel is asked.
const PAUSE: clock::Duration = clock::Duration::from_secs(2);

/// The transactions of this process that the kernel took. Held while one is on its way, when nobody can say whether it is counted
/// yet.
static ON_THE_WAY: RwLock<()> = RwLock::const_new(());
static OWN: AtomicU32 = AtomicU32::new(0);

/// Runs a transaction of this process.
pub(crate) async fn own<E>(transaction: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    let _on_the_way = ON_THE_WAY.read().await;
    let done = transaction.await;
    if done.is_ok() {
        OWN.fetch_add(1, Ordering::Relaxed);
    }
    done
}

pub struct Watch {
    socket: Option<Socket>,
    /// Others' transactions so far; unknown before the first look.
    others: Option<u32>,
    pauses: clock::Interval,
}

impl Default for Watch {
    fn default() -> Self {
        let mut pauses = clock::interval(PAUSE);
        pauses.set_missed_tick_behavior(clock::MissedTickBehavior::Delay);
        Watch { socket: None, others: None, pauses }
    }
}

impl Watch {
    /// Waits until somebody else has changed rules. A wait that is dropped goes on with the next call.
    pub async fn others(&mut self) {
        loop {
            self.pauses.tick().await;
            // With one's own on the way the count says nothing; the next look will.
            let Ok(_nothing_on_the_way) = ON_THE_WAY.try_write() else { continue };
            let Some(count) = self.count() else { continue };
            let others = count.wrapping_sub(OWN.load(Ordering::Relaxed));
            if self.others.replace(others).is_some_and(|known| known != others) {
                return;
            }
        }
    }

    /// The parts that a table lacks of those that such a script makes. Looking costs at most a twentieth of a processor, however
    /// often others change something.
    pub async fn missing(&mut self, table: &str, script: &str) -> Option<String> {
        let begun = clock::Instant::now();
        let there = Census::of_kernel(table).await;
        let missing = match there {
            Ok(Some(there)) => there.lacks(&Census::of_script(script)),
            Ok(None) => Some("the whole table".to_owned()),
            Err(error) => {
                tracing::warn!(%error, table, "the rules in the kernel cannot be compared with what is to be there");
                None
            }
        };
        self.pauses.reset_after((begun.elapsed() * 20).max(PAUSE));
        missing
    }

    /// The number of the namespace's last transaction.
    fn count(&mut self) -> Option<u32> {
        let asked = match &self.socket {
            Some(socket) => generation(socket),
            None => open().and_then(|socket| generation(self.socket.insert(socket))),
        };
        let told = asked.inspect_err(|error| tracing::debug!(%error, "the kernel does not count its nft transactions"));
        if told.is_err() {
            self.socket = None;
        }
        told.ok()
    }
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// The types of messages of nf_tables: the subsystem's number, and its own.
const NEW_GENERATION: u16 = 10 << 8 | 15;
const GET_GENERATION: u16 = 10 << 8 | 16;
const REQUEST: u16 = 1;
/// The attribute with the number.
const NUMBER: u16 = 1;
const HEADER: usize = 16;
/// Family, version and resource.
const NETFILTER_HEADER: usize = 4;

/// Asks, and reads the answer, which the kernel gives while it takes the question.
fn generation(socket: &Socket) -> io::Result<u32> {
    let length = u32::try_from(HEADER + NETFILTER_HEADER).unwrap_or_default();
    let mut question = Vec::with_capacity(HEADER + NETFILTER_HEADER);
    question.extend(length.to_ne_bytes());
    question.extend(GET_GENERATION.to_ne_bytes());
    question.extend(REQUEST.to_ne_bytes());
    // The number of the question and of who asks; then the family (any) and the version.
    question.extend([0; 8 + NETFILTER_HEADER]);
    socket.send(&question, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    number(&answer).ok_or_else(|| io::Error::other("an answer without a number"))
}

/// The number in an answer.
fn number(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != NEW_GENERATION {
        return None;
    }
    let mut attributes = answer.get(HEADER + NETFILTER_HEADER..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        if kind == NUMBER {
            return Some(u32::from_be_bytes(value.try_into().ok()?));
        }
        // Attributes begin at multiples of four.
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let mut answer = Vec::new();
        answer.extend(36u32.to_ne_bytes());
        answer.extend(NEW_GENERATION.to_ne_bytes());
        answer.extend([0; 10 + NETFILTER_HEADER]);
        // The process' name, then the number.
        answer.extend(8u16.to_ne_bytes());
        answer.extend(3u16.to_ne_bytes());
        answer.extend(*b"nft\0");
        answer.extend(8u16.to_ne_bytes());
        answer.extend(NUMBER.to_ne_bytes());
        answer.extend(7u32.to_be_bytes());
        assert_eq!(number(&answer), Some(7));
        for cut in 0..answer.len() {
            assert_eq!(number(&answer[..cut]), None, "{cut}");
        }
        answer[4] ^= 1;
        assert_eq!(number(&answer), None);
    }
}
