//! NetworkPolicy: which traffic Pods take and send.

use ipnet::IpNet;
use json::Value;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Generation, Kind, Target, age, col, name};
use crate::kinds::{rollout, service_cidr::BAD_CIDR};
use crate::rules::{ip, selector};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;

pub const NETWORK_POLICY: Kind<NetworkPolicy> = Kind {
    short: &["netpol"],
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    validate: Some(validate),
    validate_create: Some(|policy| blocks(policy, &[])),
    validate_update: Some(validate_update),
    warnings: Some(warnings),
    columns: &[
        name(),
        col("Pod-Selector", "The labels of the Pods that it is about.", |p, _| {
            Value::from(selector::describe(p.spec.as_ref().and_then(|s| s.pod_selector.as_ref())))
        }),
        age(),
    ],
    ..Kind::BASE
};

fn default(policy: &mut NetworkPolicy) {
    let spec = policy.spec.get_or_insert_default();
    let ingress = spec.ingress.iter_mut().flatten().flat_map(|r| r.ports.iter_mut().flatten());
    let egress = spec.egress.iter_mut().flatten().flat_map(|r| r.ports.iter_mut().flatten());
    for port in ingress.chain(egress) {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
        let mut types = vec!["Ingress".to_owned()];
        if spec.egress.as_ref().is_some_and(|e| !e.is_empty()) {
            types.push("Egress".to_owned());
        }
        spec.policy_types = Some(types);
    }
}

/// The rules of both directions: their places, peers and ports.
fn rules(
    policy: &NetworkPolicy,
) -> impl Iterator<Item = (Path, &'static str, &[NetworkPolicyPeer], &[NetworkPolicyPort])> {
    let spec = Path::new("spec");
    let rules = policy.spec.as_ref();
    let ingress = rules.into_iter().flat_map(|s| s.ingress.iter().flatten()).enumerate();
    let egress = rules.into_iter().flat_map(|s| s.egress.iter().flatten()).enumerate();
    let (into, out) = (spec.child("ingress"), spec.child("egress"));
    let ingress = ingress.map(move |(i, rule)| {
        (into.index(i), "from", rule.from.as_deref().unwrap_or_default(), rule.ports.as_deref().unwrap_or_default())
    });
    ingress.chain(egress.map(move |(i, rule)| {
        (out.index(i), "to", rule.to.as_deref().unwrap_or_default(), rule.ports.as_deref().unwrap_or_default())
    }))
}

fn validate(policy: &NetworkPolicy) -> Errors {
    let path = Path::new("spec");
    let spec = policy.spec.as_ref();
    let selector = spec.and_then(|s| s.pod_selector.as_ref());
    let mut errors: Errors =
        selector.into_iter().flat_map(|s| rollout::validate_selector(s, &path.child("podSelector"))).collect();
    for (place, peers_of, peers, ports) in rules(policy) {
        for (i, given) in ports.iter().enumerate() {
            errors.extend(port(given, &place.child("ports").index(i)));
        }
        for (i, given) in peers.iter().enumerate() {
            errors.extend(peer(given, &place.child(peers_of).index(i)));
        }
    }
    let types = spec.and_then(|s| s.policy_types.as_deref()).unwrap_or_default();
    let (path, known) = (path.child("policyTypes"), &["Ingress", "Egress"]);
    if types.len() > known.len() {
        errors.push(FieldError::invalid(&path, types, "may not specify more than two policyTypes"));
        return errors;
    }
    let unknown = types.iter().enumerate().filter(|(_, given)| !known.contains(&given.as_str()));
    errors.extend(unknown.map(|(i, given)| FieldError::not_supported(&path.index(i), given, known)));
    errors
}

