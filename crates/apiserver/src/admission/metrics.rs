//! The metrics of the plugins, under upstream's names. The share of webhooks in them is told by `webhook/metrics.rs` too.
//! Upstream counterpart: k8s.io/apiserver/pkg/admission/metrics.

use api::status::StatusError;
use clock::Duration;
use meter::{Each, Metric, Metrics};

use super::attributes::Operation;

const SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

static PLUGIN: Metric = Metric::histogram(
    "apiserver_admission_controller_admission_duration_seconds",
    "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource \
     and type (validate or admit).",
    SECONDS,
);
static STEP: Metric = Metric::histogram(
    "apiserver_admission_step_admission_duration_seconds",
    "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or \
     admit).",
    SECONDS,
);

/// The two steps of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Admit,
    Validate,
}

/// A series for each step, operation and end.
type Series = Each<16>;

/// The series of the plugins that are at work, in their order, and of all together.
pub struct Counts {
    all: Metrics,
    plugins: Vec<Series>,
    steps: Series,
}

fn place(sort: Sort, operation: Operation, rejected: bool) -> usize {
    sort as usize * 8 + operation as usize * 2 + usize::from(rejected)
}

impl Counts {
    pub(super) fn of(plugins: usize) -> Self {
        let plugins = std::iter::repeat_with(Series::default).take(plugins).collect();
        Counts { all: Metrics::new(), plugins, steps: Series::default() }
    }

    /// A plugin, or without a name the step as a whole, has ended.
    pub(super) fn ended(
        &self,
        plugin: Option<(usize, &str)>,
        (sort, operation): (Sort, Operation),
        done: &Result<(), StatusError>,
        took: Duration,
    ) {
        let rejected = done.is_err();
        let of = || {
            let sort = if sort == Sort::Admit { "admit" } else { "validate" };
            let rejected = if rejected { "true" } else { "false" };
            let labels = [("operation", operation.name()), ("rejected", rejected), ("type", sort)];
            match plugin {
                None => self.all.series(&STEP, &labels),
                Some((_, name)) => self.all.series(&PLUGIN, &[&[("name", name)], &labels[..]].concat()),
            }
        };
        let series = plugin.map_or(&self.steps, |(at, _)| &self.plugins[at]);
        series.at(place(sort, operation, rejected), of).observe(took.as_secs_f64());
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.all.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_a_place_of_its_own() {
        let operations = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
        let of =
            |sort| operations.into_iter().flat_map(move |o| [false, true].map(|rejected| place(sort, o, rejected)));
        let places: Vec<usize> = of(Sort::Admit).chain(of(Sort::Validate)).collect();
        assert_eq!(places, (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn plugins_and_steps_are_counted_by_their_ends() {
        let (counts, took) = (Counts::of(2), Duration::from_millis(7));
        counts.ended(Some((1, "Priority")), (Sort::Admit, Operation::Create), &Ok(()), took);
        let refused = Err(StatusError::internal("no"));
        counts.ended(None, (Sort::Validate, Operation::Delete), &refused, took);
        let page = counts.render();
        for line in [
            r#"apiserver_admission_controller_admission_duration_seconds_bucket{name="Priority",operation="CREATE",rejected="false",type="admit",le="0.025"} 1"#,
            r#"apiserver_admission_step_admission_duration_seconds_count{operation="DELETE",rejected="true",type="validate"} 1"#,
        ] {
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        }
    }
}
