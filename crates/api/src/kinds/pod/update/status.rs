//! The validation of a Pod's status: what a kubelet may not take back, and what has to agree with the spec.
//! Upstream counterpart: `ValidatePodStatusUpdate` in pkg/apis/core/validation.
//!
//! Works on the JSON: kubelets write status all the time.

use std::collections::BTreeSet;

use json::Value;

use super::annotations_for_life;
use crate::kinds::pod::security;
use crate::rules::{declared_feature::RESTART_ALL_ACTION, ip, pod::exit_code_fits};
use crate::validation::field::{Cause, Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};

const CONTAINERS: (&str, &str) = ("containers", "containerStatuses");
const INIT_CONTAINERS: (&str, &str) = ("initContainers", "initContainerStatuses");
const EPHEMERAL_CONTAINERS: (&str, &str) = ("ephemeralContainers", "ephemeralContainerStatuses");
const ALL: [(&str, &str); 3] = [CONTAINERS, INIT_CONTAINERS, EPHEMERAL_CONTAINERS];

pub(crate) fn validate(new: &Value, old: &Value) -> Errors {
    let path = Path::new("status");
    let mut errors = annotations_for_life(new, old);
    errors.extend(conditions(list(new, "status", "conditions")));
    errors.extend(nomination(new, old, &path));
    errors.extend(qos_class(new, old, &path));
    ALL.iter().for_each(|place| errors.extend(transitions(new, old, *place, &path)));
    errors.extend(claims(new, &path.child("resourceClaimStatuses")));
    errors.extend(addresses(new, old, ("podIPs", "PodIP"), &path));
    errors.extend(first_host_ip(new, &path));
    errors.extend(addresses(new, old, ("hostIPs", "HostIP"), &path));
    ALL.iter().for_each(|place| errors.extend(users(new, place.1, &path)));
    ALL.iter().for_each(|place| errors.extend(devices(new, *place, &path)));
    errors
}

fn field<'a>(object: &'a Value, part: &str, field: &str) -> &'a Value {
    object.get(part).and_then(|part| part.get(field)).unwrap_or(&Value::Null)
}

fn items<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn list<'a>(object: &'a Value, part: &str, name: &str) -> &'a [Value] {
    field(object, part, name).as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn named<'a>(list: &'a [Value], name: &str) -> Option<&'a Value> {
    list.iter().find(|one| text(one, "name") == name)
}

/// Upstream says `metadata` where the conditions are in the status.
fn conditions(conditions: &[Value]) -> Errors {
    let path = Path::new("metadata").child("conditions");
    let types = conditions.iter().map(|condition| text(condition, "type")).enumerate();
    let own = types.filter(|(_, kind)| !["PodScheduled", "Ready", "Initialized"].contains(kind));
    own.flat_map(|(i, kind)| invalid_at(&path.index(i), "Type", kind, names::qualified_name(kind))).collect()
}

fn nomination(new: &Value, old: &Value, path: &Path) -> Errors {
    let of = |pod: &'_ Value| field(pod, "status", "nominatedNodeName").as_str().unwrap_or_default().to_owned();
    let (node, before) = (of(new), of(old));
    if node.is_empty() || node == before {
        return Errors::new();
    }
    invalid_at(path, "nominatedNodeName", &node, names::dns1123_subdomain(&node))
}

/// The class is for life. A Pod that was stored without one gets it.
fn qos_class(new: &Value, old: &Value, path: &Path) -> Option<FieldError> {
    let of = |pod: &'_ Value| field(pod, "status", "qosClass").as_str().unwrap_or_default().to_owned();
    let (class, before) = (of(new), of(old));
    let changed = !before.is_empty() && class != before;
    changed.then(|| FieldError::invalid(&path.child("qosClass"), class, "field is immutable"))
}

fn ended(status: &Value) -> Option<&Value> {
    status.get("state")?.get("terminated").filter(|end| !end.is_null())
}

