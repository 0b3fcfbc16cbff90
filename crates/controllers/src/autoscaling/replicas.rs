//! The number of Pods that one measurement asks for: which Pods count, what stands for readings that are missing, and what
//! difference is too small. Pure. Upstream counterpart: pkg/controller/podautoscaler/replica_calculator.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::rules::{pod, quantity};
use clock::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::settings::Settings;

/// The usage of a Pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Thousandths.
    pub milli: i64,
    pub time: Timestamp,
    pub window_seconds: i64,
}

/// By the Pod's name.
pub type Readings = BTreeMap<String, Reading>;

/// How far the ratio of what is to what should be may be from one without any effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    pub down: f64,
    pub up: f64,
}

impl Tolerance {
    fn covers(&self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// The Pods and counts that all metrics of one autoscaler are measured against.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// Those that the target selects.
    pub pods: &'a [Arc<Pod>],
    /// Replicas that the target asks for, and that it has.
    pub current: i32,
    pub present: i32,
    pub tolerance: Tolerance,
    pub settings: Settings,
    pub now: Timestamp,
}

/// A resource of Pods, or of one container in each.
#[derive(Debug, Clone, Copy)]
pub struct Resource<'a> {
    pub name: &'a str,
    pub container: Option<&'a str>,
}

/// The usage as a share of the intended one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share {
    ratio: f64,
    percent: i32,
    /// Thousandths, for each Pod.
    average: i64,
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";

#[derive(Default)]
struct Groups<'a> {
    ready: usize,
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
    ignored: BTreeSet<&'a str>,
}

