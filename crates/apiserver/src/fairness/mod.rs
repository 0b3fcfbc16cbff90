//! Priority and fairness: which request gets seats next where there are more requests than seats.
//!
//! A FlowSchema (`schema`) says of which priority level a request is, and which flow of it. The level (`level`) has seats by its
//! share (`shares`), lends and borrows some, and lets requests wait in `queues`. `work` says how many seats one takes; `counts` and
//! `ratios` are what `/metrics` tells of all that. How many
//! requests, bodies and unread answers there may be at all is the business of `http::places`, which bounds those that wait too.
//! Upstream counterpart: apiserver/pkg/util/flowcontrol.

mod counts;
mod dump;
mod keep;
mod level;
mod metrics;
mod queues;
pub mod ratios;
mod schema;
mod shares;
#[cfg(test)]
mod tests;
mod work;

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use api::{
    Value,
    k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration},
    kind::Definition,
    meta,
    rules::metrics_text::escaped,
    status::StatusError,
};
use clock::Duration;
use http::{HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::{
    auth::User,
    bootstrap::{flow_control, object::spec_beside},
    http::request::Info,
    storage::informer::EventHandler,
};
use counts::Counts;
use level::{About, Level, Settings};
pub use level::{Flow, Seat};
use queues::Shape;
use schema::Schema;
use shares::Share;
use work::Sizes;

/// The headers that say which schema and level an answer's request was of.
pub const HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-kubernetes-pf-flowschema-uid"),
    HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid"),
];

/// How often levels lend and borrow anew.
const PERIOD: Duration = Duration::from_secs(10);

/// The contents of the objects, from which everything else follows.
#[derive(Default)]
struct Held {
    schemas: BTreeMap<String, Schema>,
    levels: BTreeMap<String, Settings>,
    /// Those that requests go through now, and what was counted of each schema at a level.
    running: BTreeMap<String, Arc<Level>>,
    counts: BTreeMap<(String, String), Arc<Counts>>,
    /// The part of what they want that all levels have alike, as was reckoned last.
    fair_part: f64,
}

pub struct Fairness {
    /// The seats of the server.
    seats: u32,
    /// A request waits no longer.
    wait: Duration,
    held: Mutex<Held>,
    /// In the order in which they are asked.
    flows: RwLock<Arc<Vec<Arc<Flow>>>>,
    /// An object is another one now, or gone.
    taken_in: Notify,
    pub sizes: Sizes,
}

impl Fairness {
    /// With the levels and schemas that every cluster has to have, until others are known.
    pub fn new(seats: u32, request_timeout: Duration) -> Arc<Self> {
        let fairness = Arc::new(Fairness {
            seats,
            wait: request_timeout / 4,
            held: Mutex::default(),
            flows: RwLock::default(),
            taken_in: Notify::new(),
            sizes: Sizes::default(),
        });
        for object in flow_control::mandatory() {
            fairness.take_in(object.plural, meta::name(&object.object), Some(&object.object));
        }
        fairness
    }

    /// The flow of a request. One that is of none is what is left over.
    pub fn classify(&self, user: &User, info: &Info) -> Option<Arc<Flow>> {
        let flows = self.flows.read();
        let last = || flows.iter().find(|flow| flow.schema.name == flow_control::CATCH_ALL);
        flows.iter().find(|flow| flow.schema.has(user, info)).or_else(last).cloned()
    }

    /// Gives a request of a flow its seats, when its turn comes.
    pub async fn seat(&self, flow: &Arc<Flow>, user: &User, info: &Info, query: &str) -> Result<Seat, StatusError> {
        let seats = self.sizes.seats(info, query, || flow.level.look(|level| level.bounds.nominal));
        let hash = flow.schema.flow(user, info);
        let about = || About {
            schema: flow.schema.name.clone(),
            flow: flow.schema.distinguisher(user, info).to_owned(),
            details: [
                user.name.as_str(),
                info.verb,
                &info.path,
                &info.namespace,
                &info.name,
                info.version(),
                info.resource(),
                info.subresource_name(),
            ]
            .map(str::to_owned)
            .to_vec(),
        };
        let seat = flow.level.seat(flow, (hash, seats, info.verb == "watch"), self.wait, about).await;
        seat.map_err(|_| StatusError::too_many_requests("Too many requests, please try again later.", 1))
    }

    /// Takes in that an object is now this, or gone. Those that every cluster has to have never go.
    fn take_in(&self, plural: &str, name: &str, object: Option<&Value>) {
        let mandatory =
            || flow_control::mandatory().find(|one| one.plural == plural && meta::name(&one.object) == name);
        let wanted = mandatory().map(|one| {
            let mut wanted = one.object;
            if let Some(present) = object {
                wanted["spec"] = spec_beside(&wanted, present);
            }
            wanted
        });
        let uid = object.map(|object| meta::uid(object).to_owned());
        let object = wanted.as_ref().or(object);
        let mut held = self.held.lock();
        if plural == flow_control::SCHEMAS {
            match object.and_then(read::<FlowSchema>) {
                Some(schema) => {
                    let mut schema = Schema::of(schema);
                    schema.uid = uid.unwrap_or(schema.uid);
                    held.schemas.insert(name.to_owned(), schema);
                }
                None => drop(held.schemas.remove(name)),
            }
        } else {
            match object.and_then(read).and_then(settings) {
                Some(settings) => {
                    let uid = uid.unwrap_or_default();
                    held.levels.insert(name.to_owned(), Settings { uid, ..settings });
                }
                None => drop(held.levels.remove(name)),
            }
        }
        self.rebuild(&mut held);
        drop(held);
        self.taken_in.notify_one();
    }

