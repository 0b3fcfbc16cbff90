//! How full volumes are, as their drivers say.
//! Upstream counterpart: pkg/volume/csi/csi_metrics.go.

use crate::{
    csi::{
        Csi,
        messages::{Ability, STATS, StatsRequest, StatsResponse, Unit},
    },
    volume_room::{Amounts, Room},
};

/// The room that a driver reports, of each unit the last word. Less than nothing is nothing.
fn room(said: &StatsResponse) -> Room {
    let amount = |value: i64| u64::try_from(value).unwrap_or(0);
    let of = |unit: Unit| {
        let said = said.usage.iter().rfind(|usage| usage.unit == unit as i32)?;
        Some(Amounts { total: amount(said.total), free: amount(said.available), used: amount(said.used) })
    };
    Room { bytes: of(Unit::Bytes), inodes: of(Unit::Inodes) }
}

impl Csi {
    /// How full a Pod's volume is, if its driver tells that.
    pub async fn room(&self, pod_uid: &str, volume: &str) -> Option<Room> {
        let held = self.held.lock().get(&(pod_uid.to_owned(), volume.to_owned())).cloned()?;
        let driver = self.drivers.find(&held.volume.driver)?;
        if !driver.abilities().await.ok()?.contains(&Ability::GetVolumeStats) {
            return None;
        }
        let request = StatsRequest {
            volume_id: held.volume.handle.clone(),
            volume_path: held.target.display().to_string(),
            staging_target_path: held.staged.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        };
        driver.call(STATS, request).await.ok().map(|said| room(&said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::messages::VolumeUsage;

    #[test]
    fn what_a_driver_says_is_taken_by_its_units() {
        let said = |unit: i32, total: i64, available: i64, used: i64| VolumeUsage { available, total, used, unit };
        let usage = vec![said(1, 9, 9, 9), said(1, 10, 7, 3), said(2, 5, -1, 6), said(7, 1, 1, 1)];
        let room = room(&StatsResponse { usage });
        assert_eq!(room.bytes, Some(Amounts { total: 10, free: 7, used: 3 }));
        assert_eq!(room.inodes, Some(Amounts { total: 5, free: 0, used: 6 }));
        assert_eq!(super::room(&StatsResponse::default()), Room::default());
    }
}
