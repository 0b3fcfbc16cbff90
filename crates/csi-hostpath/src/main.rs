//! `csi-hostpath`: a CSI driver for the cluster's own tests. Its volumes are folders and files of the machine. It writes down
//! what it is asked, and a file tells it to refuse, to hang or to lie. One process serves a node, or is the controller with the
//! sidecars that follow the API, or both.

mod disks;
mod images;
mod moods;
mod programs;
mod sidecars;

// Only for its feature, which libraries of the tests ask for: so the optimized build is the same with them and without.
use bitflags as _;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Parser;
use kubelet::{
    csi_messages::*,
    plugin_messages::{
        GET_INFO as GET_PLUGIN, InfoRequest, NOTIFY, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    },
};
use runtime::grpc::{self, Server};

use crate::{
    disks::Disks,
    images::{Images, failed},
    moods::Moods,
};

#[derive(Parser)]
#[command(about = "A CSI driver for tests, whose volumes are folders and files of this machine")]
struct Arguments {
    /// The kubelet's folder, to serve its node.
    #[arg(long, requires = "node_id", required_unless_present = "kubeconfig")]
    kubelet: Option<PathBuf>,
    /// How the API is reached, to be the controller.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Where the volumes are.
    #[arg(long)]
    data: PathBuf,
    /// The driver's name for this node.
    #[arg(long, requires = "kubelet")]
    node_id: Option<String>,
    #[arg(long, default_value = "hostpath.csi.skiff.local")]
    name: String,
    /// Lines of a method and `refuse WORDS`, `hang` or `lie`; for Stats also `abnormal WORDS`, which it says of the volume. It is
    /// read at each call, and may be missing.
    #[arg(long)]
    moods: PathBuf,
    /// A line for each call: its method, the volume, and what was said of it.
    #[arg(long)]
    log: PathBuf,
}

/// The methods of the node service, each after its mood.
fn node(disks: &Arc<Disks>, moods: &Arc<Moods>, node_id: &str) -> Server {
    let held = || (disks.clone(), moods.clone());
    let (stage, unstage, publish, unpublish, stats, expand) = (held(), held(), held(), held(), held(), held());
    let zone = ("hostpath.csi.skiff.local/node".to_owned(), node_id.to_owned());
    let info = NodeInfo {
        node_id: node_id.to_owned(),
        max_volumes_per_node: 5,
        accessible_topology: Some(Topology { segments: [zone].into() }),
    };
    let asked = moods.clone();
    Server::default()
        .unary(GET_INFO, move |_: Empty| {
            let (asked, info) = (asked.clone(), info.clone());
            async move { asked.answer("GetInfo", "", || Ok(info)).await }
        })
        .unary(GET_CAPABILITIES, |_: Empty| async {
            let all = [
                Ability::StageUnstageVolume,
                Ability::ExpandVolume,
                Ability::GetVolumeStats,
                Ability::VolumeCondition,
            ];
            let capability = |ability: Ability| Capability { rpc: Some(Rpc { r#type: ability as i32 }) };
            Ok(Capabilities { capabilities: all.map(capability).to_vec() })
        })
        .unary(EXPAND, move |request: ExpandRequest| {
            let (disks, moods) = expand.clone();
            let bytes = request.capacity_range.unwrap_or_default().required_bytes;
            let what = format!("{} {bytes}", request.volume_id);
            async move { moods.answer("Expand", &what, || disks.expand(&request)).await }
        })
        .unary(STATS, move |request: StatsRequest| {
            let (disks, moods) = stats.clone();
            let (message, volume) = (moods.ailment("Stats"), request.volume_id.clone());
            let condition = VolumeCondition { abnormal: message.is_some(), message: message.unwrap_or_default() };
            let told = move || {
                let stats = disks.stats(&request).map_err(failed)?;
                Ok(StatsResponse { volume_condition: Some(condition), ..stats })
            };
            async move { moods.answer("Stats", &volume, told).await }
        })
        .unary(STAGE, move |request: StageRequest| {
            let (disks, moods) = stage.clone();
            async move { moods.answer("Stage", &request.volume_id, || disks.stage(&request)).await }
        })
        .unary(UNSTAGE, move |request: UnstageRequest| {
            let (disks, moods) = unstage.clone();
            async move { moods.answer("Unstage", &request.volume_id, || disks.unstage(&request).map_err(failed)).await }
        })
        .unary(PUBLISH, move |request: PublishRequest| {
            let (disks, moods) = publish.clone();
            let pod = request.volume_context.get("csi.storage.k8s.io/pod.name").cloned().unwrap_or_default();
            let what = format!("{} {pod}", request.volume_id);
            async move { moods.answer("Publish", &what, || disks.publish(&request).map_err(failed)).await }
        })
        .unary(UNPUBLISH, move |request: UnpublishRequest| {
            let (disks, moods) = unpublish.clone();
            async move {
                moods.answer("Unpublish", &request.volume_id, || disks.unpublish(&request).map_err(failed)).await
            }
        })
}

/// The service through which the kubelet's plugin registry learns of the driver.
fn registration(info: PluginInfo, moods: &Arc<Moods>) -> Server {
    let moods = moods.clone();
    Server::default()
        .unary(GET_PLUGIN, move |_: InfoRequest| {
            let info = info.clone();
            async move { Ok(info) }
        })
        .unary(NOTIFY, move |status: RegistrationStatus| {
            let registered = if status.plugin_registered { "Registered" } else { "Rejected" };
            moods.note(registered, &status.error);
            async { Ok(RegistrationStatusResponse {}) }
        })
}

fn listen(socket: &Path) -> anyhow::Result<tokio::net::UnixListener> {
    fs::create_dir_all(socket.parent().unwrap_or(socket)).with_context(|| format!("{}", socket.display()))?;
    grpc::listen(socket).with_context(|| format!("{}", socket.display()))
}

/// Serves a node until it is ended.
async fn serve(
    kubelet: &Path,
    name: &str,
    node_id: &str,
    images: Arc<Images>,
    moods: &Arc<Moods>,
) -> anyhow::Result<()> {
    let disks = Arc::new(Disks::new(images, node_id));
    let socket = kubelet.join("plugins").join(name).join("csi.sock");
    let shown = kubelet.join("plugins_registry").join(format!("{name}.sock"));
    let info = PluginInfo {
        r#type: "CSIPlugin".to_owned(),
        name: name.to_owned(),
        endpoint: socket.display().to_string(),
        supported_versions: vec!["1.0.0".to_owned()],
    };
    let service = node(&disks, moods, node_id).serve(listen(&socket)?);
    let registration = registration(info, moods).serve(listen(&shown)?);
    let mut ends = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = service => {}
        () = registration => {}
        _ = ends.recv() => {}
    }
    // The kubelet sees by that that the driver has gone.
    fs::remove_file(&shown)?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let images = Arc::new(Images::new(&arguments.data)?);
    let moods = Arc::new(Moods::new(&arguments.moods, &arguments.log));
    let node = async {
        match (&arguments.kubelet, &arguments.node_id) {
            (Some(kubelet), Some(id)) => serve(kubelet, &arguments.name, id, images.clone(), &moods).await,
            _ => std::future::pending().await,
        }
    };
    let controller = async {
        match &arguments.kubeconfig {
            Some(file) => sidecars::run(file, &arguments.name, images.clone(), moods.clone()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = node => ended,
        ended = controller => ended,
    }
}
