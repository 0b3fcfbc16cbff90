//! The routes to this node's own Pods: one that somebody removes by hand is put back at once.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use ipnet::Ipv4Net;
use rtnetlink::{
    Handle,
    packet_route::{
        RouteNetlinkMessage,
        route::{RouteAddress, RouteAttribute},
    },
};

use crate::{
    error::LinkError,
    ipam,
    link::{connect, host_name, index_of, lead},
    losses::Losses,
};

/// How long is waited before the kernel is listened to again.
const PAUSE: clock::Duration = clock::Duration::from_secs(1);

/// Keeps the routes of a range until dropped.
pub async fn keep(state_dir: PathBuf, range: Ipv4Net) {
    loop {
        if let Err(error) = listen(&state_dir, range).await {
            tracing::warn!(%error, "the routes to this node's Pods are not watched, trying again");
        }
        clock::sleep(PAUSE).await;
    }
}

/// Returns when something was missed. Changes from before that are found at the beginning.
async fn listen(state_dir: &Path, range: Ipv4Net) -> Result<(), LinkError> {
    let mut losses = Losses::listen()?;
    let handle = connect()?;
    for address in ipam::held(state_dir) {
        restore(&handle, state_dir, range, address).await;
    }
    while let Some(change) = losses.next().await {
        if let RouteNetlinkMessage::DelRoute(route) = &change
            && let Some(address) = pod_of(route).filter(|address| range.contains(address))
            && restore(&handle, state_dir, range, address).await
        {
            tracing::warn!(%address, "somebody removed the route to a Pod, it is back");
        }
    }
    Ok(())
}

/// The Pod that a route leads to.
fn pod_of(route: &rtnetlink::packet_route::route::RouteMessage) -> Option<Ipv4Addr> {
    let destination = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(*address),
        _ => None,
    };
    route.attributes.iter().find_map(destination).filter(|_| route.header.destination_prefix_length == 32)
}

/// Leads to the Pod that holds the address, if its link is there: when a Pod goes, its link goes first, and takes the route along.
async fn restore(handle: &Handle, state_dir: &Path, range: Ipv4Net, address: Ipv4Addr) -> bool {
    let Ok(owner) = fs::read_to_string(state_dir.join(address.to_string())) else { return false };
    let Ok(index) = index_of(handle, &host_name(&owner)).await else { return false };
    let led = lead(handle, index, address, ipam::gateway(range)).await;
    led.inspect_err(|error| tracing::debug!(%address, %error, "the route to a Pod cannot be put back")).is_ok()
}
