//! The arguments of plugins, as a profile's `pluginConfig` gives them.
//! Upstream counterpart: pkg/scheduler/apis/config/validation (validation_pluginargs).

use std::time::Duration;

use api::{
    features::{Feature, Features},
    validation::{
        field::{FieldError, Path},
        names,
    },
};
use json::{Value, json};
use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use serde::{Deserialize, de::DeserializeOwned};

use super::{Errors, extenders::duration};
use crate::args::{Args, Spreading, Strategy, Weighted};

/// Reads one plugin's arguments into those of its profile.
pub(crate) fn read(
    (plugin, value): (&str, Value),
    path: &Path,
    features: Features,
    args: &mut Args,
    errors: &mut Errors,
) {
    match plugin {
        "DefaultPreemption" => given::<Preemption>(plugin, value, path, errors, |given, e| given.read(path, args, e)),
        "InterPodAffinity" => given::<PodAffinity>(plugin, value, path, errors, |given, e| given.read(path, args, e)),
        "NodeAffinity" => given::<Affinity>(plugin, value, path, errors, |given, _| {
            args.added_affinity = given.added_affinity;
        }),
        "NodeResourcesFit" => given::<Fit>(plugin, value, path, errors, |given, e| given.read(path, args, e)),
        "NodeResourcesBalancedAllocation" => {
            given::<Balanced>(plugin, value, path, errors, |given, e| given.read(path, args, e));
        }
        "PodTopologySpread" => given::<Spread>(plugin, value, path, errors, |given, e| given.read(path, args, e)),
        "VolumeBinding" => given::<Volumes>(plugin, value, path, errors, |given, e| given.read(path, args, e)),
        "DynamicResources" => given::<Devices>(plugin, value, path, errors, |given, e| {
            given.read(path, features, args, e);
        }),
        other => errors.say(path, &format!("plugin {other:?} takes no arguments")),
    }
}

/// Decodes arguments, whose own kind may stand beside them.
fn given<T: DeserializeOwned>(
    plugin: &str,
    mut value: Value,
    path: &Path,
    errors: &mut Errors,
    then: impl FnOnce(T, &mut Errors),
) {
    if value.is_null() {
        value = json!({});
    }
    let kind = value.get("kind").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| *kind != format!("{plugin}Args")) {
        errors.say(path, &format!("args for plugin {plugin:?} were not of type {plugin:?}Args, got {kind:?}"));
    }
    match T::deserialize(&value) {
        Ok(given) => then(given, errors),
        Err(error) => errors.say(path, &error.to_string()),
    }
}

/// The fields by which arguments say what they are.
macro_rules! arguments {
    ($(#[$about:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$about])*
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct $name {
            #[serde(rename = "apiVersion")]
            _api_version: Option<String>,
            #[serde(rename = "kind")]
            _kind: Option<String>,
            $($field: $type,)*
        }
    };
}

arguments!(Preemption { min_candidate_nodes_percentage: Option<i64>, min_candidate_nodes_absolute: Option<i64> });
arguments!(PodAffinity {
    hard_pod_affinity_weight: Option<i64>,
    ignore_preferred_terms_of_existing_pods: Option<bool>,
});
arguments!(Affinity { added_affinity: Option<NodeAffinity> });
arguments!(Fit {
    ignored_resources: Option<Vec<String>>,
    ignored_resource_groups: Option<Vec<String>>,
    scoring_strategy: Option<ScoringStrategy>,
});
arguments!(Balanced { resources: Option<Vec<Resource>> });
arguments!(Spread {
    default_constraints: Option<Vec<TopologySpreadConstraint>>,
    defaulting_type: Option<String>,
});
arguments!(Volumes { bind_timeout_seconds: Option<i64>, shape: Option<Value> });
arguments!(
    /// How long devices may take to be found, and to be ready.
    Devices { filter_timeout: Option<String>, binding_timeout: Option<String> }
);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    name: String,
    #[serde(default)]
    weight: i64,
}

