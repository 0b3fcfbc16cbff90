//! The search for devices: one device after the other, with a step back where it leads nowhere. The first solution is taken.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/structured (allocateOne).
//!
//! The devices of one request are alike to it, so each is looked for behind the one before: no set of devices is tried twice.

use api::rules::device_taint;
use client::Key;
use k8s_openapi::api::resource::v1::{CapacityRequirements, DeviceClaim, DeviceSelector, DeviceToleration};

use super::{
    DEVICES_OF_A_CLAIM, Devices,
    capacity::{self, Shares, share},
    claim::Class,
    constraint::Constraint,
    counters::Counters,
    gates::Gates,
    problem::Problem,
    selector::{Fault, Selectors},
    slices::{Device, Ready, Slice},
};

/// How much one search may cost: a device or a constraint that is looked at is one step, an expression one or more.
const STEPS: usize = 50_000;

/// One request for devices, or one of its alternatives.
pub(super) struct Goal<'a> {
    pub request: &'a str,
    pub alternative: Option<&'a str>,
    pub class_name: &'a str,
    pub class: &'a Class,
    pub selectors: &'a [DeviceSelector],
    pub admin: bool,
    pub tolerations: &'a [DeviceToleration],
    pub capacity: Option<&'a CapacityRequirements>,
    pub count: usize,
    /// Exactly these candidates, when all that are selected are asked for.
    pub all: Option<Vec<usize>>,
    /// The verdict about each candidate, where it was looked at.
    pub verdicts: Vec<Option<bool>>,
}

impl<'a> Goal<'a> {
    /// The name by which the result refers to it.
    pub fn full_name(&self) -> String {
        match self.alternative {
            Some(alternative) => format!("{}/{alternative}", self.request),
            None => self.request.to_owned(),
        }
    }

    /// The name in messages.
    pub fn name(&self) -> &'a str {
        self.alternative.unwrap_or(self.request)
    }
}

/// One request with what can satisfy it: itself, or the first of its alternatives that can be had.
pub(super) struct Request<'a> {
    pub goals: Vec<Goal<'a>>,
    pub has_alternatives: bool,
    /// The alternative that was taken.
    pub chosen: usize,
}

/// A claim that needs devices.
pub(super) struct UnallocatedClaim<'a> {
    pub key: &'a Key,
    pub spec: &'a DeviceClaim,
    pub requests: Vec<Request<'a>>,
    pub constraints: Vec<Constraint<'a>>,
    pub given: Vec<Given>,
}

/// A device that was chosen.
pub(super) struct Given {
    pub request: usize,
    pub goal: usize,
    pub candidate: usize,
    /// How much of it, when it is shared.
    pub share: Option<Shares>,
    /// It was the first in this search to take of the counters for the device.
    counted: bool,
}

/// A device that the node can use.
pub(super) struct Candidate<'a> {
    pub device: &'a Device,
    pub slice: &'a Slice,
    /// Its place in the list of pools.
    pub pool: usize,
    /// No claim has it, whether it says so in its status or is about to.
    pub is_free: bool,
    /// The claims that have it in this search.
    pub takers: Vec<usize>,
    /// The share that is taken of it in this search, and how often.
    pub shares: Option<(usize, Shares)>,
}

/// A pool, with what is left of its counters once that was asked.
pub(super) struct PoolState<'a> {
    pub ready: Ready<'a>,
    pub left: Option<Counters>,
}

/// Why the search goes no further here.
pub(super) enum Halt {
    /// The claim would have more devices than a claim can have.
    TooMany,
    Problem(Problem),
}

impl From<Problem> for Halt {
    fn from(problem: Problem) -> Self {
        Halt::Problem(problem)
    }
}

/// The device that is looked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct At {
    claim: usize,
    request: usize,
    goal: usize,
    /// The number of the device for the goal, and the first candidate for it.
    device: usize,
    from: usize,
}

