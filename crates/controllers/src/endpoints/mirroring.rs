//! EndpointSlice mirroring: Endpoints that users write for a Service without a selector, as EndpointSlices, which is what
//! proxies and DNS read.
//! Reads: Endpoints, Service, EndpointSlice. Writes: EndpointSlice (create, update, delete).
//! Upstream counterpart: pkg/controller/endpointslicemirroring.

use std::{net::IpAddr, sync::Arc};

use client::{
    Key,
    slices::{BY_SERVICE, SERVICE_NAME_LABEL, index_by_service, service_of},
};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write, owner_reference};
use k8s_openapi::{
    api::{
        core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::endpoints::{
    endpoint::TRIGGER_TIME,
    slice_packing::{Group, Parent},
};

pub struct EndpointSliceMirroring;

const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "endpointslicemirroring-controller.k8s.io");
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// An Endpoints object that carries this is a lock, not a list of addresses.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// How many addresses of one subset are mirrored.
const CAPACITY: usize = 1000;

pub struct Observed {
    /// There is a Service of the same name, and it leaves its endpoints to the user.
    for_service: bool,
    /// The slices that this controller made for it.
    slices: Vec<Arc<EndpointSlice>>,
}

fn is_ours(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().and_then(|l| l.get(MANAGED_BY.0)).is_some_and(|by| by == MANAGED_BY.1)
}

fn slices(listers: &Listers, key: &Key) -> Vec<Arc<EndpointSlice>> {
    let mut slices = listers.caches.of::<EndpointSlice>().by_index(BY_SERVICE, &key.to_string());
    slices.retain(|s| is_ours(s) && s.metadata.deletion_timestamp.is_none());
    slices
}

fn is_to_be_mirrored(endpoints: &Endpoints) -> bool {
    let (labels, annotations) = (&endpoints.metadata.labels, &endpoints.metadata.annotations);
    let skipped = labels.as_ref().and_then(|l| l.get(SKIP_MIRROR)).is_some_and(|v| v == "true");
    let is_lock = annotations.as_ref().is_some_and(|a| a.contains_key(LEADER));
    !skipped && !is_lock
}

impl Controller for EndpointSliceMirroring {
    const NAME: &'static str = "endpointslice-mirroring-controller";
    type Object = Endpoints;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<Endpoints>) {
        index_by_service(&watches.caches().of());
        watches
            .changed::<Service>(|change, _| vec![change.key.clone()])
            .mapped::<EndpointSlice>(|slice, _| service_of(slice).filter(|_| is_ours(slice)).into_iter().collect());
    }

    fn observe(&self, endpoints: &Endpoints, listers: &Listers) -> Observed {
        let key = Key::of(endpoints);
        let service = listers.caches.of::<Service>().get(&key);
        let for_service = service.is_some_and(|s| s.spec.as_ref().is_none_or(|s| s.selector.is_none()));
        Observed { for_service, slices: slices(listers, &key) }
    }

    fn plan(&self, endpoints: &Endpoints, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if endpoints.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        if !observed.for_service || !is_to_be_mirrored(endpoints) {
            observed.slices.iter().for_each(|slice| _ = plan.step(Write::delete(&**slice)));
            return plan;
        }
        let parent = Parent { metadata: metadata(endpoints), annotations_decide: true, empty_slice: false };
        let mut wanted = Vec::new();
        let mut skipped = Skipped::default();
        for subset in endpoints.subsets.iter().flatten() {
            add(subset, &mut wanted, &mut skipped);
        }
        parent.arrange(wanted, &observed.slices, &mut plan);
        // Told with a change only: nothing new is said by looking again.
        if !plan.is_empty() {
            skipped.tell(&mut plan);
        }
        plan
    }

    fn plan_gone(&self, key: &Key, listers: &Listers, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        slices(listers, key).iter().for_each(|slice| _ = plan.step(Write::delete(&**slice)));
        plan
    }
}

/// The metadata of every mirrored slice: the labels and annotations of the Endpoints, but for those about themselves.
fn metadata(endpoints: &Endpoints) -> ObjectMeta {
    let name = endpoints.metadata.name.clone().unwrap_or_default();
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != TRIGGER_TIME && key != LAST_APPLIED);
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: endpoints.metadata.namespace.clone(),
        labels: Some(labels.into_iter().chain([(SERVICE_NAME_LABEL.to_owned(), name)]).collect()),
        annotations: (!annotations.is_empty()).then_some(annotations),
        owner_references: Some(vec![owner_reference(endpoints)]),
        ..Default::default()
    }
}

/// Addresses that cannot be mirrored.
#[derive(Default)]
struct Skipped {
    invalid: usize,
    beyond_capacity: usize,
}

impl Skipped {
    fn tell(&self, plan: &mut Plan) {
        if self.invalid > 0 {
            let message = format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", self.invalid);
            plan.tell(Note::warning("InvalidIPAddress", message));
        }
        if self.beyond_capacity > 0 {
            let message = format!(
                "A max of {CAPACITY} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses \
                 were skipped",
                self.beyond_capacity
            );
            plan.tell(Note::warning("TooManyAddressesToMirror", message));
        }
    }
}

