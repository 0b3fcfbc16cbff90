//! How much of the server each user may have at once: requests in work, answers not yet read, bodies being read, watches.
//!
//! A request gets its place when its user is known. Administrators, nodes, other users and strangers have places of their own
//! each, so that none of them can take the others'; within each sort one user gets a part. A place is held until the
//! answer is read or given up. Reading requests wait for theirs: a client with a thousand connections that were all told to come back
//! would do so at once, and what it costs to tell them would be taken from the others. Whatever holds memory while it waits, and
//! whoever waits for too long, is told to come back (429).
//!
//! A request that waits for somebody outside needs none meanwhile (`outside`).
//!
//! Upstream counterpart: priority and fairness, whose queues (`fairness`) are behind these places.

mod asker;
pub mod outside;

use std::{sync::Arc, task::Poll};

use api::status::StatusError;
use bytes::Bytes;
use clock::{Duration, Instant};
use http::{Extensions, Method, request::Parts};
use http_body::Body as _;
use listener::{Answering, Peer, Place, Places};

use crate::{
    fairness::Seat,
    http::{
        access::{Authenticator, Known, Stranger},
        body::Body,
        large,
        request::Info,
        timing,
    },
    pages::metrics::{Metrics, load::Phase},
};
use asker::{Asker, full};
use outside::{Rooms, Standing};

/// A request's body has arrived by then.
const BODY: Duration = Duration::from_secs(30);
/// Finding out who asks takes no longer.
const AUTHENTICATION: Duration = Duration::from_secs(10);
/// A reading request waits no longer for its place.
const WAIT: Duration = Duration::from_secs(15);
/// Requests of whom it is not known yet who asks, in all and from one address.
const UNKNOWN: (usize, usize) = (1024, 256);

/// The numbers of one sort of users.
struct Numbers {
    reads: usize,
    writes: usize,
    /// Watches, and streams such as logs and terminals.
    long: usize,
    /// Watches that are being sent the past: it is in memory until they have it.
    replays: usize,
    bodies: usize,
    body_bytes: usize,
    /// One user gets one part of this many.
    parts: usize,
}

const MASTERS: Numbers =
    Numbers { reads: 400, writes: 200, long: 8192, replays: 128, bodies: 128, body_bytes: 64 << 20, parts: 2 };
const NODES: Numbers =
    Numbers { reads: 800, writes: 400, long: 32_768, replays: 512, bodies: 256, body_bytes: 64 << 20, parts: 4 };
const USERS: Numbers =
    Numbers { reads: 400, writes: 200, long: 8192, replays: 128, bodies: 256, body_bytes: 64 << 20, parts: 2 };
/// Of strangers each address counts as one user.
const STRANGERS: Numbers =
    Numbers { reads: 100, writes: 40, long: 64, replays: 16, bodies: 40, body_bytes: 8 << 20, parts: 4 };

/// The places of one sort of users.
struct Level {
    reads: Arc<Places>,
    writes: Arc<Places>,
    long: Arc<Places>,
    replays: Arc<Places>,
    bodies: Arc<Places>,
    body_bytes: Arc<Places>,
}

impl Level {
    fn new(numbers: &Numbers) -> Self {
        let places = |all: usize| Places::new(all, all / numbers.parts);
        Level {
            reads: places(numbers.reads),
            writes: places(numbers.writes),
            long: places(numbers.long),
            replays: places(numbers.replays),
            bodies: places(numbers.bodies),
            body_bytes: places(numbers.body_bytes),
        }
    }
}

/// The places of all.
pub struct Levels {
    /// Counts those that were turned away.
    metrics: Arc<Metrics>,
    rooms: Arc<Rooms>,
    unknown: Arc<Places>,
    masters: Level,
    nodes: Level,
    users: Level,
    strangers: Level,
}

