//! The facts about a ResourceClaim, and about a DeviceClass.

use k8s_openapi::api::{
    core::v1::NodeSelector,
    resource::v1::{AllocationResult, DeviceClaim, DeviceClass, DeviceClassSpec, ResourceClaim},
};

use api::rules::{quantity::parse, resource_name::EXTENDED_CLAIM};
use clock::Timestamp;

use super::{binding::Readiness, capacity::Shares, slices::DeviceId};

/// The state of a ResourceClaim.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub uid: String,
    pub spec: DeviceClaim,
    /// The devices that it has, once it has some.
    pub allocation: Option<Allocation>,
    /// The UIDs of those that use it.
    pub users: Vec<String>,
    pub leaving: bool,
    pub owner: Option<String>,
    /// The scheduler made it for the extended resources of its owner.
    pub is_extended: bool,
}

/// The devices of a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Allocation {
    /// The nodes where they are; all nodes when none are named.
    pub nodes: Option<NodeSelector>,
    pub held: Held,
    /// Whether the devices are ready for a Pod.
    pub readiness: Readiness,
}

/// The devices and shares that nobody else can have meanwhile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    pub devices: Vec<DeviceId>,
    /// Devices that are shared, with how much is taken of each.
    pub(super) shares: Vec<(DeviceId, Shares)>,
}

impl Allocation {
    pub fn of(result: &AllocationResult) -> Self {
        let results = result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        // An administrator's access takes nothing away from others.
        let mut held = Held::default();
        for result in results.filter(|device| device.admin_access != Some(true)) {
            let (driver, pool, device) = (result.driver.clone(), result.pool.clone(), result.device.clone());
            let id = DeviceId { driver, pool, device };
            match result.share_id {
                None => held.devices.push(id),
                Some(_) => {
                    let consumed = result.consumed_capacity.iter().flatten();
                    held.shares.push((id, consumed.map(|(name, amount)| (name.clone(), parse(amount))).collect()));
                }
            }
        }
        Allocation { nodes: result.node_selector.clone(), held, readiness: Readiness::Ready }
    }
}

impl Claim {
    pub fn of(claim: &ResourceClaim) -> Self {
        let (meta, status) = (&claim.metadata, claim.status.as_ref());
        let mut owners = meta.owner_references.iter().flatten();
        let users = status.and_then(|status| status.reserved_for.as_ref()).into_iter().flatten();
        Claim {
            uid: meta.uid.clone().unwrap_or_default(),
            spec: claim.spec.devices.clone().unwrap_or_default(),
            allocation: status
                .and_then(|status| status.allocation.as_ref())
                .map(|allocation| Allocation { readiness: Readiness::of(claim), ..Allocation::of(allocation) }),
            users: users.map(|user| user.uid.clone()).collect(),
            leaving: meta.deletion_timestamp.is_some(),
            owner: owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()),
            is_extended: meta
                .annotations
                .iter()
                .flatten()
                .any(|(name, value)| name == EXTENDED_CLAIM && value == "true"),
        }
    }
}

/// The facts about a DeviceClass.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    pub spec: DeviceClassSpec,
    pub(super) created: Option<Timestamp>,
}

impl Class {
    pub fn of(class: &DeviceClass) -> Self {
        let created = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Class { spec: class.spec.clone(), created }
    }
}