fn port(port: &NetworkPolicyPort, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let protocols = &["TCP", "UDP", "SCTP"];
    if let Some(protocol) = port.protocol.as_deref().filter(|p| !protocols.contains(p)) {
        errors.push(FieldError::not_supported(&path.child("protocol"), protocol, protocols));
    }
    let end = path.child("endPort");
    let mut wrong = |place: &Path, value: Value, faults: Vec<String>| {
        errors.extend(faults.iter().map(|fault| FieldError::invalid(place, &value, fault)));
    };
    match (&port.port, port.end_port) {
        (Some(IntOrString::Int(number)), last) => {
            wrong(&path.child("port"), Value::from(*number), names::port_number(*number));
            if let Some(last) = last {
                let before = (last < *number).then(|| "must be greater than or equal to `port`".to_owned());
                wrong(&end, Value::from(last), before.into_iter().chain(names::port_number(last)).collect());
            }
        }
        (Some(IntOrString::String(name)), last) => {
            let numeric = "may not be specified when `port` is non-numeric".to_owned();
            last.into_iter().for_each(|last| wrong(&end, Value::from(last), vec![numeric.clone()]));
            wrong(&path.child("port"), Value::from(name.as_str()), names::port_name(name));
        }
        (None, Some(last)) => {
            wrong(&end, Value::from(last), vec!["may not be specified when `port` is not specified".to_owned()]);
        }
        (None, None) => {}
    }
    errors
}

/// The errors of a peer, but for the ranges of its block.
fn peer(peer: &NetworkPolicyPeer, path: &Path) -> Errors {
    let selectors = [("podSelector", &peer.pod_selector), ("namespaceSelector", &peer.namespace_selector)];
    let given = || selectors.iter().filter_map(|(field, selector)| Some((*field, selector.as_ref()?)));
    let mut errors: Errors =
        given().flat_map(|(field, selector)| rollout::validate_selector(selector, &path.child(field))).collect();
    match (&peer.ip_block, given().next()) {
        (None, None) => errors.push(FieldError::required(path, "must specify a peer")),
        (Some(_), Some(_)) => {
            errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
        }
        _ => {}
    }
    errors
}

fn blocks_of(policy: &NetworkPolicy) -> impl Iterator<Item = (Path, &IPBlock)> {
    rules(policy).flat_map(|(place, peers_of, peers, _)| {
        let place = place.child(peers_of);
        let blocks = peers.iter().enumerate();
        blocks.filter_map(move |(i, peer)| Some((place.index(i).child("ipBlock"), peer.ip_block.as_ref()?)))
    })
}

/// Ranges that the policy had before are let be.
fn validate_update(new: &NetworkPolicy, old: &NetworkPolicy, _target: Target) -> Errors {
    let ranges =
        |block: &IPBlock| -> Vec<String> { block.except.iter().flatten().chain([&block.cidr]).cloned().collect() };
    let before: Vec<String> = blocks_of(old).flat_map(|(_, block)| ranges(block)).collect();
    blocks(new, &before)
}

fn blocks(policy: &NetworkPolicy, let_be: &[String]) -> Errors {
    blocks_of(policy).flat_map(|(path, given)| block(given, let_be, &path)).collect()
}

fn block(block: &IPBlock, let_be: &[String], path: &Path) -> Errors {
    if block.cidr.is_empty() {
        return vec![FieldError::required(&path.child("cidr"), "")];
    }
    let fault = |path: &Path, text: &String| {
        let is_new = !let_be.contains(text);
        is_new.then(|| FieldError::invalid(path, text, BAD_CIDR)).into_iter().collect::<Errors>()
    };
    let Ok(within) = block.cidr.parse::<IpNet>() else { return fault(&path.child("cidr"), &block.cidr) };
    let mut errors = Errors::new();
    for (i, text) in block.except.iter().flatten().enumerate() {
        let path = path.child("except").index(i);
        match text.parse::<IpNet>() {
            Err(_) => errors.extend(fault(&path, text)),
            Ok(except) if !within.contains(&except) || within.prefix_len() == except.prefix_len() => {
                errors.push(FieldError::invalid(&path, text, "must be a strict subset of `cidr`"));
            }
            Ok(_) => {}
        }
    }
    errors
}