pub(super) struct Search<'a> {
    pub claims: Vec<UnallocatedClaim<'a>>,
    pub candidates: Vec<Candidate<'a>>,
    pub pools: Vec<PoolState<'a>>,
    pub devices: &'a Devices,
    pub selectors: &'a dyn Selectors,
    pub steps: usize,
}

impl<'a> Search<'a> {
    /// Looks for all devices. When it has found them, the claims have what they are given.
    pub fn run(&mut self) -> Result<bool, Problem> {
        match self.request(At::default()) {
            Ok(found) => Ok(found),
            Err(Halt::TooMany) => Ok(false),
            Err(Halt::Problem(problem)) => Err(problem),
        }
    }

    fn goal_at(&mut self, at: At) -> &mut Goal<'a> {
        &mut self.claims[at.claim].requests[at.request].goals[at.goal]
    }

    /// Satisfies a request and all that come after it.
    fn request(&mut self, at: At) -> Result<bool, Halt> {
        let Some(claim) = self.claims.get(at.claim) else { return Ok(true) };
        let Some(request) = claim.requests.get(at.request) else {
            return match self.request(At { claim: at.claim + 1, ..At::default() }) {
                // Other devices for the claims before may leave room for it.
                Err(Halt::TooMany) => Ok(false),
                other => other,
            };
        };
        if !request.has_alternatives {
            return self.device(at);
        }
        let (goals, mut always_too_many) = (request.goals.len(), true);
        for goal in 0..goals {
            match self.device(At { goal, ..at }) {
                // The next alternative may need fewer.
                Err(Halt::TooMany) => {}
                Err(problem) => return Err(problem),
                Ok(true) => {
                    self.claims[at.claim].requests[at.request].chosen = goal;
                    return Ok(true);
                }
                Ok(false) => always_too_many = false,
            }
        }
        if always_too_many { Err(Halt::TooMany) } else { Ok(false) }
    }

    /// Finds a device for a goal, and all that come after it.
    fn device(&mut self, at: At) -> Result<bool, Halt> {
        self.spend(1)?;
        let given = self.claims[at.claim].given.len();
        let goal = self.goal_at(at);
        if goal.all.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        if at.device >= goal.count {
            return self.request(At { claim: at.claim, request: at.request + 1, ..At::default() });
        }
        if given.saturating_add(goal.count - at.device) > DEVICES_OF_A_CLAIM {
            return Err(Halt::TooMany);
        }
        if let Some(all) = &goal.all {
            let candidate = all[at.device];
            // Their order does not matter: without this one there is no solution.
            return if self.take(at, candidate, true)? { self.go_on(at, candidate) } else { Ok(false) };
        }
        for candidate in at.from..self.candidates.len() {
            self.spend(1)?;
            if self.is_left(at, candidate)
                && self.selects(at, candidate)?
                && self.take(at, candidate, false)?
                && self.go_on(at, candidate)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes on with the next device; this one is given back if that leads nowhere.
    fn go_on(&mut self, at: At, candidate: usize) -> Result<bool, Halt> {
        // A device that is shared can be had once more.
        let from = if self.is_shared(candidate) { candidate } else { candidate + 1 };
        let found = self.device(At { device: at.device + 1, from, ..at });
        if !matches!(found, Ok(true)) {
            self.give_back(at, candidate);
        }
        found
    }

    fn spend(&mut self, steps: usize) -> Result<(), Problem> {
        spend(&mut self.steps, steps)
    }

    fn is_left(&mut self, at: At, candidate: usize) -> bool {
        let admin = self.goal_at(at).admin;
        let held = &self.candidates[candidate];
        if self.is_shared(candidate) {
            return true;
        }
        if admin { !held.takers.contains(&at.claim) } else { held.is_free && held.takers.is_empty() }
    }

    fn is_shared(&self, candidate: usize) -> bool {
        self.devices.gates.shared_capacity && self.candidates[candidate].device.is_shared
    }

    /// Whether the class and the request of a goal select a device.
    fn selects(&mut self, at: At, candidate: usize) -> Result<bool, Halt> {
        if let Some(verdict) = self.goal_at(at).verdicts[candidate] {
            return Ok(verdict);
        }
        let key = self.claims[at.claim].key;
        let (verdict, cost) = {
            let goal = &self.claims[at.claim].requests[at.request].goals[at.goal];
            selects(key, goal, self.candidates[candidate].device, self.selectors, self.devices.gates)?
        };
        self.spend(cost)?;
        self.goal_at(at).verdicts[candidate] = Some(verdict);
        Ok(verdict)
    }

    /// Gives a device to a claim, unless it is in use or a constraint forbids it. A device that it `must` have cannot be
    /// forbidden.
    fn take(&mut self, at: At, candidate: usize, must: bool) -> Result<bool, Halt> {
        if !self.is_left(at, candidate) || !self.tolerates(at, candidate) {
            return Ok(false);
        }
        let Some(share) = self.share(at, candidate) else { return Ok(false) };
        let counted = self.must_count(candidate);
        let device = self.candidates[candidate].device;
        if counted && !self.counters(candidate)?.cover(&device.takes) {
            return Ok(false);
        }
        self.spend(self.claims[at.claim].constraints.len())?;
        let claim = &mut self.claims[at.claim];
        let goal = &claim.requests[at.request].goals[at.goal];
        for index in 0..claim.constraints.len() {
            if claim.constraints[index].add(goal.request, goal.alternative, device) {
                continue;
            }
            if must {
                let (key, name, id) = (claim.key, goal.name(), &device.id);
                let why = "because a claim constraint would not be satisfied";
                return Err(
                    Problem::Broken(format!("claim {key}, request {name}: cannot add device {id} {why}")).into()
                );
            }
            claim.constraints[..index].iter_mut().for_each(|before| before.remove(goal.request, goal.alternative));
            return Ok(false);
        }
        if counted {
            self.counters(candidate)?.take(&device.takes);
        }
        let held = &mut self.candidates[candidate];
        match &share {
            None => held.takers.push(at.claim),
            Some(share) => {
                let (times, sum) = held.shares.get_or_insert_default();
                *times += 1;
                capacity::add(sum, share);
            }
        }
        let claim = &mut self.claims[at.claim];
        claim.given.push(Given { request: at.request, goal: at.goal, candidate, share, counted });
        Ok(true)
    }

    /// Whether the goal puts up with all taints of a device that keep claims off.
    fn tolerates(&mut self, at: At, candidate: usize) -> bool {
        let device = self.candidates[candidate].device;
        let mut taints = self.devices.taints_of(device);
        let goal = &self.claims[at.claim].requests[at.request].goals[at.goal];
        let hard = |effect: &str| matches!(effect, device_taint::NO_SCHEDULE | device_taint::NO_EXECUTE);
        taints.all(|taint| {
            let (key, value, effect) = (&*taint.key, &*taint.value, &*taint.effect);
            !hard(effect) || goal.tolerations.iter().any(|t| device_taint::tolerates(t, key, value, effect))
        })
    }

    /// How much of a device the goal takes: nothing in particular of one that is not shared. `None` when there is not
    /// enough.
    fn share(&mut self, at: At, candidate: usize) -> Option<Option<Shares>> {
        if !self.devices.gates.shared_capacity {
            return Some(None);
        }
        let (wanted, held) = (self.goal_at(at).capacity, &self.candidates[candidate]);
        let offered = held.device.facts.capacity();
        let share = share(wanted, offered)?;
        let others = [self.devices.shares_of(&held.device.id), held.shares.as_ref().map(|(_, sum)| sum)];
        let fits = capacity::fits(&share, offered, others);
        fits.then(|| self.is_shared(candidate).then_some(share))
    }

    /// Whether a device takes of counters that nobody has taken for it yet.
    fn must_count(&self, candidate: usize) -> bool {
        let held = &self.candidates[candidate];
        let shared_already = held.shares.is_some() || self.devices.shares_of(&held.device.id).is_some();
        let taken = self.is_shared(candidate) && shared_already;
        !taken && !held.device.takes.is_empty()
    }

    /// The rest of the counters of a device's pool.
    fn counters(&mut self, candidate: usize) -> Result<&mut Counters, Problem> {
        let pool = &mut self.pools[self.candidates[candidate].pool];
        let left = match pool.left.take() {
            Some(left) => left,
            None => {
                let slices = || pool.ready.here.iter().chain(&pool.ready.elsewhere);
                spend(&mut self.steps, slices().map(|slice| slice.devices.len()).sum())?;
                let mut left = pool.ready.counters.clone();
                let used = slices().flat_map(|slice| &slice.devices).filter(|device| self.devices.is_used(&device.id));
                used.for_each(|device| left.take(&device.takes));
                left
            }
        };
        Ok(pool.left.insert(left))
    }

    fn give_back(&mut self, at: At, candidate: usize) {
        let claim = &mut self.claims[at.claim];
        let goal = &claim.requests[at.request].goals[at.goal];
        claim.constraints.iter_mut().for_each(|constraint| constraint.remove(goal.request, goal.alternative));
        let Some(given) = claim.given.pop() else { return };
        let held = &mut self.candidates[candidate];
        match (&given.share, &mut held.shares) {
            (Some(share), Some((times, sum))) => {
                *times -= 1;
                capacity::remove(sum, share);
                if *times == 0 {
                    held.shares = None;
                }
            }
            _ => held.takers.retain(|taker| *taker != at.claim),
        }
        if let Some(left) = self.pools[held.pool].left.as_mut().filter(|_| given.counted) {
            left.give_back(&held.device.takes);
        }
    }
}

pub(super) const TOO_LONG: Problem = Problem::Here("timed out trying to allocate devices");

/// Counts steps, until there were too many.
pub(super) fn spend(steps: &mut usize, more: usize) -> Result<(), Problem> {
    *steps = steps.saturating_add(more);
    if *steps > STEPS { Err(TOO_LONG) } else { Ok(()) }
}

/// Whether the class and the request of a goal select a device, and what that cost to find out.
pub(super) fn selects(
    claim: &Key,
    goal: &Goal,
    device: &Device,
    selectors: &dyn Selectors,
    gates: Gates,
) -> Result<(bool, usize), Problem> {
    let mut cost = 0;
    if (device.conditions.is_some() && !gates.conditions) || !(gates.partitions || device.takes.is_empty()) {
        return Ok((false, cost));
    }
    let class = goal.class.spec.selectors.iter().flatten().enumerate().map(|(at, selector)| (true, at, selector));
    let request = goal.selectors.iter().enumerate().map(|(at, selector)| (false, at, selector));
    for (of_class, at, selector) in class.chain(request) {
        let Some(cel) = &selector.cel else {
            let why = "CEL expression empty (unsupported selector type?)";
            return Err(Problem::Broken(format!("claim {claim}, request {}, selector #{at}: {why}", goal.name())));
        };
        let broken = |why: String| {
            let place = if of_class { format!("class {}", goal.class_name) } else { format!("claim {claim}") };
            Problem::Broken(format!("{place}: selector #{at}: {why}"))
        };
        match selectors.matches(&cel.expression, device) {
            Ok((verdict, steps)) => {
                cost += steps;
                if !verdict {
                    return Ok((false, cost));
                }
            }
            Err(Fault::Compile(why)) => return Err(broken(format!("CEL compile error: {why}"))),
            Err(Fault::Run(why)) => return Err(broken(format!("CEL runtime error: {why}"))),
        }
    }
    Ok((true, cost))
}
