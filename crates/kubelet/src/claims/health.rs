//! The health of devices, as drivers that know it report it.
//! Upstream counterpart: pkg/kubelet/cm/dra/healthinfo.go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clock::Instant;
use futures::StreamExt;
use parking_lot::Mutex;
use runtime::grpc::{self, Channel, Code};
use tokio::sync::watch;

use crate::claims::messages::{DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse, WATCH_HEALTH};

pub const HEALTHY: &str = "Healthy";
pub const UNHEALTHY: &str = "Unhealthy";
/// Nobody says anything of the device, or nobody has for too long.
pub const UNKNOWN: &str = "Unknown";

/// How long a report counts that says nothing else.
const FRESH: Duration = Duration::from_secs(30);
/// A report counts for this long at most.
const FRESH_MOST: Duration = Duration::from_secs(24 * 3600);
/// How long a driver may take to begin, and the pause before one that has broken off is asked again.
const CONNECTION: Duration = Duration::from_secs(45);
const RETRY: Duration = Duration::from_secs(5);
/// The reports of a driver are taken in no faster than this, however fast it sends them.
const PACE: Duration = Duration::from_secs(1);

/// The health that was reported of a device, and until when it counts.
#[derive(Debug, Clone, Copy)]
struct Reported {
    health: &'static str,
    until: Instant,
}

/// The devices of a driver, by pool and name.
type OfDriver = BTreeMap<(String, String), Reported>;

#[derive(Default)]
pub struct Health {
    drivers: Mutex<BTreeMap<String, OfDriver>>,
    changes: watch::Sender<()>,
}

fn reported(device: DeviceHealth, now: Instant) -> Option<((String, String), Reported)> {
    let health = match device.health {
        1 => HEALTHY,
        2 => UNHEALTHY,
        _ => UNKNOWN,
    };
    let asked = u64::try_from(device.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0);
    let fresh = asked.map_or(FRESH, Duration::from_secs).min(FRESH_MOST);
    let id = device.device?;
    Some(((id.pool_name, id.device_name), Reported { health, until: now + fresh }))
}

impl Health {
    /// Told whenever the health of a device may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub fn of(&self, driver: &str, pool: &str, device: &str) -> &'static str {
        let drivers = self.drivers.lock();
        let found = drivers.get(driver).and_then(|devices| devices.get(&(pool.to_owned(), device.to_owned())));
        found.filter(|reported| Instant::now() < reported.until).map_or(UNKNOWN, |reported| reported.health)
    }

    fn set(&self, driver: &str, devices: Vec<DeviceHealth>) {
        let now = Instant::now();
        let devices = devices.into_iter().filter_map(|device| reported(device, now)).collect();
        self.drivers.lock().insert(driver.to_owned(), devices);
        self.changes.send_replace(());
    }

    fn forget(&self, driver: &str) {
        if self.drivers.lock().remove(driver).is_some() {
            self.changes.send_replace(());
        }
    }
}

/// The following of a driver, without which its reports do not count any more.
struct Followed {
    health: Arc<Health>,
    driver: String,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.health.forget(&self.driver);
    }
}

/// Follows what a driver reports until the future is dropped. Most drivers report nothing.
pub async fn follow(health: Arc<Health>, driver: String, channel: Channel) {
    let followed = Followed { health, driver };
    let Followed { health, driver } = &followed;
    loop {
        let asked = NodeWatchResourcesRequest {};
        match grpc::stream::<_, NodeWatchResourcesResponse>(&channel, WATCH_HEALTH, asked, CONNECTION).await {
            Ok(mut reports) => loop {
                match clock::timeout(FRESH, reports.next()).await {
                    // A report may be too old by now.
                    Err(_) => health.changes.send_replace(()),
                    Ok(Some(Ok(report))) => health.set(driver, report.devices),
                    Ok(_) => break,
                }
                clock::sleep(PACE).await;
            },
            Err(status) if status.code() == Code::Unimplemented => return,
            Err(status) => tracing::debug!(driver, error = grpc::words(&status), "a driver reports no health"),
        }
        health.forget(driver);
        clock::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::messages::DeviceIdentifier;

    #[tokio::test(start_paused = true)]
    async fn a_report_counts_for_as_long_as_it_says() {
        let health = Health::default();
        let device = |name: &str, status: i32, seconds: i64| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "p".to_owned(), device_name: name.to_owned() }),
            health: status,
            health_check_timeout_seconds: seconds,
        };
        let check = |expected: [&str; 4]| {
            assert_eq!(["a", "b", "c", "d"].map(|name| health.of("x", "p", name)), expected);
        };
        health.set("x", vec![device("a", 1, 0), device("b", 2, 40), device("c", 1, -5), device("d", 7, i64::MAX)]);
        check([HEALTHY, UNHEALTHY, HEALTHY, UNKNOWN]);
        assert_eq!(health.of("y", "p", "a"), UNKNOWN);
        clock::sleep(Duration::from_secs(31)).await;
        check([UNKNOWN, UNHEALTHY, UNKNOWN, UNKNOWN]);
        // A list is all that there is.
        health.set("x", vec![device("c", 1, 0)]);
        check([UNKNOWN, UNKNOWN, HEALTHY, UNKNOWN]);
        health.forget("x");
        check([UNKNOWN; 4]);
    }
}
