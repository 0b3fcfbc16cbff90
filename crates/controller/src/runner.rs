//! The trait that a controller implements, and what runs it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use client::{Caches, Change, Client, EventRecorder, Key, Kind, events, rest};
use clock::Timestamp;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;

use crate::{
    act::{Acted, Actor, Progresses},
    losses::{Losses, Made},
    metrics::Attempts,
    ownership::controller_of,
    plan::{Failure, Plan},
    queue::{Done, LONGEST_DELAY, Queue, Reconcile, drive},
    watches::{BY_CONTROLLER, Watches, add_all, orphans_in},
};

/// A controller: for each object of one kind, what to read and what to do.
pub trait Controller: Send + Sync + Sized + 'static {
    /// The name in `--controllers` and in logs.
    const NAME: &'static str;
    /// How many keys are worked on at once.
    const CONCURRENCY: usize = 5;
    /// The longest delay between attempts at a key that keeps failing.
    const LONGEST_DELAY: Duration = LONGEST_DELAY;
    /// A Pod that fails soon after it was made was made in vain, as one that is gone: the next ones come later and later. For
    /// controllers that put another one in its place at once.
    const FAILED_ARE_LOST: bool = false;
    /// Every object is looked at again after this time, though nothing changed.
    const RESYNC: Option<Duration> = Some(Duration::from_secs(12 * 3600));
    /// The metrics of its attempts, where upstream has some.
    const ATTEMPTS: Option<&'static Attempts> = None;

    type Object: Kind;
    /// All that `plan` knows besides the object.
    type Observed: Send;

    /// How many keys are worked on at once, where that is a setting.
    fn concurrency(&self) -> usize {
        Self::CONCURRENCY
    }
    /// The longest delay between attempts, where that is a setting.
    fn longest_delay(&self) -> Duration {
        Self::LONGEST_DELAY
    }
    /// Whether a change of the object itself can change the plan. Cheap: it is asked for every change.
    fn concerns(_change: &Change<Self::Object>) -> bool {
        true
    }
    /// Declares what else is read and what changes lead to which keys. The objects themselves are always watched.
    fn watches(&self, watches: &mut Watches<Self::Object>);
    /// Reads the caches. Where a decision needs more than values (a token that only this process can sign, the time since
    /// a node was last heard of), it is made here and `plan` gets it as a value.
    fn observe(&self, object: &Self::Object, listers: &Listers) -> Self::Observed;
    /// Adds what is in no cache and the server has to be asked for. Most controllers ask nothing.
    fn ask(
        &self,
        _object: &Self::Object,
        _observed: &mut Self::Observed,
        _client: &Client,
    ) -> impl Future<Output = Result<(), client::Error>> + Send {
        async { Ok(()) }
    }
    /// Decides. Pure: no clock, no randomness, no log.
    fn plan(&self, object: &Self::Object, observed: &Self::Observed, now: Timestamp) -> Plan;
    /// Whether the object of a key that the cache lacks is gone, and not only late. For the few that take something away
    /// then which nobody gives back; a late object comes with a key of its own.
    fn is_gone(
        &self,
        _key: &Key,
        _listers: &Listers,
        _client: &Client,
    ) -> impl Future<Output = Result<bool, client::Error>> + Send {
        async { Ok(true) }
    }
    /// Decides about a key whose object is gone.
    fn plan_gone(&self, _key: &Key, _listers: &Listers, _now: Timestamp) -> Plan {
        Plan::default()
    }
}

/// All that `observe` may read.
pub struct Listers<'a> {
    pub caches: &'a Caches,
    /// Why the last attempt at this key failed, if it did.
    pub failure: Option<&'a Failure>,
}

impl Listers<'_> {
    /// The objects that `owner` controls, and those of its namespace that nobody controls and `selects` takes.
    /// The kind must have been declared with [`Watches::owned`].
    pub fn owned_or_selected<O: Kind, C: Kind>(&self, owner: &O, selects: impl Fn(&C) -> bool) -> Vec<Arc<C>> {
        let cache = self.caches.of::<C>();
        let mut all = self.owned::<O, C>(owner);
        let orphans = cache.by_index(BY_CONTROLLER, &orphans_in(owner.metadata().namespace.as_deref().unwrap_or("")));
        all.extend(orphans.into_iter().filter(|o| controller_of(&**o).is_none() && selects(o)));
        all
    }

    /// The objects that `owner` controls, in key order.
    pub fn owned<O: Kind, C: Kind>(&self, owner: &O) -> Vec<Arc<C>> {
        self.owned_by(owner.metadata().uid.as_deref().unwrap_or(""))
    }

    /// The objects whose controller has this UID, in key order.
    pub fn owned_by<C: Kind>(&self, uid: &str) -> Vec<Arc<C>> {
        self.caches.of::<C>().by_index(BY_CONTROLLER, uid)
    }
}

/// The caches, client and recorder that every controller is given.
#[derive(Clone)]
pub struct Setup {
    /// Shared by all controllers of the process.
    pub caches: Caches,
    /// Writes go through this client, with this controller's identity.
    pub client: Client,
    pub recorder: EventRecorder,
    /// Whoever makes objects in vain waits before it makes more. Always, but where the simulation shows what comes of it
    /// otherwise.
    pub backs_off: bool,
}

