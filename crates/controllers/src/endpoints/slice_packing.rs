//! Endpoints into EndpointSlices of at most 100, with as few writes as it takes.
//! Upstream counterpart: staging/src/k8s.io/endpointslice.

use std::{collections::BTreeMap, sync::Arc};

use controller::{Plan, Write};
use k8s_openapi::{
    api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// How many endpoints one slice holds.
const MAX: usize = 100;

/// The address family and the ports, which endpoints must have in common to be in one slice.
pub type Group = (&'static str, Vec<EndpointPort>);

/// The settings that all slices of one owner share.
pub struct Parent {
    /// The metadata of a new slice. Its labels are those of every slice; its annotations are put on what is written.
    pub metadata: ObjectMeta,
    /// The annotations are all that a slice should have: it is written when it has others.
    pub annotations_decide: bool,
    /// Whether an empty slice stands for no endpoints at all.
    pub empty_slice: bool,
}

/// Which Pod an endpoint stands for, in which family: what stays the same while the rest of it changes.
pub fn identity(endpoint: &Endpoint) -> (Option<String>, String) {
    let uid = endpoint.target_ref.as_ref().and_then(|r| r.uid.clone());
    (uid, endpoint.addresses.first().cloned().unwrap_or_default())
}

impl Parent {
    /// Plans what makes the slices that are held into those that are wanted.
    pub fn arrange(&self, wanted: Vec<(Group, Vec<Endpoint>)>, held: &[Arc<EndpointSlice>], plan: &mut Plan) {
        let fits = |slice: &EndpointSlice, group: &Group| {
            slice.address_type == group.0 && slice.ports.as_deref().unwrap_or_default() == group.1
        };
        let mut gone = Vec::new();
        let mut open: BTreeMap<usize, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
        for slice in held {
            match wanted.iter().position(|(group, _)| fits(slice, group)) {
                Some(group) => open.entry(group).or_default().push(slice.clone()),
                None => gone.push(slice),
            }
        }
        for (index, (group, endpoints)) in wanted.into_iter().enumerate() {
            self.pack(&group, endpoints, open.remove(&index).unwrap_or_default(), plan);
        }
        for slice in gone {
            plan.step(Write::delete(&**slice));
        }
    }

    /// Each endpoint stays in the slice where it is; new ones fill slices that are written anyway, then free room
    /// elsewhere, then new slices.
    fn pack(&self, group: &Group, endpoints: Vec<Endpoint>, held: Vec<Arc<EndpointSlice>>, plan: &mut Plan) {
        let mut wanted: BTreeMap<_, Endpoint> = endpoints.into_iter().map(|e| (identity(&e), e)).collect();
        let mut kept: Vec<(Arc<EndpointSlice>, Vec<Endpoint>)> = Vec::new();
        for slice in held {
            let stay = slice.endpoints.iter().filter_map(|old| wanted.remove(&identity(old))).collect();
            kept.push((slice, stay));
        }
        let mut fresh = wanted.into_values().collect::<Vec<_>>().into_iter().peekable();
        for written_anyway in [true, false] {
            for (slice, stay) in kept.iter_mut().filter(|(slice, stay)| self.differs(slice, stay) == written_anyway) {
                // Without new ones, an unchanged slice stays unchanged.
                while stay.len() < MAX
                    && fresh.peek().is_some()
                    && (written_anyway || !slice.endpoints.is_empty() || stay.is_empty())
                {
                    stay.extend(fresh.next());
                }
            }
        }
        let total: usize = kept.iter().map(|(_, stay)| stay.len()).sum::<usize>() + fresh.len();
        let mut placeholder = total == 0 && self.empty_slice;
        for (slice, stay) in kept {
            if stay.is_empty() && !std::mem::take(&mut placeholder) {
                plan.step(Write::delete(&*slice));
            } else if self.differs(&slice, &stay) {
                plan.step(Write::update(&self.changed(&slice, stay)));
            }
        }
        while fresh.peek().is_some() || std::mem::take(&mut placeholder) {
            let endpoints = fresh.by_ref().take(MAX).collect();
            let (address_type, ports) = (group.0.to_owned(), Some(group.1.clone()));
            let slice = EndpointSlice { address_type, ports, endpoints, metadata: self.metadata.clone() };
            plan.step(Write::create(&slice));
        }
    }

    fn differs(&self, slice: &EndpointSlice, endpoints: &[Endpoint]) -> bool {
        let none = BTreeMap::new();
        let annotations = |meta: &ObjectMeta| meta.annotations.clone().unwrap_or_default();
        slice.endpoints != endpoints
            || slice.metadata.labels.as_ref().unwrap_or(&none) != self.metadata.labels.as_ref().unwrap_or(&none)
            || (self.annotations_decide && annotations(&slice.metadata) != annotations(&self.metadata))
    }

    fn changed(&self, slice: &EndpointSlice, endpoints: Vec<Endpoint>) -> EndpointSlice {
        let mut new = EndpointSlice { endpoints, ..slice.clone() };
        new.metadata.labels.clone_from(&self.metadata.labels);
        if self.annotations_decide {
            new.metadata.annotations.clone_from(&self.metadata.annotations);
        } else if let Some(annotations) = &self.metadata.annotations {
            new.metadata.annotations.get_or_insert_default().extend(annotations.clone());
        }
        new
    }
}
