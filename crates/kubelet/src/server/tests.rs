//! The metrics that a monitoring system finds on a node: those that dashboards and alerts ask for, by name, type and labels.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::features::Feature;
use http::Method;
use http_body_util::BodyExt;
use json::json;

use super::{answer::Answer, answers, cadvisor, endpoint::Endpoint, resource_metrics};
use crate::{
    csi::messages::{Ability, StatsResponse, VolumeUsage},
    kubelet::Kubelet,
    tests::{csi_volumes, world::until},
};

const TABLE: &str = include_str!("metrics.tsv");

/// The families of a page by their names: their sorts, and the sets of labels that their series have.
type Page = BTreeMap<String, (String, BTreeSet<String>)>;

/// Reads a page, in which every family is announced once, and every series is of a family.
fn read(text: &str) -> Page {
    let mut page = Page::new();
    for line in text.lines() {
        if let Some((name, sort)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let announced = page.insert(name.to_owned(), (sort.to_owned(), BTreeSet::new()));
            assert!(announced.is_none(), "{name} is announced twice");
        } else if !line.starts_with('#') {
            let (name, _) = line.split_once(['{', ' ']).unwrap_or_else(|| panic!("no series: {line:?}"));
            let family = ["_bucket", "_sum", "_count", ""].iter().find_map(|end| {
                let name = name.strip_suffix(end)?;
                page.contains_key(name).then(|| name.to_owned())
            });
            let family = family.unwrap_or_else(|| panic!("{name} is not announced"));
            // A label's name stands before `="`, and none of their values holds that.
            let names = line.split("=\"").map(|part| part.rsplit(['{', ',']).next().unwrap_or(""));
            let mut names: Vec<&str> = names.take(line.matches("=\"").count()).filter(|name| *name != "le").collect();
            names.sort_unstable();
            page.get_mut(&family).unwrap().1.insert(names.join(","));
        }
    }
    page
}

async fn text(answer: Answer) -> String {
    assert_eq!(answer.status(), 200);
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// The fault of a row of the table.
fn wrong(row: &str, pages: &BTreeMap<&str, Page>) -> Option<String> {
    let columns: Vec<&str> = row.split('\t').collect();
    match columns[..] {
        [name, "absent", _] => {
            pages.values().any(|page| page.contains_key(name)).then(|| format!("{name} is not absent any more"))
        }
        [_, "seldom", _] => None,
        [name, sort, labels, page] => match pages.get(page).and_then(|page| page.get(name)) {
            None => Some(format!("{page} has no {name}")),
            Some((found, _)) if found != sort => Some(format!("{name} is a {found}")),
            Some((_, found)) if !found.contains(labels) => Some(format!("{name} has {found:?}")),
            Some(_) => None,
        },
        _ => Some(format!("no row: {row:?}")),
    }
}

async fn pages(kubelet: &Arc<Kubelet>) -> BTreeMap<&'static str, Page> {
    let mut counted = read(&text(cadvisor::answer(kubelet).await).await);
    // The kernel counts nothing of containers that a test has made up.
    let of_containers = read(&cadvisor::tests::page()).into_iter();
    counted.extend(of_containers.filter(|(name, _)| name.starts_with("container_")));
    BTreeMap::from([
        ("/metrics", read(&text(answers::metrics(kubelet).await).await)),
        ("/metrics/probes", read(&kubelet.probe_counts.render())),
        ("/metrics/cadvisor", counted),
        ("/metrics/resource", read(&text(resource_metrics::answer(kubelet).await).await)),
    ])
}

#[test]
fn dashboards_and_alerts_find_what_they_ask_a_node_for() {
    let (world, disks) = csi_volumes::world(json!({"attachRequired": false}), json!({}));
    let usual = *world.features.lock();
    *world.features.lock() = usual.with(Feature::CSIVolumeHealth, true);
    disks.abilities.lock().extend([Ability::GetVolumeStats, Ability::VolumeCondition]);
    let usage = |unit| VolumeUsage { available: 1, total: 2, used: 1, unit };
    disks.says(StatsResponse { usage: vec![usage(1), usage(2)], volume_condition: None });
    world.life(None, async || {
        let _driver = csi_volumes::serve(&world, &disks);
        let mut spec = csi_volumes::spec();
        spec["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["true"]}});
        world.engine.fail("pull x:1", "no such image");
        world.make_pod("p", spec);
        until("a pull fails", || world.asked("pull x:1") > 0).await;
        world.engine.succeed("pull x:1");
        csi_volumes::ready(&world, "p").await;
        // Each of them has the node look at its containers.
        for _ in 0..2 {
            world.engine.speak_of("m");
            clock::sleep(std::time::Duration::from_secs(45)).await;
        }
        let kubelet = world.kubelet();
        drop(kubelet.figures.asked(&Method::GET, &Endpoint::Metrics));
        let pages = pages(&kubelet).await;
        let wrong: Vec<String> =
            TABLE.lines().filter(|row| !row.starts_with('#')).filter_map(|row| wrong(row, &pages)).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
