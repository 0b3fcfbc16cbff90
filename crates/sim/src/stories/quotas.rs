//! A namespace with a quota, in which several users make and delete objects at the same time.

use std::sync::Arc;

use client::{
    Client,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::Duration;
use json::json;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    Chaos,
    chaos::{below, minutes, one_of},
    check::Model,
    stories::Course,
};

const NAMESPACE: &str = "tight";
const USERS: u64 = 5;

pub struct Story {
    chaos: Chaos,
    users: JoinSet<()>,
    hard: [u64; 3],
}

/// Makes and deletes objects for ever. A request that is refused or lost is tried no second time: it is the quota that
/// is tested.
async fn user(number: u64, client: Client, made: Arc<Mutex<u64>>) {
    let (maps, pods) = (Resource::of::<ConfigMap>(), Resource::of::<Pod>());
    let mut own: Vec<(bool, String)> = Vec::new();
    loop {
        let delete = own.len() > 6 || (!own.is_empty() && below(3) == 0);
        if delete {
            let (is_pod, name) = own.swap_remove(below(own.len() as u64) as usize);
            let resource = if is_pod { &pods } else { &maps };
            let verb = Verb::Delete(DeleteOptions::default());
            if rest::write(&client, resource, NAMESPACE, &name, "", &verb).await.is_err() {
                own.push((is_pod, name));
            }
        } else {
            let is_pod = below(2) == 0;
            let name = {
                let mut made = made.lock();
                *made += 1;
                format!("o{number}-{}", *made)
            };
            let meta = json!({"name": name, "namespace": NAMESPACE});
            let container = json!({"name": "c", "image": "i",
                "resources": {"requests": {"cpu": format!("{}m", 50 + below(200))}}});
            let policy = one_of(&["Always", "Never"]);
            let object = match is_pod {
                true => json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta,
                    "spec": {"containers": [container], "restartPolicy": policy}}),
                false => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}),
            };
            let resource = if is_pod { &pods } else { &maps };
            let created = rest::write(&client, resource, NAMESPACE, "", "", &Verb::Create(object)).await;
            // One whose answer was lost may be there.
            if created.is_ok() || created.is_err_and(|error| rest::reason(&error).is_empty()) {
                own.push((is_pod, name));
            }
        }
        clock::sleep(Duration::from_millis(one_of(&[0, 10, 1_000, 10_000]))).await;
    }
}

impl Story {
    fn spec(&self) -> json::Value {
        let [pods, maps, cpu] = self.hard;
        let hard =
            json!({"pods": pods.to_string(), "count/configmaps": maps.to_string(), "requests.cpu": format!("{cpu}m")});
        json!({"hard": hard})
    }

    /// The quota only grows: what is made under an old one must not count against a smaller new one.
    async fn grow(&mut self) {
        self.hard = self.hard.map(|hard| hard + hard / 4);
        self.chaos.cluster.tell(&format!("the quota is {:?}", self.hard));
        let patch = Verb::MergePatch(json!({"spec": self.spec()}));
        self.chaos.write_in::<ResourceQuota>(NAMESPACE, "q", patch).await;
    }
}

impl Course for Story {
    const STEPS: usize = 25;

    async fn begin(chaos: Chaos) -> Self {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        chaos.write_in::<Namespace>("", "", Verb::Create(namespace)).await;
        // With the certificate of the cluster that every namespace gets.
        let hard = [3 + below(6), 2 + below(6), 300 + below(900)];
        let mut story = Story { chaos, users: JoinSet::new(), hard };
        let meta = json!({"name": "q", "namespace": NAMESPACE});
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": story.spec()});
        story.chaos.write_in::<ResourceQuota>(NAMESPACE, "", Verb::Create(quota)).await;
        story.chaos.cluster.until("the quota counts", minutes(5), |m| m.quotas.known()).await;
        // Admission learns it a moment later.
        clock::sleep(Duration::from_secs(1)).await;
        let made = Arc::new(Mutex::new(0));
        for number in 0..USERS {
            story.users.spawn(user(number, story.chaos.cluster.client_in_weather(), made.clone()));
        }
        story
    }

    async fn step(&mut self) {
        match below(10) {
            0 => self.grow().await,
            1..4 => self.chaos.cluster.pass(Duration::from_secs(below(120))).await,
            _ => self.chaos.mishap().await,
        }
    }

    async fn end(&mut self) {
        self.users.shutdown().await;
        self.chaos.cluster.tell("the users go, good weather");
        self.chaos.cluster.weather.set(crate::Faults::NONE);
        self.chaos.cluster.until("each quota says what is used", minutes(30), Model::quotas_settled).await;
        self.chaos.clears_up().await;
        self.chaos.write_in::<Namespace>("", NAMESPACE, Verb::Delete(DeleteOptions::default())).await;
    }

    fn chaos(&self) -> &Chaos {
        &self.chaos
    }
}
