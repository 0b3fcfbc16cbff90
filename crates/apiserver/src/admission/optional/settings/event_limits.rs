//! How many events a second are taken: the limits of EventRateLimit, and what is left of them.

use std::{collections::HashMap, sync::Arc};

use api::validation::{field::quote, section::Section};
use clock::Instant;
use parking_lot::Mutex;

use crate::admission::reasons;

/// The number of keys of a limit that are followed when it does not say.
const KEYS: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

const SORTS: &[(&str, Sort)] = &[
    ("Server", Sort::Server),
    ("Namespace", Sort::Namespace),
    ("User", Sort::User),
    ("SourceAndObject", Sort::SourceAndObject),
];

#[derive(Debug, Clone, PartialEq)]
struct Limit {
    sort: Sort,
    name: &'static str,
    per_second: f64,
    burst: f64,
    keys: usize,
}

/// The limits with what has been used of each.
#[derive(Debug, Clone, Default)]
pub struct Limits(Vec<(Limit, Arc<Mutex<Buckets>>)>);

impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|(limit, _)| limit).eq(other.0.iter().map(|(limit, _)| limit))
    }
}

impl Limits {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts an event with each limit, also where another one refuses it. The key that a limit counts by is found with `key`.
    /// The error says which ones are reached.
    pub fn take(&self, key: impl Fn(Sort) -> String) -> Result<(), String> {
        let mut reached = Vec::new();
        for (limit, buckets) in &self.0 {
            let key = key(limit.sort);
            if !buckets.lock().take(limit, &key, Instant::now()) {
                reached.push(format!("limit reached on type {} for key {key}", limit.name));
            }
        }
        reasons::together(&reached).map_or(Ok(()), |why| Err(format!("Too many requests: {why}")))
    }

    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        section.is("Configuration", &["eventratelimit.admission.k8s.io/v1alpha1"])?;
        section.has_only(&["apiVersion", "kind", "limits"])?;
        let limits = section.sections("limits")?;
        if limits.is_empty() {
            return Err(section.wrong("limits", "Invalid value: []: must not be empty"));
        }
        limits.iter().map(|limit| Ok((limit_of(limit)?, Arc::default()))).collect::<Result<_, _>>().map(Limits)
    }
}

fn limit_of(section: &Section<'_>) -> Result<Limit, String> {
    section.has_only(&["type", "qps", "burst", "cacheSize"])?;
    let given = section.text("type")?.unwrap_or("");
    let Some((name, sort)) = SORTS.iter().find(|(name, _)| *name == given) else {
        let names = SORTS.iter().map(|(name, _)| quote(name)).collect::<Vec<_>>().join(", ");
        return Err(section.wrong("type", &format!("Unsupported value: {}: supported values: {names}", quote(given))));
    };
    let number = |field: &str| match section.get(field) {
        None => Ok(0),
        Some(value) => value.as_i64().ok_or_else(|| section.wrong(field, "it must be a whole number")),
    };
    let positive = |field: &str| match number(field)? {
        number @ 1.. => u32::try_from(number).map(f64::from).map_err(|_| section.wrong(field, "it is too large")),
        number => Err(section.wrong(field, &format!("Invalid value: {number}: must be positive"))),
    };
    let (burst, per_second) = (positive("burst")?, positive("qps")?);
    let keys = match number("cacheSize")? {
        0 => KEYS,
        number => usize::try_from(number)
            .map_err(|_| section.wrong("cacheSize", &format!("Invalid value: {number}: must not be negative")))?,
    };
    Ok(Limit { sort: *sort, name, per_second, burst, keys })
}

/// The rest of a limit for each key.
#[derive(Debug, Default)]
struct Buckets(HashMap<String, Bucket>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn left(&self, limit: &Limit, now: Instant) -> f64 {
        let filled = now.saturating_duration_since(self.at).as_secs_f64() * limit.per_second;
        (self.left + filled).min(limit.burst)
    }
}

impl Buckets {
    /// Takes one of what is left for the key.
    fn take(&mut self, limit: &Limit, key: &str, now: Instant) -> bool {
        let left = self.0.get(key).map_or(limit.burst, |bucket| bucket.left(limit, now));
        if !self.0.contains_key(key) && self.0.len() >= limit.keys {
            self.make_room(limit, now);
        }
        let taken = left >= 1.0;
        let left = if taken { left - 1.0 } else { left };
        self.0.insert(key.to_owned(), Bucket { left, at: now });
        taken
    }

    /// Forgets keys that have all their limit again, or else the one that was asked for longest ago.
    fn make_room(&mut self, limit: &Limit, now: Instant) {
        self.0.retain(|_, bucket| bucket.left(limit, now) < limit.burst);
        if self.0.len() >= limit.keys
            && let Some(oldest) = self.0.iter().min_by_key(|(_, bucket)| bucket.at).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Value;
    use json::json;

    fn limits(limits: Value) -> Result<Limits, String> {
        let head = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": limits});
        Limits::parse(&Section::of("", &head).unwrap())
    }

    #[test]
    fn limits_are_understood_or_named() {
        assert!(limits(json!([{"type": "Server", "qps": 1, "burst": 2}])).is_ok());
        let check = |given: Value, expected: &str| assert_eq!(limits(given).unwrap_err(), expected);
        check(json!([]), "limits: Invalid value: []: must not be empty");
        let sorts = "\"Server\", \"Namespace\", \"User\", \"SourceAndObject\"";
        let unknown = format!("limits[0].type: Unsupported value: \"Node\": supported values: {sorts}");
        check(json!([{"type": "Node", "qps": 1, "burst": 1}]), &unknown);
        check(json!([{"type": "User", "burst": 1}]), "limits[0].qps: Invalid value: 0: must be positive");
        check(json!([{"type": "User", "qps": 1, "burst": -1}]), "limits[0].burst: Invalid value: -1: must be positive");
        check(json!([{"type": "User", "qps": 1, "burst": "1"}]), "limits[0].burst: it must be a whole number");
        let negative = json!([{"type": "User", "qps": 1, "burst": 1, "cacheSize": -1}]);
        check(negative, "limits[0].cacheSize: Invalid value: -1: must not be negative");
    }

    #[test]
    fn the_number_of_followed_keys_is_bounded() {
        let limits = limits(json!([{"type": "Namespace", "qps": 1, "burst": 1, "cacheSize": 10}])).unwrap();
        let (limit, buckets) = &limits.0[0];
        let now = Instant::now();
        for key in 0..100 {
            assert!(buckets.lock().take(limit, &key.to_string(), now));
        }
        assert_eq!(buckets.lock().0.len(), 10);
        assert!(!buckets.lock().take(limit, "99", now));
    }
}
