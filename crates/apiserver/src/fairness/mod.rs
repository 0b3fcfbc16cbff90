//! Priority and fairness: which request gets seats next where there are more requests than seats.
//!
//! A FlowSchema (`schema`) says of which priority level a request is, and which flow of it. The level (`level`) has seats by its
//! share (`shares`), lends and borrows some, and lets requests wait in `queues`. `work` says how many seats one takes. How many
//! requests, bodies and unread answers there may be at all is the business of `http::places`, which bounds those that wait too.
//! Upstream counterpart: apiserver/pkg/util/flowcontrol.

mod dump;
mod keep;
mod level;
mod queues;
mod ratios;
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
use level::{About, Counts, Level, Settings};
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
        let seat = flow.level.seat(flow, (hash, seats), self.wait, about).await;
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
        let Held { schemas, levels, running, counts } = held;
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
        for (level, seats) in levels.iter().zip(shares::allocated(self.seats, &wanted)) {
            level.allot(seats);
        }
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
        let mut add = |name: &'static str, line: String| {
            let lines = all.entry(name).or_default();
            if matches!(name, "request_wait_duration_seconds" | "demand_seats") {
                let _ = writeln!(lines, "{line}");
            } else {
                let _ = writeln!(lines, "apiserver_flowcontrol_{name}{line}");
            }
        };
        let held = self.held.lock();
        for ((level, schema), counts) in &held.counts {
            let labels = format!("flow_schema=\"{}\",priority_level=\"{}\"", escaped(schema), escaped(level));
            counts.render(&labels, &mut add);
        }
        for level in held.running.values() {
            let labels = format!("{{priority_level=\"{}\"}}", escaped(&level.name));
            level.look(|inner| {
                for (name, seats) in [
                    ("nominal_limit_seats", inner.bounds.nominal),
                    ("lower_limit_seats", inner.bounds.least),
                    ("upper_limit_seats", inner.bounds.most),
                    ("current_limit_seats", inner.queues.limit),
                ] {
                    add(name, format!("{labels} {seats}"));
                }
            });
            add("demand_seats", level.demand_ratios(&format!("priority_level=\"{}\"", escaped(&level.name))));
        }
        drop(held);
        let mut out = String::new();
        for (name, lines) in all {
            let (sort, help) = described(name);
            let full = format!("apiserver_flowcontrol_{name}");
            let _ = write!(out, "# HELP {full} {help}\n# TYPE {full} {sort}\n{lines}");
        }
        out
    }
}

fn described(name: &str) -> (&'static str, &'static str) {
    match name {
        "dispatched_requests_total" => {
            ("counter", "Number of requests executed by API Priority and Fairness subsystem")
        }
        "rejected_requests_total" => ("counter", "Number of requests rejected by API Priority and Fairness subsystem"),
        "current_executing_requests" => {
            ("gauge", "Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage")
        }
        "current_executing_seats" => {
            ("gauge", "Concurrency (number of seats) occupied by the currently executing requests")
        }
        "current_inqueue_requests" => ("gauge", "Number of requests currently pending in queues"),
        "request_wait_duration_seconds" => ("histogram", "Length of time a request spent waiting in its queue"),
        "nominal_limit_seats" => ("gauge", "Nominal number of execution seats configured for each priority level"),
        "lower_limit_seats" => {
            ("gauge", "Configured lower bound on number of execution seats available to each priority level")
        }
        "upper_limit_seats" => {
            ("gauge", "Configured upper bound on number of execution seats available to each priority level")
        }
        "current_limit_seats" => {
            ("gauge", "current derived number of execution seats available to each priority level")
        }
        _ => (
            "histogram",
            "[ALPHA] Observations, at the end of every nanosecond, of (the number of seats each priority level could use) / (current seat limit for that level if that is not zero otherwise max(1, round(server seat limit/10.0)))",
        ),
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
