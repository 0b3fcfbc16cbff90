//! Connections as they come in: counted by source and in all, closed at once when there is no place for them, and
//! accepted from this machine even when the process has no descriptor left.

use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use clock::{Duration, Seldom};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    descriptors,
    places::{Full, Place, Places},
};

/// A peer that has not answered for this time and three probes more is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long nothing is accepted when even the spare descriptor is gone.
const BREATH: Duration = Duration::from_millis(100);

/// How many requests an HTTP/2 connection usually has open at once.
pub const STREAMS: u32 = 1000;
/// How long open requests usually have to end once the listener stops.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How many connections a listener has at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// From other machines together.
    pub remote: usize,
    /// From one source: an IPv4 address, or the 64-bit network of an IPv6 address. This machine has as many of its own,
    /// whatever the others have.
    pub each: usize,
}

impl Bounds {
    /// One part of `parts` of the descriptors that the process may have, and not more than memory allows: the other parts
    /// are for files that requests open, and for the rest of the process. A source has an eighth of it.
    pub fn of_process(parts: u64) -> Bounds {
        Bounds::of(descriptors::limit() / parts)
    }

    fn of(descriptors: u64) -> Bounds {
        let all = usize::try_from(descriptors).unwrap_or(usize::MAX).clamp(64, 16_384);
        let each = all / 8;
        Bounds { remote: all - each, each }
    }
}

/// The counters of a listener.
#[derive(Debug, Default)]
pub struct Figures {
    /// Connections closed because there was no place for them.
    pub refused: AtomicU64,
    /// Connections ended because their client did not read its answers.
    pub cut: AtomicU64,
    /// TLS handshakes that failed, or took too long.
    pub handshakes: AtomicU64,
}

/// A listener that bounds its connections.
pub struct Listener {
    tcp: TcpListener,
    /// The name for the log.
    name: &'static str,
    figures: Arc<Figures>,
    remote: Arc<Places>,
    local: Arc<Places>,
    /// A descriptor to let go of when there is no other.
    spare: Option<File>,
    pub(crate) streams: u32,
    pub(crate) drain: Duration,
}

/// A connection with its place.
pub struct Accepted {
    pub socket: TcpStream,
    pub address: SocketAddr,
    /// To be kept for as long as the connection.
    pub place: Place,
}

impl Listener {
    pub fn new(tcp: TcpListener, name: &'static str, bounds: Bounds, figures: Arc<Figures>) -> Self {
        Listener {
            tcp,
            name,
            figures,
            remote: Places::new(bounds.remote, bounds.each),
            local: Places::new(bounds.each, bounds.each),
            spare: spare(),
            streams: STREAMS,
            drain: DRAIN,
        }
    }

    /// How many requests one HTTP/2 connection has open at once.
    #[must_use]
    pub fn streams(mut self, streams: u32) -> Self {
        self.streams = streams;
        self
    }

    /// How long open requests may take to end once the listener stops.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    pub(crate) fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// The next connection that has a place. Never fails: what stands in the way is waited out.
    pub async fn accept(&mut self) -> Accepted {
        loop {
            let accepted = match self.tcp.accept().await {
                Ok(accepted) => Some(accepted),
                Err(error) => self.without_descriptors(&error).await,
            };
            if let Some((socket, address)) = accepted {
                match self.place(address.ip()) {
                    Ok(place) => {
                        attend(&socket);
                        return Accepted { socket, address, place };
                    }
                    Err(full) => self.refused(address, full),
                }
            }
        }
    }

    fn place(&self, from: IpAddr) -> Result<Place, Full> {
        let from = from.to_canonical();
        if from.is_loopback() { self.local.take("") } else { self.remote.take(&source(from)) }
    }

    fn refused(&self, address: SocketAddr, full: Full) {
        static SELDOM: Seldom = Seldom::new();
        self.figures.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = SELDOM.turn() {
            let why = match full {
                Full::Each => "its source has all that one may have",
                Full::All => "there is no place left",
            };
            tracing::warn!(listener = self.name, %address, why, more, "a connection was closed at once");
        }
    }

    /// Accepting failed. If that is for want of a descriptor, the spare one is used to take the connection that waits:
    /// one from this machine is served with it, so that health checks and administrators get through, any other is
    /// closed, so that its client tries elsewhere or later instead of waiting.
    async fn without_descriptors(&mut self, error: &io::Error) -> Option<(TcpStream, SocketAddr)> {
        static SELDOM: Seldom = Seldom::new();
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return None;
        }
        if let Some(more) = SELDOM.turn() {
            tracing::warn!(listener = self.name, %error, more, "accepting a connection failed");
        }
        if self.spare.take().is_none() {
            self.spare = spare();
            clock::sleep(BREATH).await;
            return None;
        }
        // The connection may have gone meanwhile, so this does not wait for one for long.
        let accepted = clock::timeout(BREATH, self.tcp.accept()).await.ok().and_then(Result::ok);
        let local = accepted.filter(|(_, address)| {
            let local = address.ip().to_canonical().is_loopback();
            self.figures.refused.fetch_add(u64::from(!local), Ordering::Relaxed);
            local
        });
        self.spare = spare();
        local
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// The source that an address counts as.
fn source(from: IpAddr) -> u128 {
    match from {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        // A client that has one address of a network has them all.
        IpAddr::V6(v6) => v6.to_bits() & !u128::from(u64::MAX),
    }
}

/// Bytes leave at once, and a peer that has vanished is noticed. Neither is worth a connection if it cannot be had.
pub fn attend(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = setsockopt(socket, sockopt::KeepAlive, &true);
    let _ = setsockopt(socket, sockopt::TcpKeepIdle, &(KEEP_ALIVE.as_secs() as u32));
    let _ = setsockopt(socket, sockopt::TcpKeepInterval, &(PROBE_EVERY.as_secs() as u32));
    let _ = setsockopt(socket, sockopt::TcpKeepCount, &3);
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn bounds_follow_the_descriptors() {
        let check = |descriptors, remote, each| assert_eq!(Bounds::of(descriptors), Bounds { remote, each });
        check(10, 56, 8);
        check(512, 448, 64);
        check(10_000, 8750, 1250);
        check(1 << 20, 14_336, 2048);
        check(u64::MAX, 14_336, 2048);
    }

    #[test]
    fn sources() {
        let same = |a: &str, b: &str| source(a.parse().unwrap()) == source(b.parse().unwrap());
        assert!(!same("10.0.0.1", "10.0.0.2") && !same("2001:db8:0:1::1", "2001:db8:0:2::1"));
        assert!(same("2001:db8:0:1::1", "2001:db8:0:1:ffff::9"));
    }

    #[tokio::test]
    async fn one_too_many_is_closed_and_a_place_that_is_free_again_is_given() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let figures = Arc::new(Figures::default());
        let mut listener = Listener::new(tcp, "test", Bounds { remote: 0, each: 1 }, figures.clone());
        let _first = TcpStream::connect(address).await.unwrap();
        let held = listener.accept().await;
        let mut second = TcpStream::connect(address).await.unwrap();
        let third = {
            let next = listener.accept();
            tokio::pin!(next);
            let mut byte = [0];
            tokio::select! {
                _ = &mut next => panic!("there is no second place"),
                end = second.read(&mut byte) => assert!(matches!(end, Ok(0) | Err(_))),
            }
            drop(held);
            let _third = TcpStream::connect(address).await.unwrap();
            next.await.address
        };
        assert!(third.ip().is_loopback());
        assert_eq!(figures.refused.load(Ordering::Relaxed), 1);
    }
}
