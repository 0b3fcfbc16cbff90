//! logind, asked over the machine's message bus: how long it waits for those who want to do something before the machine ends,
//! the lock that makes it wait, and when the end begins. Upstream counterpart: pkg/kubelet/nodeshutdown/systemd.
//!
//! Any program may send the bus a signal that looks like logind's. It counts only with the name of the connection that owns
//! logind's name, which the bus alone gives.

use std::{
    env, io,
    path::{Path, PathBuf},
    time::Duration,
};

use files::modes;

use crate::dbus::{
    connection::{self, BUS, Call, Connection, Passed},
    message::{Body, Message},
};

pub const LOGIND: &str = "org.freedesktop.login1";
pub const LOGIND_PATH: &str = "/org/freedesktop/login1";
pub const LOGIND_MANAGER: &str = "org.freedesktop.login1.Manager";
pub const SYSTEMD: &str = "org.freedesktop.systemd1";
const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
const SYSTEMD_MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const PREPARE: &str = "PrepareForShutdown";
/// The error of the bus for a name that nobody has.
const NOBODY: &str = "org.freedesktop.DBus.Error.NameHasNoOwner";
/// The kubelet's part of logind's configuration.
pub const DROP_IN: &str = "99-kubelet.conf";
/// logind is told by a signal that its configuration is another one, and takes its time.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bus(#[from] connection::Error),
    #[error("failed writing logind shutdown inhibit override file {}: {source}", .path.display())]
    DropIn { path: PathBuf, source: io::Error },
    #[error(
        "node shutdown manager was unable to update logind InhibitDelayMaxSec to {} (ShutdownGracePeriod), current value of \
         InhibitDelayMaxSec ({}) is less than requested ShutdownGracePeriod",
        clock::go_time(*.wanted),
        clock::go_time(*.held)
    )]
    Short { wanted: Duration, held: Duration },
    #[error("logind has begun anew")]
    Restarted,
}

/// Where logind is found, and where its configuration is added to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub socket: PathBuf,
    pub drop_ins: PathBuf,
}

impl Place {
    pub fn of_this_machine() -> Place {
        let named = env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().and_then(|address| socket(&address));
        Place {
            socket: named.unwrap_or_else(|| "/run/dbus/system_bus_socket".into()),
            drop_ins: "/etc/systemd/logind.conf.d".into(),
        }
    }
}

/// The path in an address such as `unix:path=/run/bus,guid=…`; addresses of other sorts are passed over.
fn socket(address: &str) -> Option<PathBuf> {
    let one = |one: &str| {
        let mut parts = one.strip_prefix("unix:")?.split(',');
        let path = parts.find_map(|part| part.strip_prefix("path="))?;
        // A letter that stands as its number is in no path that anybody chooses.
        (path.starts_with('/') && !path.contains('%')).then(|| path.into())
    };
    address.split(';').find_map(one)
}