impl Levels {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Levels {
            rooms: Arc::new(Rooms::new(metrics.clone())),
            metrics,
            unknown: Places::new(UNKNOWN.0, UNKNOWN.1),
            masters: Level::new(&MASTERS),
            nodes: Level::new(&NODES),
            users: Level::new(&USERS),
            strangers: Level::new(&STRANGERS),
        }
    }

    fn of(&self, asker: &Asker) -> &Level {
        if asker.user.is_master() {
            &self.masters
        } else if asker.user.node_name().is_some() {
            &self.nodes
        } else if asker.is_stranger() {
            &self.strangers
        } else {
            &self.users
        }
    }
}

/// The events with which a watch begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beginning {
    /// The objects there are: a list, as far as the server is concerned.
    Present,
    /// The events since a revision.
    Past,
}

impl Levels {
    /// Finds out who sent a request that came over the network, in bounded time and not for too many at once.
    pub(crate) async fn authenticate(
        &self,
        authenticator: &dyn Authenticator,
        parts: &mut Parts,
    ) -> Result<Known, Stranger> {
        let address = parts.extensions.get::<Peer>().map(|peer| peer.address.ip());
        let mut asking = authenticator.authenticate(parts);
        let known = match futures::poll!(&mut asking) {
            Poll::Ready(known) => known,
            // It has to be looked up.
            Poll::Pending => {
                let unknown = |address| self.unknown.take(&address);
                let _place =
                    address.map(unknown).transpose().map_err(|_| self.full("", "requests of unknown users"))?;
                let late = |_| StatusError::timeout("Timeout: who sent the request could not be found out in time");
                clock::timeout(AUTHENTICATION, &mut asking).await.map_err(late)?
            }
        };
        drop(asking);
        let known = known?.ok_or_else(StatusError::unauthorized)?;
        if let Some(address) = address {
            parts.extensions.insert(Asker { user: known.user.clone(), address });
        }
        Ok(known)
    }

    /// Gives a request its place, with its body read where it has one that the server reads itself, of at most `limit`
    /// bytes. Requests from inside this process bound themselves, and must not starve behind clients; health is told to
    /// everybody.
    pub(crate) async fn admit(
        &self,
        parts: &Parts,
        body: Body,
        info: &Info,
        limit: usize,
    ) -> Result<Body, StatusError> {
        let (Some(asker), Some(answering)) = (parts.extensions.get::<Asker>(), parts.extensions.get::<Answering>())
        else {
            return Ok(body);
        };
        if is_health(info) {
            return Ok(body);
        }
        large::is_of(asker);
        let level = self.of(asker);
        if info.long_running() {
            if info.verb != "watch" {
                answering.is_patient();
            }
            answering.hold(self.take(&level.long, asker, "long-running requests")?);
            return Ok(body);
        }
        let sends = !matches!(parts.method, Method::GET | Method::HEAD) && !body.is_end_stream();
        let body = if sends { Body::from(self.read(asker, body, limit).await?) } else { body };
        let reads = matches!(info.verb, "get" | "list" | "head");
        let place = if reads { self.wait(asker).await } else { self.take(&level.writes, asker, "writing requests") };
        answering.hold(place?);
        Ok(body)
    }

    /// A request that was admitted and has its seats.
    pub(crate) fn standing(&self, of: &Extensions, seat: Option<Seat>) -> Standing {
        Standing::new(&self.rooms, of, seat)
    }

    /// The place of a watch until it has what it begins with; none for callers inside this process.
    pub(crate) fn begin(&self, of: &Extensions, with: Beginning) -> Result<Option<Place>, StatusError> {
        let Some(asker) = of.get::<Asker>() else { return Ok(None) };
        let level = self.of(asker);
        let place = match with {
            Beginning::Present => self.take(&level.reads, asker, "reading requests"),
            Beginning::Past => self.take(&level.replays, asker, "watches that catch up"),
        };
        place.map(Some)
    }

