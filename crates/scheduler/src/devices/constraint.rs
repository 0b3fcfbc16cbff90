//! Constraints of a claim: all devices of some of its requests have the same value of an attribute.

use k8s_openapi::api::resource::v1::DeviceAttribute;

use super::slices::Device;

pub(super) struct MatchAttribute<'a> {
    /// The requests that it is about, or alternatives of one; all when empty.
    requests: &'a [String],
    attribute: &'a str,
    /// The value of the devices chosen so far.
    value: Option<&'a DeviceAttribute>,
    devices: usize,
}

impl<'a> MatchAttribute<'a> {
    pub fn new(attribute: &'a str, requests: Option<&'a Vec<String>>) -> Self {
        MatchAttribute { requests: requests.map(Vec::as_slice).unwrap_or_default(), attribute, value: None, devices: 0 }
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
        if self.devices == 0 {
            self.value = Some(value);
        } else if self.value.is_none_or(|held| !is_same(held, value)) {
            return false;
        }
        self.devices += 1;
        true
    }

    /// Undoes an addition that was a success.
    pub fn remove(&mut self, request: &str, alternative: Option<&str>) {
        if self.concerns(request, alternative) {
            self.devices -= 1;
        }
    }
}

/// Whether both have the same value, of a sort that is known.
fn is_same(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    let known = a.string.is_some() || a.int.is_some() || a.bool.is_some() || a.version.is_some();
    known && a == b
}
