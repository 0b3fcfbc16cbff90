//! Makes the claims that a Pod's spec asks for by template, and notes their names in the Pod's status. A Pod that was given its node by
//! somebody else than the scheduler gets its claims reserved.
//! Reads: Pod, ResourceClaim, ResourceClaimTemplate. Writes: ResourceClaim (create), ResourceClaim/status, Pod/status.

use std::sync::Arc;

use api::rules::pod;
use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write, owner_reference};
use json::json;
use k8s_openapi::{
    api::{
        core::v1::{Pod, PodResourceClaim},
        resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{NAME, POD_CLAIM};
use crate::node::on_node::node_of;

pub struct ClaimsOfPods;

/// How many Pods a claim is reserved for at most.
const CONSUMERS_MAX: usize = 256;
/// The length of a generated name without its end.
const BASE_MAX: usize = 57;

/// The template of one of the Pod's claims, and what there is of it.
pub struct TemplatedClaim {
    claim: PodResourceClaim,
    template: Option<Arc<ResourceClaimTemplate>>,
    /// The claim that was made for it, whether or not the Pod's status names it.
    made: Option<Arc<ResourceClaim>>,
}

pub struct Observed {
    from_templates: Vec<TemplatedClaim>,
    /// All of the Pod's claims that there are.
    claims: Vec<Arc<ResourceClaim>>,
}

fn asks(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten())
}

fn is_made_for(claim: &ResourceClaim, name: &str) -> bool {
    claim.metadata.annotations.as_ref().and_then(|a| a.get(POD_CLAIM)).is_some_and(|of| of == name)
}

/// The names of the claims in the Pod's status, by the Pod's own names for them.
fn noted<'a>(pod: &'a Pod, name: &str) -> Option<&'a Option<String>> {
    let all = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    all.into_iter().find(|status| status.name == name).map(|status| &status.resource_claim_name)
}

impl Controller for ClaimsOfPods {
    const NAME: &'static str = NAME;
    const CONCURRENCY: usize = 50;
    type Object = Pod;
    type Observed = Observed;

    fn concerns(change: &client::Change<Pod>) -> bool {
        change.new.as_ref().is_some_and(|pod| asks(pod).next().is_some())
    }

    fn watches(&self, watches: &mut Watches<Pod>) {
        watches.owned::<ResourceClaim>();
        watches.mapped::<ResourceClaimTemplate>(|template, caches| {
            let (namespace, name) = (template.metadata.namespace.as_deref().unwrap_or(""), &template.metadata.name);
            let names = |pod: &Pod| asks(pod).any(|claim| claim.resource_claim_template_name == *name);
            caches.of::<Pod>().list_in(namespace).iter().filter(|pod| names(pod)).map(|pod| Key::of(&**pod)).collect()
        });
    }

