//! The plugin registry: a socket in its folder is a plugin that wants to be used, until the socket is gone.
//! Upstream counterpart: pkg/kubelet/pluginmanager.
//!
//! Each socket is served by a task of its own, so a plugin that hangs keeps nobody but itself.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use files::modes;
use parking_lot::Mutex;
use runtime::grpc;
use tokio::task::JoinHandle;

use crate::{
    changes::Changes,
    counted::Figures,
    plugins::{
        messages::{GET_INFO, InfoRequest, NOTIFY, PluginInfo, RegistrationStatus, RegistrationStatusResponse},
        sort::{Plugin, Sort},
    },
    volumes::folder::blocking,
};

/// How long a plugin may take to say what it is, and to hear what has become of it.
const INFO: Duration = Duration::from_secs(1);
const NOTIFICATION: Duration = Duration::from_secs(5);
/// The first and the longest pause before a plugin that could not be registered is asked again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));
/// A folder that cannot be watched is looked at again after this pause.
const UNWATCHED: Duration = Duration::from_secs(20);
/// More sockets, or deeper ones, are not looked at.
const SOCKETS: usize = 256;
const DEPTH: usize = 4;

/// Inode and time of birth of a socket: a plugin that starts again makes another one at the same path. File systems that know
/// no time of birth do not give an inode's number away again.
type Identity = (u64, Option<SystemTime>);

/// The content of the folder.
#[derive(Default)]
struct Found {
    sockets: BTreeMap<PathBuf, Identity>,
    subfolders: Vec<PathBuf>,
}

impl Found {
    fn look(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        let visible = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
        for entry in fs::read_dir(folder)?.flatten().filter(visible) {
            // A socket that has gone meanwhile is no more there.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.file_type().is_socket() && self.sockets.len() < SOCKETS {
                self.sockets.insert(entry.path(), (meta.ino(), meta.created().ok()));
            } else if meta.is_dir() && depth < DEPTH && self.subfolders.len() < SOCKETS {
                self.subfolders.push(entry.path());
                // A subfolder may go at any time.
                let _ = self.look(&entry.path(), depth + 1);
            }
        }
        Ok(())
    }

    async fn below(folder: &Path) -> Found {
        let folder = folder.to_owned();
        blocking(move || {
            let mut found = Found::default();
            if let Err(error) = found.look(&folder, 0) {
                tracing::warn!(folder = %folder.display(), %error, "the folder of plugins cannot be read");
            }
            found
        })
        .await
    }
}

/// The plugin that a sort was told of. Shared by the task that tells it and by the one that ends that task.
type Told = Arc<Mutex<Option<(Arc<dyn Sort>, Plugin)>>>;

/// A socket that is being served.
struct Served {
    identity: Identity,
    task: JoinHandle<()>,
    told: Told,
}

