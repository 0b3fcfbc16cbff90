//! The rules by which a device that is shared gives shares of its capacity.

use json::Value;
use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::parts::set;
use crate::rules::quantity::{Quantity, parse};
use crate::validation::field::{Errors, FieldError, Path};

const VALUES_MAX: usize = 10;

/// `most` is the capacity itself.
pub(super) fn policy(policy: &CapacityRequestPolicy, most: &Text, path: &Path) -> Errors {
    let values = policy.valid_values.as_ref().filter(|values| !values.is_empty());
    let required =
        |field: &str| vec![FieldError::required(&path.child("default"), &format!("required when {field} is defined"))];
    match (values, &policy.valid_range, &policy.default) {
        (Some(_), Some(_), _) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same \
                          time";
            vec![FieldError::forbidden(path, detail)]
        }
        (Some(_), None, None) => required("validValues"),
        (None, Some(_), None) => required("validRange"),
        (Some(values), None, Some(default)) => valid_values(values, default, most, &path.child("validValues")),
        (None, Some(range), Some(default)) => valid_range(range, default, most, &path.child("validRange")),
        (None, None, _) => Errors::new(),
    }
}

fn valid_values(values: &Vec<Text>, default: &Text, most: &Text, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (at, pair) in values.windows(2).enumerate().filter(|(_, pair)| parse(&pair[0]) > parse(&pair[1])) {
        let detail = "values must be sorted in ascending order";
        errors.push(FieldError::invalid(&path.index(at + 1), &pair[1].0, detail));
    }
    let key = |value: &Text| Value::from(parse(value).value().to_string());
    errors.extend(set(Some(values), VALUES_MAX, path, key, |value, path| {
        let detail = format!("option is larger than capacity value: {}", most.0);
        let too_large = parse(value) > parse(most);
        too_large.then(|| FieldError::invalid(path, &value.0, &detail)).into_iter().collect()
    }));
    if values.len() <= VALUES_MAX && !values.iter().any(|value| parse(value) == parse(default)) {
        errors.push(FieldError::invalid(path, &default.0, "default value is not valid according to the requestPolicy"));
    }
    errors
}

fn valid_range(range: &CapacityRequestPolicyRange, default: &Text, most: &Text, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (least, place) = (&range.min, path.child("min"));
    let mut check = |holds: bool, place: &Path, value: &Text, detail: String| {
        if !holds {
            errors.push(FieldError::invalid(place, &value.0, &detail));
        }
    };
    check(parse(least) <= parse(most), &place, least, format!("min is larger than capacity value: {}", most.0));
    check(parse(default) >= parse(least), &place, default, format!("default is less than min: {}", least.0));
    if let Some(max) = &range.max {
        let place = path.child("max");
        check(parse(least) <= parse(max), &place, least, format!("min is larger than max: {}", max.0));
        check(parse(max) <= parse(most), &place, max, format!("max is larger than capacity value: {}", most.0));
        check(parse(default) <= parse(max), &place, default, format!("default is more than max: {}", max.0));
    }
    if let Some(step) = &range.step {
        let place = path.child("step");
        let mut sum = parse(least);
        sum += parse(step);
        check(sum <= parse(most), &place, step, format!("one step {sum} is larger than capacity value: {}", most.0));
        let detail = format!("value is not a multiple of a given step ({}) from ({})", step.0, least.0);
        let whole = |value: &Text| is_multiple(parse(value), parse(least), parse(step));
        for value in [Some(default), range.max.as_ref()].into_iter().flatten() {
            check(whole(value), &place, value, detail.clone());
        }
    }
    errors
}

/// A step of nothing leads nowhere.
fn is_multiple(value: Quantity, least: Quantity, step: Quantity) -> bool {
    step.value() > 0 && (value.value() - least.value()) % step.value() == 0
}
