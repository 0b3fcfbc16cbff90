//! The allocator: devices for the claims of a Pod on one node, or why there are none.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/structured.

use client::Key;
use k8s_openapi::api::resource::v1::{
    AllocationResult, CapacityRequirements, DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector,
    DeviceToleration,
};

use super::{
    DEVICES_OF_A_CLAIM, Devices,
    capacity::{self, share},
    constraint::{Constraint, Values},
    problem::Problem,
    result,
    search::{Candidate, Goal, PoolState, Request, Search, UnallocatedClaim, selects, spend},
    selector::Selectors,
    slices::{Pool, PoolId},
};
use crate::node::Node;

/// How deep the search may go: devices, requests and claims of one Pod together.
const DEPTH: usize = 512;

/// The common part of an exact request and of an alternative of one.
struct Asked<'a> {
    request: &'a str,
    alternative: Option<&'a str>,
    class: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    mode: Option<&'a str>,
    count: Option<i64>,
    admin: bool,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    capacity: Option<&'a CapacityRequirements>,
}

/// The alternatives of a request, or the exact request itself.
fn asked(request: &DeviceRequest) -> Vec<Asked<'_>> {
    let exactly = request.exactly.iter().map(|exactly| Asked {
        request: &request.name,
        alternative: None,
        class: &exactly.device_class_name,
        selectors: exactly.selectors.as_ref(),
        mode: exactly.allocation_mode.as_deref(),
        count: exactly.count,
        admin: exactly.admin_access == Some(true),
        tolerations: exactly.tolerations.as_ref(),
        capacity: exactly.capacity.as_ref(),
    });
    let alternatives = request.first_available.iter().flatten().map(|sub| Asked {
        request: &request.name,
        alternative: Some(&sub.name),
        class: &sub.device_class_name,
        selectors: sub.selectors.as_ref(),
        mode: sub.allocation_mode.as_deref(),
        count: sub.count,
        admin: false,
        tolerations: sub.tolerations.as_ref(),
        capacity: sub.capacity.as_ref(),
    });
    if has_alternatives(request) { alternatives.collect() } else { exactly.collect() }
}

fn has_alternatives(request: &DeviceRequest) -> bool {
    request.first_available.as_ref().is_some_and(|list| !list.is_empty())
}

/// One allocation.
struct Allocator<'a> {
    devices: &'a Devices,
    selectors: &'a dyn Selectors,
    candidates: Vec<Candidate<'a>>,
    /// Pools that can give nothing now.
    incomplete: Vec<&'a PoolId>,
    invalid: Vec<&'a PoolId>,
    steps: usize,
}

/// The devices for the claims of a Pod.
pub(super) type Found = Result<Option<Vec<AllocationResult>>, Problem>;

/// The devices for these claims on a node, in their order; `None` when it has not enough that suit them. And how many steps
/// it took to find that out.
pub(super) fn allocate<'a>(
    devices: &'a Devices,
    selectors: &'a dyn Selectors,
    claims: &[(&'a Key, &'a DeviceClaim)],
    node: &Node,
) -> (Found, usize) {
    let (mut candidates, mut incomplete, mut invalid) = (Vec::new(), Vec::new(), Vec::new());
    let mut pools = Vec::new();
    for pool in devices.slices.pools(node, devices.gates) {
        match pool {
            Pool::Ready(ready) => {
                let all = ready.here.iter().flat_map(|slice| slice.devices.iter().map(move |device| (*slice, device)));
                let own = all.filter(|(slice, device)| device.reaches(slice, node));
                candidates.extend(own.map(|(slice, device)| Candidate {
                    device,
                    slice,
                    pool: pools.len(),
                    is_free: devices.is_free(&device.id),
                    takers: Vec::new(),
                    shares: None,
                }));
                pools.push(PoolState { ready, left: None });
            }
            Pool::Incomplete(id) => incomplete.push(id),
            Pool::Invalid(id) => invalid.push(id),
        }
    }
    let mut allocator = Allocator { devices, selectors, candidates, incomplete, invalid, steps: 0 };
    let wanted = match allocator.all_wanted(claims) {
        Ok(wanted) => wanted,
        Err(problem) => return (Err(problem), allocator.steps),
    };
    let Allocator { candidates, invalid, steps, .. } = allocator;
    let mut search = Search { claims: wanted, candidates, pools, devices, selectors, steps };
    let found = search.run().and_then(|found| match found {
        true => Ok(Some(search.claims.iter().map(|claim| result::of(claim, &search.candidates, node)).collect())),
        false if !invalid.is_empty() => Err(Problem::Here("invalid resource pools were encountered")),
        false => Ok(None),
    });
    (found, search.steps)
}

