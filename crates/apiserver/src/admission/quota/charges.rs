//! Charges: the demands of writes, added to the status of quotas.
//!
//! Writes into one namespace would take turns at the same quotas, each with a write of its own to the store. Instead, all that wait
//! while the one before is written are charged together, as upstream does.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::{
    Value, k8s_openapi::api::core::v1::ResourceQuota, kind::Target, object::Object, rules::pod::Resources,
    status::StatusError,
};
use clock::Duration;
use json::json;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    configuration::{Configuration, Limited},
    demand::{Demand, Refusal, charged},
};
use crate::storage::loopback::Loopback;

/// How long a write waits for its charge.
const LONGEST: Duration = Duration::from_secs(10);

/// A write that waits for its charge.
struct Waiting {
    demands: Vec<Demand>,
    strict: bool,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

/// The writes that wait, by namespace. A namespace has an entry as long as a task works on it. There are no more of them
/// than requests under way.
type Lines = Arc<Mutex<HashMap<String, Vec<Waiting>>>>;

#[derive(Default)]
pub struct Charges {
    configuration: Configuration,
    lines: Lines,
}

/// Takes the entry away when the task ends, however it ends: who still waits learns it from the closed channel.
struct Line {
    lines: Lines,
    namespace: String,
    /// A line that was closed may be opened by another task since.
    is_open: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_open {
            self.lines.lock().remove(&self.namespace);
        }
    }
}

impl Line {
    /// All that wait; with nobody left the line is closed in the same moment.
    fn take(&mut self) -> Vec<Waiting> {
        let mut lines = self.lines.lock();
        let waiting = lines.get_mut(&self.namespace).map(std::mem::take).unwrap_or_default();
        if waiting.is_empty() {
            lines.remove(&self.namespace);
            self.is_open = false;
        }
        waiting
    }
}

impl Charges {
    pub fn new(configuration: Configuration) -> Self {
        Charges { configuration, lines: Lines::default() }
    }

    pub fn limited(&self) -> &[Limited] {
        &self.configuration.limited
    }

    /// Whether something may be used only where a quota limits it.
    pub fn is_limited(&self) -> bool {
        !self.configuration.limited.is_empty()
    }

    /// Charges all of the demands or none.
    pub(super) async fn charge(
        &self,
        objects: &Arc<Loopback>,
        namespace: &str,
        demands: Vec<Demand>,
        strict: bool,
    ) -> Result<(), Refusal> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { demands, strict, answer };
        let first = {
            let mut lines = self.lines.lock();
            let line = lines.get_mut(namespace);
            match line {
                Some(line) => {
                    line.push(waiting);
                    false
                }
                None => {
                    lines.insert(namespace.to_owned(), vec![waiting]);
                    true
                }
            }
        };
        if first {
            let line = Line { lines: self.lines.clone(), namespace: namespace.to_owned(), is_open: true };
            tokio::spawn(work(line, objects.clone()));
        }
        let late = || Refusal::Failed(Arc::new(StatusError::internal("resource quota evaluation timed out")));
        match clock::timeout(LONGEST, answered).await {
            Ok(Ok(outcome)) => outcome,
            _ => Err(late()),
        }
    }
}

/// Its own task: that one client goes away must not cost the others their charge.
async fn work(mut line: Line, objects: Arc<Loopback>) {
    loop {
        let waiting = line.take();
        if waiting.is_empty() {
            return;
        }
        together(&objects, &line.namespace, waiting).await;
    }
}

/// The quotas of these demands as they are now. One that is gone limits nothing any more.
async fn live<'a>(
    objects: &Loopback,
    namespace: &str,
    demands: impl Iterator<Item = &'a Demand>,
) -> Result<BTreeMap<String, ResourceQuota>, StatusError> {
    let names: BTreeSet<&str> = demands.map(|demand| demand.quota.as_str()).collect();
    let mut quotas = BTreeMap::new();
    for name in names {
        if let Some(quota) = objects.live("", "resourcequotas", namespace, name).await? {
            quotas.insert(name.to_owned(), read(&quota)?);
        }
    }
    Ok(quotas)
}

