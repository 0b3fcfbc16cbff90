//! The default roles beside upstream's test data: their names, and how many rules each has. What belongs to a feature that is off,
//! or to a kind that is not served, is left out.
//! Upstream counterpart: plugin/pkg/auth/authorizer/rbac/bootstrappolicy, its `testdata`.

use std::collections::BTreeMap;

use api::{features::Features, kind::KindTable};

use super::policy::objects;

/// ClusterRoles, each with its rules.
const CLUSTER_ROLES: &str = "cluster-admin 2
system:aggregate-to-admin 2
system:aggregate-to-edit 14
system:aggregate-to-view 11
system:auth-delegator 2
system:basic-user 2
system:certificates.k8s.io:certificatesigningrequests:nodeclient 1
system:certificates.k8s.io:certificatesigningrequests:selfnodeclient 1
system:certificates.k8s.io:kube-apiserver-client-approver 1
system:certificates.k8s.io:kube-apiserver-client-kubelet-approver 1
system:certificates.k8s.io:kubelet-serving-approver 1
system:certificates.k8s.io:legacy-unknown-approver 1
system:discovery 1
system:heapster 2
system:kube-aggregator 1
system:kube-controller-manager 11
system:kube-dns 1
system:kube-scheduler 24
system:kubelet-api-admin 3
system:monitoring 1
system:node 25
system:node-bootstrapper 1
system:node-problem-detector 3
system:node-proxier 5
system:persistent-volume-provisioner 5
system:public-info-viewer 1
system:service-account-issuer-discovery 1
system:volume-scheduler 3
system:controller:attachdetach-controller 8
system:controller:certificate-controller 6
system:controller:clusterrole-aggregation-controller 1
system:controller:cronjob-controller 6
system:controller:daemon-set-controller 8
system:controller:deployment-controller 6
system:controller:device-taint-eviction-controller 6
system:controller:disruption-controller 9
system:controller:endpoint-controller 4
system:controller:endpointslice-controller 4
system:controller:endpointslicemirroring-controller 5
system:controller:ephemeral-volume-controller 4
system:controller:expand-controller 4
system:controller:generic-garbage-collector 2
system:controller:horizontal-pod-autoscaler 8
system:controller:job-controller 5
system:controller:legacy-service-account-token-cleaner 2
system:controller:namespace-controller 3
system:controller:node-controller 5
system:controller:persistent-volume-binder 9
system:controller:pod-garbage-collector 3
system:controller:pv-protection-controller 2
system:controller:pvc-protection-controller 4
system:controller:replicaset-controller 5
system:controller:replication-controller 5
system:controller:resource-claim-controller 6
system:controller:resourcequota-controller 3
system:controller:root-ca-cert-publisher 2
system:controller:route-controller 3
system:controller:selinux-warning-controller 5
system:controller:service-account-controller 2
system:controller:service-cidrs-controller 5
system:controller:service-controller 4
system:controller:statefulset-controller 10
system:controller:ttl-after-finished-controller 2
system:controller:ttl-controller 2
system:controller:validatingadmissionpolicy-status-controller 3
system:controller:volumeattributesclass-protection-controller 4";

/// Roles by namespace and name, each with its rules.
const ROLES: &str = "kube-public/system:controller:bootstrap-signer 3
kube-system/extension-apiserver-authentication-reader 1
kube-system/system::leader-locking-kube-controller-manager 2
kube-system/system::leader-locking-kube-scheduler 2
kube-system/system:controller:bootstrap-signer 1
kube-system/system:controller:cloud-provider 1
kube-system/system:controller:token-cleaner 2";

/// The roles that are filled from others, and the one that comes with the metrics that this server serves itself.
const APART: [&str; 4] = ["admin", "edit", "view", "system:aggregated-metrics-reader"];

fn listed(text: &str) -> BTreeMap<String, usize> {
    let rows = text.lines().map(|row| row.split_once(' ').expect("a name and a number"));
    rows.map(|(name, count)| (name.to_owned(), count.parse().expect("a number"))).collect()
}

#[test]
fn the_default_roles_are_upstreams() {
    let none_served = KindTable::new(Vec::new(), Vec::new());
    let all = objects(&none_served, Features::default());
    let found = |plural: &str| -> BTreeMap<String, usize> {
        let of_kind = all.iter().filter(|object| object.plural == plural).map(|object| {
            let (namespace, name) = (api::meta::namespace(&object.object), api::meta::name(&object.object));
            let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
            (name, object.object["rules"].as_array().map_or(0, |rules| rules.len()))
        });
        of_kind.filter(|(name, _)| !APART.contains(&name.as_str())).collect()
    };
    for (plural, expected) in [("clusterroles", CLUSTER_ROLES), ("roles", ROLES)] {
        let (found, expected) = (found(plural), listed(expected));
        let differing: Vec<_> = found
            .iter()
            .filter(|(name, count)| expected.get(*name) != Some(*count))
            .chain(expected.iter().filter(|(name, _)| !found.contains_key(*name)))
            .collect();
        assert!(differing.is_empty(), "{plural}: {differing:?}");
    }
}