/// A container that ended and is not to run again stays so.
fn transitions(new: &Value, old: &Value, place: (&str, &str), path: &Path) -> Errors {
    let policy = match place {
        EPHEMERAL_CONTAINERS => "Never",
        _ => field(old, "spec", "restartPolicy").as_str().unwrap_or("Always"),
    };
    if policy == "Always" || place != EPHEMERAL_CONTAINERS && may_begin_anew(old) {
        return Errors::new();
    }
    let (containers, path) = (list(old, "spec", place.0), path.child(place.1));
    let mut errors = Errors::new();
    for (i, before) in list(old, "status", place.1).iter().enumerate() {
        let Some(end) = ended(before) else { continue };
        let (name, exit_code) = (text(before, "name"), end.get("exitCode").and_then(Value::as_i64).unwrap_or(0));
        let again = |container: &Value| place != EPHEMERAL_CONTAINERS && runs_again(container, exit_code);
        if exit_code != 0 && policy == "OnFailure" || named(containers, name).is_some_and(again) {
            continue;
        }
        let lives = list(new, "status", place.1).iter().filter(|now| text(now, "name") == name && ended(now).is_none());
        errors.extend(lives.map(|_| {
            FieldError::forbidden(&path.index(i).child("state"), "may not be transitioned to non-terminated state")
        }));
    }
    errors
}

/// Whether the end of some container may make all of them begin anew.
fn may_begin_anew(pod: &Value) -> bool {
    let containers = [CONTAINERS, INIT_CONTAINERS].into_iter().flat_map(|place| list(pod, "spec", place.0));
    let mut rules = containers.flat_map(|container| items(container, "restartPolicyRules"));
    rules.any(|rule| text(rule, "action") == RESTART_ALL_ACTION)
}

/// Whether a container may run again for what is its own: a rule, its policy, or a change of its resources, which it ends
/// for with any exit code.
fn runs_again(container: &Value, exit_code: i64) -> bool {
    let fits = |rule: &&Value| {
        let Some(codes) = rule.get("exitCodes") else { return false };
        let listed = items(codes, "values").iter().filter_map(Value::as_i64);
        exit_code_fits(text(codes, "operator"), listed, exit_code)
    };
    let rule = items(container, "restartPolicyRules").iter().find(fits);
    let resized = items(container, "resizePolicy").iter().any(|one| text(one, "restartPolicy") == "RestartContainer");
    let policy = match text(container, "restartPolicy") {
        "Always" => true,
        "OnFailure" => exit_code != 0,
        _ => false,
    };
    policy || resized || rule.is_some_and(|rule| text(rule, "action") == "Restart")
}

/// The claims that were made for the Pod.
fn claims(new: &Value, path: &Path) -> Errors {
    let (wanted, mut seen, mut errors) = (list(new, "spec", "resourceClaims"), BTreeSet::new(), Errors::new());
    for (i, status) in list(new, "status", "resourceClaimStatuses").iter().enumerate() {
        let (name, path) = (text(status, "name"), path.index(i).child("name"));
        if named(wanted, name).is_none() {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid(&path, name, detail));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        if let Some(claim) = status.get("resourceClaimName").and_then(Value::as_str) {
            errors.extend(invalid(&path, claim, names::dns1123_subdomain(claim)));
        }
    }
    errors
}

/// The addresses that a kubelet reports, to which Services, DNS and the proxy subresource lead: at most one of each family. One that the
/// status has had before is not looked at again.
fn addresses(new: &Value, old: &Value, (place, ty): (&str, &str), path: &Path) -> Errors {
    let path = path.child(place);
    let listed = list(new, "status", place);
    let texts: Vec<&str> = listed.iter().map(|item| text(item, "ip")).collect();
    let had = |address: &str| list(old, "status", place).iter().any(|item| text(item, "ip") == address);
    let fresh = texts.iter().enumerate().filter(|(_, address)| !had(address));
    let mut errors: Errors = fresh.flat_map(|(i, address)| ip::errors(address, &path.index(i))).collect();
    if texts.len() < 2 {
        return errors;
    }
    let unreadable = texts.iter().enumerate().find(|(_, address)| ip::parse(address).is_none());
    if let Some((i, address)) = unreadable {
        let why = format!("Internal error: failed to check for dual stack with error:invalid IP[{i}]: {address}");
        errors.push(FieldError { path: path.clone(), cause: Cause::Internal, detail: why });
    }
    let families: BTreeSet<bool> = texts.iter().filter_map(|text| ip::parse(text)).map(|ip| ip.is_ipv6()).collect();
    if unreadable.is_some() || families.len() < texts.len() {
        let shown: Vec<String> = listed.iter().map(|item| internal_form::compact(ty, item)).collect();
        let detail = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid_shown(&path, &format!("[{}]", shown.join(",")), detail));
    }
    errors
}