/// Adds a subset's addresses to their groups, ready ones first.
fn add(subset: &EndpointSubset, groups: &mut Vec<(Group, Vec<Endpoint>)>, skipped: &mut Skipped) {
    let ports: Vec<EndpointPort> = subset.ports.iter().flatten().map(port).collect();
    let ready = subset.addresses.iter().flatten().map(|a| (a, true));
    let all = ready.chain(subset.not_ready_addresses.iter().flatten().map(|a| (a, false)));
    let mut mirrored = 0;
    for (address, ready) in all {
        let family = match api::rules::ip::parse(&address.ip) {
            Some(IpAddr::V4(_)) => "IPv4",
            Some(IpAddr::V6(_)) => "IPv6",
            None => {
                skipped.invalid += 1;
                continue;
            }
        };
        if mirrored >= CAPACITY {
            skipped.beyond_capacity += 1;
            continue;
        }
        mirrored += 1;
        let group = (family, ports.clone());
        let endpoint = endpoint(address, ready);
        match groups.iter_mut().find(|(held, _)| *held == group) {
            Some((_, endpoints)) => endpoints.push(endpoint),
            None => groups.push((group, vec![endpoint])),
        }
    }
}

fn port(port: &k8s_openapi::api::core::v1::EndpointPort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    }
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller::Step;
    use json::{Value, json};

    fn endpoints(subsets: Value, extra: Value) -> Endpoints {
        let mut meta = json!({"name": "db", "namespace": "d", "uid": "e"});
        meta.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json::from_value(json!({"metadata": meta, "subsets": subsets})).unwrap()
    }

    fn plan(endpoints: &Endpoints, for_service: bool, slices: Vec<EndpointSlice>) -> Plan {
        let observed = Observed { for_service, slices: slices.into_iter().map(Arc::new).collect() };
        EndpointSliceMirroring.plan(endpoints, &observed, Timestamp::UNIX_EPOCH)
    }

    fn subsets() -> Value {
        json!([{"addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}], "notReadyAddresses": [{"ip": "192.0.2.2"}],
            "ports": [{"name": "sql", "port": 5432}]}])
    }

    fn written(plan: &Plan) -> Vec<EndpointSlice> {
        let slices = plan.writes().map(|w| json::from_value(w.body().clone()).unwrap());
        let named = slices.enumerate().map(|(i, mut slice): (usize, EndpointSlice)| {
            slice.metadata.name = Some(format!("s{i}"));
            slice
        });
        named.collect()
    }

    #[test]
    fn what_a_user_wrote_is_mirrored_by_family() {
        let annotations = json!({LAST_APPLIED: "{}", "team": "a"});
        let source = endpoints(subsets(), json!({"labels": {"app": "db"}, "annotations": annotations}));
        let plan_ = plan(&source, true, Vec::new());
        assert_eq!(plan_.to_string(), "create endpointslices , create endpointslices ");
        let slices = written(&plan_);
        let slice = json::to_value(&slices[0]).unwrap();
        assert_eq!((&slice["addressType"], &slice["metadata"]["generateName"]), (&json!("IPv4"), &json!("db-")));
        let labels = json!({"app": "db", MANAGED_BY.0: MANAGED_BY.1, SERVICE_NAME_LABEL: "db"});
        assert_eq!((&slice["metadata"]["labels"], &slice["metadata"]["annotations"]), (&labels, &json!({"team": "a"})));
        assert_eq!(slice["metadata"]["ownerReferences"][0]["kind"], "Endpoints");
        assert_eq!(slice["ports"], json!([{"name": "sql", "port": 5432, "protocol": "TCP"}]));
        let ready = [("192.0.2.1", true), ("192.0.2.2", false)]
            .map(|(ip, ready)| json!({"addresses": [ip], "conditions": {"ready": ready}}));
        assert_eq!(slice["endpoints"], json!(ready));
        assert_eq!(slices[1].address_type, "IPv6");
        assert!(plan(&source, true, slices.clone()).is_empty());
        // Slices that are no longer in the source are deleted, and no empty slice takes their place.
        let emptied = plan(&endpoints(json!([]), json!({})), true, slices);
        assert_eq!(emptied.to_string(), "delete endpointslices s0, delete endpointslices s1");
        let relabelled = endpoints(subsets(), json!({"labels": {"app": "other"}}));
        assert_eq!(plan(&relabelled, true, written(&plan_)).to_string().matches("update").count(), 2);
    }

    #[test]
    fn only_endpoints_that_a_user_keeps_are_mirrored() {
        let held = || written(&plan(&endpoints(subsets(), json!({})), true, Vec::new()));
        let check = |extra: Value, for_service: bool, expected: &str| {
            let plan = plan(&endpoints(subsets(), extra), for_service, held());
            assert_eq!(plan.to_string(), expected);
        };
        let both = "delete endpointslices s0, delete endpointslices s1";
        check(json!({}), true, "");
        check(json!({}), false, both);
        check(json!({"labels": {SKIP_MIRROR: "true"}}), true, both);
        check(json!({"annotations": {LEADER: "x"}}), true, both);
    }

    #[test]
    fn what_is_left_out_is_told() {
        let many: Vec<_> = (0..1003).map(|i| json!({"ip": format!("10.0.{}.{}", i / 250, i % 250)})).collect();
        let source = endpoints(json!([{"addresses": many, "notReadyAddresses": [{"ip": "nowhere"}]}]), json!({}));
        let plan = plan(&source, true, Vec::new());
        assert_eq!(plan.writes().count(), 10);
        let told: Vec<&str> = plan
            .steps
            .iter()
            .filter_map(|step| if let Step::Tell(note) = step { Some(note.message.as_str()) } else { None })
            .collect();
        assert_eq!(told[0], "Skipped 1 invalid IP addresses when mirroring to EndpointSlices");
        assert!(told[1].ends_with("3 addresses were skipped"), "{told:?}");
    }
}