impl<'a> Allocator<'a> {
    fn all_wanted(&mut self, claims: &[(&'a Key, &'a DeviceClaim)]) -> Result<Vec<UnallocatedClaim<'a>>, Problem> {
        let (mut wanted, mut depth) = (Vec::new(), 0);
        for (key, spec) in claims {
            let (claim, devices) = self.wanted(key, spec)?;
            depth += 1 + claim.requests.len() + devices;
            wanted.push(claim);
        }
        if depth > DEPTH {
            return Err(Problem::Broken(format!("the claims of the pod ask for too many devices at once ({depth})")));
        }
        Ok(wanted)
    }

    /// A claim, and the number of devices that it gets at least.
    fn wanted(&mut self, key: &'a Key, spec: &'a DeviceClaim) -> Result<(UnallocatedClaim<'a>, usize), Problem> {
        let (mut requests, mut least) = (Vec::new(), 0usize);
        for request in spec.requests.iter().flatten() {
            let goals: Vec<Goal> =
                asked(request).into_iter().map(|asked| self.goal(key, asked)).collect::<Result<_, _>>()?;
            let Some(fewest) = goals.iter().map(|goal| goal.count).min() else {
                return Err(Problem::Broken(format!("claim {key}, request {}: unknown request type", request.name)));
            };
            least = least.saturating_add(fewest);
            requests.push(Request { goals, has_alternatives: has_alternatives(request), chosen: 0 });
        }
        if least > DEVICES_OF_A_CLAIM {
            return Err(Problem::Broken(format!(
                "claim {key}: number of requested devices {least} exceeds the claim limit of {DEVICES_OF_A_CLAIM}"
            )));
        }
        let gates = self.devices.gates;
        let constraint = |(at, constraint): (usize, &'a DeviceConstraint)| {
            let distinct = constraint.distinct_attribute.as_ref().filter(|_| gates.shared_capacity);
            match (&constraint.match_attribute, distinct) {
                (Some(same), _) => Ok(Constraint::new(Values::Same, same, constraint.requests.as_ref())),
                (None, Some(apart)) => Ok(Constraint::new(Values::Different, apart, constraint.requests.as_ref())),
                (None, None) => {
                    let why = "empty constraint (unsupported constraint type?)";
                    Err(Problem::Broken(format!("claim {key}, constraint #{at}: {why}")))
                }
            }
        };
        let constraints = spec.constraints.iter().flatten().enumerate().map(constraint).collect::<Result<_, _>>()?;
        Ok((UnallocatedClaim { key, spec, requests, constraints, given: Vec::new() }, least))
    }

    fn goal(&mut self, claim: &Key, asked: Asked<'a>) -> Result<Goal<'a>, Problem> {
        let name = asked.alternative.unwrap_or(asked.request);
        let broken = |why: String| Problem::Broken(format!("claim {claim}, request {name}: {why}"));
        let gates = self.devices.gates;
        if asked.capacity.is_some() && !gates.shared_capacity {
            let why = "has capacity requests, but the DRAConsumableCapacity feature is disabled";
            return Err(match asked.alternative {
                Some(sub) => Problem::Broken(format!("claim {claim}, subrequest {sub}: {why}")),
                None => Problem::Broken(format!("claim {claim}, request {}: {why}", asked.request)),
            });
        }
        let class = self.devices.class(asked.class);
        let class = class.ok_or_else(|| broken(format!("could not retrieve device class {}", asked.class)))?;
        let mut goal = Goal {
            request: asked.request,
            alternative: asked.alternative,
            class_name: asked.class,
            class,
            selectors: asked.selectors.map(Vec::as_slice).unwrap_or_default(),
            admin: asked.admin,
            tolerations: asked.tolerations.map(Vec::as_slice).unwrap_or_default(),
            capacity: asked.capacity,
            count: usize::try_from(asked.count.unwrap_or(1)).unwrap_or(usize::MAX),
            all: None,
            verdicts: vec![None; self.candidates.len()],
        };
        match asked.mode.unwrap_or("ExactCount") {
            "ExactCount" => {}
            "All" => {
                let all = |pool: &PoolId, is: &str| {
                    Err(broken(format!("asks for all devices, but resource pool {pool} is currently {is}")))
                };
                if let Some(pool) = self.incomplete.first() {
                    return all(pool, "being updated");
                }
                if let Some(pool) = self.invalid.first() {
                    return all(pool, "invalid");
                }
                let mut chosen = Vec::new();
                for (index, candidate) in self.candidates.iter().enumerate() {
                    let (selected, cost) = selects(claim, &goal, candidate.device, self.selectors, gates)?;
                    spend(&mut self.steps, cost.saturating_add(1))?;
                    let is_enough = || {
                        let (offered, id) = (candidate.device.facts.capacity(), &candidate.device.id);
                        let share = share(goal.capacity, offered);
                        share.is_some_and(|share| capacity::fits(&share, offered, [self.devices.shares_of(id), None]))
                    };
                    if selected && (!gates.shared_capacity || is_enough()) {
                        chosen.push(index);
                    }
                }
                goal.count = chosen.len();
                goal.all = Some(chosen);
            }
            mode => return Err(broken(format!("unsupported count mode {mode}"))),
        }
        Ok(goal)
    }
}
