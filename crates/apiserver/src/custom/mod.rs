//! Custom kinds while the server runs: every server follows the CustomResourceDefinitions in the store, and serves what they
//! define from the moment at which it learns of them.
//!
//! `held` is the table of definitions, kept by the store's changes. One task (`run`) gives names and conditions, ends
//! watches of what is not served any more, keeps the APIServices of custom groups as they are to be (`registration`), and empties kinds that
//! are deleted (`cleanup`). `webhook` asks those that convert objects between versions.
//! Upstream counterpart: apiextensions-apiserver, pkg/apiserver/customresource_handler.go and pkg/controller.

mod cleanup;
mod held;
mod registration;
mod webhook;

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{
    Value,
    custom::conditions::{self, Step},
    features::{Feature, Features},
    kind::{Definition, Target},
    meta,
    status::StatusError,
    write::{entries::Writer, managed_fields},
};
use futures::StreamExt;
use tokio::task::{AbortHandle, JoinSet};

use self::held::{CustomKinds, Work};
use crate::{outbound::webhook::Webhooks, state::State, storage::object_store::ObjectStore};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// Conditions written at once.
const WRITES: usize = 16;
/// The pause after which a failed step is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Serves what is defined, and follows the definitions from now on. The task ends when the set is dropped.
pub async fn start(
    state: &Arc<State>,
    webhooks: Arc<Webhooks>,
    features: Features,
    tasks: &mut JoinSet<()>,
) -> Result<(), StatusError> {
    state.objects.conversions.set(Arc::new(webhook::Conversions::new(webhooks, state.metrics.clone())));
    let definition = state.objects.definition(GROUP, PLURAL)?;
    let tracks = features.enabled(Feature::CRDObservedGenerationTracking);
    let kinds = Arc::new(CustomKinds::new(state.objects.kinds.clone(), tracks));
    state.objects.add_event_handler(&definition, kinds.clone()).await?;
    let registered = Arc::new(registration::Changed::default());
    let services = state.objects.definition(registration::GROUP, registration::PLURAL)?;
    state.objects.add_event_handler(&services, registered.clone()).await?;
    tasks.spawn(run(state.clone(), kinds, definition, registered));
    Ok(())
}

async fn run(
    state: Arc<State>,
    kinds: Arc<CustomKinds>,
    definition: Arc<Definition>,
    services: Arc<registration::Changed>,
) {
    let mut cleaning = Cleaning::default();
    // An earlier server may have left APIServices of what was defined then.
    let mut served = None;
    loop {
        let work = kinds.work();
        for prefix in &work.ended {
            state.objects.watches.end(prefix);
        }
        let told = tell(&state.objects, &kinds, &definition, &work).await;
        cleaning.start(&state, &kinds, &definition);
        let now = kinds.served();
        let mut registered = true;
        if served.as_ref() != Some(&now) {
            registered = registration::keep(&state.objects, &kinds).await.is_ok();
            if registered {
                served = Some(now);
            }
        }
        let again = async {
            if told && registered {
                std::future::pending::<()>().await;
            }
            clock::sleep(RETRY).await;
        };
        tokio::select! {
            () = kinds.changed.notified() => {}
            () = services.0.notified() => served = None,
            () = again => kinds.doubt(&work),
            () = cleaning.ended() => {}
        }
    }
}

/// Writes the conditions of definitions whose names may have changed; false when a write failed.
async fn tell(objects: &ObjectStore, kinds: &CustomKinds, definition: &Definition, work: &Work) -> bool {
    let steps = work.groups.iter().flat_map(|group| kinds.plan(group));
    let writes = futures::stream::iter(steps.collect::<Vec<_>>()).map(async |(name, revision, step)| {
        let written = write(objects, definition, &name, revision, &step).await;
        if let Err(error) = &written {
            tracing::debug!(name, %error, "the conditions of a definition cannot be written");
        }
        written.is_ok()
    });
    writes.buffer_unordered(WRITES).all(async |done| done).await
}

/// Writes the conditions of one definition, if it still is what they were made for.
async fn write(
    objects: &ObjectStore,
    definition: &Definition,
    name: &str,
    revision: u64,
    step: &Step,
) -> Result<(), StatusError> {
    let now = clock::now_seconds().to_string();
    let revision = revision.to_string();
    let written = objects.update(definition, ("", name), Target::Status, |object| {
        // Of another state there is word on its way.
        let same = meta::resource_version(object) == revision;
        if same {
            own(definition, object, |object| conditions::write(object, step, &now));
        }
        Ok(same)
    });
    match written.await {
        Err(error) if error.code == 404 => Ok(()),
        other => other,
    }
}

/// Changes the status of a definition as the server's own: it is the manager of what it says there.
fn own(definition: &Definition, object: &mut Value, change: impl FnOnce(&mut Value)) {
    let old = object.clone();
    change(object);
    let by = Writer {
        manager: "kube-apiserver",
        api_version: &definition.api_version(),
        subresource: "status",
        now: clock::now_seconds(),
        resets: definition.strategy.resets(Target::Status),
        versions: None,
    };
    managed_fields::update(&definition.ty, Some(&old), object, &by);
}

/// The kinds that are being emptied, each by a task of its own.
#[derive(Default)]
struct Cleaning {
    tasks: JoinSet<String>,
    running: HashMap<String, AbortHandle>,
}

impl Cleaning {
    fn start(&mut self, state: &Arc<State>, kinds: &Arc<CustomKinds>, definition: &Arc<Definition>) {
        for (name, head, stored) in kinds.leaving() {
            if self.running.get(&name).is_some_and(|task| !task.is_finished()) {
                continue;
            }
            let (state, definition, own) = (state.clone(), definition.clone(), name.clone());
            let task = self.tasks.spawn(async move {
                if let Err(error) = cleanup::run(&state, &definition, &head, stored).await {
                    tracing::debug!(name = own, %error, "a custom kind cannot be emptied yet");
                    clock::sleep(RETRY).await;
                }
                own
            });
            self.running.insert(name, task);
        }
    }

    /// Waits for the end of a task, so that what it did not finish begins again.
    async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok(name)) => drop(self.running.remove(&name)),
            Some(Err(_)) => self.running.retain(|_, task| !task.is_finished()),
            None => std::future::pending().await,
        }
    }
}
