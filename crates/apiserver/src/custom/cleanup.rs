//! The end of a custom kind: all of its objects are deleted, and when the last is gone the definition may go.
//! Upstream counterpart: apiextensions-apiserver/pkg/controller/finalizer.

use std::time::Duration;

use api::{
    Value,
    custom::{
        Head, Stored,
        conditions::{self, Condition},
        stored_definition,
    },
    kind::{Definition, Target},
    kinds::custom_resource_definition::CLEANUP,
    meta,
    status::StatusError,
};
use futures::StreamExt;

use crate::{http::options::DeleteOptions, pipeline::delete::Deletion, state::State};

/// Deletes in flight at once.
const WORKERS: usize = 64;
/// How often, and how many times, is looked whether objects with finalizers are gone.
const LOOK: Duration = Duration::from_secs(1);
const LOOKS: usize = 60;

fn told(holds: bool, reason: &'static str, message: impl Into<String>) -> Condition {
    Condition { kind: "Terminating", holds, reason, message: message.into() }
}

/// Empties the kind, and lets its definition go.
pub async fn run(state: &State, crds: &Definition, head: &Head, stored: Stored) -> Result<(), StatusError> {
    let name = &head.metadata.name;
    say(state, crds, name, &told(true, "InstanceDeletionInProgress", "CustomResource deletion is in progress")).await?;
    let custom = stored_definition(head, &stored);
    let done = match custom {
        Some(custom) if head.has("Established") => match empty(state, &custom).await {
            Ok(()) => told(false, "InstanceDeletionCompleted", "removed all instances"),
            Err((reason, why)) => {
                say(state, crds, name, &told(true, reason, &why)).await?;
                return Err(StatusError::internal(why));
            }
        },
        _ => told(false, "NeverEstablished", "resource was never established"),
    };
    let entry = match state.objects.entry(crds, "", name).await {
        Err(error) if error.code == 404 => return Ok(()),
        other => other?,
    };
    let mut swap = state.objects.swap(crds, entry);
    loop {
        let mut object = swap.object();
        conditions::set(&mut object, &done, &clock::now_seconds().to_string());
        without_finalizer(&mut object);
        let last = meta::finalizers(&object).next().is_none();
        let written = if last { swap.remove().await? } else { swap.replace(object).await? };
        if written.is_some() {
            return Ok(());
        }
    }
}

fn without_finalizer(object: &mut Value) {
    if let Some(metadata) = meta::metadata_mut(object)
        && let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut)
    {
        list.retain(|finalizer| finalizer != CLEANUP);
    }
}

async fn say(state: &State, crds: &Definition, name: &str, condition: &Condition) -> Result<(), StatusError> {
    let now = clock::now_seconds().to_string();
    let written = state.objects.update(crds, ("", name), Target::Status, |object| {
        super::own(crds, object, |object| conditions::set(object, condition, &now));
        Ok(true)
    });
    match written.await {
        Err(error) if error.code == 404 => Ok(()),
        other => other,
    }
}

/// Deletes all objects and waits until they are gone. The error is a reason with its message.
async fn empty(state: &State, custom: &Definition) -> Result<(), (&'static str, String)> {
    let failed =
        |what: &str, why: &StatusError| ("InstanceDeletionFailed", format!("could not {what}: {}", why.message));
    let options = DeleteOptions::default();
    let deletion = Deletion { state, definition: custom, options: &options, user: None, collection: false };
    let deletion = &deletion;
    let entries = state.objects.entries(custom, "").await.map_err(|why| failed("list instances", &why))?;
    let mut deletes =
        futures::stream::iter(entries).map(async |entry| deletion.run(entry).await).buffer_unordered(WORKERS);
    while let Some(deleted) = deletes.next().await {
        match deleted {
            Err(error) if error.code != 404 => return Err(failed("issue all deletes", &error)),
            _ => {}
        }
    }
    for _ in 0..LOOKS {
        let left = state.objects.entries(custom, "").await.map_err(|why| failed("list instances", &why))?;
        if left.is_empty() {
            return Ok(());
        }
        clock::sleep(LOOK).await;
    }
    let why = "could not confirm zero CustomResources remaining: timed out waiting for the condition";
    Err(("InstanceDeletionCheck", why.to_owned()))
}