    fn observe(&self, pod: &Pod, listers: &Listers) -> Observed {
        if asks(pod).next().is_none() {
            return Observed { from_templates: Vec::new(), claims: Vec::new() };
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let owned = listers.owned::<Pod, ResourceClaim>(pod);
        let templates = listers.caches.of::<ResourceClaimTemplate>();
        let wanted = |claim: &PodResourceClaim| {
            let template = claim.resource_claim_template_name.as_ref()?;
            Some(TemplatedClaim {
                claim: claim.clone(),
                template: templates.get(&Key::new(namespace, template)),
                made: owned.iter().find(|made| is_made_for(made, &claim.name)).cloned(),
            })
        };
        let all = listers.caches.of::<ResourceClaim>();
        Observed {
            from_templates: asks(pod).filter_map(wanted).collect(),
            claims: super::keys(pod).iter().filter_map(|key| all.get(key)).collect(),
        }
    }

    fn plan(&self, pod: &Pod, observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if pod.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let mut names = Vec::new();
        for wanted in &observed.from_templates {
            let name = &wanted.claim.name;
            match (noted(pod, name), &wanted.made, &wanted.template) {
                // Without a name in the status, no claim is necessary.
                (Some(None), ..) => {}
                (noted, Some(made), _) => {
                    let made = made.metadata.name.clone().unwrap_or_default();
                    if noted != Some(&Some(made.clone())) {
                        names.push(json!({"name": name, "resourceClaimName": made}));
                    }
                }
                (_, None, Some(template)) => {
                    let failed = format!("PodResourceClaim {name}: create ResourceClaim : {{error}}");
                    let note = Note::warning("FailedResourceClaimCreation", failed);
                    plan.step(Write::create(&from_template(pod, &wanted.claim, template)).on_failure(note));
                }
                (_, None, None) => {
                    let template = wanted.claim.resource_claim_template_name.as_deref().unwrap_or("");
                    let message = format!(
                        "PodResourceClaim {name}: resource claim template \"{template}\": \
                         resourceclaimtemplate.resource.k8s.io \"{template}\" not found"
                    );
                    plan.tell(Note::warning("FailedResourceClaimCreation", message)).retry();
                }
            }
        }
        if !names.is_empty() {
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": names}});
            plan.step(Write::strategic_patch(pod, "status", patch).tolerate(&["NotFound"]));
        }
        if !node_of(pod).is_empty() && !pod::is_terminal(pod) {
            for claim in &observed.claims {
                plan.steps.extend(reserve(pod, claim).map(|write| controller::Step::One(Box::new(write))));
            }
        }
        plan
    }
}

/// The claim that a Pod's spec asks for by its template.
fn from_template(pod: &Pod, claim: &PodResourceClaim, template: &ResourceClaimTemplate) -> ResourceClaim {
    let inner = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = inner.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), claim.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: pod.metadata.namespace.clone(),
            generate_name: Some(base(pod.metadata.name.as_deref().unwrap_or(""), &claim.name)),
            labels: inner.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// The beginning of a claim's name: of both names as much as their lengths allow.
fn base(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    if whole.len() <= BASE_MAX {
        return whole;
    }
    let part = |name: &str| name.chars().take(name.len() * BASE_MAX / whole.len()).collect::<String>();
    format!("{}-{}", part(pod), part(claim))
}

/// Only a claim that has devices can be reserved, and only by those who may use it.
fn reserve(pod: &Pod, claim: &ResourceClaim) -> Option<Write> {
    let status = claim.status.as_ref()?;
    let owner = controller::controller_of(claim).filter(|owner| owner.kind == "Pod");
    let foreign = owner.is_some_and(|owner| Some(&owner.uid) != pod.metadata.uid.as_ref());
    let full = status.reserved_for.as_ref().is_some_and(|all| all.len() >= CONSUMERS_MAX);
    if status.allocation.is_none() || foreign || full || pod::is_reserved_for(claim, pod) {
        return None;
    }
    let mut reserved = claim.clone();
    reserved.status.get_or_insert_default().reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    });
    Some(Write::update_part(&reserved, "status"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Map, Value};

    /// A Pod `p` that asks for a claim `g` by a template `t`; the name of the claim in its status and its node.
    fn pod(noted: Option<Value>, node: &str) -> Pod {
        let statuses: Vec<Value> =
            noted.map(|name| json!({"name": "g", "resourceClaimName": name})).into_iter().collect();
        json::from_value(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [], "nodeName": node,
                "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": statuses},
        }))
        .unwrap()
    }

    fn claim(allocated: bool, reserved_for: &[&str]) -> Arc<ResourceClaim> {
        let consumers: Vec<Value> =
            reserved_for.iter().map(|uid| json!({"resource": "pods", "name": "x", "uid": uid})).collect();
        let mut status = Map::new();
        status.insert("reservedFor".to_owned(), json!(consumers));
        if allocated {
            status.insert("allocation".to_owned(), json!({}));
        }
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        let meta =
            json!({"name": "p-g-x", "namespace": "d", "annotations": {POD_CLAIM: "g"}, "ownerReferences": [owner]});
        Arc::new(json::from_value(json!({"metadata": meta, "spec": {}, "status": status})).unwrap())
    }

    fn template() -> Arc<ResourceClaimTemplate> {
        let spec = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {"requests": []}}});
        Arc::new(json::from_value(json!({"metadata": {"name": "t"}, "spec": spec})).unwrap())
    }

    fn plan(pod: &Pod, made: Option<Arc<ResourceClaim>>, template: Option<Arc<ResourceClaimTemplate>>) -> Plan {
        let claims = made.iter().cloned().collect();
        let wanted = TemplatedClaim { claim: asks(pod).next().unwrap().clone(), template, made };
        ClaimsOfPods.plan(pod, &Observed { from_templates: vec![wanted], claims }, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_claim_is_made_then_noted_then_reserved() {
        let check = |noted: Option<Value>, node: &str, made: Option<Arc<ResourceClaim>>, expected: &str| {
            assert_eq!(plan(&pod(noted, node), made, Some(template())).to_string(), expected);
        };
        check(None, "", None, "create resourceclaims ");
        check(None, "", Some(claim(false, &[])), "patch pods/status p");
        check(Some(json!("p-g-x")), "", Some(claim(true, &[])), "");
        check(Some(json!("gone")), "", None, "create resourceclaims ");
        check(Some(Value::Null), "", None, "");
        check(Some(json!("p-g-x")), "n", Some(claim(false, &[])), "");
        check(Some(json!("p-g-x")), "n", Some(claim(true, &[])), "update resourceclaims/status p-g-x");
        check(Some(json!("p-g-x")), "n", Some(claim(true, &["u"])), "");
    }

    #[test]
    fn a_claim_has_what_its_template_says() {
        let plan = plan(&pod(None, ""), None, Some(template()));
        let body = plan.writes().next().unwrap().body().clone();
        let meta = &body["metadata"];
        assert_eq!((&meta["generateName"], &meta["labels"]), (&json!("p-g-"), &json!({"a": "b"})));
        assert_eq!(meta["annotations"], json!({POD_CLAIM: "g"}));
        assert_eq!(
            (&meta["ownerReferences"][0]["uid"], &body["spec"]["devices"]["requests"]),
            (&json!("u"), &json!([]))
        );
    }

    #[test]
    fn a_missing_template_is_told_and_waited_for() {
        let plan = plan(&pod(None, ""), None, None);
        let Some(controller::Step::Tell(note)) = plan.steps.first() else { panic!("{plan}") };
        let expected =
            "PodResourceClaim g: resource claim template \"t\": resourceclaimtemplate.resource.k8s.io \"t\" not found";
        assert_eq!((note.message.as_str(), plan.retry), (expected, true));
    }

    #[test]
    fn long_names_are_cut_in_proportion() {
        assert_eq!(base("p", "g"), "p-g-");
        let long = base(&"p".repeat(100), &"g".repeat(50));
        assert_eq!(long, format!("{}-{}", "p".repeat(37), "g".repeat(18)));
    }
}
