//! The Node authorizer: a kubelet reads what the Pods on its node need, and writes what is its node's.
//!
//! The NodeRestriction admission plugin decides in detail which fields of an object a kubelet may write.

pub mod graph;

use api::features::{Feature, Features};
use clock::Instant;
use json::Value;
use meter::{Metric, Metrics};
use parking_lot::RwLock;

use graph::{Graph, Target};

use super::rbac::PolicyRule;
use super::{Answer, Attributes, Authorizer, Rules, User, Verdict, known};

/// Each twice the one before, from a tenth of a millisecond on.
const SECONDS: &[f64] =
    &[0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048];

static ACTIONS: Metric = Metric::histogram(
    "node_authorizer_graph_actions_duration_seconds",
    "[ALPHA] Histogram of duration of graph actions in node authorizer.",
    SECONDS,
);

/// The authorizer. It follows Pods, PersistentVolumes and VolumeAttachments through [`NodeAuthorizer::changed`].
pub struct NodeAuthorizer {
    graph: RwLock<Graph>,
    rules: Vec<PolicyRule>,
    pub metrics: Metrics,
}

/// The rules for every kubelet, whatever runs on its node.
fn rules(features: Features) -> Vec<PolicyRule> {
    let r = PolicyRule::resources;
    let read: &[&str] = &["get", "list", "watch"];
    let bundles = || r(read, &["certificates.k8s.io"], &["clustertrustbundles"]);
    let mut rules = vec![
        r(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        r(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews", "localsubjectaccessreviews"]),
        r(read, &[""], &["services"]),
        r(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        r(&["create", "get", "list", "watch"], &["certificates.k8s.io"], &["certificatesigningrequests"]),
        r(&["get"], &[""], &["endpoints"]),
        r(read, &["storage.k8s.io"], &["csidrivers"]),
        r(read, &["node.k8s.io"], &["runtimeclasses"]),
    ];
    rules.extend(features.enabled(Feature::ClusterTrustBundle).then(bundles));
    rules
}

fn allow() -> Verdict {
    Verdict::Allow(String::new())
}

fn no(reason: impl Into<String>) -> Verdict {
    Verdict::NoOpinion(reason.into())
}

impl NodeAuthorizer {
    pub fn new(features: Features) -> Self {
        NodeAuthorizer { graph: RwLock::default(), rules: rules(features), metrics: Metrics::default() }
    }

    /// Takes in that an object became `object`, or is gone. Kinds that matter nothing are ignored.
    pub fn changed(&self, group: &str, plural: &str, namespace: &str, name: &str, object: Option<&Value>) {
        if !graph::matters(group, plural) {
            return;
        }
        let began = Instant::now();
        if self.graph.write().changed(plural, namespace, name, object) {
            let action = graph::action(plural, object.is_some());
            self.metrics.observe(&ACTIONS, &[("operation", action)], began.elapsed().as_secs_f64());
        }
    }

    fn related(&self, node: &str, target: Target, a: &Attributes<'_>) -> Verdict {
        if a.name.is_empty() {
            return no("No Object name found");
        }
        if self.graph.read().reaches(node, target, a.namespace, a.name) {
            return allow();
        }
        no(format!("no relationship found between node '{node}' and this object"))
    }

    fn read(&self, node: &str, target: Target, a: &Attributes<'_>) -> Verdict {
        if !a.is_read_only() {
            return no("can only read resources of this type");
        }
        if !a.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if a.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related(node, target, a)
    }

    fn get(&self, node: &str, target: Target, a: &Attributes<'_>) -> Verdict {
        if a.verb != "get" {
            return no("can only get individual resources of this type");
        }
        if !a.subresource.is_empty() {
            return no("cannot get subresource");
        }
        self.related(node, target, a)
    }

    fn claim(&self, node: &str, a: &Attributes<'_>) -> Verdict {
        match (a.subresource, a.verb) {
            ("status", "update" | "patch") => self.related(node, Target::Claim, a),
            ("status", _) => no("can only get/update/patch this type"),
            _ => self.get(node, Target::Claim, a),
        }
    }

    fn service_account(&self, node: &str, a: &Attributes<'_>) -> Verdict {
        match (a.verb, a.subresource) {
            ("create", "token") | ("get", "") => self.related(node, Target::ServiceAccount, a),
            ("create", _) => no("can only create token for individual service account"),
            _ => no("can only create tokens for individual service accounts"),
        }
    }

    /// Admission compares what a new object says.
    fn resource_slice(&self, node: &str, a: &Attributes<'_>) -> Verdict {
        match a.verb {
            _ if !a.subresource.is_empty() => no("cannot authorize ResourceSlice subresources"),
            "create" => allow(),
            "get" | "update" | "patch" | "delete" => self.related(node, Target::Slice, a),
            "list" | "watch" | "deletecollection" if a.selected.node_name() == Some(node) => allow(),
            "list" | "watch" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with spec.nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, \
                 deletecollection",
            ),
        }
    }

    /// Admission compares what a new request says.
    fn pod_certificate_request(&self, node: &str, a: &Attributes<'_>) -> Verdict {
        match a.verb {
            _ if !a.subresource.is_empty() => {
                no(format!("nodes may not access the {} subresource of PodCertificateRequests", a.subresource))
            }
            "create" => allow(),
            "get" => self.related(node, Target::CertificateRequest, a),
            "list" | "watch" if a.selected.node_name() == Some(node) => allow(),
            "list" | "watch" => no("can only list/watch podcertificaterequests with nodeName field selector"),
            verb => no(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn node(node: &str, a: &Attributes<'_>) -> Verdict {
        match (a.subresource, a.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => allow(),
            ("", "get" | "list" | "watch") if a.name == node => allow(),
            ("", "get" | "list" | "watch") if a.name.is_empty() => {
                no(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("", "get" | "list" | "watch") => {
                no(format!("node '{node}' cannot read '{}', only its own Node object", a.name))
            }
            _ => no(""),
        }
    }

    fn pod(&self, node: &str, a: &Attributes<'_>) -> Verdict {
        match (a.subresource, a.verb) {
            ("", "get") => self.related(node, Target::Pod, a),
            ("", "list" | "watch") if a.selected.node_name() == Some(node) => allow(),
            ("", "list" | "watch") if !a.name.is_empty() => self.related(node, Target::Pod, a),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => allow(),
            _ => no(""),
        }
    }
}

/// Objects with the node's own name: its lease, its CSINode.
fn own(node: &str, a: &Attributes<'_>, what: &str) -> Verdict {
    // A create has no name yet; admission compares it.
    if a.verb != "create" && a.name != node {
        return no(format!("can only access {what} with the same name as the requesting node"));
    }
    allow()
}

fn writes_its_own(a: &Attributes<'_>) -> bool {
    matches!(a.verb, "get" | "create" | "update" | "patch" | "delete")
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Verdict {
    if !writes_its_own(a) {
        return no("can only get, create, update, patch, or delete a CSINode");
    }
    if !a.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    own(node, a, "CSINode")
}

fn lease(node: &str, a: &Attributes<'_>) -> Verdict {
    if !writes_its_own(a) {
        return no("can only get, create, update, patch, or delete a node lease");
    }
    if a.namespace != "kube-node-lease" {
        return no("can only access leases in the \"kube-node-lease\" system namespace");
    }
    own(node, a, "node lease")
}

impl NodeAuthorizer {
    /// The verdict of the graph and the rules about a request.
    fn decide(&self, a: &Attributes<'_>) -> Verdict {
        let Some(node) = a.user.node_name() else {
            let user = &a.user.name;
            return no(if a.user.is_node() { format!("unknown node for user {user:?}") } else { String::new() });
        };
        if !a.is_resource() {
            return no("");
        }
        match (a.group, a.resource) {
            ("", "secrets") => self.read(node, Target::Secret, a),
            ("", "configmaps") => self.read(node, Target::ConfigMap, a),
            ("", "persistentvolumeclaims") => self.claim(node, a),
            ("", "persistentvolumes") => self.get(node, Target::Volume, a),
            ("storage.k8s.io", "volumeattachments") => self.get(node, Target::Attachment, a),
            ("resource.k8s.io", "resourceclaims") => self.get(node, Target::ResourceClaim, a),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(node, a),
            ("certificates.k8s.io", "podcertificaterequests") => self.pod_certificate_request(node, a),
            ("", "serviceaccounts") => self.service_account(node, a),
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("", "nodes") => Self::node(node, a),
            ("", "pods") => self.pod(node, a),
            _ if self.rules.iter().any(|rule| rule.matches(a)) => allow(),
            _ => no(""),
        }
    }
}

impl Authorizer for NodeAuthorizer {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> Answer<'a> {
        known(self.decide(a))
    }

    /// The rights of a node depend on its Pods, so that no list of rules can say them.
    fn rules_for(&self, user: &User, _: &str) -> Rules {
        let why = user.is_node().then_some("node authorizer does not support user rule resolution");
        Rules { unlisted: why.into_iter().collect(), ..Rules::default() }
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::auth::Selected;
    use api::rules::selector::FieldSelector;

    fn authorizer() -> NodeAuthorizer {
        let node = NodeAuthorizer::new(Features::default());
        let pod = json!({"metadata": {"uid": "1"}, "spec": {
            "nodeName": "n1", "serviceAccountName": "bot", "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "sec"}},
                {"name": "b", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "pro"}}]}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "d", "ephemeral": {}},
            ],
            "containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "env"}}}], "envFrom": [{"secretRef": {"name": "all"}}]}],
        }});
        node.changed("", "pods", "ns", "web", Some(&pod));
        let volume = json!({"spec": {"claimRef": {"namespace": "ns", "name": "claim"},
        "csi": {
            "nodeStageSecretRef": {"namespace": "storage", "name": "key"},
            "nodePublishSecretRef": {"namespace": "storage", "name": "publish"},
            "nodeExpandSecretRef": {"namespace": "storage", "name": "expand"},
            "controllerPublishSecretRef": {"namespace": "storage", "name": "controllers-publish"},
            "controllerExpandSecretRef": {"namespace": "storage", "name": "controllers-expand"},
        }}});
        node.changed("", "persistentvolumes", "", "pv", Some(&volume));
        let sources = [
            ("azureFile", json!({"secretName": "azure", "secretNamespace": ""})),
            ("azureFile", json!({"secretName": "azure", "secretNamespace": "elsewhere"})),
            ("cinder", json!({"secretRef": {"name": "cinder"}})),
            ("rbd", json!({"secretRef": {"name": "rbd", "namespace": "elsewhere"}})),
        ];
        for (n, (source, of)) in sources.iter().enumerate() {
            let volume = json!({"spec": {"claimRef": {"namespace": "ns", "name": "claim"}, *source: of}});
            node.changed("", "persistentvolumes", "", &format!("pv{n}"), Some(&volume));
        }
        for (name, of) in [("s1", "n1"), ("s2", "n2")] {
            let slice = json!({"spec": {"nodeName": of}});
            node.changed("resource.k8s.io", "resourceslices", "", name, Some(&slice));
            node.changed("certificates.k8s.io", "podcertificaterequests", "ns", name, Some(&slice));
        }
        node
    }

    /// `verb group/plural[/subresource] namespace/name`
    fn may(authorizer: &NodeAuthorizer, node: &str, request: &str) -> bool {
        let parts: Vec<&str> = request.split(' ').collect();
        let path: Vec<&str> = parts[1].split('/').collect();
        let (namespace, name) = parts.get(2).map_or(("", ""), |p| p.split_once('/').unwrap());
        let user = User::new(format!("system:node:{node}"), ["system:nodes"]);
        let pinned = parts.get(3).map(|node| format!("spec.nodeName={node}")).unwrap_or_default();
        let fields = FieldSelector::parse(&pinned).unwrap();
        let a = Attributes {
            subresource: path.get(2).copied().unwrap_or(""),
            namespace,
            name,
            selected: Selected { fields: &fields.0, ..Selected::default() },
            ..Attributes::resource(&user, parts[0], path[0], path[1])
        };
        authorizer.decide(&a).allowed()
    }

    #[test]
    fn a_kubelet_reaches_what_its_pods_name() {
        let all = authorizer();
        for request in [
            "get /secrets ns/sec",
            "watch /secrets ns/pull",
            "get /secrets ns/pro",
            "get /secrets ns/all",
            "get /secrets storage/key",
            "get /secrets storage/publish",
            "get /secrets storage/expand",
            "get /secrets ns/azure",
            "get /secrets elsewhere/azure",
            "get /secrets ns/cinder",
            "get /secrets elsewhere/rbd",
            "get /configmaps ns/kube-root-ca.crt",
            "list /configmaps ns/env",
            "get /persistentvolumeclaims ns/claim",
            "get /persistentvolumeclaims ns/web-d",
            "patch /persistentvolumeclaims/status ns/claim",
            "get /persistentvolumes /pv",
            "create /serviceaccounts/token ns/bot",
            "get /pods ns/web",
        ] {
            assert!(may(&all, "n1", request), "{request}");
            assert!(!may(&all, "n2", request), "{request} from another node");
        }
        for request in [
            "update /secrets ns/sec",
            "list /secrets ns/",
            "get /secrets ns/other",
            "get /secrets other/sec",
            "get /secrets storage/controllers-publish",
            "get /secrets storage/controllers-expand",
        ] {
            assert!(!may(&all, "n1", request), "{request}");
        }
    }

    #[test]
    fn changes_of_the_graph_are_counted_by_what_they_do() {
        let all = authorizer();
        let on = |node: &str| json!({"metadata": {"uid": "2"}, "spec": {"nodeName": node}});
        // A Pod that changes nothing, one that is on no node, and what is unknown anyway are no actions.
        for object in [Some(on("n1")), Some(on("n1")), Some(on("n2")), None, None, Some(on(""))] {
            all.changed("", "pods", "ns", "other", object.as_ref());
        }
        all.changed("resource.k8s.io", "resourceslices", "", "s1", Some(&on("n1")));
        all.changed("resource.k8s.io", "resourceslices", "", "s1", None);
        all.changed("storage.k8s.io", "volumeattachments", "", "a", None);
        all.changed("", "persistentvolumes", "", "pv0", None);
        all.changed("certificates.k8s.io", "podcertificaterequests", "ns", "s1", None);
        all.changed("apps", "deployments", "ns", "d", Some(&on("n1")));
        let page = all.metrics.render();
        let counted: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("node_authorizer_graph_actions_duration_seconds_count{operation="))
            .collect();
        let expected = [
            "\"AddPV\"} 5",
            "\"AddPod\"} 3",
            "\"AddPodCertificateRequest\"} 2",
            "\"AddResourceSlice\"} 2",
            "\"DeletePV\"} 1",
            "\"DeletePod\"} 1",
            "\"DeletePodCertificateRequest\"} 1",
            "\"DeleteResourceSlice\"} 1",
        ];
        assert_eq!(counted, expected);
    }

    #[test]
    fn it_writes_what_is_its_nodes() {
        let all = authorizer();
        for (request, expected) in [
            ("create /nodes /n1", true),
            ("patch /nodes/status /n1", true),
            ("get /nodes /n1", true),
            ("get /nodes /n2", false),
            ("list /nodes", false),
            ("delete /nodes /n1", false),
            ("list /pods / n1", true),
            ("list /pods / n2", false),
            ("watch /pods", false),
            ("list /pods ns/web", true),
            ("watch /pods ns/other", false),
            ("list /nodes /n1", true),
            ("watch /nodes /n2", false),
            ("get resource.k8s.io/resourceslices /s1", true),
            ("delete resource.k8s.io/resourceslices /s2", false),
            ("list resource.k8s.io/resourceslices / n1", true),
            ("list resource.k8s.io/resourceslices", false),
            ("patch /pods/status ns/any", true),
            ("create /pods/exec ns/web", false),
            ("update coordination.k8s.io/leases kube-node-lease/n1", true),
            ("update coordination.k8s.io/leases kube-node-lease/n2", false),
            ("update coordination.k8s.io/leases ns/n1", false),
            ("list /services", true),
            ("create /events ns/e", true),
            ("create certificates.k8s.io/certificatesigningrequests /", true),
            ("list apps/deployments", false),
        ] {
            assert_eq!(may(&all, "n1", request), expected, "{request}");
        }
    }

    /// The words that a refusal ends with.
    #[test]
    fn refusals_are_in_upstreams_words() {
        let all = authorizer();
        let node = User::new("system:node:n1", ["system:nodes"]);
        let check = |user: &User,
                     verb: &str,
                     (group, resource, subresource): (&str, &str, &str),
                     place: &str,
                     expected: &str| {
            let (namespace, name) = place.split_once('/').unwrap();
            let a = Attributes { subresource, namespace, name, ..Attributes::resource(user, verb, group, resource) };
            let verdict = all.decide(&a);
            assert_eq!((verdict.allowed(), verdict.reason()), (false, expected), "{verb} {resource} {place}");
        };
        let unrelated = "no relationship found between node 'n1' and this object";
        check(&node, "get", ("", "secrets", ""), "ns/other", unrelated);
        check(&node, "list", ("", "secrets", ""), "ns/", "No Object name found");
        check(&node, "list", ("", "secrets", ""), "/sec", "can only read namespaced object of this type");
        check(&node, "update", ("", "configmaps", ""), "ns/env", "can only read resources of this type");
        check(&node, "get", ("", "persistentvolumes", "status"), "/pv", "cannot get subresource");
        check(&node, "list", ("", "persistentvolumes", ""), "/", "can only get individual resources of this type");
        check(
            &node,
            "get",
            ("", "persistentvolumeclaims", "status"),
            "ns/claim",
            "can only get/update/patch this type",
        );
        let leases = ("coordination.k8s.io", "leases", "");
        let verbs = "can only get, create, update, patch, or delete a node lease";
        check(&node, "list", leases, "ns/", verbs);
        check(&node, "create", leases, "ns/n1", "can only access leases in the \"kube-node-lease\" system namespace");
        let own = "can only access node lease with the same name as the requesting node";
        check(&node, "get", leases, "kube-node-lease/n2", own);
        let csi = ("storage.k8s.io", "csinodes", "csiDrivers");
        check(&node, "get", csi, "/n2", "cannot authorize CSINode subresources");
        check(&node, "watch", csi, "/n2", "can only get, create, update, patch, or delete a CSINode");
        let slices = ("resource.k8s.io", "resourceslices", "");
        let verbs = "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                     delete, deletecollection";
        check(&node, "sing", slices, "/s1", verbs);
        check(&node, "get", slices, "/s2", unrelated);
        check(
            &node,
            "get",
            ("resource.k8s.io", "resourceslices", "status"),
            "/s1",
            "cannot authorize ResourceSlice subresources",
        );
        check(&node, "get", ("", "pods", "status"), "ns/web", "");
        check(&node, "delete", ("", "pods", "proxy"), "ns/web", "");
        // A member of the group without the name of a node is nobody here, and a name without a node none that is known.
        check(&User::new("jane", ["system:nodes"]), "get", ("", "secrets", ""), "ns/sec", "");
        check(&User::new("system:node:n1", ["dev"]), "get", ("", "secrets", ""), "ns/sec", "");
        let nameless = User::new("system:node:", ["system:nodes"]);
        check(&nameless, "get", ("", "secrets", ""), "ns/sec", "unknown node for user \"system:node:\"");
    }

    #[test]
    fn a_pod_that_left_takes_its_rights_along() {
        let all = authorizer();
        let second = json!({"metadata": {"uid": "2"}, "spec": {"nodeName": "n1", "serviceAccountName": "bot",
            "volumes": [{"name": "a", "secret": {"secretName": "sec"}}]}});
        all.changed("", "pods", "ns", "web2", Some(&second));
        all.changed("", "pods", "ns", "web", None);
        assert!(may(&all, "n1", "get /secrets ns/sec"));
        assert!(!may(&all, "n1", "get /secrets ns/pull"));
        assert!(!may(&all, "n1", "get /persistentvolumes /pv"));
        all.changed("", "pods", "ns", "web2", None);
        assert!(!may(&all, "n1", "get /secrets ns/sec"));
    }

    #[test]
    fn a_kubelet_reads_trust_bundles_where_there_are_any() {
        let off = NodeAuthorizer::new(Features::default());
        let on = NodeAuthorizer::new(Features::default().with(Feature::ClusterTrustBundle, true));
        for verb in ["get", "list", "watch", "update", "create"] {
            let request = format!("{verb} certificates.k8s.io/clustertrustbundles /x.y:z:ca");
            let reads = ["get", "list", "watch"].contains(&verb);
            assert_eq!((may(&off, "n1", &request), may(&on, "n1", &request)), (false, reads), "{request}");
        }
    }

    #[test]
    fn a_kubelet_sees_requests_for_certificates_of_its_pods() {
        let all = authorizer();
        let check = |request: &str, expected: bool| assert_eq!(may(&all, "n1", request), expected, "{request}");
        check("create certificates.k8s.io/podcertificaterequests ns/any", true);
        check("get certificates.k8s.io/podcertificaterequests ns/s1", true);
        check("get certificates.k8s.io/podcertificaterequests ns/s2", false);
        check("get certificates.k8s.io/podcertificaterequests other/s1", false);
        check("list certificates.k8s.io/podcertificaterequests ns/ n1", true);
        check("watch certificates.k8s.io/podcertificaterequests ns/ n1", true);
        check("list certificates.k8s.io/podcertificaterequests ns/ n2", false);
        check("list certificates.k8s.io/podcertificaterequests ns/", false);
        check("delete certificates.k8s.io/podcertificaterequests ns/s1", false);
        check("update certificates.k8s.io/podcertificaterequests/status ns/s1", false);
        check("get certificates.k8s.io/podcertificaterequests/status ns/s1", false);
    }
}