impl Scene<'_> {
    /// By the part of what the Pods requested: replicas, percentage, average.
    pub fn by_utilization(
        &self,
        mut readings: Readings,
        resource: Resource<'_>,
        target: i32,
    ) -> Result<(i32, i32, i64), String> {
        let groups = self.group(&mut readings, resource.name)?;
        let requests: BTreeMap<&str, i64> =
            self.pods.iter().map(|pod| Ok((name(pod), request(pod, resource)?))).collect::<Result<_, String>>()?;
        // Where less is needed, a Pod that nothing is known of is taken to use all that it may, or what is aimed at.
        let most = |pod: &str| {
            let request = requests.get(pod).copied().unwrap_or(0);
            narrow(i128::from(request) * i128::from(target.max(100)) / 100)
        };
        let share = |readings: &Readings| {
            let known = readings.iter().filter_map(|(pod, r)| Some((r.milli, *requests.get(pod.as_str())?)));
            let (mut used, mut requested, mut count) = (0_i128, 0_i128, 0_i128);
            for (milli, request) in known {
                (used, requested, count) = (used + i128::from(milli), requested + i128::from(request), count + 1);
            }
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let percent = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
            Ok(Share { ratio: f64::from(percent) / f64::from(target), percent, average: narrow(used / count) })
        };
        let (replicas, share) = self.replicas(readings, &groups, share, most)?;
        Ok((replicas, share.percent, share.average))
    }

    /// By what each Pod uses on average: replicas, average. `resource` is empty for other metrics.
    pub fn by_average(&self, mut readings: Readings, resource: &str, target: i64) -> Result<(i32, i64), String> {
        let groups = self.group(&mut readings, resource)?;
        let share = |readings: &Readings| {
            let used: i128 = readings.values().map(|r| i128::from(r.milli)).sum();
            let average = narrow(used / readings.len().max(1) as i128);
            Ok(Share { ratio: average as f64 / target as f64, percent: 0, average })
        };
        let (replicas, share) = self.replicas(readings, &groups, share, |_| target)?;
        Ok((replicas, share.average))
    }

    /// By one value for all Pods together.
    pub fn by_value(&self, used: i64, target: i64) -> Result<i32, String> {
        let ratio = used as f64 / target as f64;
        if self.current == 0 {
            return Ok(up(ratio));
        }
        if self.tolerance.covers(ratio) {
            return Ok(self.current);
        }
        if self.pods.is_empty() {
            return Err(format!("unable to calculate ready pods: {NO_PODS}"));
        }
        let runs = |pod: &&Arc<Pod>| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        let ready = self.pods.iter().filter(runs).filter(|pod| pod::is_ready(pod)).count();
        Ok(up(ratio * ready as f64))
    }

    /// By one value that is divided among the Pods: replicas, the part of each.
    pub fn by_part(&self, used: i64, target: i64) -> (i32, i64) {
        let ratio = used as f64 / (target as f64 * f64::from(self.present));
        let replicas = if self.tolerance.covers(ratio) { self.present } else { up(used as f64 / target as f64) };
        let part = if self.present == 0 { 0 } else { (used as f64 / f64::from(self.present)).ceil() as i64 };
        (replicas, part)
    }

    /// Tells Pods apart, and leaves the readings of those that count.
    fn group<'a>(&'a self, readings: &mut Readings, resource: &str) -> Result<Groups<'a>, String> {
        if self.pods.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let mut groups = Groups::default();
        for pod in self.pods {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
            let group = if pod.metadata.deletion_timestamp.is_some() || pod::is_terminal_phase(phase) {
                &mut groups.ignored
            } else if phase == "Pending" {
                &mut groups.unready
            } else {
                match readings.get(name(pod)) {
                    None => &mut groups.missing,
                    Some(reading) if resource == "cpu" && self.is_starting(pod, reading) => &mut groups.unready,
                    Some(_) => {
                        groups.ready += 1;
                        continue;
                    }
                }
            };
            group.insert(name(pod));
        }
        readings.retain(|pod, _| !(groups.ignored.contains(pod.as_str()) || groups.unready.contains(pod.as_str())));
        Ok(groups)
    }

    /// Whether what the Pod uses of the processor says nothing yet of what it will use.
    fn is_starting(&self, pod: &Pod, reading: &Reading) -> bool {
        let status = pod.status.as_ref();
        let started = status.and_then(|s| s.start_time.as_ref()).map(|t| t.0.as_second());
        let ready = status.and_then(|s| s.conditions.iter().flatten().find(|c| c.type_ == "Ready"));
        let (Some(started), Some(ready)) = (started, ready) else { return true };
        let unready = ready.status == "False";
        let changed = ready.last_transition_time.as_ref().map_or(0, |t| t.0.as_second());
        let after = |time: Duration| started.saturating_add(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
        if after(self.settings.cpu_initialization) > self.now.as_second() {
            unready || reading.time.as_second() < changed + reading.window_seconds
        } else {
            unready && after(self.settings.initial_readiness) > changed
        }
    }

    /// Pods without a reading are taken to hold the change up: they use `most` where fewer would do, and nothing where more
    /// are needed. If it then goes the other way, all stays as it is.
    fn replicas(
        &self,
        mut readings: Readings,
        groups: &Groups<'_>,
        share: impl Fn(&Readings) -> Result<Share, String>,
        most: impl Fn(&str) -> i64,
    ) -> Result<(i32, Share), String> {
        if readings.is_empty() {
            return Err("did not receive metrics for any ready pods".to_owned());
        }
        let known = share(&readings)?;
        let grows = known.ratio > 1.0;
        let with_unready = grows && !groups.unready.is_empty();
        if !with_unready && groups.missing.is_empty() {
            let same = self.tolerance.covers(known.ratio);
            return Ok((if same { self.current } else { up(known.ratio * groups.ready as f64) }, known));
        }
        let mut assume = |pod: &str, milli| {
            readings.insert(pod.to_owned(), Reading { milli, time: self.now, window_seconds: 0 });
        };
        if grows {
            groups.missing.iter().for_each(|pod| assume(pod, 0));
        } else if known.ratio < 1.0 {
            groups.missing.iter().for_each(|pod| assume(pod, most(pod)));
        }
        if with_unready {
            groups.unready.iter().for_each(|pod| assume(pod, 0));
        }
        let ratio = share(&readings)?.ratio;
        let turned = (known.ratio < 1.0 && ratio > 1.0) || (grows && ratio < 1.0);
        if self.tolerance.covers(ratio) || turned {
            return Ok((self.current, known));
        }
        let wanted = up(ratio * readings.len() as f64);
        let turned = (ratio < 1.0 && wanted > self.current) || (ratio > 1.0 && wanted < self.current);
        Ok((if turned { self.current } else { wanted }, known))
    }
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}

