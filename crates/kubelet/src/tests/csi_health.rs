//! The health of CSI volumes: an event, a metric and a field of the summary, where it is asked for and known.

use std::time::Duration;

use api::features::Feature;
use json::json;

use crate::{
    csi::messages::{Ability, StatsResponse, VolumeCondition},
    tests::{
        csi_volumes::{ready, serve, spec, world},
        world::{World, until},
    },
    volume_usage,
};

/// The events about a Pod's volumes that are not well.
fn told_of_health(world: &World) -> Vec<String> {
    let events = world.api.events("p");
    events.into_iter().filter(|event| event.starts_with("VolumeConditionAbnormal ")).collect()
}

fn condition(abnormal: bool, message: &str) -> StatsResponse {
    let volume_condition = Some(VolumeCondition { abnormal, message: message.to_owned() });
    StatsResponse { volume_condition, ..StatsResponse::default() }
}

#[test]
fn a_volume_that_is_not_well_is_told_of_also_while_nobody_asks() {
    let (world, disks) = world(json!({"attachRequired": false}), json!({}));
    let usual = *world.features.lock();
    *world.features.lock() = usual.with(Feature::CSIVolumeHealth, true);
    disks.abilities.lock().extend([Ability::GetVolumeStats, Ability::VolumeCondition]);
    let minutes = |count: u64| clock::sleep(Duration::from_secs(60 * count));
    world.life(None, async || {
        let shown = async || {
            let usages = volume_usage::read(&world.kubelet()).await;
            usages["p-1"].iter().map(|usage| usage.health.as_ref().map(|health| health.is_abnormal)).collect::<Vec<_>>()
        };
        let _driver = serve(&world, &disks);
        world.make_pod("p", spec());
        ready(&world, "p").await;
        minutes(3).await;
        assert_eq!((shown().await, told_of_health(&world)), (vec![Some(false)], Vec::new()), "it says nothing");
        disks.says(condition(true, "the disk is gone"));
        let event = "VolumeConditionAbnormal Volume v: the disk is gone";
        until("it is told", || told_of_health(&world) == [event]).await;
        assert_eq!(shown().await, [Some(true)]);
        until("it is told again", || world.api.repeated("Volume v: the disk is gone") > 0).await;
        disks.says(condition(false, "all is well"));
        minutes(3).await;
        let told = told_of_health(&world).len();
        minutes(10).await;
        assert_eq!((shown().await, told_of_health(&world).len()), (vec![Some(false)], told), "it is well again");
        disks.says(condition(true, &"\u{e4}".repeat(5000)));
        until("it is told", || told_of_health(&world).len() > told).await;
        let longest = told_of_health(&world).iter().map(|event| event.chars().count()).max();
        assert!(longest < Some(1000), "{longest:?}");
    });
}

#[test]
fn the_health_of_volumes_is_told_only_where_it_is_asked_for_and_known() {
    for (is_on, abilities) in [
        (false, &[Ability::GetVolumeStats, Ability::VolumeCondition][..]),
        (true, &[Ability::GetVolumeStats][..]),
        (true, &[Ability::VolumeCondition][..]),
    ] {
        let (world, disks) = world(json!({"attachRequired": false}), json!({}));
        let usual = *world.features.lock();
        *world.features.lock() = usual.with(Feature::CSIVolumeHealth, is_on);
        disks.abilities.lock().extend(abilities.iter().copied());
        disks.says(condition(true, "the disk is gone"));
        world.life(None, async || {
            let _driver = serve(&world, &disks);
            world.make_pod("p", spec());
            ready(&world, "p").await;
            clock::sleep(Duration::from_secs(300)).await;
            let usages = volume_usage::read(&world.kubelet()).await;
            let knows = usages["p-1"].iter().any(|usage| usage.health.is_some());
            assert_eq!((knows, told_of_health(&world)), (false, Vec::new()), "{is_on} {abilities:?}");
        });
    }
}