/// While it is held, the machine does not end. Dropped, it is given back.
pub struct Lock(#[allow(dead_code, reason = "it is closed when it is dropped")] Passed);

pub struct Logind {
    bus: Connection,
    /// The name of its connection.
    owner: String,
}

impl Logind {
    /// Finds logind. From then on no signal of its is missed.
    pub async fn connect(socket: &Path) -> Result<Logind, Error> {
        let mut bus = Connection::open(socket).await?;
        for rule in [
            format!(
                "type='signal',sender='{LOGIND}',path='{LOGIND_PATH}',interface='{LOGIND_MANAGER}',member='{PREPARE}'"
            ),
            format!("type='signal',sender='{BUS}',interface='{BUS}',member='NameOwnerChanged',arg0='{LOGIND}'"),
        ] {
            bus.of_bus("AddMatch", "s", Body::default().text(&rule)).await?;
        }
        let owner = owner(&mut bus, LOGIND).await?;
        Ok(Logind { bus, owner })
    }

    async fn property(&mut self, name: &str) -> Result<Message, Error> {
        let call = Call {
            destination: &self.owner,
            path: LOGIND_PATH,
            interface: PROPERTIES,
            member: "Get",
            signature: "ss",
            body: Body::default().text(LOGIND_MANAGER).text(name),
        };
        Ok(self.bus.call(call).await?.0)
    }

    /// How long it waits at most for those who hold a lock.
    pub async fn longest_delay(&mut self) -> Result<Duration, Error> {
        let answer = self.property("InhibitDelayMaxUSec").await?;
        let read = || {
            let mut values = answer.values("v")?;
            values.variant("t")?;
            values.uint64()
        };
        Ok(Duration::from_micros(read().map_err(connection::Error::Wrong)?))
    }

    /// Whether the machine is about to end.
    pub async fn is_preparing(&mut self) -> Result<bool, Error> {
        let answer = self.property("PreparingForShutdown").await?;
        let read = || {
            let mut values = answer.values("v")?;
            values.variant("b")?;
            values.boolean()
        };
        Ok(read().map_err(connection::Error::Wrong)?)
    }

    /// Lets it wait longer, if it does not wait as long as is needed.
    pub async fn wait_for(&mut self, needed: Duration, drop_ins: &Path) -> Result<(), Error> {
        if self.longest_delay().await? >= needed {
            return Ok(());
        }
        let path = drop_ins.join(DROP_IN);
        let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n", needed.as_secs());
        // logind may run as another user than root.
        let written = modes::make(drop_ins, modes::SEEN_FOLDER)
            .and_then(|()| modes::replace_durably(&path, modes::SEEN_FILE, text));
        written.map_err(|source| Error::DropIn { path, source })?;
        self.reload().await?;
        let mut held = Duration::ZERO;
        for _ in 0..LOOKS {
            held = self.longest_delay().await?;
            if held >= needed {
                return Ok(());
            }
            clock::sleep(PAUSE).await;
        }
        Err(Error::Short { wanted: needed, held })
    }

    /// Lets it read its configuration again.
    async fn reload(&mut self) -> Result<(), Error> {
        const SIGHUP: u32 = 1;
        let systemd = owner(&mut self.bus, SYSTEMD).await?;
        let call = Call {
            destination: &systemd,
            path: SYSTEMD_PATH,
            interface: SYSTEMD_MANAGER,
            member: "KillUnit",
            signature: "ssi",
            // A small number is written alike with a sign and without.
            body: Body::default().text("systemd-logind.service").text("all").uint32(SIGHUP),
        };
        self.bus.call(call).await?;
        Ok(())
    }

    /// Takes the lock that makes it wait.
    pub async fn inhibit(&mut self) -> Result<Lock, Error> {
        let call = Call {
            destination: &self.owner,
            path: LOGIND_PATH,
            interface: LOGIND_MANAGER,
            member: "Inhibit",
            signature: "ssss",
            body: Body::default()
                .text("shutdown")
                .text("kubelet")
                .text("Kubelet needs time to handle node shutdown")
                .text("delay"),
        };
        let (answer, mut descriptors) = self.bus.call(call).await?;
        let place = answer.values("h").and_then(|mut values| values.uint32()).map_err(connection::Error::Wrong)?;
        match (descriptors.pop(), descriptors.is_empty(), place) {
            (Some(lock), true, 0) => Ok(Lock(lock)),
            _ => Err(connection::Error::Wrong("another number of descriptors than one").into()),
        }
    }

    /// Waits until the end of the machine begins (true) or is called off (false).
    pub async fn next(&mut self) -> Result<bool, Error> {
        loop {
            let signal = self.bus.signal().await?;
            let is_from = |sender: &str, interface: &str, member: &str| {
                signal.sender == sender && signal.interface == interface && signal.member == member
            };
            if is_from(&self.owner, LOGIND_MANAGER, PREPARE) && signal.path == LOGIND_PATH {
                match signal.values("b").and_then(|mut values| values.boolean()) {
                    Ok(begins) => return Ok(begins),
                    Err(why) => tracing::error!(why, "Failed obtaining shutdown event"),
                }
            } else if is_from(BUS, BUS, "NameOwnerChanged") && self.is_replaced(&signal) {
                return Err(Error::Restarted);
            }
        }
    }

    fn is_replaced(&self, change: &Message) -> bool {
        let read = || {
            let mut values = change.values("sss")?;
            let (name, _, now) = (values.text()?, values.text()?, values.text()?);
            Ok::<_, &str>(name == LOGIND && now != self.owner)
        };
        read().unwrap_or(false)
    }
}

/// The connection that has a name. One that only begins when it is asked is asked to begin.
async fn owner(bus: &mut Connection, name: &str) -> Result<String, Error> {
    let ask = || Body::default().text(name);
    let answer = match bus.of_bus("GetNameOwner", "s", ask()).await {
        Err(connection::Error::Refused { name: error, .. }) if error == NOBODY => {
            bus.of_bus("StartServiceByName", "su", ask().uint32(0)).await?;
            bus.of_bus("GetNameOwner", "s", ask()).await?
        }
        other => other?,
    };
    let owner = answer.values("s").and_then(|mut values| values.text()).map_err(connection::Error::Wrong)?;
    Ok(owner.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_is_where_its_address_says() {
        let at = |address: &str| socket(address).map(|path| path.display().to_string());
        assert_eq!(at("unix:path=/run/bus,guid=12").as_deref(), Some("/run/bus"));
        assert_eq!(at("tcp:host=x;unix:guid=1,path=/b").as_deref(), Some("/b"));
        for address in ["", "unix:abstract=/x", "unix:path=rel", "unix:path=/a%20b", "path=/x"] {
            assert_eq!(at(address), None, "{address}");
        }
    }
}