/// Runs a controller for ever; dropping the future stops it.
pub async fn run<C: Controller>(controller: C, setup: Setup) {
    let queue = Queue::new(C::NAME, controller.longest_delay());
    let mut watches = Watches::new(setup.caches.clone(), queue.clone(), C::concerns);
    controller.watches(&mut watches);
    watches.synced().await;
    let primary = setup.caches.of::<C::Object>();
    let concurrency = controller.concurrency();
    let feed = Feed { queue, add_all: Box::new(move |queue| add_all(&primary, queue)) };
    let progresses = std::mem::take(&mut watches.progresses);
    let (failures, losses) = (Mutex::default(), Mutex::default());
    let runner = Runner { planner: Box::new(controller), setup, progresses, failures, losses };
    feed.drive(runner, (concurrency, C::RESYNC)).await;
}

/// The part of a controller that depends on its types. All else is compiled once for all controllers.
trait Planner: Send + Sync {
    fn name(&self) -> &'static str;
    fn failed_are_lost(&self) -> bool;
    fn attempts(&self) -> Option<&'static Attempts>;
    fn plan<'a>(&'a self, runner: &'a Runner, key: &'a Key) -> BoxFuture<'a, (Option<ObjectReference>, Planned)>;
}

type Planned = Result<Plan, client::Error>;

impl<C: Controller> Planner for C {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn failed_are_lost(&self) -> bool {
        C::FAILED_ARE_LOST
    }

    fn attempts(&self) -> Option<&'static Attempts> {
        C::ATTEMPTS
    }

    fn plan<'a>(&'a self, runner: &'a Runner, key: &'a Key) -> BoxFuture<'a, (Option<ObjectReference>, Planned)> {
        Box::pin(async move {
            let setup = &runner.setup;
            let object = setup.caches.of::<C::Object>().get(key);
            let last = runner.failures.lock().get(key).cloned();
            let listers = Listers { caches: &setup.caches, failure: last.as_ref() };
            let Some(object) = object else {
                let gone = self.is_gone(key, &listers, &setup.client).await;
                let plan = |gone: bool| gone.then(|| self.plan_gone(key, &listers, clock::now_seconds()));
                return (None, gone.map(|gone| plan(gone).unwrap_or_default()));
            };
            let mut observed = self.observe(&object, &listers);
            let asked = self.ask(&object, &mut observed, &setup.client).await;
            let plan = asked.map(|()| Controller::plan(self, &object, &observed, clock::now_seconds()));
            (Some(events::reference(&*object)), plan)
        })
    }
}

/// Where the keys come from.
struct Feed {
    queue: Arc<Queue>,
    add_all: Box<dyn Fn(&Queue) + Send + Sync>,
}

impl Feed {
    async fn drive(self, runner: Runner, (concurrency, resync): (usize, Option<Duration>)) {
        (self.add_all)(&self.queue);
        let again = async {
            let Some(period) = resync else { return std::future::pending().await };
            loop {
                // Spread, so that the controllers do not all resync together.
                let jitter = Duration::from_secs(clock::random_range(0..period.as_secs() / 10 + 1));
                clock::sleep(period + jitter).await;
                (self.add_all)(&self.queue);
            }
        };
        tokio::select! {
            biased;
            () = drive(runner.planner.name(), self.queue.clone(), Arc::new(runner), concurrency) => {}
            () = again => {}
        }
    }
}

struct Runner {
    planner: Box<dyn Planner>,
    setup: Setup,
    progresses: Progresses,
    failures: Mutex<HashMap<Key, Failure>>,
    losses: Mutex<Losses>,
}

impl Runner {
    /// Whether an object that was made is still there and of use.
    fn stands(&self, made: &Made) -> bool {
        let Some(cache) = self.progresses.get(&made.type_id) else { return true };
        let in_vain = self.planner.failed_are_lost() && cache.holds_failed(&made.key, &made.uid);
        cache.holds(&made.key, &made.uid) && !in_vain
    }

    /// Leaves out of a plan what would be made in vain: it comes later.
    fn hold_back(&self, key: &Key, plan: &mut Plan) {
        if !self.setup.backs_off || !plan.makes_something() {
            return;
        }
        let wait = self.losses.lock().wait(key, &|made| self.stands(made), clock::Instant::now());
        if let Some(wait) = wait {
            let controller = self.planner.name();
            tracing::debug!(controller, %key, ?wait, "what was made is gone at once, making more later");
            plan.make_nothing();
            plan.again_after(wait);
        }
    }

    async fn attempt(&self, key: &Key) -> Done {
        waypoint::controller::reconcile(&key.name);
        let (controller, began) = (self.planner.name(), clock::Instant::now());
        let count = |code| self.planner.attempts().into_iter().for_each(|all| all.count(code, began.elapsed()));
        let (about, plan) = self.planner.plan(self, key).await;
        let mut plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                count(rest::code(&error));
                tracing::info!(controller, %key, message = rest::message(&error), "trying again later");
                return Done { failed: true, ..Done::default() };
            }
        };
        self.hold_back(key, &mut plan);
        let actor = Actor {
            client: &self.setup.client,
            recorder: &self.setup.recorder,
            progresses: &self.progresses,
            object: about.as_ref(),
            made: Mutex::default(),
            doubts: Mutex::default(),
        };
        let Acted { settled, failure, made } = actor.act(&plan).await;
        count(failure.as_ref().map_or(200, |failure| failure.code));
        self.losses.lock().made(key, made, clock::Instant::now());
        let failed = failure.is_some() || plan.retry;
        let mut failures = self.failures.lock();
        failures.remove(key);
        if let Some(failure) = failure {
            if failure.reason != "Conflict" && failure.reason != "AlreadyExists" {
                tracing::info!(controller, %key, message = failure.message, "trying again later");
            }
            failures.insert(key.clone(), failure);
        }
        Done { requeue_after: plan.requeue_after, settled, failed }
    }
}

impl Reconcile for Runner {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Done> {
        Box::pin(self.attempt(key))
    }
}
