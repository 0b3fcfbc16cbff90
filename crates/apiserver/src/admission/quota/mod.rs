//! ResourceQuota: the objects of a namespace together use no more than its quotas allow.
//!
//! The usage of a write is charged to the quotas' status before the object is stored, and a write whose charge does not fit
//! is refused. A charge is a compare-and-swap of the quota's status in the store ([`charges`]): each begins from the sum of
//! all before it, whichever server made them, so that no two writes get the same rest. The object follows its charge, never
//! the other way round: at any moment the charges are at least what is stored. A charge whose write fails later is too much,
//! not too little; the controller `resourcequota-controller`, which counts what is stored, takes it back.
//! Upstream counterpart: apiserver/pkg/admission/plugin/resourcequota.

pub mod charges;
pub mod configuration;
mod demand;

use std::{collections::BTreeMap, sync::Arc};

use api::{
    Value,
    features::Feature,
    k8s_openapi::api::{
        core::v1::{Pod, ResourceQuota},
        resource::v1::ResourceClaim,
    },
    meta,
    object::Object,
    rules::{
        pod::Resources,
        quota::{
            Counter, Usage,
            extended::{self, ExtendedClaim},
            is_terminating,
        },
    },
    status::StatusError,
};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid},
};
use demand::{Demand, Refusal, Write};

pub const PLUGIN: Plugin = Plugin {
    name: "ResourceQuota",
    concerns: |attributes| counter(attributes).is_some(),
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

/// How the written object is counted; `None` when the write uses nothing more of it.
fn counter(attributes: &Attributes<'_>) -> Option<Counter> {
    let definition = attributes.definition;
    if attributes.namespace.is_empty() || !definition.namespaced() {
        return None;
    }
    let counter = match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") | (Operation::Update, "" | "resize" | "status") => {
            Counter::of(&definition.group, &definition.plural)?
        }
        _ => return None,
    };
    let counts = match (&counter, attributes.operation, attributes.subresource) {
        (_, Operation::Create, _)
        | (Counter::Pods, _, "resize")
        | (Counter::Services | Counter::DeviceClaims, _, "")
        | (Counter::VolumeClaims, _, "" | "status") => true,
        (Counter::Pods, _, "") => changes_scope(attributes),
        _ => false,
    };
    counts.then_some(counter)
}

/// Whether an update takes a Pod from the scope NotTerminating to Terminating: the quotas there have not been charged for it.
fn changes_scope(attributes: &Attributes<'_>) -> bool {
    let terminating =
        |pod: &Value| is_terminating(meta::at(pod, "/spec/activeDeadlineSeconds").and_then(Value::as_i64));
    let pods = attributes.object.as_ref().zip(attributes.old);
    pods.is_some_and(|(new, old)| terminating(new) != terminating(old))
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    if attributes.charged {
        return Ok(());
    }
    let quotas = context.objects.list("", "resourcequotas", attributes.namespace).await?;
    let Some(counter) = counter(attributes).filter(|_| !quotas.is_empty() || context.charges.is_limited()) else {
        return Ok(());
    };
    let quotas: Vec<ResourceQuota> = quotas.iter().filter_map(|quota| ResourceQuota::from_value(quota).ok()).collect();
    let demands = {
        let Some(object) = attributes.object.as_ref() else { return Ok(()) };
        let definition = attributes.definition;
        let new = read(context, &counter, &definition.as_stored(object)).await?;
        let old = match attributes.old {
            Some(old) => Some(read(context, &counter, &definition.as_stored(old)).await?),
            None => None,
        };
        let write = Write { counter: &counter, new: &*new, old: old.as_deref().map(|old| old as &dyn Usage) };
        demand::of(&quotas, &write, context.charges.limited(), clock::now())
    };
    let demands: Vec<Demand> = demands.map_err(|refusal| refuse(attributes, refusal))?;
    if demands.is_empty() {
        return Ok(());
    }
    // A status is what is: it is counted, and refused by nobody.
    let strict = attributes.subresource != "status";
    let outcome = if attributes.dry_run {
        charges::try_all(&context.objects, attributes.namespace, &demands, strict).await
    } else {
        context.charges.charge(&context.objects, attributes.namespace, demands, strict).await
    };
    attributes.charged = outcome.is_ok() && !attributes.dry_run;
    outcome.map_err(|refusal| refuse(attributes, refusal))
}

/// The object as quotas see it.
async fn read(context: &Context, counter: &Counter, object: &Value) -> Result<Box<dyn Usage + Send>, StatusError> {
    let broken = |error: serde_json::Error| StatusError::internal(error.to_string());
    if *counter != Counter::DeviceClaims || !context.features.enabled(Feature::DRAExtendedResource) {
        return counter.read(object).map_err(broken);
    }
    let claim = ResourceClaim::from_value(object).map_err(broken)?;
    let mut resources = BTreeMap::new();
    for class in extended::classes(&claim) {
        if let Some(found) = context.objects.get("resource.k8s.io", "deviceclasses", "", class).await?
            && let Some(resource) = found["spec"]["extendedResourceName"].as_str()
        {
            resources.insert(class.to_owned(), resource.to_owned());
        }
    }
    let charged = charged(context, &claim).await?;
    Ok(Box::new(ExtendedClaim::new(claim, |class| resources.get(class).cloned(), &charged)))
}

/// The resources that were charged for a claim with its Pod.
async fn charged(context: &Context, claim: &ResourceClaim) -> Result<Resources, StatusError> {
    let Some((name, _)) = extended::pod_of(claim) else { return Ok(Resources::new()) };
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let pod = context.objects.get("", "pods", namespace, name).await?;
    let pod: Option<Pod> = pod.and_then(|pod| Pod::from_value(&pod).ok());
    let told = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.extended_resource_claim_status.is_some());
    let mut others = Vec::new();
    // Only as long as the Pod does not name its claim, the others count.
    if pod.as_ref().is_some_and(|pod| !told(pod)) {
        let listed = context.objects.list("resource.k8s.io", "resourceclaims", namespace).await?;
        others.extend(listed.iter().filter_map(|other| ResourceClaim::from_value(other).ok()));
    }
    Ok(extended::charged(claim, pod.as_ref(), &others, clock::now()))
}

fn refuse(attributes: &Attributes<'_>, refusal: Refusal) -> StatusError {
    match refusal {
        Refusal::Forbidden(why) => forbid(attributes, why),
        Refusal::Uncovered(why) => StatusError::new(500, "", &why),
        Refusal::Failed(error) => Arc::unwrap_or_clone(error),
    }
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod tests;