    /// Reads a body within bounds, before its request takes the place of one that could be worked on.
    async fn read(&self, asker: &Asker, body: Body, limit: usize) -> Result<Bytes, StatusError> {
        const WHAT: &str = "request bodies on their way";
        let level = self.of(asker);
        let _place = self.take(&level.bodies, asker, WHAT)?;
        let mut bytes = self.take(&level.body_bytes, asker, WHAT)?;
        let reading = body.read(limit, |more| bytes.grow(more).map_err(|_| self.full(&asker.user.name, WHAT)));
        let late = |_| StatusError::new(408, "Timeout", "Timeout: the request's body did not arrive in time");
        clock::timeout(BODY, reading).await.map_err(late)?
    }

    /// The place of a request that reads.
    async fn wait(&self, asker: &Asker) -> Result<Place, StatusError> {
        let places = &self.of(asker).reads;
        if let Ok(place) = places.take(asker) {
            return Ok(place);
        }
        let (_waiting, began) = (self.metrics.load.enter(Phase::Waiting, false), Instant::now());
        let place = clock::timeout(WAIT, places.wait(asker)).await;
        timing::waited(began.elapsed());
        place.ok().and_then(Result::ok).ok_or_else(|| self.full(&asker.user.name, "reading requests"))
    }

    fn take(&self, places: &Arc<Places>, asker: &Asker, what: &'static str) -> Result<Place, StatusError> {
        places.take(asker).map_err(|_| self.full(&asker.user.name, what))
    }

    fn full(&self, user: &str, what: &'static str) -> StatusError {
        full(&self.metrics, user, what)
    }
}

fn is_health(info: &Info) -> bool {
    let first = info.path.trim_start_matches('/').split('/').next();
    !info.is_resource() && matches!(first, Some("healthz" | "livez" | "readyz"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::User;

    fn asker(name: &str, groups: &[&str], address: &str) -> Asker {
        let user = Arc::new(User::new(name, groups.iter().copied()));
        Asker { user, address: address.parse().unwrap() }
    }

    #[test]
    fn each_sort_of_users_has_places_of_its_own() {
        let levels = Levels::new(Arc::default());
        let check = |name: &str, group: &str, expected: &Level| {
            let found = levels.of(&asker(name, &[group], "10.0.0.1"));
            assert!(std::ptr::eq(found, expected), "{name} in {group}");
        };
        check("jane", "system:masters", &levels.masters);
        check("system:node:a", "system:nodes", &levels.nodes);
        check("system:node:a", "others", &levels.users);
        check("jane", "system:nodes", &levels.users);
        check("system:anonymous", "system:unauthenticated", &levels.strangers);
    }

    #[test]
    fn one_user_gets_a_part_from_wherever_he_asks() {
        let level = Level::new(&USERS);
        let users = [asker("jane", &[], "10.0.0.1"), asker("jane", &[], "10.0.0.2")];
        let held: Vec<_> = users.iter().cycle().map_while(|jane| level.writes.take(jane).ok()).collect();
        assert_eq!(held.len(), 100);
        assert!(level.writes.take(&asker("joe", &[], "10.0.0.1")).is_ok());
    }

    #[test]
    fn each_address_of_strangers_is_one() {
        let level = Level::new(&STRANGERS);
        let stranger = |address| asker("system:anonymous", &["system:unauthenticated"], address);
        let held: Vec<_> = std::iter::from_fn(|| level.reads.take(&stranger("10.0.0.1")).ok()).collect();
        assert_eq!(held.len(), 25);
        assert!(level.reads.take(&stranger("10.0.0.2")).is_ok());
    }

    #[test]
    fn health_is_told_to_everybody() {
        let check = |path: &str, expected| {
            let (kinds, registrations) = Default::default();
            let served = crate::http::request::Served { kinds: &kinds, registrations: &registrations };
            assert_eq!(is_health(&Info::resolve(&Method::GET, path, "", served)), expected, "{path}");
        };
        for path in ["/healthz", "/livez", "/readyz", "/readyz/ping"] {
            check(path, true);
        }
        for path in ["/api/v1/pods", "/metrics", "/", "/healthzz", "/apis/healthz"] {
            check(path, false);
        }
    }
}
