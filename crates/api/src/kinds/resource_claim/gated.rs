//! The fields of features that a cluster may have off.

use crate::features::Feature;
use crate::kind::Gated;

const fn of(feature: Feature, fields: &'static [&'static str]) -> Gated {
    Gated { feature, fields }
}

/// Tolerations of taints, shares of a device's capacity, and conditions that the binding of a Pod waits for.
pub(super) const OF_CLAIM: &[Gated] = &[
    of(
        Feature::DRADeviceTaints,
        &["spec.devices.requests[].exactly.tolerations", "spec.devices.requests[].firstAvailable[].tolerations"],
    ),
    of(
        Feature::DRAConsumableCapacity,
        &[
            "spec.devices.requests[].exactly.capacity",
            "spec.devices.requests[].firstAvailable[].capacity",
            "spec.devices.constraints[].distinctAttribute",
            "status.allocation.devices.results[].shareID",
            "status.allocation.devices.results[].consumedCapacity",
            "status.devices[].shareID",
        ],
    ),
    of(Feature::DRAResourceClaimDeviceStatus, &["status.devices"]),
    of(
        Feature::DRADeviceBindingConditions,
        &[
            "status.allocation.allocationTimestamp",
            "status.allocation.devices.results[].bindingConditions",
            "status.allocation.devices.results[].bindingFailureConditions",
        ],
    ),
];

pub(super) const OF_TEMPLATE: &[Gated] = &[
    of(
        Feature::DRADeviceTaints,
        &[
            "spec.spec.devices.requests[].exactly.tolerations",
            "spec.spec.devices.requests[].firstAvailable[].tolerations",
        ],
    ),
    of(
        Feature::DRAConsumableCapacity,
        &[
            "spec.spec.devices.requests[].exactly.capacity",
            "spec.spec.devices.requests[].firstAvailable[].capacity",
            "spec.spec.devices.constraints[].distinctAttribute",
        ],
    ),
];

/// Taints, partitions, shared devices and binding conditions.
pub(super) const OF_SLICE: &[Gated] = &[
    of(Feature::DRADeviceTaints, &["spec.devices[].taints"]),
    of(
        Feature::DRAPartitionableDevices,
        &[
            "spec.sharedCounters",
            "spec.perDeviceNodeSelection",
            "spec.devices[].consumesCounters",
            "spec.devices[].nodeName",
            "spec.devices[].nodeSelector",
            "spec.devices[].allNodes",
        ],
    ),
    of(
        Feature::DRADeviceBindingConditions,
        &["spec.devices[].bindsToNode", "spec.devices[].bindingConditions", "spec.devices[].bindingFailureConditions"],
    ),
    of(
        Feature::DRAConsumableCapacity,
        &["spec.devices[].allowMultipleAllocations", "spec.devices[].capacity{}.requestPolicy"],
    ),
];

/// The extended resource that devices of the class stand for.
pub(super) const OF_CLASS: &[Gated] = &[of(Feature::DRAExtendedResource, &["spec.extendedResourceName"])];
