//! The features of devices that a cluster may have on, and the taints that somebody else than a driver puts on devices.

use api::features::{Feature, Features};
use k8s_openapi::api::resource::v1alpha3::DeviceTaintRule;

/// Which features are on; none of them is by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gates {
    pub taints: bool,
    pub taint_rules: bool,
    pub partitions: bool,
    pub shared_capacity: bool,
    /// Bindings wait for conditions of devices.
    pub conditions: bool,
    /// Classes stand for extended resources.
    pub extended: bool,
}

impl Gates {
    pub fn of(features: &Features) -> Self {
        let taints = features.enabled(Feature::DRADeviceTaints);
        Gates {
            taints,
            taint_rules: taints && features.enabled(Feature::DRADeviceTaintRules),
            partitions: features.enabled(Feature::DRAPartitionableDevices),
            shared_capacity: features.enabled(Feature::DRAConsumableCapacity),
            conditions: features.enabled(Feature::DRADeviceBindingConditions)
                && features.enabled(Feature::DRAResourceClaimDeviceStatus),
            extended: features.enabled(Feature::DRAExtendedResource),
        }
    }
}

/// A taint, as far as it decides who gets a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// A taint of all devices that a rule selects.
#[derive(Debug, Clone, PartialEq)]
pub struct TaintRule {
    pub taint: Taint,
    /// Driver, pool and device, as far as the rule names them; `None` when it selects nothing.
    selector: Option<[Option<String>; 3]>,
}

impl TaintRule {
    pub fn of(rule: &DeviceTaintRule) -> Self {
        let (taint, selector) = (&rule.spec.taint, rule.spec.device_selector.as_ref());
        TaintRule {
            taint: Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            },
            selector: selector.map(|s| [s.driver.clone(), s.pool.clone(), s.device.clone()]),
        }
    }

    /// Whether it is about a device of this driver, pool and name.
    pub(super) fn selects(&self, own: [&String; 3]) -> bool {
        let same = |(named, own): (&Option<String>, &String)| named.as_ref().is_none_or(|named| named == own);
        self.selector.as_ref().is_some_and(|selector| selector.iter().zip(own).all(same))
    }
}
