//! The engine's reaction when it is told of devices: of claims on them, their classes, and the slices that offer them.

use client::Key;
use clock::{Instant, Timestamp};

use crate::{
    change::Change,
    claims,
    devices::{Claim, Class, News, Slice, TaintRule},
    engine::{Engine, names},
};

impl Engine {
    /// A ResourceClaim as it is now; `None` when it is gone. Only the Pods that use it are tried again, unless it gave
    /// devices back.
    pub fn set_device_claim(&mut self, key: &Key, claim: Option<Claim>, now: Instant) {
        let preparing = &self.preparing;
        let binds = |pod: &Key, uid: &str| preparing.contains(&(pod.clone(), uid.to_owned()));
        match self.cache.devices.set_claim(key, claim, binds) {
            News::None => {}
            News::Changed => {
                let uses =
                    |class: &crate::class::Class| class.namespace == key.namespace && names(&class.devices, &key.name);
                self.claims_changed(Change::Devices, uses, now);
            }
            News::Freed => self.devices_freed(now),
        }
    }

    /// A DeviceClass as it is now; `None` when it is gone.
    pub fn set_device_class(&mut self, key: &Key, class: Option<Class>, now: Instant) {
        if self.cache.devices.set_class(&key.name, class) {
            self.devices_freed(now);
        }
    }

    /// A ResourceSlice as it is now; `None` when it is gone.
    pub fn set_slice(&mut self, key: &Key, slice: Option<Slice>, now: Instant) {
        if self.cache.devices.slices.set(&key.name, slice) {
            self.cache.devices.changed();
            self.devices_freed(now);
        }
    }

    /// A rule that taints devices as it is now; `None` when it is gone.
    pub fn set_taint_rule(&mut self, key: &Key, rule: Option<TaintRule>, now: Instant) {
        if claims::set(&mut self.cache.devices.taint_rules, key.name.clone(), rule) {
            self.cache.devices.changed();
            self.devices_freed(now);
        }
    }

    pub fn taint_rule_keys(&self) -> Vec<Key> {
        self.cache.devices.taint_rules.keys().map(|name| Key::new("", name)).collect()
    }

    /// The wall clock, by which claims are judged that keep Pods waiting. Without it none has waited too long.
    pub fn tell_time(&mut self, now: Timestamp) {
        self.cache.devices.now = Some(now);
    }

    /// Every Pod that waits for devices may get some now.
    pub(crate) fn devices_freed(&mut self, now: Instant) {
        let extended = self.cache.devices.gates.extended;
        let uses = |class: &crate::class::Class| !class.devices.is_empty() || (extended && !class.asks.is_empty());
        self.claims_changed(Change::Devices, uses, now);
    }

    /// A Pod that is gone was not bound, so its claims do not get the devices that were kept for them.
    pub(crate) fn devices_taken_back(&mut self, pod: &Key, uid: &str, now: Instant) {
        self.cache.devices.take_back(pod, uid);
        if self.cache.devices.was_freed() {
            self.devices_freed(now);
        }
    }

    pub fn device_claim_keys(&self) -> Vec<Key> {
        self.cache.devices.claim_keys().cloned().collect()
    }

    pub fn device_class_keys(&self) -> Vec<Key> {
        self.cache.devices.class_names().map(|name| Key::new("", name)).collect()
    }

    pub fn slice_keys(&self) -> Vec<Key> {
        self.cache.devices.slices.names().map(|name| Key::new("", name)).collect()
    }
}