fn first_host_ip(new: &Value, path: &Path) -> Option<FieldError> {
    let first = text(list(new, "status", "hostIPs").first()?, "ip");
    let other = field(new, "status", "hostIP").as_str().unwrap_or_default() != first;
    let place = || path.child("hostIPs").index(0).child("ip");
    other.then(|| FieldError::invalid(&place(), first, "must be equal to `hostIP`"))
}

/// The users that containers run as.
fn users(new: &Value, place: &str, path: &Path) -> Errors {
    let os = field(new, "spec", "os").get("name").and_then(Value::as_str).unwrap_or("linux");
    let mut errors = Errors::new();
    for (i, status) in list(new, "status", place).iter().enumerate() {
        let Some(user) = field(status, "user", "linux").as_object().map(|_| field(status, "user", "linux")) else {
            continue;
        };
        let path = path.child(place).index(i).child("linux");
        match os {
            "windows" => errors.push(FieldError::forbidden(&path, "cannot be set for a windows pod")),
            "linux" => {
                let id = |field: &str| user.get(field).and_then(Value::as_i64);
                let single = ["uid", "gid"].into_iter().filter_map(|f| security::bad_id(id(f)?, || path.child(f)));
                let groups = items(user, "supplementalGroups").iter().filter_map(Value::as_i64).enumerate();
                let place = |g: usize| path.child("supplementalGroups").index(g);
                errors.extend(single.chain(groups.filter_map(|(g, id)| security::bad_id(id, || place(g)))));
            }
            _ => {}
        }
    }
    errors
}

const HEALTH: &[&str] = &["Healthy", "Unhealthy", "Unknown"];
const NO_CLAIM: &str = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or \
                        'claim:<claimName>' if request is empty";

/// The health of devices is that of what the containers ask for.
fn devices(new: &Value, place: (&str, &str), path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, status) in list(new, "status", place.1).iter().enumerate() {
        let path = path.child(place.1).index(i).child("allocatedResourcesStatus");
        let resources = items(status, "allocatedResourcesStatus");
        if place == EPHEMERAL_CONTAINERS {
            let detail = "must not be specified in container status";
            errors.extend((!resources.is_empty()).then(|| FieldError::forbidden(&path, detail)));
            continue;
        }
        let container = named(list(new, "spec", place.0), text(status, "name"));
        for (j, resource) in resources.iter().enumerate() {
            let path = path.index(j);
            let name = text(resource, "name");
            if let Some(detail) = container.and_then(|container| unasked(container, name)) {
                errors.push(FieldError::invalid(&path.child("name"), name, detail));
            }
            let mut seen = BTreeSet::new();
            for (k, device) in items(resource, "resources").iter().enumerate() {
                let path = path.child("resources").index(k);
                let (health, id) = (text(device, "health"), text(device, "resourceID"));
                if !HEALTH.contains(&health) {
                    errors.push(FieldError::not_supported(&path.child("health"), health, HEALTH));
                }
                if !seen.insert(id) {
                    errors.push(FieldError::duplicate(&path.child("resourceID"), id));
                }
            }
        }
    }
    errors
}

