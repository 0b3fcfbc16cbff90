//! DynamicResources: the Pod's ResourceClaims are there, and their devices are on the node. The Pod is entered as a user of
//! each before it is bound. Devices are not allocated here: a claim without any has to wait.

use client::{
    Key,
    rest::{self, Resource, Verb},
};
use futures::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;

use crate::{
    change::Change,
    claims::{Device, Named},
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, Preparing},
    rejection::{Rejection, Text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DynamicResources",
    concerns: |c| !c.class.devices.is_empty(),
    admit: Some(admit),
    filter: Filter::Live(filter),
    pre_bind: Some(pre_bind),
    retry_on: &[Change::NodeAdded, Change::NodeLabels, Change::Devices],
    node_local: false,
    ..Plugin::NONE
};

/// The claims of a class that are there.
fn claims<'a>(context: &'a Context) -> impl Iterator<Item = &'a Device> + 'a {
    let key = |name: &String| Key::new(context.class.namespace.as_str(), name.as_str());
    let named = context.class.devices.iter().filter_map(|named| named.name.as_ref());
    named.filter_map(move |name| context.cache.claims.devices.get(&key(name)))
}

fn admit(context: &Context) -> Result<(), Text> {
    context.class.devices.iter().try_for_each(|named| check(context, named)).map_err(|why| Text::Shared(why.into()))
}

/// What is wrong with a claim, in upstream's words.
fn check(context: &Context, named: &Named) -> Result<(), String> {
    let namespace = &context.class.namespace;
    let Some(name) = &named.name else {
        let pod = named.made_for.as_ref().map_or("", |(pod, _)| pod.as_str());
        return Err(format!("pod \"{namespace}/{pod}\": ResourceClaim not created yet"));
    };
    match (context.cache.claims.devices.get(&Key::new(namespace.as_str(), name.as_str())), &named.made_for) {
        (None, _) => Err(format!("resourceclaim.resource.k8s.io {name:?} not found")),
        (Some(claim), _) if claim.leaving => Err(format!("resourceclaim {name:?} is being deleted")),
        (Some(claim), Some((pod, uid))) if claim.owner.as_ref() != Some(uid) => Err(format!(
            "ResourceClaim {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
        )),
        (Some(_), _) => Ok(()),
    }
}

fn filter(context: &Context, _: NodeId, node: &Node) -> Result<(), Rejection> {
    for claim in claims(context) {
        match &claim.allocated {
            None => return Err(Rejection::unresolvable("cannot allocate all claims")),
            Some(Some(nodes)) if !api::rules::node_affinity::matches(nodes, &node.facts.labels, &node.name) => {
                return Err(Rejection::unresolvable("resourceclaim not available on the node"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn pre_bind(preparing: Preparing) -> BoxFuture<'static, Result<(), String>> {
    Box::pin(async move {
        let Preparing { caches, pod, class, .. } = preparing;
        for name in class.devices.iter().filter_map(|named| named.name.as_deref()) {
            let Some(claim) = caches.of::<ResourceClaim>().get(&Key::new(&*pod.key.namespace, name)) else { continue };
            let users = claim.status.as_ref().and_then(|status| status.reserved_for.clone()).unwrap_or_default();
            if users.iter().any(|user| user.uid == pod.uid) {
                continue;
            }
            let own = json!({"resource": "pods", "name": pod.key.name, "uid": pod.uid});
            let users: Vec<_> = users.iter().map(|user| json!(user)).chain([own]).collect();
            // The version makes sure that no other user, who entered meanwhile, is forgotten.
            let patch = json!({"metadata": {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version},
                "status": {"reservedFor": users}});
            let (resource, patch) = (Resource::of::<ResourceClaim>(), Verb::MergePatch(patch));
            let written = rest::write(caches.client(), &resource, &pod.key.namespace, name, "status", &patch).await;
            written.map_err(|error| format!("reserve resource claim: {}", rest::message(&error)))?;
        }
        Ok(())
    })
}
