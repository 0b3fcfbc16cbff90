//! How device plugins come to the kubelet: over its own socket in their folder, or over the plugin registry.
//! Upstream counterpart: pkg/kubelet/cm/devicemanager/plugin/v1beta1.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Component, Path},
    sync::{Arc, Weak},
    time::Duration,
};

use api::rules::resource_name;
use files::modes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use runtime::grpc::{self, Channel, Server, Status};

use crate::{
    devices::{
        allocate::{Devices, Endpoint},
        messages::{Empty, LIST_AND_WATCH, ListAndWatchResponse, OPTIONS, REGISTER, RegisterRequest, VERSION},
    },
    plugins::sort::{Plugin, Sort},
};

/// How long a plugin that registers may take to be connected to and to say its options.
const CONNECTION: Duration = Duration::from_secs(10);
/// The lists of a plugin are taken in no faster than this, however fast it sends them.
const PACE: Duration = Duration::from_secs(1);
/// A socket that could not be made is tried again after this pause.
const RETRY: Duration = Duration::from_secs(20);

/// Connects to a plugin and follows its list until it ends.
async fn connect(devices: &Arc<Devices>, resource: &str, socket: &Path) -> Result<(), String> {
    if !devices.admits(resource) {
        return Err("this node has as many resources of device plugins as it takes".to_owned());
    }
    let channel = grpc::channel(socket);
    let options = grpc::unary(&channel, OPTIONS, Empty {}, CONNECTION).await;
    let options = options.map_err(|status| format!("failed to get device plugin options: {}", grpc::words(&status)))?;
    let id = devices.number();
    let (admitted, connected) = tokio::sync::oneshot::channel();
    let (held, name, stream) = (Arc::downgrade(devices), resource.to_owned(), channel.clone());
    let follower = tokio::spawn(async move {
        if connected.await.is_ok() {
            follow(held, name, id, stream).await;
        }
    });
    devices
        .connected(resource, Endpoint { id, socket: socket.to_owned(), channel, options }, follower.abort_handle())
        .await;
    tracing::info!(resource, "a device plugin is registered");
    // It waits as long as it is not aborted.
    let _ = admitted.send(());
    Ok(())
}

async fn follow(devices: Weak<Devices>, resource: String, id: u64, channel: Channel) {
    match grpc::stream::<_, ListAndWatchResponse>(&channel, LIST_AND_WATCH, Empty {}, CONNECTION).await {
        Ok(mut lists) => {
            while let Some(Ok(list)) = lists.next().await {
                let Some(devices) = devices.upgrade() else { return };
                devices.listed(&resource, id, list.devices);
                drop(devices);
                clock::sleep(PACE).await;
            }
        }
        Err(status) => tracing::warn!(resource, error = grpc::words(&status), "a device plugin lists nothing"),
    }
    tracing::info!(resource, "a device plugin has gone");
    if let Some(devices) = devices.upgrade() {
        devices.disconnected(&resource, id);
    }
}

async fn register(devices: Arc<Devices>, request: RegisterRequest) -> Result<Empty, Status> {
    if request.version != VERSION {
        let version = &request.version;
        return Err(Status::unknown(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
        )));
    }
    if !resource_name::is_extended(&request.resource_name) {
        return Err(Status::unknown(format!("the ResourceName {:?} is invalid", request.resource_name)));
    }
    let endpoint = Path::new(&request.endpoint);
    if !endpoint.components().all(|part| matches!(part, Component::Normal(_))) || request.endpoint.is_empty() {
        return Err(Status::unknown(format!("the endpoint {:?} is no socket of this folder", request.endpoint)));
    }
    let socket = devices.folder().join(endpoint);
    connect(&devices, &request.resource_name, &socket).await.map(|()| Empty {}).map_err(Status::unknown)
}

/// Removes the sockets of plugins. They see by that that a new kubelet is there, and register again.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            files::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Offers registration on the kubelet's own socket, for ever.
pub async fn run(devices: Arc<Devices>) {
    let folder = devices.folder().to_owned();
    loop {
        let made = modes::folder(&folder, modes::NODE_FOLDER)
            .and_then(|()| clear(&folder))
            .and_then(|()| grpc::listen(&folder.join("kubelet.sock")));
        match made {
            Ok(listener) => {
                let held = devices.clone();
                let server = Server::default().unary(REGISTER, move |request| register(held.clone(), request));
                server.serve(listener).await;
            }
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "device plugins cannot register");
                clock::sleep(RETRY).await;
            }
        }
    }
}

/// Device plugins of the plugin registry. Their name is that of their resource.
pub struct DevicePlugins(pub Arc<Devices>);

impl Sort for DevicePlugins {
    fn name(&self) -> &'static str {
        "DevicePlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if !plugin.versions.iter().any(|version| version == VERSION) {
            let theirs = plugin.versions.join(" ");
            return Err(format!("manager version, {VERSION}, is not among plugin supported versions [{theirs}]"));
        }
        if !resource_name::is_extended(&plugin.name) {
            let name = &plugin.name;
            return Err(format!("invalid name of device plugin socket: the ResourceName {name:?} is invalid"));
        }
        Ok(())
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        connect(&self.0, &plugin.name, &plugin.endpoint).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        // Another one may have taken its place meanwhile.
        if let Some(endpoint) = self.0.endpoint(&plugin.name).filter(|held| held.socket == plugin.endpoint) {
            self.0.disconnected(&plugin.name, endpoint.id);
        }
        std::future::ready(()).boxed()
    }
}