fn read(quota: &Value) -> Result<ResourceQuota, StatusError> {
    ResourceQuota::from_value(quota).map_err(|error| StatusError::internal(error.to_string()))
}

/// Adds the demands to the quotas, all of them or none.
fn add_all(quotas: &mut BTreeMap<String, ResourceQuota>, demands: &[Demand], strict: bool) -> Result<(), Refusal> {
    let mut after = Vec::new();
    for demand in demands {
        if let Some(quota) = quotas.get(&demand.quota) {
            after.push((demand.quota.clone(), charged(quota, demand, strict)?));
        }
    }
    for (name, used) in after {
        if let Some(quota) = quotas.get_mut(&name) {
            set_used(quota, used);
        }
    }
    Ok(())
}

fn set_used(quota: &mut ResourceQuota, used: Resources) {
    let used = used.into_iter().map(|(name, amount)| (name, amount.into())).collect();
    quota.status.get_or_insert_default().used = Some(used);
}

/// Adds charges up without writing them.
pub(super) async fn try_all(
    objects: &Loopback,
    namespace: &str,
    demands: &[Demand],
    strict: bool,
) -> Result<(), Refusal> {
    let quotas = live(objects, namespace, demands.iter()).await;
    add_all(&mut quotas.map_err(|error| Refusal::Failed(Arc::new(error)))?, demands, strict)
}

/// Charges all that wait, and answers each.
///
/// First each write is tried against all of its quotas, so that one which does not fit is charged to none. Then each quota is
/// swapped. Where another server was faster, what it left decides: a write that no longer fits is refused, and stays charged
/// to the quotas before until the controller counts again.
async fn together(objects: &Loopback, namespace: &str, mut waiting: Vec<Waiting>) {
    waiting.retain(|write| !write.answer.is_closed());
    let mut quotas = match live(objects, namespace, waiting.iter().flat_map(|write| &write.demands)).await {
        Ok(quotas) => quotas,
        Err(error) => return fail(waiting, error),
    };
    let mut fitting = Vec::new();
    for write in waiting {
        match add_all(&mut quotas, &write.demands, write.strict) {
            Ok(()) => fitting.push(write),
            Err(refusal) => drop(write.answer.send(Err(refusal))),
        }
    }
    for name in quotas.keys() {
        let of_quota = |write: &mut Waiting| write.demands.iter().any(|demand| demand.quota == *name);
        let mut refused: Vec<(usize, Refusal)> = Vec::new();
        let quota = ("", "resourcequotas");
        let swapped = objects.update(quota, Target::Status, (namespace, name), |quota| {
            refused.clear();
            let mut state = read(quota)?;
            for (index, write) in fitting.iter().enumerate() {
                for demand in write.demands.iter().filter(|demand| demand.quota == *name) {
                    match charged(&state, demand, write.strict) {
                        Ok(used) => set_used(&mut state, used),
                        Err(refusal) => refused.push((index, refusal)),
                    }
                }
            }
            let used = state.status.and_then(|status| status.used);
            quota["status"]["used"] = json!(used.unwrap_or_default());
            Ok(true)
        });
        match swapped.await {
            Ok(()) => {
                for (index, refusal) in refused.into_iter().rev() {
                    let _ = fitting.remove(index).answer.send(Err(refusal));
                }
            }
            // The quota is gone, and with it what it limits.
            Err(error) if error.code == 404 => {}
            Err(error) => fail(fitting.extract_if(.., of_quota).collect(), error),
        }
    }
    for write in fitting {
        let _ = write.answer.send(Ok(()));
    }
}

fn fail(waiting: Vec<Waiting>, error: StatusError) {
    let error = Arc::new(error);
    for write in waiting {
        let _ = write.answer.send(Err(Refusal::Failed(error.clone())));
    }
}