fn up(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The request of a Pod, or of one of its containers, for a resource, in thousandths. Every container has to say it.
fn request(pod: &Pod, resource: Resource<'_>) -> Result<i64, String> {
    let spec = pod.spec.clone().unwrap_or_default();
    let of_pod = spec.resources.as_ref().and_then(|r| r.requests.as_ref()).filter(|r| !r.is_empty());
    if let (Some(_), None) = (of_pod, resource.container) {
        let whole = pod::requests(&spec).get(resource.name).map(|q| q.milli_value());
        return whole.ok_or_else(|| format!("missing pod-level request for {} in Pod {}", resource.name, name(pod)));
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|c| pod::is_sidecar(c));
    let mut containers = spec.containers.iter().chain(sidecars);
    let of = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let amount = requests.and_then(|r| r.get(resource.name)).map(|q| quantity::parse(q).milli_value());
        let missing =
            || format!("missing request for {} in container {} of Pod {}", resource.name, container.name, name(pod));
        amount.ok_or_else(missing)
    };
    match resource.container {
        None => containers.map(of).try_fold(0_i64, |sum, amount| Ok(sum.saturating_add(amount?))),
        Some(wanted) => {
            let found = containers.find(|c| c.name == wanted);
            of(found.ok_or_else(|| format!("container {wanted} not found in Pod {}", name(pod)))?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    const CPU: Resource<'static> = Resource { name: "cpu", container: None };

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    fn ago(seconds: i64) -> Timestamp {
        Timestamp::from_second(now().as_second() - seconds).unwrap()
    }

    /// `ready`, `unready`, `pending`, `failed`, `deleted`, `hot` (ready since a second), `never` (old and never ready).
    fn pod(place: usize, word: &str, request: &str) -> Arc<Pod> {
        let (phase, ready) = match word {
            "pending" => ("Pending", "False"),
            "failed" => ("Failed", "False"),
            "unready" | "never" => ("Running", "False"),
            _ => ("Running", "True"),
        };
        let (started, changed) = match word {
            "never" => (ago(1000), ago(990)),
            "hot" => (ago(100), ago(1)),
            "unready" => (ago(100), ago(99)),
            _ => (ago(1000), ago(900)),
        };
        let container = json!({"name": "c", "resources": {"requests": {"cpu": request, "memory": "1Gi"}}});
        let object = json!({
            "metadata": {"name": format!("p{place}"), "deletionTimestamp": (word == "deleted").then_some(now())},
            "spec": {"containers": [container]},
            "status": {"phase": phase, "startTime": started,
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": changed}]},
        });
        Arc::new(json::from_value(object).unwrap())
    }

    fn pods(words: &str) -> Vec<Arc<Pod>> {
        words.split_whitespace().enumerate().map(|(place, word)| pod(place, word, "1")).collect()
    }

    /// `None` where nothing is known.
    fn readings(levels: &[Option<i64>]) -> Readings {
        let known = levels.iter().enumerate().filter_map(|(place, level)| Some((place, (*level)?)));
        known.map(|(place, milli)| (format!("p{place}"), Reading { milli, time: now(), window_seconds: 60 })).collect()
    }

    fn scene(pods: &[Arc<Pod>]) -> Scene<'_> {
        let current = pods.len() as i32;
        Scene {
            pods,
            current,
            present: current,
            tolerance: Tolerance { down: 0.1, up: 0.1 },
            settings: Settings::default(),
            now: now(),
        }
    }

    fn utilization(words: &str, levels: &[Option<i64>], target: i32, expected: Result<(i32, i32, i64), &str>) {
        let pods = pods(words);
        let found = scene(&pods).by_utilization(readings(levels), CPU, target);
        assert_eq!(found, expected.map_err(str::to_owned), "{words} {levels:?} {target}");
    }

    #[test]
    fn more_and_fewer_by_the_part_of_what_was_requested() {
        utilization("ready ready ready", &[Some(300), Some(500), Some(700)], 30, Ok((5, 50, 500)));
        let five = [Some(100), Some(300), Some(500), Some(250), Some(250)];
        utilization("ready ready ready ready ready", &five, 50, Ok((3, 28, 280)));
        utilization("ready ready ready", &[Some(1010), Some(1030), Some(1020)], 100, Ok((3, 102, 1020)));
        // Readings of Pods that are not selected count for nothing.
        let strange = [Some(4000), Some(9500), Some(3000), Some(7000), Some(3200), Some(2000)];
        utilization("ready ready ready ready", &strange, 100, Ok((24, 587, 5875)));
    }

    #[test]
    fn pods_that_start_hold_growth_up_and_are_not_counted_else() {
        utilization("unready ready ready", &[Some(300), Some(500), Some(700)], 30, Ok((4, 60, 600)));
        utilization("hot ready ready", &[Some(300), Some(500), Some(700)], 30, Ok((4, 60, 600)));
        utilization("pending ready ready", &[Some(300), Some(500), Some(700)], 30, Ok((4, 60, 600)));
        utilization("never ready ready", &[Some(300), Some(500), Some(700)], 30, Ok((4, 60, 600)));
        utilization("ready unready unready", &[Some(400), Some(500), Some(700)], 30, Ok((3, 40, 400)));
        let five = [Some(100), Some(300), Some(500), Some(250), Some(250)];
        utilization("ready ready ready unready unready", &five, 50, Ok((2, 30, 300)));
        // Pods that are over or on their way out count neither as Pods nor as users.
        utilization("ready ready deleted failed", &[Some(500), Some(700), Some(900), Some(900)], 50, Ok((3, 60, 600)));
    }

    #[test]
    fn the_times_of_a_start_are_settings() {
        let check = |words: &str, settings: Settings, expected: i32| {
            let pods = pods(words);
            let levels = readings(&[Some(300), Some(500), Some(700)]);
            let found = Scene { settings, ..scene(&pods) }.by_utilization(levels, CPU, 30);
            assert_eq!(found.map(|(replicas, ..)| replicas), Ok(expected), "{words} {settings:?}");
        };
        let usual = Settings::default();
        let short = Settings { cpu_initialization: Duration::from_secs(60), ..usual };
        check("hot ready ready", usual, 4);
        check("hot ready ready", short, 5);
        let brief = Settings { initial_readiness: Duration::from_secs(5), ..usual };
        check("never ready ready", usual, 4);
        check("never ready ready", brief, 5);
    }

    /// Upstream's rule, too: who wants fewer Pods because a new one is not measured yet needs a window in which the count stays.
    #[test]
    fn a_new_pod_counts_when_a_whole_window_was_measured_since_it_is_ready() {
        let pods = pods("ready ready ready hot");
        let check = |window_seconds, expected| {
            let mut all = readings(&[Some(47); 4]);
            all.values_mut().for_each(|reading| reading.window_seconds = window_seconds);
            assert_eq!(scene(&pods).by_average(all, "cpu", 57), Ok((expected, 47)));
        };
        check(1, 4);
        check(2, 3);
    }

    #[test]
    fn what_is_not_known_holds_every_change_up() {
        utilization("ready ready ready ready", &[Some(400), Some(95), None, None], 100, Ok((3, 24, 247)));
        utilization("ready ready", &[Some(1000), None], 100, Ok((2, 100, 1000)));
        utilization("ready ready", &[Some(1900), None], 100, Ok((2, 190, 1900)));
        utilization("ready ready", &[Some(600), None], 100, Ok((2, 60, 600)));
        utilization("unready ready ready", &[Some(100), Some(450), None], 50, Ok((3, 45, 450)));
        utilization("unready ready ready", &[Some(100), Some(2000), None], 50, Ok((4, 200, 2000)));
        let none = Err("did not receive metrics for any ready pods");
        utilization("ready ready", &[None, None], 50, none);
        utilization("unready unready", &[Some(1), Some(1)], 50, none);
        utilization("", &[Some(1)], 50, Err("no pods returned by selector while calculating replica count"));
    }

    #[test]
    fn requests_have_to_be_there() {
        let bare: Arc<Pod> = Arc::new(
            json::from_value(json!({
                "metadata": {"name": "p0"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}}))
            .unwrap(),
        );
        let pods = [bare];
        let check = |resource, expected: &str| {
            let readings = readings(&[Some(1)]);
            assert_eq!(scene(&pods).by_utilization(readings, resource, 50).unwrap_err(), expected);
        };
        check(CPU, "missing request for cpu in container c of Pod p0");
        check(Resource { container: Some("d"), ..CPU }, "container d not found in Pod p0");
        let mut whole = (*pod(0, "ready", "1")).clone();
        let spec = whole.spec.as_mut().unwrap();
        spec.resources = json::from_value(json!({"requests": {"cpu": "4"}})).unwrap();
        assert_eq!(request(&whole, CPU), Ok(4000));
        assert_eq!(request(&whole, Resource { container: Some("c"), ..CPU }), Ok(1000));
    }

    #[test]
    fn averages_and_single_values() {
        let pods = pods("ready unready ready");
        let scene = scene(&pods);
        // Only of the processor does an unready Pod's use say nothing.
        assert_eq!(scene.by_average(readings(&[Some(100), Some(300), Some(500)]), "memory", 150), Ok((6, 300)));
        assert_eq!(scene.by_average(readings(&[Some(100), Some(300), Some(500)]), "cpu", 150), Ok((4, 300)));
        assert_eq!(scene.by_average(readings(&[Some(310), Some(300), Some(300)]), "", 300), Ok((3, 303)));
        assert_eq!(scene.by_value(8800, 4400), Ok(4), "two ready Pods, twice as many");
        assert_eq!(scene.by_value(4500, 4400), Ok(3), "too small a difference");
        assert_eq!(Scene { current: 0, ..scene }.by_value(8600, 4400), Ok(2));
        assert_eq!(scene.by_part(8600, 2150), (4, 2867));
        assert_eq!(scene.by_part(8600, 2867), (3, 2867));
        assert_eq!(scene.by_value(i64::MAX, 1), Ok(i32::MAX));
        let strict = Scene { tolerance: Tolerance { down: 0.1, up: 0.0 }, ..scene };
        assert_eq!(strict.by_average(readings(&[Some(310), Some(310), Some(310)]), "", 300), Ok((4, 310)));
    }

    #[test]
    fn no_amount_is_too_large() {
        let pods = pods("ready ready");
        let huge = readings(&[Some(i64::MAX), Some(i64::MAX)]);
        assert_eq!(scene(&pods).by_average(huge.clone(), "memory", 1), Ok((i32::MAX, i64::MAX)));
        assert_eq!(scene(&pods).by_utilization(huge, CPU, 1), Ok((i32::MAX, i32::MAX, i64::MAX)));
    }
}
