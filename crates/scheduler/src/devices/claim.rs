//! What is known of a ResourceClaim, and of a DeviceClass.

use k8s_openapi::api::{
    core::v1::NodeSelector,
    resource::v1::{AllocationResult, DeviceClaim, DeviceClass, DeviceClassSpec, ResourceClaim},
};

use super::slices::DeviceId;

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
    /// Those that nobody else can have meanwhile.
    pub devices: Vec<DeviceId>,
}

impl Allocation {
    pub fn of(result: &AllocationResult) -> Self {
        let results = result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        // An administrator's access takes nothing away from others.
        let taken = results.filter(|device| device.admin_access != Some(true));
        let id = |driver: &str, pool: &str, device: &str| DeviceId {
            driver: driver.to_owned(),
            pool: pool.to_owned(),
            device: device.to_owned(),
        };
        Allocation {
            nodes: result.node_selector.clone(),
            devices: taken.map(|device| id(&device.driver, &device.pool, &device.device)).collect(),
        }
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