    /// Brings schemas and levels in line with the objects.
    fn rebuild(&self, held: &mut Held) {
        let Held { schemas, levels, running, counts, .. } = held;
        running.retain(|name, _| levels.contains_key(name));
        for (name, settings) in &*levels {
            match running.get(name) {
                Some(level) => level.configure(settings.clone()),
                None => drop(running.insert(name.clone(), Arc::new(Level::new(name, settings.clone())))),
            }
        }
        let shares: Vec<Share> = running.keys().map(|name| levels[name].share).collect();
        for (level, bounds) in running.values().zip(shares::bounds(self.seats, &shares)) {
            level.bound(bounds);
        }
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        // A schema whose level is not there says nothing.
        let mut flows: Vec<Arc<Flow>> = schemas
            .values()
            .filter_map(|schema| {
                let level = running.get(&schema.level)?.clone();
                let counts = counts.entry((level.name.clone(), schema.name.clone())).or_default().clone();
                let headers = [value(&schema.uid), value(&levels[&schema.level].uid)];
                Some(Arc::new(Flow { schema: schema.clone(), level, headers, counts }))
            })
            .collect();
        counts.retain(|(level, schema), _| running.contains_key(level) && schemas.contains_key(schema));
        flows.sort_by(|a, b| (a.schema.precedence, &a.schema.name).cmp(&(b.schema.precedence, &b.schema.name)));
        *self.flows.write() = Arc::new(flows);
    }

    /// Whether a schema's level is there, by the schema's name.
    fn dangling(&self) -> Vec<(String, String, bool)> {
        let held = self.held.lock();
        let of =
            |schema: &Schema| (schema.name.clone(), schema.level.clone(), !held.levels.contains_key(&schema.level));
        held.schemas.values().map(of).collect()
    }

    /// Lends and borrows seats by what was wanted since the last time.
    fn borrow(&self) {
        let levels: Vec<Arc<Level>> = self.held.lock().running.values().cloned().collect();
        let wanted: Vec<_> = levels.iter().map(|level| level.demand()).collect();
        let (seats, fair_part) = shares::allocated(self.seats, &wanted);
        for (level, seats) in levels.iter().zip(seats) {
            level.allot(seats);
        }
        self.held.lock().fair_part = fair_part;
    }

    /// Works for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            clock::sleep(PERIOD).await;
            self.borrow();
        }
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        let mut all: BTreeMap<&str, String> = BTreeMap::new();
        let mut add = |name: &'static str, lines: String| all.entry(name).or_default().push_str(&lines);
        let held = self.held.lock();
        for ((level, schema), counts) in &held.counts {
            let labels = format!("flow_schema=\"{}\",priority_level=\"{}\"", escaped(schema), escaped(level));
            counts.render(&labels, &mut add);
        }
        for level in held.running.values() {
            level.render(&format!("priority_level=\"{}\"", escaped(&level.name)), &mut add);
        }
        add("seat_fair_frac", format!("apiserver_flowcontrol_seat_fair_frac {}\n", held.fair_part));
        drop(held);
        let mut out = String::new();
        for (name, lines) in all {
            let (sort, help) = metrics::described(name);
            let full = format!("apiserver_flowcontrol_{name}");
            let _ = write!(out, "# HELP {full} {help}\n# TYPE {full} {sort}\n{lines}");
        }
        out
    }
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Option<T> {
    json::from_value(object.clone()).ok()
}

/// A configuration as the level reads it; none of one that says nothing.
fn settings(configuration: PriorityLevelConfiguration) -> Option<Settings> {
    let spec = configuration.spec?;
    let number = |value: Option<i32>, otherwise: u32| value.map_or(otherwise, |value| value.max(0) as u32);
    if let Some(limited) = spec.limited.filter(|_| spec.type_ == "Limited") {
        let queuing = limited.limit_response.and_then(|response| response.queuing);
        let shape = queuing.map(|queuing| Shape {
            queues: number(queuing.queues, 64).clamp(1, 10_000) as usize,
            hand: number(queuing.hand_size, 8) as usize,
            length: number(queuing.queue_length_limit, 50) as usize,
        });
        let share = Share {
            shares: number(limited.nominal_concurrency_shares, 30),
            lendable_percent: number(limited.lendable_percent, 0).min(100),
            borrowing_percent: limited.borrowing_limit_percent.map(|percent| percent.max(0) as u32),
        };
        return Some(Settings { uid: String::new(), exempt: false, share, shape: shape.unwrap_or_default() });
    }
    let exempt = spec.exempt.unwrap_or_default();
    let share = Share {
        shares: number(exempt.nominal_concurrency_shares, 0),
        lendable_percent: number(exempt.lendable_percent, 0).min(100),
        borrowing_percent: None,
    };
    (spec.type_ == "Exempt").then(|| Settings { uid: String::new(), exempt: true, share, shape: Shape::default() })
}

impl EventHandler for Fairness {
    fn changed(&self, definition: &Definition, _namespace: &str, name: &str, object: Option<&Value>) {
        self.take_in(&definition.plural, name, object);
    }
}