impl Served {
    async fn end(mut self) {
        self.task.abort();
        // It has ended, or was aborted.
        let _ = (&mut self.task).await;
        let told = self.told.lock().take();
        if let Some((sort, plugin)) = told {
            tracing::info!(sort = sort.name(), plugin = plugin.name, "a plugin has gone");
            sort.deregister(&plugin).await;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves the plugins of a folder. Runs for ever; when it is dropped, nobody is deregistered.
pub async fn run(folder: PathBuf, sorts: Vec<Arc<dyn Sort>>, figures: Arc<Figures>) {
    let sorts: Arc<[Arc<dyn Sort>]> = sorts.into();
    let mut served: BTreeMap<PathBuf, Served> = BTreeMap::new();
    loop {
        if let Err(error) = modes::folder(&folder, modes::NODE_FOLDER) {
            tracing::warn!(folder = %folder.display(), %error, "the folder of plugins cannot be made");
        }
        // First the watch, then the look: nothing happens between the two unseen.
        let subfolders = Found::below(&folder).await.subfolders;
        let changes = Changes::of(&folder, &subfolders);
        loop {
            let found = Found::below(&folder).await;
            follow(&found, &mut served, &sorts, &figures).await;
            if found.subfolders != subfolders {
                // They have to be watched, too.
                break;
            }
            match &changes {
                Ok(changes) if changes.next().await => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "the folder of plugins cannot be watched");
                    clock::sleep(UNWATCHED).await;
                    break;
                }
            }
        }
    }
}

/// Serves exactly the sockets that were found.
async fn follow(
    found: &Found,
    served: &mut BTreeMap<PathBuf, Served>,
    sorts: &Arc<[Arc<dyn Sort>]>,
    figures: &Arc<Figures>,
) {
    let gone = served.extract_if(.., |path, held| found.sockets.get(path) != Some(&held.identity));
    for (socket, held) in gone.collect::<Vec<_>>() {
        held.end().await;
        figures.plugin_gone(&socket.display().to_string());
    }
    for (socket, identity) in &found.sockets {
        if !served.contains_key(socket) {
            let told = Told::default();
            figures.plugin(&socket.display().to_string(), false);
            let task = tokio::spawn(serve(socket.clone(), sorts.clone(), told.clone(), figures.clone()));
            served.insert(socket.clone(), Served { identity: *identity, task, told });
        }
    }
}

/// Tries until the plugin is in use.
async fn serve(socket: PathBuf, sorts: Arc<[Arc<dyn Sort>]>, told: Told, figures: Arc<Figures>) {
    let mut pause = RETRY.0;
    while let Err(error) = register(&socket, &sorts, &told).await {
        tracing::warn!(socket = %socket.display(), error, "a plugin could not be registered");
        clock::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
    figures.plugin(&socket.display().to_string(), true);
}

async fn register(socket: &Path, sorts: &[Arc<dyn Sort>], told: &Told) -> Result<(), String> {
    let channel = grpc::channel(socket);
    let info: PluginInfo = grpc::unary(&channel, GET_INFO, InfoRequest {}, INFO).await.map_err(|status| {
        let (words, socket) = (grpc::words(&status), socket.display());
        format!("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}, err: {words}")
    })?;
    let outcome = take(socket, info, sorts, told).await;
    let error = outcome.as_ref().err().cloned().unwrap_or_default();
    let status = RegistrationStatus { plugin_registered: outcome.is_ok(), error };
    // A plugin that does not want to hear of it is registered all the same.
    let heard = grpc::unary::<_, RegistrationStatusResponse>(&channel, NOTIFY, status, NOTIFICATION).await;
    if let Err(status) = heard {
        tracing::warn!(socket = %socket.display(), error = grpc::words(&status), "a plugin was not told its registration");
    }
    outcome
}

async fn take(socket: &Path, info: PluginInfo, sorts: &[Arc<dyn Sort>], told: &Told) -> Result<(), String> {
    let sort = sorts.iter().find(|sort| sort.name() == info.r#type).ok_or_else(|| {
        let (name, socket) = (&info.r#type, socket.display());
        format!("RegisterPlugin error -- no handler registered for plugin type: {name} at socket {socket}")
    })?;
    let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(info.endpoint) };
    let plugin = Plugin { socket: socket.to_owned(), name: info.name, endpoint, versions: info.supported_versions };
    sort.validate(&plugin)
        .map_err(|why| format!("RegisterPlugin error -- plugin validation failed with err: {why}"))?;
    *told.lock() = Some((sort.clone(), plugin.clone()));
    let registered = sort.register(&plugin).await;
    registered.map_err(|why| format!("RegisterPlugin error -- plugin registration failed with err: {why}"))?;
    tracing::info!(sort = sort.name(), plugin = plugin.name, "a plugin is registered");
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::BoxFuture};

    use super::*;
    use crate::tests::{plugin::Registering, world::until};

    /// A sort that writes down what it is told.
    #[derive(Default)]
    struct Noted(Mutex<Vec<String>>);

