//! How full volumes are, and how healthy, as their drivers say.
//! Upstream counterpart: pkg/volume/csi/csi_metrics.go.

use crate::{
    csi::{
        Csi,
        messages::{Ability, STATS, StatsRequest, StatsResponse, Unit},
    },
    volume_room::{Amounts, Health, Room},
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

/// The health that a driver reports. One that can tell it and says nothing has a healthy volume, as upstream takes it.
fn health(said: &StatsResponse) -> Health {
    let condition = said.volume_condition.clone().unwrap_or_default();
    Health { is_abnormal: condition.abnormal, message: condition.message }
}

impl Csi {
    /// How full a Pod's volume is, if its driver tells that, and its health, if that is asked for and the driver tells it too.
    pub async fn room(&self, pod_uid: &str, volume: &str, asks_health: bool) -> Option<(Room, Option<Health>)> {
        let held = self.held.lock().get(&(pod_uid.to_owned(), volume.to_owned())).cloned()?;
        let driver = self.drivers.find(&held.volume.driver)?;
        let abilities = driver.abilities().await.ok()?;
        if !abilities.contains(&Ability::GetVolumeStats) {
            return None;
        }
        let request = StatsRequest {
            volume_id: held.volume.handle.clone(),
            volume_path: held.target.display().to_string(),
            staging_target_path: held.staged.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        };
        let said = driver.call(STATS, request).await.ok()?;
        let tells_health = asks_health && abilities.contains(&Ability::VolumeCondition);
        Some((room(&said), tells_health.then(|| health(&said))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::messages::{VolumeCondition, VolumeUsage};

    #[test]
    fn what_a_driver_says_is_taken_by_its_units() {
        let said = |unit: i32, total: i64, available: i64, used: i64| VolumeUsage { available, total, used, unit };
        let usage = vec![said(1, 9, 9, 9), said(1, 10, 7, 3), said(2, 5, -1, 6), said(7, 1, 1, 1)];
        let room = room(&StatsResponse { usage, volume_condition: None });
        assert_eq!(room.bytes, Some(Amounts { total: 10, free: 7, used: 3 }));
        assert_eq!(room.inodes, Some(Amounts { total: 5, free: 0, used: 6 }));
        assert_eq!(super::room(&StatsResponse::default()), Room::default());
    }

    #[test]
    fn a_driver_that_says_nothing_of_its_volume_has_a_healthy_one() {
        assert_eq!(health(&StatsResponse::default()), Health::default());
        let condition = VolumeCondition { abnormal: true, message: "gone".to_owned() };
        let said = StatsResponse { volume_condition: Some(condition), ..StatsResponse::default() };
        assert_eq!(health(&said), Health { is_abnormal: true, message: "gone".to_owned() });
    }
}
