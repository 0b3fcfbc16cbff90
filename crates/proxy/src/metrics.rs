//! The proxy's counts, under upstream's names.
//! Upstream counterpart: pkg/proxy/metrics.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use nft::Family;
use parking_lot::Mutex;

/// Clones share what is counted.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<Family, Counts>,
    /// Changes seen, of Services and of EndpointSlices.
    changes: [u64; 2],
    /// Those of them that are not in the kernel yet.
    pending: [u64; 2],
    /// Answers at `/healthz` and `/livez`, by status.
    asked: [BTreeMap<u16, u64>; 2],
}

#[derive(Debug)]
struct Counts {
    all: Histogram,
    full: Histogram,
    partial: Histogram,
    programming: Histogram,
    conntrack: Histogram,
    conntrack_deleted: u64,
    queued: f64,
    synced: f64,
    failures: u64,
    /// Ports of Services with a policy `Local` and endpoints, none of them here: by policy, internal and external.
    without_local: [usize; 2],
}

/// The part of the rules that was written in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Full,
    Partial,
}

/// The histogram, and the number, of one line of the page.
type Of<T> = fn(&Counts) -> &T;
type Number = fn(&Counts) -> f64;

impl Counts {
    fn new() -> Self {
        // A millisecond doubled fourteen times, and upstream's mixture of linear steps.
        let doubling: Vec<f64> = (0..15).map(|n| 0.001 * f64::from(1 << n)).collect();
        let steps = [0.0, 0.25, 0.5].into_iter().chain((1..=59).map(f64::from));
        let steps =
            steps.chain((0..12).map(|n| 60.0 + 5.0 * f64::from(n))).chain((0..7).map(|n| 120.0 + 30.0 * f64::from(n)));
        let times = || Histogram::new(doubling.clone());
        Counts {
            all: times(),
            full: times(),
            partial: times(),
            programming: Histogram::new(steps.collect()),
            conntrack: times(),
            conntrack_deleted: 0,
            queued: 0.0,
            synced: 0.0,
            failures: 0,
            without_local: [0; 2],
        }
    }
}

#[derive(Debug)]
struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn new(bounds: Vec<f64>) -> Self {
        Histogram { counts: vec![0; bounds.len()], bounds, sum: 0.0, count: 0 }
    }

    fn observe(&mut self, value: f64) {
        for (count, _) in self.counts.iter_mut().zip(&self.bounds).filter(|(_, bound)| value <= **bound) {
            *count += 1;
        }
        self.sum += value;
        self.count += 1;
    }
}

/// The time as metrics write it: seconds since 1970.
fn now() -> f64 {
    clock::now().as_millisecond() as f64 / 1000.0
}

impl Metrics {
    fn with(&self, family: Family, count: impl FnOnce(&mut Counts)) {
        count(self.0.lock().families.entry(family).or_insert_with(Counts::new));
    }

    /// Counts changes of Services and of EndpointSlices that came, and are not in the kernel yet.
    pub fn changed(&self, services: u64, slices: u64) {
        let mut state = self.0.lock();
        for (place, new) in [services, slices].into_iter().enumerate() {
            state.changes[place] += new;
            state.pending[place] += new;
        }
    }

    /// All changes that came are in the kernel.
    pub fn done(&self) {
        self.0.lock().pending = [0; 2];
    }

    pub fn queued(&self, family: Family) {
        self.with(family, |counts| counts.queued = now());
    }

    /// The kernel took a transaction, which took so long to make and to write.
    pub fn synced(&self, family: Family, extent: Extent, took: Duration, without_local: [usize; 2]) {
        self.with(family, |counts| {
            counts.all.observe(took.as_secs_f64());
            let own = if extent == Extent::Full { &mut counts.full } else { &mut counts.partial };
            own.observe(took.as_secs_f64());
            counts.synced = now();
            counts.without_local = without_local;
        });
    }

    pub fn failed(&self, family: Family) {
        self.with(family, |counts| counts.failures += 1);
    }

    /// A change of endpoints is in the kernel so long after whoever wrote it saw its cause.
    pub fn programmed(&self, family: Family, after: Duration) {
        self.with(family, |counts| counts.programming.observe(after.as_secs_f64()));
    }

    pub fn forgot(&self, family: Family, flows: usize, took: Duration) {
        self.with(family, |counts| {
            counts.conntrack.observe(took.as_secs_f64());
            counts.conntrack_deleted += flows as u64;
        });
    }

    /// An answer at `/healthz`, or else at `/livez`.
    pub fn answered(&self, health: bool, status: u16) {
        *self.0.lock().asked[usize::from(!health)].entry(status).or_default() += 1;
    }

