//! The drivers that have registered, by name, and calls to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clock::Instant;
use parking_lot::Mutex;
use runtime::grpc::{self, Channel, Code, Status};
use tokio::sync::Notify;

use crate::{
    counted::Figures,
    csi::messages::{Ability, Capabilities, Empty, GET_CAPABILITIES},
};

/// How long a driver may take for a call.
pub const CALL: Duration = Duration::from_secs(120);

/// A version as drivers write it: numbers between dots, of which there are two at least.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl Version {
    pub fn parse(text: &str) -> Result<Version, String> {
        let trimmed = text.trim_start();
        let trimmed = trimmed.strip_prefix('v').unwrap_or(trimmed);
        let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let numbers = trimmed[..end].trim_end_matches('.');
        if numbers.is_empty() {
            return Err(format!("could not parse {text:?} as version"));
        }
        let parts: Vec<&str> = numbers.split('.').collect();
        let read = |part: &&str| part.parse().ok().filter(|_| *part == "0" || !part.starts_with('0'));
        let read: Option<Vec<u64>> = parts.iter().map(read).collect();
        read.filter(|numbers| numbers.len() > 1).map(Version).ok_or_else(|| format!("illegal version string {text:?}"))
    }

    pub fn major(&self) -> u64 {
        self.0[0]
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// A driver that has registered.
#[derive(Clone)]
pub struct Driver {
    pub name: String,
    pub socket: PathBuf,
    pub version: Version,
    channel: Channel,
    figures: Arc<Figures>,
}

impl Driver {
    pub fn new(name: &str, socket: &Path, version: Version, figures: Arc<Figures>) -> Driver {
        Driver { name: name.to_owned(), socket: socket.to_owned(), version, channel: grpc::channel(socket), figures }
    }

    pub async fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let begun = Instant::now();
        let answer = grpc::unary(&self.channel, path, question, CALL).await;
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.figures.called_driver(&self.name, path, code, begun.elapsed());
        if let Err(status) = &answer {
            tracing::warn!(driver = self.name, call = path, error = grpc::words(status), "a call to a driver failed");
        }
        answer
    }

    /// The abilities of the driver. Numbers that nobody knows are passed over.
    pub async fn abilities(&self) -> Result<BTreeSet<Ability>, Status> {
        let answer: Capabilities = self.call(GET_CAPABILITIES, Empty {}).await?;
        let known = |rpc: i32| Ability::try_from(rpc).ok();
        Ok(answer.capabilities.into_iter().filter_map(|c| known(c.rpc?.r#type)).collect())
    }
}

/// Whether a call that failed has come to its end, so that nothing of it goes on at the driver.
pub fn is_final(status: &Status) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
    !matches!(status.code(), Cancelled | DeadlineExceeded | Unavailable | ResourceExhausted | Aborted)
}

/// All drivers of a node.
#[derive(Default)]
pub struct Drivers {
    all: Mutex<BTreeMap<String, Arc<Driver>>>,
    /// One has come or gone.
    pub changed: Notify,
}

impl Drivers {
    pub fn find(&self, name: &str) -> Option<Arc<Driver>> {
        self.all.lock().get(name).cloned()
    }

    /// The driver of that name, or that there is none in upstream's words.
    pub fn get(&self, name: &str) -> Result<Arc<Driver>, String> {
        self.find(name).ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    pub fn put(&self, driver: Driver) {
        self.all.lock().insert(driver.name.clone(), Arc::new(driver));
        self.changed.notify_one();
    }

    /// Forgets the driver, if it is still the one at this socket; whether it was.
    pub fn remove(&self, name: &str, socket: &Path) -> bool {
        let mut drivers = self.all.lock();
        let is_it = drivers.get(name).is_some_and(|driver| driver.socket == socket);
        is_it && drivers.remove(name).is_some()
    }

    pub fn names(&self) -> Vec<String> {
        self.all.lock().keys().cloned().collect()
    }

    /// Drivers that a node takes.
    pub fn is_full(&self, name: &str) -> bool {
        const MOST: usize = 64;
        let drivers = self.all.lock();
        drivers.len() >= MOST && !drivers.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_between_dots() {
        for (text, expected) in [
            ("1.0.0", Ok("1.0.0")),
            (" v1.10", Ok("1.10")),
            ("1.2.3-rc.1+x", Ok("1.2.3")),
            ("1", Err("illegal version string \"1\"")),
            ("1.02", Err("illegal version string \"1.02\"")),
            ("1.99999999999999999999", Err("illegal version string \"1.99999999999999999999\"")),
            ("x1.0", Err("could not parse \"x1.0\" as version")),
            ("", Err("could not parse \"\" as version")),
        ] {
            let read = Version::parse(text).map(|v| v.to_string());
            assert_eq!(read.as_deref().map_err(String::as_str), expected, "{text}");
        }
        let version = |text| Version::parse(text).unwrap();
        assert!(version("1.10.0") > version("1.9.0") && version("1.2.0") > version("1.2"));
    }
}
