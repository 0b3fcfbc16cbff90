//! Constraints of a claim: all devices of some of its requests have the same value of an attribute, or all have different ones.

use k8s_openapi::api::resource::v1::DeviceAttribute;

use super::slices::Device;

/// The relation that the values must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    Same,
    Different,
}

pub(super) struct Constraint<'a> {
    wanted: Values,
    /// The requests that it is about, or alternatives of one; all when empty.
    requests: &'a [String],
    attribute: &'a str,
    /// The values of the devices chosen so far.
    values: Vec<&'a DeviceAttribute>,
}

impl<'a> Constraint<'a> {
    pub fn new(wanted: Values, attribute: &'a str, requests: Option<&'a Vec<String>>) -> Self {
        let requests = requests.map(Vec::as_slice).unwrap_or_default();
        Constraint { wanted, requests, attribute, values: Vec::new() }
    }

    fn concerns(&self, request: &str, alternative: Option<&str>) -> bool {
        let full = |name: &str| {
            alternative
                .is_some_and(|a| name.split_once('/').is_some_and(|(first, second)| first == request && second == a))
        };
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || full(name))
    }

    /// Takes a device in if that keeps the constraint.
    pub fn add(&mut self, request: &str, alternative: Option<&str>, device: &'a Device) -> bool {
        if !self.concerns(request, alternative) {
            return true;
        }
        let Some(value) = device.facts.attribute(self.attribute) else { return false };
        let keeps = match self.wanted {
            Values::Same => self.values.first().is_none_or(|held| is_same(held, value)),
            Values::Different => self.values.iter().all(|held| !is_same(held, value)),
        };
        if keeps {
            self.values.push(value);
        }
        keeps
    }

    /// Undoes an addition that was a success.
    pub fn remove(&mut self, request: &str, alternative: Option<&str>) {
        if self.concerns(request, alternative) {
            self.values.pop();
        }
    }
}

/// Whether both have the same value, of a sort that is known.
fn is_same(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    let known = a.string.is_some() || a.int.is_some() || a.bool.is_some() || a.version.is_some();
    known && a == b
}