/// The fault of the name of a resource, or request of a claim, that the container does not ask for.
fn unasked(container: &Value, name: &str) -> Option<&'static str> {
    let Some(claim) = name.strip_prefix("claim:") else {
        let asked = field(container, "resources", "requests").get(name).is_some();
        return (!asked).then_some("must match one of the container's resource requests");
    };
    let whole = |one: &Value| match text(one, "request") {
        "" => text(one, "name").to_owned(),
        request => format!("{}/{request}", text(one, "name")),
    };
    let asked = list(container, "resources", "claims").iter().any(|one| whole(one) == claim);
    (!asked).then_some(NO_CLAIM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn check(spec: &Value, old: &Value, new: &Value, expected: &[&str]) {
        let pod = |status: &Value| json!({"spec": spec.clone(), "status": status.clone()});
        let errors: Vec<String> = validate(&pod(new), &pod(old)).iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected, "{spec} {old} {new}");
    }

    #[test]
    fn names_and_classes_and_addresses() {
        let own = json!({"conditions": [{"type": "Ready"}, {"type": "a.io/B"}], "qosClass": "Burstable",
            "nominatedNodeName": "n1", "hostIP": "1.1.1.1", "hostIPs": [{"ip": "1.1.1.1"}], "podIP": "1.1.1.2",
            "podIPs": [{"ip": "1.1.1.2"}]});
        check(&json!({}), &json!({"qosClass": "Burstable"}), &own, &[]);
        check(&json!({}), &Value::Null, &own, &[]);
        let wrong = json!({"qosClass": "Guaranteed", "hostIP": "1.1.1.1", "hostIPs": [{"ip": "1.1.1.2"}]});
        check(
            &json!({}),
            &own,
            &wrong,
            &[
                "status.qosClass: Invalid value: \"Guaranteed\": field is immutable",
                "status.hostIPs[0].ip: Invalid value: \"1.1.1.2\": must be equal to `hostIP`",
            ],
        );
        let names = json!({"conditions": [{"type": "a b"}], "nominatedNodeName": "A"});
        let found = validate(&json!({"status": names.clone()}), &Value::Null);
        let paths: Vec<String> = found.iter().map(|error| error.path.to_string()).collect();
        assert_eq!(paths, ["metadata.conditions[0].Type", "status.nominatedNodeName"]);
        // A nomination that stands is not looked at again.
        let found = validate(&json!({"status": {"nominatedNodeName": "A"}}), &json!({"status": names}));
        assert_eq!(found, []);
    }

    #[test]
    fn a_pod_has_one_address_of_each_family() {
        let status = |ips: &[&str], hosts: &[&str]| {
            let list = |ips: &[&str]| ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>();
            json!({"podIPs": list(ips), "hostIP": hosts.first(), "hostIPs": list(hosts)})
        };
        let check = |new: Value, expected: &[&str]| check(&json!({}), &status(&["y"], &[]), &new, expected);
        let each = "may specify no more than one IP for each IP family";
        check(status(&["1.1.1.1", "fd00::1"], &["fd00::2", "1.1.1.2"]), &[]);
        check(
            status(&["1.1.1.1", "1.1.1.1"], &["fd00::2", "fd00::3"]),
            &[
                &format!(r#"status.podIPs: Invalid value: [{{"IP":"1.1.1.1"}},{{"IP":"1.1.1.1"}}]: {each}"#),
                &format!(r#"status.hostIPs: Invalid value: [{{"IP":"fd00::2"}},{{"IP":"fd00::3"}}]: {each}"#),
            ],
        );
        let three = r#"[{"IP":"1.1.1.1"},{"IP":"fd00::1"},{"IP":"1.1.1.2"}]"#;
        check(
            status(&["1.1.1.1", "fd00::1", "1.1.1.2"], &[]),
            &[&format!("status.podIPs: Invalid value: {three}: {each}")],
        );
        let bad = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        check(status(&["x"], &[]), &[&format!("status.podIPs[0]: Invalid value: \"x\": {bad}")]);
        check(
            status(&["1.1.1.1", "x"], &[]),
            &[
                &format!("status.podIPs[1]: Invalid value: \"x\": {bad}"),
                "status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x",
                &format!(r#"status.podIPs: Invalid value: [{{"IP":"1.1.1.1"}},{{"IP":"x"}}]: {each}"#),
            ],
        );
        // One that was stored stays.
        check(status(&["y"], &[]), &[]);
    }

    #[test]
    fn what_ended_for_good_does_not_live_again() {
        let check = |policy: &str, own: Value, place: (&str, &str), code: i64, allowed: bool| {
            let mut container = json!({"name": "c"});
            container.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            let spec = json!({"restartPolicy": policy, place.0: [container]});
            let old = json!({place.1: [{"name": "c", "state": {"terminated": {"exitCode": code}}}]});
            let new = |state: Value| json!({place.1: [{"name": "c", "state": state}]});
            let error =
                format!("status.{}[0].state: Forbidden: may not be transitioned to non-terminated state", place.1);
            let expected: &[&str] = if allowed { &[] } else { &[&error] };
            check(&spec, &old, &new(json!({"running": {}})), expected);
            check(&spec, &old, &new(json!({"waiting": {}})), expected);
            check(&spec, &old, &new(json!({"terminated": {"exitCode": 7}})), &[]);
            check(&spec, &json!({}), &new(json!({"running": {}})), &[]);
            check(&spec, &old, &json!({}), &[]);
        };
        for place in [CONTAINERS, INIT_CONTAINERS] {
            check("Always", json!({}), place, 0, true);
            check("OnFailure", json!({}), place, 0, false);
            check("OnFailure", json!({}), place, 1, true);
            check("Never", json!({}), place, 0, false);
            check("Never", json!({}), place, 1, false);
            check("Never", json!({"restartPolicy": "Always"}), place, 0, true);
            check("Never", json!({"restartPolicy": "OnFailure"}), place, 0, false);
            check("Never", json!({"restartPolicy": "OnFailure"}), place, 1, true);
            let rule = |action: &str, operator: &str| {
                json!({"restartPolicy": "Never", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": operator, "values": [42]}}]})
            };
            check("Never", rule("Restart", "In"), place, 42, true);
            check("Never", rule("Restart", "In"), place, 1, false);
            check("Never", rule("Restart", "NotIn"), place, 1, true);
            // All begin anew, whichever of them asks for it.
            check("Never", rule(RESTART_ALL_ACTION, "In"), place, 0, true);
            let resizable = json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]});
            check("OnFailure", resizable, place, 0, true);
        }
        check("Always", json!({}), EPHEMERAL_CONTAINERS, 1, false);
    }

    #[test]
    fn claims_users_and_devices_are_those_of_the_spec() {
        let spec = json!({"resourceClaims": [{"name": "gpu"}], "containers": [{"name": "c", "resources": {
            "requests": {"a.io/x": "1"}, "claims": [{"name": "gpu"}, {"name": "nic", "request": "r"}]}}]});
        let device =
            |name: &str, health: &str| json!({"name": name, "resources": [{"resourceID": "1", "health": health}]});
        let right = json!({
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-gpu"}],
            "containerStatuses": [{"name": "c", "user": {"linux": {"uid": 0, "gid": 1, "supplementalGroups": [1]}},
                "allocatedResourcesStatus": [device("a.io/x", "Healthy"), device("claim:gpu", "Unknown"),
                    device("claim:nic/r", "Unhealthy")]}, {"name": "other", "allocatedResourcesStatus": [device("y", "Unknown")]}],
        });
        check(&spec, &Value::Null, &right, &[]);
        let wrong = json!({
            "resourceClaimStatuses": [{"name": "gpu"}, {"name": "gpu"}, {"name": "b"}],
            "containerStatuses": [{"name": "c", "user": {"linux": {"uid": -1, "gid": 0, "supplementalGroups": [-2]}},
                "allocatedResourcesStatus": [device("a.io/y", "Fine"), device("claim:nic", "Unknown")]}],
            "ephemeralContainerStatuses": [{"name": "e", "allocatedResourcesStatus": [device("a.io/x", "Unknown")]}],
        });
        let ids = "must be between 0 and 2147483647, inclusive";
        let devices = "status.containerStatuses[0].allocatedResourcesStatus";
        check(
            &spec,
            &Value::Null,
            &wrong,
            &[
                "status.resourceClaimStatuses[1].name: Duplicate value: \"gpu\"",
                "status.resourceClaimStatuses[2].name: Invalid value: \"b\": must match the name of an entry in `spec.resourceClaims`",
                &format!("status.containerStatuses[0].linux.uid: Invalid value: -1: {ids}"),
                &format!("status.containerStatuses[0].linux.supplementalGroups[0]: Invalid value: -2: {ids}"),
                &format!(
                    "{devices}[0].name: Invalid value: \"a.io/y\": must match one of the container's resource requests"
                ),
                &format!(
                    "{devices}[0].resources[0].health: Unsupported value: \"Fine\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\""
                ),
                &format!("{devices}[1].name: Invalid value: \"claim:nic\": {NO_CLAIM}"),
                "status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status",
            ],
        );
    }
}
