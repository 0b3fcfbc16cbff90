//! The routes to this node's own Pods: one that somebody removes by hand is put back at once.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use rtnetlink::{
    Handle,
    packet_route::{RouteNetlinkMessage, route::RouteMessage},
};

use crate::{
    error::LinkError,
    ipam,
    link::{connect, host_name, index_of, lead},
    losses::Losses,
    overlay::kernel::destination,
};

/// How long is waited before the kernel is listened to again.
const PAUSE: clock::Duration = clock::Duration::from_secs(1);

/// Keeps the routes of these ranges until dropped.
pub async fn keep(state_dir: PathBuf, ranges: Vec<IpNet>) {
    loop {
        if let Err(error) = listen(&state_dir, &ranges).await {
            tracing::warn!(%error, "the routes to this node's Pods are not watched, trying again");
        }
        clock::sleep(PAUSE).await;
    }
}

/// Returns when something was missed. Changes from before that are found at the beginning.
async fn listen(state_dir: &Path, ranges: &[IpNet]) -> Result<(), LinkError> {
    let mut losses = Losses::listen()?;
    let handle = connect()?;
    for address in ipam::held(state_dir) {
        restore(&handle, state_dir, ranges, address).await;
    }
    while let Some(change) = losses.next().await {
        if let RouteNetlinkMessage::DelRoute(route) = &change
            && let Some(address) = pod_of(route)
            && restore(&handle, state_dir, ranges, address).await
        {
            tracing::warn!(%address, "somebody removed the route to a Pod, it is back");
        }
    }
    Ok(())
}

/// The Pod that a route leads to.
fn pod_of(route: &RouteMessage) -> Option<IpAddr> {
    let range = destination(route)?;
    (range.prefix_len() == range.max_prefix_len()).then(|| range.addr())
}

/// Leads to the Pod that holds the address of one of the ranges, if its link is there: when a Pod goes, its link goes first, and takes the route along.
async fn restore(handle: &Handle, state_dir: &Path, ranges: &[IpNet], address: IpAddr) -> bool {
    let Some(range) = ranges.iter().find(|range| range.contains(&address)) else { return false };
    let Ok(owner) = fs::read_to_string(state_dir.join(address.to_string())) else { return false };
    let Ok(index) = index_of(handle, &host_name(&owner)).await else { return false };
    let led = lead(handle, index, address, ipam::gateway(*range)).await;
    led.inspect_err(|error| tracing::debug!(%address, %error, "the route to a Pod cannot be put back")).is_ok()
}