/// Warnings about ranges that others may read differently.
fn warnings(policy: &NetworkPolicy, _old: Option<&NetworkPolicy>) -> Vec<String> {
    let of = |(path, block): (Path, &IPBlock)| {
        let except = path.child("except");
        let excepted = block.except.iter().flatten().enumerate();
        let mut list = ip::range_warnings(&block.cidr, &path.child("cidr"));
        list.extend(excepted.flat_map(|(i, text)| ip::range_warnings(text, &except.index(i))));
        list
    };
    blocks_of(policy).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn policy(spec: Value) -> NetworkPolicy {
        json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn texts(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn all(policy: &NetworkPolicy) -> Vec<String> {
        texts(validate(policy).into_iter().chain(blocks(policy, &[])).collect())
    }

    #[test]
    fn ports_say_what_they_mean() {
        let check = |port: Value, expected: &[&str]| {
            let expected: Vec<String> = expected.iter().map(|e| format!("spec.ingress[0].ports[0].{e}")).collect();
            assert_eq!(all(&policy(json!({"ingress": [{"ports": [port]}]}))), expected);
        };
        check(json!({"port": 80, "endPort": 80, "protocol": "SCTP"}), &[]);
        check(json!({"port": "web"}), &[]);
        check(json!({}), &[]);
        let range = "must be between 1 and 65535, inclusive";
        check(json!({"port": 0}), &[&format!("port: Invalid value: 0: {range}")]);
        check(
            json!({"port": 80, "endPort": 79}),
            &["endPort: Invalid value: 79: must be greater than or equal to `port`"],
        );
        check(
            json!({"port": "web", "endPort": 79}),
            &["endPort: Invalid value: 79: may not be specified when `port` is non-numeric"],
        );
        check(
            json!({"endPort": 79}),
            &["endPort: Invalid value: 79: may not be specified when `port` is not specified"],
        );
        check(
            json!({"protocol": "ICMP"}),
            &[r#"protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP""#],
        );
    }

    #[test]
    fn a_peer_is_a_block_or_selectors() {
        let check = |peer: Value, expected: &[&str]| {
            let expected: Vec<String> = expected.iter().map(|e| format!("spec.egress[0].to[0]{e}")).collect();
            assert_eq!(all(&policy(json!({"egress": [{"to": [peer]}]}))), expected);
        };
        check(json!({"podSelector": {}, "namespaceSelector": {}}), &[]);
        check(json!({"ipBlock": {"cidr": "fd00::/8", "except": ["fd00:1::/32"]}}), &[]);
        check(json!({}), &[": Required value: must specify a peer"]);
        check(
            json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}),
            &[": Forbidden: may not specify both ipBlock and another peer"],
        );
        check(json!({"ipBlock": {"cidr": ""}}), &[".ipBlock.cidr: Required value"]);
        check(json!({"ipBlock": {"cidr": "ten"}}), &[&format!(".ipBlock.cidr: Invalid value: \"ten\": {BAD_CIDR}")]);
        for wide in ["10.0.0.0/8", "11.0.0.0/16", "0.0.0.0/0", "fd00::/64"] {
            let expected = format!(".ipBlock.except[0]: Invalid value: \"{wide}\": must be a strict subset of `cidr`");
            check(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": [wide]}}), &[&expected]);
        }
    }

    #[test]
    fn types_are_known_and_few() {
        let check = |types: Value, expected: &[&str]| {
            assert_eq!(all(&policy(json!({"policyTypes": types}))), expected);
        };
        check(json!(["Ingress", "Egress"]), &[]);
        check(
            json!(["Both"]),
            &[r#"spec.policyTypes[0]: Unsupported value: "Both": supported values: "Ingress", "Egress""#],
        );
        let many = r#"spec.policyTypes: Invalid value: ["Ingress","Egress","Both"]: may not specify more than two policyTypes"#;
        check(json!(["Ingress", "Egress", "Both"]), &[many]);
    }

    #[test]
    fn a_range_that_was_there_before_is_let_be() {
        let of = |cidr: &str| policy(json!({"ingress": [{"from": [{"ipBlock": {"cidr": cidr}}]}]}));
        assert_eq!(texts(validate_update(&of("ten/8"), &of("ten/8"), Target::Object)), [""; 0]);
        assert_eq!(validate_update(&of("eleven/8"), &of("ten/8"), Target::Object).len(), 1);
    }
    #[test]
    fn ranges_that_may_be_misread_are_warned_of() {
        let block = json!({"ipBlock": {"cidr": "010.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.1/16"]}});
        let future = "will be considered invalid in a future Kubernetes release: use \"10.0.0.0/8\"";
        let context = "is ambiguous in this context (should be \"10.2.0.0/16\" or \"10.2.0.1/32\"?)";
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            let place = format!("spec.{direction}[0].{peers}[0].ipBlock");
            let expected = [
                format!("{place}.cidr: non-standard CIDR value \"010.0.0.0/8\" {future}"),
                format!("{place}.except[1]: CIDR value \"10.2.0.1/16\" {context}"),
            ];
            assert_eq!(warnings(&policy(json!({direction: [{peers: [block]}]})), None), expected);
        }
    }
}
