//! Volumes of CSI drivers: programs beside the kubelet that bring storage onto the node.
//! Upstream counterpart: pkg/volume/csi.
//!
//! A driver comes over [`register`] and says what it calls this node, which the API is told ([`node_info`]). A Pod's
//! [`volume`] is waited for until it is attached ([`attach`]), staged once for all of its Pods ([`stage`]) and published for each
//! of them ([`publish`]); all of it is on disk before it happens ([`record`]). How many the node takes may change ([`limits`]).

pub mod attach;
mod attachability;
mod drivers;
mod grow;
mod held;
mod limits;
pub mod messages;
mod node_info;
mod publish;
mod record;
pub mod register;
mod room;
mod stage;
pub mod usage;
pub mod volume;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::rules::{quantity::Quantity, volume::driver_plugin};
use client::{Api, Cache, Client, EventKind, events::reference};
use clock::{Instant, Timestamp};
use k8s_openapi::api::{
    core::v1::{Node, ObjectReference},
    storage::v1::CSIDriver,
};
use parking_lot::Mutex;
use runtime::grpc;
use tokio::sync::{Notify, watch};

use self::{
    attach::Attachments,
    drivers::Drivers,
    held::Held,
    node_info::NodeInfo,
    record::{Places, Record},
    usage::{Turns, Usage, Wish},
    volume::Settings,
};
use crate::{
    counted::Figures,
    volumes::{error::VolumeError, folder::PodFolder, mounter::Mounter},
};

/// The pause after which a driver publishes its volumes again, if it wants that.
const REPUBLISH: Duration = Duration::from_secs(60);

/// Records an event about an object: its kind, its reason and its message.
pub type Tell = Box<dyn Fn(&ObjectReference, EventKind, &str, &str) + Send + Sync>;

/// The drivers of a node, and their volumes.
pub struct Csi {
    client: Client,
    node_name: String,
    drivers: Drivers,
    node_info: NodeInfo,
    places: Arc<Places>,
    attachments: Attachments,
    turns: Turns,
    mounter: Arc<dyn Mounter>,
    /// A Pod has given volumes back.
    unpublished: Notify,
    /// When volumes are to be published again, by the Pod's uid and their names in it; `None` is never.
    republish: Mutex<BTreeMap<(String, String), Option<Timestamp>>>,
    /// By the Pod's uid and the volume's name in it.
    held: Mutex<BTreeMap<(String, String), Arc<Held>>>,
    /// How large volumes are on this node, as far as that is known, and to which sizes they do not grow here.
    sizes: Mutex<BTreeMap<String, Quantity>>,
    unable: Mutex<BTreeSet<(String, i64)>>,
    /// Volumes that their drivers refused to let grow the last time.
    refused: Mutex<BTreeSet<String>>,
    /// How many volumes the node takes of a driver may change while it runs.
    limits_change: bool,
    tell: Tell,
    figures: Arc<Figures>,
}

impl Csi {
    /// The volumes as an earlier kubelet left them. No driver is there yet.
    pub fn new(
        client: Client,
        node_name: &str,
        kubelet_root: &Path,
        node: Arc<Cache<Node>>,
        mounter: Arc<dyn Mounter>,
        (limits_change, tell, figures): (bool, Tell, Arc<Figures>),
    ) -> Csi {
        let places = Places::new(kubelet_root);
        let records = places.all_staged().into_iter().chain(places.of_pods());
        let in_use = records.map(|record| record.attached_as).filter(|name| !name.is_empty()).collect();
        Csi {
            drivers: Drivers::default(),
            node_info: NodeInfo::new(client.clone(), node_name),
            places: Arc::new(places),
            attachments: Attachments::new(client.clone(), node_name, node, in_use),
            turns: Turns::default(),
            mounter,
            unpublished: Notify::new(),
            republish: Mutex::default(),
            held: Mutex::default(),
            sizes: Mutex::default(),
            unable: Mutex::default(),
            refused: Mutex::default(),
            limits_change,
            tell,
            figures,
            node_name: node_name.to_owned(),
            client,
        }
    }

    /// The attached volumes that are in use, as the node's status names them.
    pub fn in_use(&self) -> watch::Receiver<BTreeSet<String>> {
        self.attachments.in_use()
    }

    /// Whether a driver of that name has registered.
    pub fn knows(&self, driver: &str) -> bool {
        self.drivers.find(driver).is_some()
    }

    /// Counts an operation on a volume of a driver. One that is not here has no name of its own: authors of Pods can name any.
    fn count(&self, driver: &str, operation: &'static str, succeeded: bool, begun: Instant) {
        let plugin = if self.knows(driver) { driver_plugin(driver) } else { "kubernetes.io/csi".to_owned() };
        self.figures.storage(&plugin, operation, succeeded, begun.elapsed());
    }

