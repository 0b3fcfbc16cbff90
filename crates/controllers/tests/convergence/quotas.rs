//! Quotas: whatever comes and goes, and whenever the counting process dies, the status comes to say what there is.

use json::json;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota};

use crate::world::{Story, World, below, converges};

struct Quotas {
    made: u64,
}

impl Quotas {
    async fn counted(world: &World) -> (usize, usize) {
        let pods = world.list::<Pod>().await;
        let ended = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            matches!(phase, Some("Failed" | "Succeeded"))
        };
        (pods.iter().filter(|pod| !ended(pod)).count(), world.list::<ConfigMap>().await.len())
    }
}

impl Story for Quotas {
    const CONTROLLERS: &'static [&'static str] = &["resourcequota-controller"];

    async fn begin(world: &World) -> Self {
        let hard = json!({"pods": "9", "requests.cpu": "5", "count/configmaps": "7"});
        world.create::<ResourceQuota>(json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
        Quotas { made: 0 }
    }

    async fn change(&mut self, world: &World) {
        self.made += 1;
        let name = format!("o{}", self.made);
        match below(5) {
            0 | 1 => {
                let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}});
                let spec = json!({"containers": [container]});
                world.create::<Pod>(json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            2 => world.create::<ConfigMap>(json!({"metadata": {"name": name}})).await,
            3 => {
                if let Some(map) = world.list::<ConfigMap>().await.first() {
                    let name = map.metadata.name.as_deref().unwrap_or("");
                    world.api::<ConfigMap>().delete(name, Default::default()).await.unwrap();
                }
            }
            _ => {
                let pods = (10 + below(5)).to_string();
                let patch = json!({"spec": {"hard": {"pods": pods}}});
                world.api::<ResourceQuota>().merge_patch("q", "", patch).await.unwrap();
            }
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let quota = world.api::<ResourceQuota>().find("q").await.unwrap().unwrap();
        let status = quota.status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let (pods, maps) = Self::counted(world).await;
        let said = |name: &str| used.get(name).map_or("", |amount| amount.0.as_str()).to_owned();
        let cpu = api::rules::quantity::Quantity::from_milli(100 * pods as i64).to_string();
        let expected = [pods.to_string(), cpu, maps.to_string()];
        let found = ["pods", "requests.cpu", "count/configmaps"].map(said);
        let limits = quota.spec.and_then(|s| s.hard) == status.hard;
        (found != expected || !limits).then(|| format!("{found:?} instead of {expected:?}"))
    }
}

#[test]
fn quotas_say_what_there_is() {
    converges::<Quotas>(0..8);
}