    impl Noted {
        fn note(&self, what: &str, plugin: &Plugin) {
            let endpoint = plugin.endpoint.file_name().unwrap_or_default().display();
            self.0.lock().push(format!("{what} {} at {endpoint}", plugin.name));
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock())
        }
    }

    impl Sort for Noted {
        fn name(&self) -> &'static str {
            "Noted"
        }

        fn validate(&self, plugin: &Plugin) -> Result<(), String> {
            if plugin.versions.iter().any(|v| v == "v1") { Ok(()) } else { Err("no version in common".to_owned()) }
        }

        fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
            self.note("register", plugin);
            let hangs = plugin.name == "hanging";
            async move { if hangs { std::future::pending().await } else { Ok(()) } }.boxed()
        }

        fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
            self.note("deregister", plugin);
            std::future::ready(()).boxed()
        }
    }

    fn plugin(name: &str, kind: &str, endpoint: &str, version: &str) -> PluginInfo {
        PluginInfo {
            r#type: kind.to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            supported_versions: vec![version.to_owned()],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_in_the_folder_is_a_plugin_until_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("plugins_registry");
        let (sort, figures) = (Arc::new(Noted::default()), Arc::new(Figures::default()));
        // Whether a socket is counted as one that is there, and as a plugin in use.
        let counted = |name: &str| {
            let text = figures.render();
            ["desired", "actual"].map(|word| {
                let state = format!("{name}\",state=\"{word}_state_of_world\"}} 1");
                text.lines().any(|line| line.starts_with("plugin_manager_total_plugins{") && line.ends_with(&state))
            })
        };
        let registry = tokio::spawn(run(folder.clone(), vec![sort.clone()], figures.clone()));
        until("the folder is there", || folder.exists()).await;
        // It is there before its service is, one hangs, and another one lies: none of this is to anybody else's harm.
        drop(grpc::listen(&folder.join("dead.sock")).unwrap());
        let hanging = Registering::at(&folder.join("h.sock"), plugin("hanging", "Noted", "", "v1"));
        until("the hanging one is asked", || !sort.0.lock().is_empty()).await;
        assert_eq!(sort.take(), ["register hanging at h.sock"]);
        let good = Registering::at(&folder.join("deep/g.sock"), plugin("good", "Noted", "/run/other.sock", "v1"));
        until("the good one is told", || good.told() == [(true, String::new())]).await;
        let old = Registering::at(&folder.join("o.sock"), plugin("old", "Noted", "", "v0"));
        until("the old one is told", || !old.told().is_empty()).await;
        let why = "RegisterPlugin error -- plugin validation failed with err: no version in common";
        assert_eq!(old.told()[0], (false, why.to_owned()));
        let odd = Registering::at(&folder.join("x.sock"), plugin("odd", "Odd", "", "v1"));
        until("the odd one is told", || !odd.told().is_empty()).await;
        assert!(odd.told()[0].1.starts_with("RegisterPlugin error -- no handler registered for plugin type: Odd at"));
        assert_eq!(sort.take(), ["register good at other.sock"]);
        until("the good one is counted", || counted("/deep/g.sock") == [true, true]).await;
        assert_eq!((counted("/h.sock"), counted("/o.sock")), ([true, false], [true, false]));
        // It starts again at the same place, and goes.
        drop(good);
        until("the good one has gone", || !sort.0.lock().is_empty()).await;
        until("nor counted", || counted("/deep/g.sock") == [false, false]).await;
        assert_eq!(sort.take(), ["deregister good at other.sock"]);
        let good = Registering::at(&folder.join("deep/g.sock"), plugin("good", "Noted", "/run/third.sock", "v1"));
        until("the good one is back", || good.told() == [(true, String::new())]).await;
        assert_eq!(sort.take(), ["register good at third.sock"]);
        // A registration that was begun is ended, also where it did not come to its end.
        drop(hanging);
        until("the hanging one has gone", || !sort.0.lock().is_empty()).await;
        assert_eq!(sort.take(), ["deregister hanging at h.sock"]);
        registry.abort();
    }
}
