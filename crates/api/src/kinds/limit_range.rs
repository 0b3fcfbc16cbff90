//! LimitRange: what one object of a namespace may ask for, and what it gets when it asks for nothing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::kind::Kind;
use crate::rules::quantity::{Quantity, parse};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

pub const LIMIT_RANGE: Kind<LimitRange> = Kind {
    create_on_update: true,
    short: &["limits"],
    default: Some(default_limits),
    validate: Some(validate),
    ..Kind::BASE
};

/// For containers: a limit follows from the most, a request from the limit, or from the least.
fn default_limits(range: &mut LimitRange) {
    let fill = |into: &mut Option<BTreeMap<String, Text>>, from: &Option<BTreeMap<String, Text>>| {
        for (name, amount) in from.iter().flatten() {
            into.get_or_insert_default().entry(name.clone()).or_insert_with(|| amount.clone());
        }
    };
    for item in range.spec.iter_mut().flat_map(|s| s.limits.iter_mut()).filter(|l| l.type_ == "Container") {
        fill(&mut item.default, &item.max);
        fill(&mut item.default_request, &item.default);
        fill(&mut item.default_request, &item.min);
    }
}

fn validate(range: &LimitRange) -> Errors {
    let path = Path::new("spec").child("limits");
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (i, item) in range.spec.iter().flat_map(|s| s.limits.iter()).enumerate() {
        let (path, kind) = (path.index(i), item.type_.as_str());
        let standard = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
        errors.extend(invalid(&path.child("type"), kind, names::qualified_name(kind)));
        if !standard && !kind.contains('/') {
            let detail = "must be a standard limit type or fully qualified";
            errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        errors.extend(of_kind(item, &path));
        let amounts = [&item.max, &item.min, &item.default, &item.default_request, &item.max_limit_request_ratio];
        let resources: BTreeSet<&String> = amounts.into_iter().flatten().flat_map(BTreeMap::keys).collect();
        for resource in resources {
            errors.extend(of_resource(item, resource, &path));
        }
    }
    errors
}

/// Only containers get defaults (and kinds that are not known here); a claim is limited by its size.
fn of_kind(item: &LimitRangeItem, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match item.type_.as_str() {
        "Pod" => {
            let is_set = |amounts: &Option<BTreeMap<String, Text>>| amounts.as_ref().is_some_and(|a| !a.is_empty());
            for (field, amounts) in [("default", &item.default), ("defaultRequest", &item.default_request)] {
                if is_set(amounts) {
                    errors.push(FieldError::forbidden(&path.child(field), "may not be specified when `type` is 'Pod'"));
                }
            }
        }
        "PersistentVolumeClaim" => {
            let has =
                |amounts: &Option<BTreeMap<String, Text>>| amounts.as_ref().is_some_and(|a| a.contains_key("storage"));
            if !has(&item.min) && !has(&item.max) {
                let detail = "either minimum or maximum storage value is required, but neither was provided";
                errors.push(FieldError::required(&path.child("limits"), detail));
            }
        }
        _ => {}
    }
    errors
}

/// Each amount is within the others.
fn of_resource(item: &LimitRangeItem, name: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let of = |amounts: &Option<BTreeMap<String, Text>>| amounts.as_ref().and_then(|a| a.get(name)).map(parse);
    let (min, max) = (of(&item.min), of(&item.max));
    let with_defaults = item.type_ != "Pod";
    let default = of(&item.default).filter(|_| with_defaults);
    let request = of(&item.default_request).filter(|_| with_defaults);
    let mut not_above =
        |low: Option<Quantity>, high: Option<Quantity>, words: [&str; 2], field: &str, value: Option<Quantity>| {
            if let (Some(low), Some(high), Some(value)) = (low, high, value)
                && low > high
            {
                let detail = format!("{} value {low} is greater than {} value {high}", words[0], words[1]);
                errors.push(FieldError::invalid(&path.child(field).key(name), value.to_string(), &detail));
            }
        };
    not_above(min, max, ["min", "max"], "min", min);
    not_above(min, request, ["min", "default request"], "defaultRequest", request);
    not_above(request, max, ["default request", "max"], "defaultRequest", request);
    not_above(request, default, ["default request", "default limit"], "defaultRequest", request);
    not_above(min, default, ["min", "default"], "default", min);
    not_above(default, max, ["default", "max"], "default", max);
    if let Some(ratio) = of(&item.max_limit_request_ratio) {
        let path = path.child("maxLimitRequestRatio").key(name);
        if ratio < Quantity::new(1, crate::rules::quantity::Format::DecimalSi) {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(FieldError::invalid(&path, ratio.to_string(), &detail));
        }
        if let (Some(min), Some(max)) = (min.filter(|min| !min.is_zero()), max) {
            let most = max.as_f64() / min.as_f64();
            if ratio.as_f64() > most {
                let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
                errors.push(FieldError::invalid(&path, ratio.to_string(), &detail));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[test]
    fn the_amounts_of_a_range_fit_each_other() {
        let check = |limits: Value, expected: &[&str]| {
            let range: LimitRange = json::from_value(json!({"spec": {"limits": limits}})).unwrap();
            let errors: Vec<String> = validate(&range).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{limits}");
        };
        let fits = json!([{"type": "Container", "min": {"cpu": "1"}, "defaultRequest": {"cpu": "2"},
            "default": {"cpu": "3"}, "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "4"}}]);
        check(fits, &[]);
        let crossed = json!([{"type": "Container", "min": {"cpu": "4"}, "max": {"cpu": "1"}}]);
        check(crossed, &["spec.limits[0].min[cpu]: Invalid value: \"4\": min value 4 is greater than max value 1"]);
        let pod = json!([{"type": "Pod", "default": {"cpu": "1"}}, {"type": "Pod"}]);
        let expected = [
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            "spec.limits[1].type: Duplicate value: \"Pod\"",
        ];
        check(pod, &expected);
        let claim = "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but \
                     neither was provided";
        check(json!([{"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}]), &[claim]);
        let ratio =
            json!([{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "3"}, "maxLimitRequestRatio": {"cpu": "2"}}]);
        let expected = "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"2\": ratio 2 is greater than max/min = \
                        1.500000";
        check(ratio, &[expected]);
    }
}
