//! Objects of a kind that may not be there. Its definition is followed; where no one serves it, its cache is empty, and nobody
//! asks for its objects.

use std::{sync::Arc, time::Duration};

use client::{
    Cache, Client, Error, Sink,
    reflector::{One, reflect},
    rest::{self, Collection, Form, Resource},
};
use tokio::sync::watch;

use super::custom::{Custom, Definition};

/// Rights may come a little later than the node that has them. Up to this wait a refusal decides nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps `cache` at the objects of a resource. Before it is known whether there are any, the cache counts as not filled.
pub async fn follow(client: Client, resource: Resource, cache: Arc<Cache<Custom>>) {
    let definition = Definition::collection(&resource);
    let (tell, mut served) = watch::channel(None);
    let version = resource.version.clone();
    let sink = One::new(|found: Option<Definition>| {
        let _ = tell.send_replace(Some(found.is_some_and(|definition| definition.serves(&version))));
    });
    permitted(&client, &definition, &cache).await;
    let objects = async {
        let all = Collection::all(resource.clone(), Form::Whole);
        loop {
            let is_served = *served.borrow_and_update();
            match is_served {
                None => {}
                Some(false) => empty(&cache),
                Some(true) => {
                    tracing::info!(kind = resource.kind, "policies of administrators are followed from now on");
                    tokio::select! {
                        () = async { permitted(&client, &all, &cache).await; reflect(&client, &all, &*cache).await } => {}
                        _ = served.wait_for(|served| *served == Some(false)) => {}
                    }
                    continue;
                }
            }
            // The one who tells outlives this.
            let _ = served.changed().await;
        }
    };
    tokio::join!(reflect(&client, &definition, &sink), objects);
}

/// No objects, for certain.
fn empty(cache: &Cache<Custom>) {
    Sink::list(cache).finish(0);
}

/// Waits until this node may read a collection. A control plane that does not say so leaves these policies to somebody else, so
/// meanwhile there are none.
async fn permitted(client: &Client, collection: &Collection, cache: &Cache<Custom>) {
    let mut wait = Duration::from_millis(200);
    let mut is_told = false;
    while let Err(error) = rest::read(client, &collection.path(&[("limit", "1")]), collection.form).await {
        if wait > PATIENCE {
            let is_forbidden = matches!(&error, Error::Api(status) if status.code == 403);
            if is_forbidden {
                empty(cache);
            }
            if !is_told {
                let consequence = if is_forbidden { "they are not enforced" } else { "trying again" };
                let (kind, error) = (&collection.resource.kind, rest::message(&error));
                tracing::warn!(kind, error, consequence, "this node cannot read policies of administrators");
            }
            is_told = true;
        }
        clock::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(30));
    }
}
