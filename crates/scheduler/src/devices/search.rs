//! The search for devices: one device after the other, with a step back where it leads nowhere. The first solution is taken.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/structured (allocateOne).
//!
//! The devices of one request are alike to it, so each is looked for behind the one before: no set of devices is tried twice.

use client::Key;
use k8s_openapi::api::resource::v1::{DeviceClaim, DeviceSelector};

use super::{
    DEVICES_OF_A_CLAIM,
    claim::Class,
    constraint::MatchAttribute,
    problem::Problem,
    selector::{Fault, Selectors},
    slices::{Device, Slice},
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
    pub count: usize,
    /// Exactly these candidates, when all that are selected are asked for.
    pub all: Option<Vec<usize>>,
    /// What was found out about each candidate.
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
pub(super) struct Wanted<'a> {
    pub key: &'a Key,
    pub spec: &'a DeviceClaim,
    pub requests: Vec<Request<'a>>,
    pub constraints: Vec<MatchAttribute<'a>>,
    pub given: Vec<Given>,
}

/// A device that was chosen.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub request: usize,
    pub goal: usize,
    pub candidate: usize,
}

/// A device that the node can use.
pub(super) struct Candidate<'a> {
    pub device: &'a Device,
    pub slice: &'a Slice,
    /// No claim has it, whether it says so in its status or is about to.
    pub is_free: bool,
    /// The claims that have it in this search.
    pub takers: Vec<usize>,
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
    pub claims: Vec<Wanted<'a>>,
    pub candidates: Vec<Candidate<'a>>,
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
        let found = self.device(At { device: at.device + 1, from: candidate + 1, ..at });
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
        if admin { !held.takers.contains(&at.claim) } else { held.is_free && held.takers.is_empty() }
    }

    /// Whether the class and the request of a goal select a device.
    fn selects(&mut self, at: At, candidate: usize) -> Result<bool, Halt> {
        if let Some(verdict) = self.goal_at(at).verdicts[candidate] {
            return Ok(verdict);
        }
        let key = self.claims[at.claim].key;
        let (verdict, cost) = {
            let goal = &self.claims[at.claim].requests[at.request].goals[at.goal];
            selects(key, goal, self.candidates[candidate].device, self.selectors)?
        };
        self.spend(cost)?;
        self.goal_at(at).verdicts[candidate] = Some(verdict);
        Ok(verdict)
    }

    /// Gives a device to a claim, unless it is in use or a constraint forbids it. A device that it `must` have cannot be
    /// forbidden.
    fn take(&mut self, at: At, candidate: usize, must: bool) -> Result<bool, Halt> {
        if !self.is_left(at, candidate) {
            return Ok(false);
        }
        self.spend(self.claims[at.claim].constraints.len())?;
        let device = self.candidates[candidate].device;
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
        claim.given.push(Given { request: at.request, goal: at.goal, candidate });
        self.candidates[candidate].takers.push(at.claim);
        Ok(true)
    }

    fn give_back(&mut self, at: At, candidate: usize) {
        let claim = &mut self.claims[at.claim];
        let goal = &claim.requests[at.request].goals[at.goal];
        claim.constraints.iter_mut().for_each(|constraint| constraint.remove(goal.request, goal.alternative));
        claim.given.pop();
        self.candidates[candidate].takers.retain(|taker| *taker != at.claim);
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
) -> Result<(bool, usize), Problem> {
    let mut cost = 0;
    if device.needs_more {
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