    /// Brings a volume into a Pod. Where it is.
    pub async fn mount(&self, wish: &Wish<'_>) -> Result<(PathBuf, bool), VolumeError> {
        let volume = &wish.volume;
        let mut record = volume.record(&self.node_name);
        if !record.is_sound() {
            return Err(publish::failed(&record, format!("{:?} and {:?} name no volume", volume.driver, volume.name)));
        }
        let settings = self.settings(&volume.driver).await?;
        self.plan(wish, &settings);
        let place = self.places.published(wish.folder, &record);
        if settings.labels {
            let label = wish.label.clone().map_err(|why| publish::failed(&record, why))?;
            record.label = label.unwrap_or_default();
        }
        let is_labelled = !record.label.is_empty();
        if wish.is_mounted && !settings.republishes {
            let staged = Some(self.places.staged(&record).target).filter(|target| target.is_dir());
            self.hold(wish, &record, &place.target, staged);
            return Ok((place.target, is_labelled));
        }
        if let Some(why) = settings.lacks(volume) {
            return Err(publish::failed(&record, why));
        }
        if settings.attach_required && !volume.is_inline {
            record.attached_as = volume.unique_name();
        }
        match self.look(&place).await {
            Some(held) if !held.is_of(&record) => {
                return Err(publish::failed(&record, "another volume of the Pod has this name"));
            }
            Some(_) => {}
            // From here on the volume is not unstaged, and stays in use.
            None => self.write(&record, &place, &place.folder).await?,
        }
        let context = self.attached(&mut record, &place.folder).await?;
        let _turn = self.turns.take(&record).await;
        let driver = self.drivers.get(&volume.driver).map_err(|why| unknown(&record, &why))?;
        let abilities = driver.abilities().await.map_err(|status| unknown(&record, &grpc::words(&status)))?;
        let usage = Usage { wish, settings, record, driver, abilities, context };
        let staged = if volume.is_inline { None } else { self.stage(&usage).await? };
        let target = self.publish(&usage, staged.clone()).await?;
        let held = self.hold(wish, &usage.record, &target, staged);
        self.grow(&held).await?;
        Ok((target, is_labelled))
    }

    /// Remembers that a Pod has a volume.
    fn hold(&self, wish: &Wish<'_>, record: &Record, target: &Path, staged: Option<PathBuf>) -> Arc<Held> {
        let held = Arc::new(Held {
            pod: reference(wish.pod),
            volume: wish.volume.clone(),
            record: record.clone(),
            target: target.to_owned(),
            staged,
        });
        let uid = wish.pod.metadata.uid.clone().unwrap_or_default();
        self.held.lock().insert((uid, wish.name.to_owned()), held.clone());
        held
    }

    /// Whether a path is one of a driver's volumes in a Pod.
    pub fn has(&self, path: &Path, pod: &PodFolder) -> bool {
        self.places.has(path, pod)
    }

    async fn settings(&self, driver: &str) -> Result<Settings, VolumeError> {
        let all: Api<CSIDriver> = Api::all(self.client.clone());
        let found = all.find(driver).await.map_err(|error| VolumeError::Api(error.to_string()))?;
        Ok(Settings::of(found))
    }

    fn plan(&self, wish: &Wish<'_>, settings: &Settings) {
        let uid = wish.pod.metadata.uid.clone().unwrap_or_default();
        let next = clock::now().checked_add(REPUBLISH).ok().filter(|_| settings.republishes);
        self.republish.lock().insert((uid, wish.name.to_owned()), next);
    }

    /// Whether a volume that a Pod has may have to be published again now. If so it is not again at once, however that ends.
    pub fn take_due(&self, pod_uid: &str, volume: &str) -> bool {
        let mut republish = self.republish.lock();
        let Some(due) = republish.get_mut(&(pod_uid.to_owned(), volume.to_owned())) else { return true };
        let now = clock::now();
        let is_due = due.is_some_and(|at| at <= now);
        if is_due {
            *due = now.checked_add(REPUBLISH).ok();
        }
        is_due
    }

    /// When the first volume of a Pod is to be published again.
    pub fn next_due(&self, pod_uid: &str) -> Option<Timestamp> {
        self.republish.lock().iter().filter(|((uid, _), _)| uid == pod_uid).filter_map(|(_, at)| *at).min()
    }

    fn forget_pod(&self, pod: &PodFolder) {
        let uid = pod.path().file_name().unwrap_or_default().to_string_lossy();
        self.republish.lock().retain(|(held, _), _| *held != uid);
        let mut held = self.held.lock();
        held.retain(|(held, _), _| *held != uid);
        let is_here = |name: &String| held.values().any(|held| held.volume.unique_name() == *name);
        self.sizes.lock().retain(|name, _| is_here(name));
        self.unable.lock().retain(|(name, _)| is_here(name));
        self.refused.lock().retain(is_here);
    }
}

/// A driver that is not there is looked for where its first call would have been.
fn unknown(record: &Record, why: &str) -> VolumeError {
    let (step, words) = match (record.is_inline(), record.is_block()) {
        (true, _) => ("MountVolume.SetUp", "mounter.SetUpAt failed to get CSI client"),
        (_, true) => ("MapVolume.SetUpDevice", "blockMapper.SetUpDevice failed to get CSI client"),
        _ => ("MountVolume.MountDevice", "attacher.MountDevice failed to create newCsiDriverClient"),
    };
    VolumeError::Step { step, volume: record.name.clone(), why: format!("kubernetes.io/csi: {words}: {why}") }
}