impl Resource {
    fn weighted(self) -> Weighted {
        Weighted { name: self.name, weight: if self.weight == 0 { 1 } else { self.weight } }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScoringStrategy {
    #[serde(rename = "type")]
    kind: Option<String>,
    resources: Option<Vec<Resource>>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    #[serde(default)]
    shape: Vec<Point>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    #[serde(default)]
    utilization: i64,
    #[serde(default)]
    score: i64,
}

/// Says when a number is beyond its bounds.
fn within(path: &Path, value: i64, bounds: std::ops::RangeInclusive<i64>, errors: &mut Errors) {
    if !bounds.contains(&value) {
        let detail = match *bounds.end() {
            i64::MAX => format!("not in valid range [{}, inf)", bounds.start()),
            end => format!("not in valid range [{}, {end}]", bounds.start()),
        };
        errors.add(FieldError::invalid(path, value, &detail));
    }
}

impl Preemption {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        let (percentage, absolute) =
            (path.child("minCandidateNodesPercentage"), path.child("minCandidateNodesAbsolute"));
        let share = self.min_candidate_nodes_percentage.unwrap_or(10);
        let count = self.min_candidate_nodes_absolute.unwrap_or(100);
        within(&percentage, share, 0..=100, errors);
        within(&absolute, count, 0..=i64::MAX, errors);
        if share == 0 && count == 0 {
            let beside = |other: &str| format!("cannot be zero at the same time as {other}");
            errors.add(FieldError::invalid(&percentage, share, &beside("minCandidateNodesAbsolute")));
            errors.add(FieldError::invalid(&absolute, count, &beside("minCandidateNodesPercentage")));
        }
        args.candidates_percentage = usize::try_from(share).unwrap_or(0);
        args.candidates_absolute = usize::try_from(count).unwrap_or(0);
    }
}

impl PodAffinity {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        args.hard_affinity_weight = self.hard_pod_affinity_weight.unwrap_or(1);
        args.ignore_preferred_of_existing = self.ignore_preferred_terms_of_existing_pods.unwrap_or(false);
        within(&path.child("hardPodAffinityWeight"), args.hard_affinity_weight, 0..=100, errors);
    }
}

impl Fit {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        args.ignored_resources = self.ignored_resources.unwrap_or_default();
        args.ignored_groups = self.ignored_resource_groups.unwrap_or_default();
        for (field, list) in
            [("ignoredResources", &args.ignored_resources), ("ignoredResourceGroups", &args.ignored_groups)]
        {
            for (index, name) in list.iter().enumerate() {
                let path = path.child(field).index(index);
                if field == "ignoredResourceGroups" && name.contains('/') {
                    errors.add(FieldError::invalid(&path, name, "resource group name can't contain '/'"));
                }
                for wrong in names::qualified_name(name) {
                    errors.add(FieldError::invalid(&path, name, &wrong));
                }
            }
        }
        if let Some(strategy) = self.scoring_strategy {
            strategy.read(&path.child("scoringStrategy"), args, errors);
        }
    }
}

impl ScoringStrategy {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        let ratio = path.child("requestedToCapacityRatio");
        let kind = self.kind.unwrap_or_default();
        args.strategy = match (kind.as_str(), self.requested_to_capacity_ratio) {
            ("RequestedToCapacityRatio", Some(Ratio { shape })) => {
                check_shape(&shape, &ratio.child("shape"), errors);
                Strategy::RequestedToCapacityRatio(shape.iter().map(|p| (p.utilization, p.score)).collect())
            }
            ("RequestedToCapacityRatio", None) => {
                let detail = "must be specified when type is RequestedToCapacityRatio";
                errors.add(FieldError::required(&ratio, detail));
                Strategy::LeastAllocated
            }
            (other, given) => {
                if given.is_some() {
                    let detail = "must be nil when type is not RequestedToCapacityRatio";
                    errors.add(FieldError::forbidden(&ratio, detail));
                }
                match other {
                    "LeastAllocated" => Strategy::LeastAllocated,
                    "MostAllocated" => Strategy::MostAllocated,
                    other => {
                        let known = &["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
                        errors.add(FieldError::not_supported(&path.child("type"), other, known));
                        Strategy::LeastAllocated
                    }
                }
            }
        };
        let resources = self.resources.unwrap_or_default();
        if resources.is_empty() {
            return;
        }
        args.scored = resources.into_iter().map(Resource::weighted).collect();
        for (index, Weighted { name, weight }) in args.scored.iter().enumerate() {
            if !(1..=100).contains(weight) {
                let detail = format!("resource weight of {name} not in valid range (0, 100]");
                let path = path.child("resources").index(index).child("weight");
                errors.add(FieldError::invalid(&path, weight, &detail));
            }
        }
    }
}

fn check_shape(shape: &[Point], path: &Path, errors: &mut Errors) {
    if shape.is_empty() {
        return errors.add(FieldError::required(path, "at least one point must be specified"));
    }
    let fallen = shape.windows(2).position(|pair| pair[0].utilization >= pair[1].utilization);
    if let Some(index) = fallen.map(|before| before + 1) {
        let path = path.index(index).child("utilization");
        let detail = "values must be sorted in increasing order";
        errors.add(FieldError::invalid(&path, shape[index].utilization, detail));
    }
    for (index, point) in shape.iter().enumerate() {
        within(&path.index(index).child("utilization"), point.utilization, 0..=100, errors);
        within(&path.index(index).child("score"), point.score, 0..=10, errors);
    }
}

