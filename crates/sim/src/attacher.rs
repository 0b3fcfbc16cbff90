//! The attacher of a hollow storage driver: it does what VolumeAttachments ask for.

use client::{
    Caches, Client,
    rest::{self, Resource, Verb},
};
use clock::Duration;
use json::{Value, json};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use crate::agenda::Agenda;

/// The name of the driver.
pub const DRIVER: &str = "sim";

/// Keeps an attachment until its volume is detached.
const FINALIZER: &str = "external-attacher/sim";

const IDLE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Attach,
    Detach,
}

fn need(attachment: &VolumeAttachment) -> Option<Need> {
    let is_attached = attachment.status.as_ref().is_some_and(|status| status.attached);
    match attachment.metadata.deletion_timestamp {
        Some(_) => attachment.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER).then_some(Need::Detach),
        None => (!is_attached).then_some(Need::Attach),
    }
}

/// Works until the future is dropped. Started again, it goes on with what is left.
pub async fn run(client: Client) {
    let caches = Caches::new(client.clone());
    let cache = caches.of::<VolumeAttachment>();
    let mut changes = cache.subscribe();
    cache.synced().await;
    let mut agenda = Agenda::default();
    loop {
        let all = cache.list();
        let uid = |attachment: &VolumeAttachment| attachment.metadata.uid.clone().unwrap_or_default();
        let needs = all.iter().filter_map(|attachment| Some((uid(attachment), need(attachment)?)));
        let due = agenda.due(needs, |_| Duration::from_millis(clock::random_range(100..5000)));
        for attachment in all.iter().filter(|attachment| due.contains(&uid(attachment))) {
            match need(attachment) {
                Some(Need::Attach) => attach(&client, attachment).await,
                Some(Need::Detach) => _ = patch(&client, attachment, "", json!({"finalizers": null}), None).await,
                None => {}
            }
        }
        tokio::select! {
            biased;
            _ = changes.recv() => {}
            () = clock::sleep_until(agenda.next(IDLE)) => {}
        }
    }
}

/// Nothing is attached that would not be detached in time.
async fn attach(client: &Client, attachment: &VolumeAttachment) {
    if patch(client, attachment, "", json!({"finalizers": [FINALIZER]}), None).await {
        patch(client, attachment, "status", json!({}), Some(json!({"attached": true}))).await;
    }
}

/// Whether it worked. A patch that did not work is tried again.
async fn patch(
    client: &Client,
    attachment: &VolumeAttachment,
    subresource: &str,
    mut meta: Value,
    status: Option<Value>,
) -> bool {
    meta["uid"] = json!(attachment.metadata.uid);
    let mut patch = json!({"metadata": meta});
    if let Some(status) = status {
        patch["status"] = status;
    }
    let name = attachment.metadata.name.as_deref().unwrap_or_default();
    let resource = Resource::of::<VolumeAttachment>();
    rest::write(client, &resource, "", name, subresource, &Verb::MergePatch(patch)).await.is_ok()
}
