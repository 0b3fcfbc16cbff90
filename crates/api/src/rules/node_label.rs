//! Labels of nodes that have other names by now: who selects by them is warned.
//! Upstream counterpart: pkg/api/node/util.go.

use k8s_openapi::api::core::v1::NodeSelectorTerm;

use crate::validation::field::Path;
use crate::validation::names;

const DEPRECATED: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// The message for somebody who selects nodes by this label.
pub(crate) fn deprecated(label: &str) -> Option<&'static str> {
    DEPRECATED.iter().find(|(old, _)| *old == label).map(|(_, why)| *why)
}

/// The warnings of a term's expressions; with `values` also of values that no label can have, where validation lets them be.
pub(crate) fn of_term(term: &NodeSelectorTerm, values: bool, path: &Path) -> Vec<String> {
    let mut list = Vec::new();
    for (i, one) in term.match_expressions.iter().flatten().enumerate() {
        let place = path.child("matchExpressions").index(i);
        list.extend(deprecated(&one.key).map(|why| format!("{}: {} is {why}", place.child("key"), one.key)));
        for (j, value) in one.values.iter().flatten().enumerate().filter(|_| values) {
            let place = place.child("values").index(j);
            list.extend(names::label_value(value).iter().map(|why| format!("{place}: {value} is invalid, {why}")));
        }
    }
    list
}