impl Balanced {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        let resources = self.resources.unwrap_or_default();
        if resources.is_empty() {
            return;
        }
        let resources: Vec<Weighted> = resources.into_iter().map(Resource::weighted).collect();
        for (index, Weighted { name, weight }) in resources.iter().enumerate() {
            let path = path.child("resources").index(index);
            if resources[..index].iter().any(|other| other.name == *name) {
                errors.add(FieldError::duplicate(&path.child("name"), name));
            }
            if *weight != 1 {
                errors.add(FieldError::invalid(&path.child("weight"), weight, "must be 1"));
            }
        }
        args.balanced = resources.into_iter().map(|resource| resource.name).collect();
    }
}

impl Spread {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        let constraints = self.default_constraints.unwrap_or_default();
        let kind = self.defaulting_type.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "System".to_owned());
        let place = path.child("defaultingType");
        match kind.as_str() {
            "List" => {}
            "System" if constraints.is_empty() => {}
            "System" => errors.add(FieldError::invalid(&place, &kind, "when .defaultConstraints are not empty")),
            other => errors.add(FieldError::not_supported(&place, other, &["List", "System"])),
        }
        for (index, constraint) in constraints.iter().enumerate() {
            let place = path.child("defaultConstraints").index(index);
            check_constraint(constraint, &place, errors);
            let same = |other: &TopologySpreadConstraint| {
                other.topology_key == constraint.topology_key
                    && other.when_unsatisfiable == constraint.when_unsatisfiable
            };
            if constraints[..index].iter().any(same) {
                let shown = format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
                errors.add(FieldError::duplicate(&place, shown));
            }
        }
        if kind == "List" {
            args.spreading = Spreading::List(constraints);
        }
    }
}

fn check_constraint(constraint: &TopologySpreadConstraint, path: &Path, errors: &mut Errors) {
    if constraint.max_skew <= 0 {
        let path = path.child("maxSkew");
        errors.add(FieldError::invalid(&path, constraint.max_skew, "not in valid range (0, inf)"));
    }
    let key = path.child("topologyKey");
    match constraint.topology_key.as_str() {
        "" => errors.add(FieldError::required(&key, "can not be empty")),
        name => names::qualified_name(name).iter().for_each(|wrong| errors.add(FieldError::invalid(&key, name, wrong))),
    }
    let action = path.child("whenUnsatisfiable");
    match constraint.when_unsatisfiable.as_str() {
        "" => errors.add(FieldError::required(&action, "can not be empty")),
        "DoNotSchedule" | "ScheduleAnyway" => {}
        other => errors.add(FieldError::not_supported(&action, other, &["DoNotSchedule", "ScheduleAnyway"])),
    }
    if constraint.label_selector.is_some() {
        let detail = "constraint must not define a selector, as they deduced for each pod";
        errors.add(FieldError::forbidden(&path.child("labelSelector"), detail));
    }
}

impl Volumes {
    fn read(self, path: &Path, args: &mut Args, errors: &mut Errors) {
        let seconds = self.bind_timeout_seconds.unwrap_or(600);
        match u64::try_from(seconds) {
            Ok(seconds) => args.bind_timeout = Duration::from_secs(seconds),
            Err(_) => {
                let detail = "invalid BindTimeoutSeconds, should not be a negative value";
                errors.add(FieldError::invalid(&path.child("bindTimeoutSeconds"), seconds, detail));
            }
        }
        if let Some(shape) = self.shape {
            let detail = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
            errors.add(FieldError::invalid(&path.child("shape"), shape, detail));
        }
    }
}

impl Devices {
    fn read(self, path: &Path, features: Features, args: &mut Args, errors: &mut Errors) {
        if self.filter_timeout.is_some() {
            let steps = "the search for devices on a node ends after a number of steps, in less than a second";
            errors.add(FieldError::forbidden(&path.child("filterTimeout"), steps));
        }
        let (Some(text), path) = (self.binding_timeout, path.child("bindingTimeout")) else { return };
        let gates = [Feature::DRADeviceBindingConditions, Feature::DRAResourceClaimDeviceStatus];
        if !gates.into_iter().all(|gate| features.enabled(gate)) {
            let off = "DRADeviceBindingConditions or DRAResourceClaimDeviceStatus feature gate is disabled";
            return errors.add(FieldError::forbidden(&path, off));
        }
        match duration(&text).filter(|timeout| *timeout >= Duration::from_secs(1)) {
            Some(timeout) => args.binding_timeout = timeout,
            None => errors.add(FieldError::invalid(&path, text, "must be at least 1 second")),
        }
    }
}
