//! Takes ResourceSlices of this node away, so that no Pod is sent here for devices that nobody could prepare.

use std::time::Duration;

use client::{
    Api, Client, Error,
    rest::{self, DeleteOptions},
};
use k8s_openapi::api::resource::v1::ResourceSlice;

/// The first and the longest pause before another try.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Removes the slices of one driver, or of all, until none is left that was there at the time.
pub async fn remove(client: &Client, node_name: &str, driver: Option<&str>) {
    let mut selector = format!("spec.nodeName={node_name}");
    if let Some(driver) = driver {
        selector.push_str(&format!(",spec.driver={driver}"));
    }
    let mut pause = RETRY.0;
    while let Err(error) = try_remove(client, &selector).await {
        tracing::warn!(selector, %error, "devices of drivers that are not here could not be withdrawn");
        clock::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

async fn try_remove(client: &Client, selector: &str) -> Result<(), Error> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    for slice in slices.list(&[("fieldSelector", selector)]).await? {
        let options = DeleteOptions { uid: slice.metadata.uid, ..Default::default() };
        let deleted = slices.delete(&slice.metadata.name.unwrap_or_default(), options).await;
        rest::found(deleted)?;
    }
    Ok(())
}
