//! The metrics of controllers and their queues, for the whole process, under upstream's names.
//! Upstream counterpart: k8s.io/component-base/metrics/prometheus/workqueue.

use std::sync::{Arc, Weak};

use clock::Duration;
use meter::{DOUBLED, Metric, Metrics, Series, labels, told};
use parking_lot::Mutex;

/// Ten times longer each, from ten nanoseconds on.
const BOUNDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

static ADDS: Metric = Metric::counter("workqueue_adds_total", "[ALPHA] Total number of adds handled by workqueue");
static RETRIES: Metric =
    Metric::counter("workqueue_retries_total", "[ALPHA] Total number of retries handled by workqueue");
static WAITED: Metric = Metric::histogram(
    "workqueue_queue_duration_seconds",
    "[ALPHA] How long in seconds an item stays in workqueue before being requested.",
    BOUNDS,
);
static WORKED: Metric = Metric::histogram(
    "workqueue_work_duration_seconds",
    "[ALPHA] How long in seconds processing an item from workqueue takes.",
    BOUNDS,
);
static DEPTH: Metric = Metric::gauge("workqueue_depth", "[ALPHA] Current depth of workqueue");
static UNFINISHED: Metric = Metric::gauge(
    "workqueue_unfinished_work_seconds",
    "[ALPHA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate \
     stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
);
static LONGEST: Metric = Metric::gauge(
    "workqueue_longest_running_processor_seconds",
    "[ALPHA] How many seconds has the longest running processor for workqueue been running.",
);

static METRICS: Metrics = Metrics::new();

/// The metrics of a controller of whose attempts upstream tells: their number and how long they took, by the code of the answer
/// that ended them.
pub struct Attempts {
    total: Metric,
    seconds: Metric,
}

impl Attempts {
    /// The names of the two metrics, and what is said of them.
    pub const fn new(total: (&'static str, &'static str), seconds: (&'static str, &'static str)) -> Self {
        Attempts { total: Metric::counter(total.0, total.1), seconds: Metric::histogram(seconds.0, seconds.1, DOUBLED) }
    }

    /// Counts an attempt that took a time and ended with a code: 200 where all went well, 0 where no server answered.
    pub(crate) fn count(&'static self, code: u16, took: Duration) {
        let code = if code == 0 { 500 } else { code }.to_string();
        METRICS.count(&self.total, &[("code", &code)]);
        METRICS.observe(&self.seconds, &[("code", &code)], took.as_secs_f64());
    }
}
/// The queues that there are: how long their work takes by now is found out when the page is asked for.
static QUEUES: Mutex<Vec<Weak<dyn Looked>>> = Mutex::new(Vec::new());

/// A queue as the page looks at it.
pub(crate) trait Looked: Send + Sync {
    fn name(&self) -> &'static str;
    /// How many keys wait, and how long each of the others is being worked on.
    fn look(&self) -> (usize, Vec<Duration>);
}

/// The series of one queue.
pub(crate) struct Counts {
    pub adds: Arc<Series>,
    pub retries: Arc<Series>,
    pub waited: Arc<Series>,
    pub worked: Arc<Series>,
}

impl Counts {
    pub fn of(name: &str) -> Self {
        let of = |metric| METRICS.series(metric, &[("name", name)]);
        Counts { adds: of(&ADDS), retries: of(&RETRIES), waited: of(&WAITED), worked: of(&WORKED) }
    }
}

/// From now on the page tells of this queue, for as long as it is.
pub(crate) fn follow(queue: Weak<dyn Looked>) {
    let mut queues = QUEUES.lock();
    queues.retain(|queue| queue.strong_count() > 0);
    queues.push(queue);
}

/// The lines of the page.
pub fn render() -> String {
    let queues: Vec<Arc<dyn Looked>> = QUEUES.lock().iter().filter_map(Weak::upgrade).collect();
    let looked: Vec<(String, usize, Vec<Duration>)> = queues
        .iter()
        .map(|queue| {
            let (waiting, running) = queue.look();
            (labels(&[("name", queue.name())]), waiting, running)
        })
        .collect();
    let tell = |metric: &Metric, value: fn(usize, &[Duration]) -> f64| {
        told(metric, looked.iter().map(|(name, waiting, running)| (name.clone(), value(*waiting, running))))
    };
    let mut page = METRICS.render();
    page += &tell(&DEPTH, |waiting, _| waiting as f64);
    page += &tell(&UNFINISHED, |_, running| running.iter().map(Duration::as_secs_f64).sum());
    page += &tell(&LONGEST, |_, running| running.iter().max().map_or(0.0, Duration::as_secs_f64));
    page
}
