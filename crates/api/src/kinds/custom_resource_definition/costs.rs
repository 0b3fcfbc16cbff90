//! The most that the rules of a schema may cost, each alone and all together.
//! Upstream counterpart: apiextensions-apiserver/pkg/apis/apiextensions/validation/cel_validation.go.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

use crate::validation::field::{Errors, FieldError, Path};

/// The most that one expression may cost in an object.
const ONE_MAX: u64 = 10_000_000;
/// The most that all expressions of a schema may cost in an object.
const ALL_MAX: u64 = 100_000_000;
/// As many of the most expensive rules are named if all together cost too much.
const NAMED: usize = 4;

/// The costs of a schema's expressions so far.
pub struct Costs {
    unchanged: bool,
    total: u64,
    /// The most expensive first.
    expensive: Vec<(Path, u64)>,
}

impl Costs {
    /// The cost of one expression alone counts for nothing where the schema is unchanged.
    pub fn new(unchanged: bool) -> Self {
        Costs { unchanged, total: 0, expensive: Vec::new() }
    }

    /// Adds an expression, and says if it costs too much alone.
    pub fn of_one(&mut self, name: &str, path: &Path, cost: u64) -> Option<FieldError> {
        self.total = self.total.saturating_add(cost);
        if cost >= ALL_MAX / 100 {
            let at = self.expensive.partition_point(|(_, other)| *other >= cost);
            self.expensive.insert(at, (path.clone(), cost));
            self.expensive.truncate(NAMED);
        }
        (cost > ONE_MAX && !self.unchanged).then(|| FieldError::forbidden(path, &message(name, cost, ONE_MAX)))
    }

    /// The error of all of them together.
    pub fn of_all(&self, path: &Path) -> Errors {
        if self.total <= ALL_MAX {
            return Errors::new();
        }
        let part = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let mut errors: Errors = self.expensive.iter().map(|(path, _)| FieldError::forbidden(path, part)).collect();
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, &message(name, self.total, ALL_MAX)));
        errors
    }
}

fn message(name: &str, cost: u64, limit: u64) -> String {
    #[expect(clippy::cast_precision_loss)]
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// How often what is directly in a place can be in one object.
pub fn inside(schema: &JSONSchemaProps, place: Option<u64>) -> Option<u64> {
    let factor = match schema.type_.as_deref() {
        Some("object") if schema.additional_properties.is_some() => schema.max_properties?,
        Some("array") => schema.max_items?,
        _ => 1,
    };
    Some(place?.saturating_mul(u64::try_from(factor).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_expensive_are_named() {
        let check = |costs: &[u64], named: &[u64], total: u64| {
            let mut all = Costs::new(false);
            costs.iter().for_each(|cost| drop(all.of_one("cost", &Path::new("p"), *cost)));
            let found: Vec<u64> = all.expensive.iter().map(|(_, cost)| *cost).collect();
            assert_eq!((&found[..], all.total), (named, total), "{costs:?}");
        };
        check(&[], &[], 0);
        check(&[1_000_000], &[1_000_000], 1_000_000);
        check(&[900_000], &[], 900_000);
        check(&[5_000_000, 25_000_000, 900_000], &[25_000_000, 5_000_000], 30_900_000);
        check(
            &[16_000_000, 50_000_000, 900_000, 34_000_000, 50_000_000, 50_000_001],
            &[50_000_001, 50_000_000, 50_000_000, 34_000_000],
            200_900_001,
        );
        check(&[u64::MAX / 2, u64::MAX / 2, 1, 10, 100], &[u64::MAX / 2, u64::MAX / 2], u64::MAX);
    }

    #[test]
    fn factors_are_shown_as_upstream_shows_them() {
        let factor = |cost: u64| {
            let text = message("cost", cost, ONE_MAX);
            text.split("factor of ").nth(1).and_then(|rest| rest.split(" (").next()).map(str::to_owned)
        };
        assert_eq!(factor(10_000_001).as_deref(), Some("1.000000x"));
        assert_eq!(factor(15_000_000).as_deref(), Some("1.5x"));
        assert_eq!(factor(123_000_000).as_deref(), Some("12.3x"));
        assert_eq!(factor(1_000_000_001).as_deref(), Some("more than 100x"));
    }
}
