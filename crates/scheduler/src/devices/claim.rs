//! What is known of a ResourceClaim, and of a DeviceClass.

use k8s_openapi::api::{
    core::v1::NodeSelector,
    resource::v1::{AllocationResult, DeviceClaim, DeviceClass, DeviceClassSpec, ResourceClaim},
};

use api::rules::quantity::parse;

use super::{capacity::Shares, slices::DeviceId};

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
}

/// The devices of a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Allocation {
    /// The nodes where they are; all nodes when none are named.
    pub nodes: Option<NodeSelector>,
    pub held: Held,
}

/// What nobody else can have meanwhile.
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
        Allocation { nodes: result.node_selector.clone(), held }
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
            allocation: status.and_then(|status| status.allocation.as_ref()).map(Allocation::of),
            users: users.map(|user| user.uid.clone()).collect(),
            leaving: meta.deletion_timestamp.is_some(),
            owner: owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()),
        }
    }
}

/// What is known of a DeviceClass.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    pub spec: DeviceClassSpec,
}

impl Class {
    pub fn of(class: &DeviceClass) -> Self {
        Class { spec: class.spec.clone() }
    }
}