    /// The page of a mode, by its name.
    pub fn render(&self, mode: &str) -> String {
        let (state, mut page) = (self.0.lock(), Page(String::new()));
        let times: [(&str, &str, Of<Histogram>); 5] = [
            ("sync_proxy_rules_duration_seconds", "Time of one round of writing rules in seconds", |c| &c.all),
            ("sync_full_proxy_rules_duration_seconds", "Time of writing all rules in seconds", |c| &c.full),
            ("sync_partial_proxy_rules_duration_seconds", "Time of writing what changed in seconds", |c| &c.partial),
            ("network_programming_duration_seconds", "Time from the cause of a change to the kernel in seconds", |c| {
                &c.programming
            }),
            ("conntrack_reconciler_sync_duration_seconds", "Time of forgetting flows in seconds", |c| &c.conntrack),
        ];
        for (name, help, of) in times {
            page.begin(name, "histogram", help);
            for (family, counts) in &state.families {
                page.histogram(name, *family, of(counts));
            }
        }
        let failures = match mode {
            "iptables" => "sync_proxy_rules_iptables_restore_failures_total",
            _ => "sync_proxy_rules_nftables_sync_failures_total",
        };
        let numbers: [(&str, &str, &str, Number); 5] = [
            ("sync_proxy_rules_last_timestamp_seconds", "gauge", "When rules were last written", |c| c.synced),
            ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", "When a change last came", |c| c.queued),
            (failures, "counter", "Transactions that the kernel refused", |c| c.failures as f64),
            // Chains that go are deleted in the transaction that needs them no more, so this cannot fail by itself.
            ("sync_proxy_rules_nftables_cleanup_failures_total", "counter", "Chains that could not be removed", |_| {
                0.0
            }),
            ("conntrack_reconciler_deleted_entries_total", "counter", "Flows that were forgotten", |c| {
                c.conntrack_deleted as f64
            }),
        ];
        for (name, kind, help, of) in
            numbers.into_iter().filter(|(name, ..)| mode == "nftables" || !name.contains("nftables"))
        {
            page.begin(name, kind, help);
            for (family, counts) in &state.families {
                page.line(name, &format!("ip_family=\"{}\"", family.name()), of(counts));
            }
        }
        let name = "sync_proxy_rules_no_local_endpoints_total";
        page.begin(name, "gauge", "Ports with a policy Local whose endpoints are all elsewhere");
        for (family, counts) in &state.families {
            for (policy, count) in ["internal", "external"].into_iter().zip(counts.without_local) {
                page.line(name, &format!("ip_family=\"{}\",traffic_policy=\"{policy}\"", family.name()), count as f64);
            }
        }
        for (place, of) in ["service", "endpoint"].into_iter().enumerate() {
            let (total, waiting) = (state.changes[place] as f64, state.pending[place] as f64);
            for (end, kind, value) in [("total", "counter", total), ("pending", "gauge", waiting)] {
                let name = format!("sync_proxy_rules_{of}_changes_{end}");
                page.begin(&name, kind, &format!("Changes of {of}s, {end}"));
                page.line(&name, "", value);
            }
        }
        for (name, answers) in ["proxy_healthz_total", "proxy_livez_total"].into_iter().zip(&state.asked) {
            page.begin(name, "counter", "Answers about the proxy's health, by status");
            for (status, count) in answers {
                page.line(name, &format!("code=\"{status}\""), *count as f64);
            }
        }
        page.0
    }
}

/// Text in Prometheus' form. Writing to it cannot fail.
struct Page(String);

impl Page {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP kubeproxy_{name} {help}\n# TYPE kubeproxy_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "kubeproxy_{name}{labels} {value}");
    }

    fn histogram(&mut self, name: &str, family: Family, histogram: &Histogram) {
        let family = format!("ip_family=\"{}\"", family.name());
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            self.line(&format!("{name}_bucket"), &format!("{family},le=\"{bound}\""), *count as f64);
        }
        self.line(&format!("{name}_bucket"), &format!("{family},le=\"+Inf\""), histogram.count as f64);
        self.line(&format!("{name}_sum"), &family, histogram.sum);
        self.line(&format!("{name}_count"), &family, histogram.count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_upstreams_names() {
        let metrics = Metrics::default();
        metrics.changed(2, 3);
        metrics.synced(Family::V4, Extent::Full, Duration::from_millis(3), [1, 0]);
        metrics.synced(Family::V4, Extent::Partial, Duration::from_secs(100), [0, 2]);
        metrics.programmed(Family::V6, Duration::from_millis(300));
        metrics.failed(Family::V4);
        metrics.forgot(Family::V4, 4, Duration::from_millis(1));
        metrics.answered(true, 503);
        metrics.answered(false, 200);
        let page = metrics.render("nftables");
        let check =
            |line: &str| assert!(page.lines().any(|l| l == format!("kubeproxy_{line}")), "{line} is not in\n{page}");
        check("sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.002\"} 0");
        check("sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1");
        check("sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"16.384\"} 1");
        check("sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2");
        check("sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1");
        check("sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1");
        check("network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.25\"} 0");
        check("network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.5\"} 1");
        check("network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"300\"} 1");
        check("sync_proxy_rules_service_changes_total 2");
        check("sync_proxy_rules_endpoint_changes_pending 3");
        check("sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"external\"} 2");
        check("sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1");
        check("conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 4");
        check("proxy_healthz_total{code=\"503\"} 1");
        check("proxy_livez_total{code=\"200\"} 1");
        metrics.done();
        assert!(metrics.render("nftables").contains("kubeproxy_sync_proxy_rules_endpoint_changes_pending 0"));
        let other = metrics.render("iptables");
        assert!(other.contains("kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} 1"));
        assert!(!other.contains("nftables"), "{other}");
        let named = page.lines().filter_map(|l| l.strip_prefix("# TYPE ")).filter_map(|l| l.split(' ').next());
        let mut names: Vec<&str> = named.collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "each name once");
    }
}
