//! How many volumes a node takes of a driver, which may change while it runs: disks that others attach, or cards, take places too.
//! A driver is asked again as often as its CSIDriver says, and when its attacher finds that there is no place.
//!
//! Upstream counterpart: pkg/volume/csi/csi_node_updater.go.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use client::{Cache, Caches, Key};
use clock::Instant;
use k8s_openapi::api::storage::v1::CSIDriver;
use tokio::sync::broadcast::error::RecvError;

use crate::csi::{
    Csi,
    messages::{Empty, GET_INFO, NodeInfo},
};

/// The drivers that are asked again, with their periods and the times at which they are next.
#[derive(Default)]
struct Due(BTreeMap<String, (Duration, Instant)>);

impl Due {
    /// Takes these drivers and no others. One whose period stays is not put off.
    fn follow(&mut self, wanted: impl Iterator<Item = (String, Duration)>, now: Instant) {
        let held = std::mem::take(&mut self.0);
        let due = wanted.map(|(name, period)| {
            let next = held.get(&name).filter(|(before, _)| *before == period).map(|(_, next)| *next);
            (name, (period, next.unwrap_or(now + period)))
        });
        self.0 = due.collect();
    }

    fn first(&self) -> Option<Instant> {
        self.0.values().map(|(_, next)| *next).min()
    }

    /// The drivers whose time has come. Their next is a period later.
    fn take(&mut self, now: Instant) -> Vec<String> {
        let come = self.0.iter_mut().filter(|(_, (_, next))| *next <= now);
        come.map(|(name, (period, next))| {
            *next = now + *period;
            name.clone()
        })
        .collect()
    }
}

fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

impl Csi {
    /// Asks drivers again, for ever.
    pub async fn follow_limits(self: Arc<Self>, caches: Caches) {
        if !self.limits_change {
            return pending().await;
        }
        let objects: Arc<Cache<CSIDriver>> = caches.of();
        let (mut changes, mut due) = (objects.subscribe(), Due::default());
        loop {
            let wanted = self.drivers.names().into_iter().filter_map(|name| {
                let period = period(&*objects.get(&Key::new("", &name))?)?;
                Some((name, period))
            });
            due.follow(wanted, Instant::now());
            let wait = async {
                match due.first() {
                    Some(first) => clock::sleep_until(first).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = wait => {
                    // One that hangs keeps no other.
                    let names = due.take(Instant::now());
                    futures::future::join_all(names.iter().map(|name| self.ask_for_limit(name))).await;
                }
                change = changes.recv() => if let Err(RecvError::Closed) = change {
                    // The kubelet ends.
                    pending::<()>().await;
                },
                () = self.drivers.changed.notified() => {}
            }
        }
    }

    /// Asks a driver how many volumes the node takes, and writes it down.
    pub(super) async fn ask_for_limit(&self, name: &str) {
        let Some(driver) = self.drivers.find(name) else { return };
        // A call that fails is told where it is made.
        let Ok(said) = driver.call::<_, NodeInfo>(GET_INFO, Empty {}).await else { return };
        if let Err(error) = self.node_info.update(name, &said).await {
            tracing::warn!(driver = name, error, "the number of volumes that a node takes could not be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_driver_is_asked_in_its_own_period() {
        let (begun, mut due) = (Instant::now(), Due::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let follow = |due: &mut Due, wanted: &[(&str, u64)], now| {
            due.follow(wanted.iter().map(|(name, period)| ((*name).to_owned(), Duration::from_secs(*period))), at(now));
        };
        assert_eq!(due.first(), None);
        follow(&mut due, &[("a", 10), ("b", 30)], 0);
        assert_eq!((due.first(), due.take(at(9))), (Some(at(10)), vec![]));
        assert_eq!((due.take(at(10)), due.first()), (vec!["a".to_owned()], Some(at(20))));
        // The period of one stays, that of the other is new, and a third one goes.
        follow(&mut due, &[("a", 10), ("b", 40)], 15);
        assert_eq!((due.first(), due.take(at(30))), (Some(at(20)), vec!["a".to_owned()]));
        follow(&mut due, &[("b", 40)], 31);
        assert_eq!((due.first(), due.take(at(55))), (Some(at(55)), vec!["b".to_owned()]));
        follow(&mut due, &[], 60);
        assert_eq!(due.first(), None);
    }
}
