//! A Service's IP families: which it gets, from its policy, its addresses and what the cluster has.

use std::net::IpAddr;

use api::Value;
use api::kinds::service;
use api::validation::field::{Errors, FieldError, Path};
use json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    fn other(self) -> Self {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

fn text<'a>(service: &'a Value, field: &str) -> &'a str {
    service.get("spec").and_then(|s| s.get(field)).and_then(Value::as_str).unwrap_or("")
}

fn external(service: &Value) -> bool {
    text(service, "type") == "ExternalName"
}

fn headless(service: &Value) -> bool {
    text(service, "clusterIP") == "None"
}

/// Whether the Service has addresses of its own.
pub fn needs_address(service: &Value) -> bool {
    !external(service) && !headless(service)
}

/// The number of addresses that an update leaves to validation. Those of a Service are for life: only a second one comes later, or goes,
/// and one without addresses stays so.
pub fn settled(old: &Value) -> usize {
    match (external(old), headless(old)) {
        (true, _) => 0,
        (_, true) => usize::MAX,
        _ => addresses(old).len(),
    }
}

fn strings<'a>(service: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    let list = service.get("spec").and_then(|s| s.get(field)).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// The addresses in `clusterIPs`.
pub fn addresses(service: &Value) -> Vec<IpAddr> {
    strings(service, "clusterIPs").filter_map(api::rules::ip::parse).collect()
}

/// `ipFamilies`.
pub fn listed(service: &Value) -> Vec<Family> {
    strings(service, "ipFamilies")
        .filter_map(|name| match name {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })
        .collect()
}

fn remove(service: &mut Value, fields: &[&str]) {
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        for field in fields {
            spec.remove(field);
        }
    }
}

/// Brings `clusterIP` and `clusterIPs` in line, and keeps the old addresses where an update leaves them out.
pub fn carry_over(old: Option<&Value>, new: &mut Value) {
    let old = old.filter(|old| !external(old));
    if external(new) {
        // A Service that becomes a mere name loses what the client just left in. Validation refuses all else.
        let field_of = |service: &Value, field: &str| service.get("spec").and_then(|s| s.get(field)).cloned();
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if old.is_some_and(|old| field_of(old, field) == field_of(new, field)) {
                remove(new, &[field]);
            }
        }
        return;
    }
    if let Some(ip) = old.and_then(|old| old.pointer("/spec/clusterIP")).filter(|_| text(new, "clusterIP").is_empty()) {
        new["spec"]["clusterIP"] = ip.clone();
    }
    let single = text(new, "clusterIP").to_owned();
    if single.is_empty() {
        return;
    }
    let before: Vec<&str> = old.into_iter().flat_map(|old| strings(old, "clusterIPs")).collect();
    let same = old.is_some_and(|old| text(old, "clusterIP") == single);
    let count = strings(new, "clusterIPs").count();
    // Only the singular field was given, or edited: it counts.
    let alone = count == 0 || !same && strings(new, "clusterIPs").eq(before.iter().copied());
    if same && count == 0 && !before.is_empty() {
        new["spec"]["clusterIPs"] = json!(before);
    } else if alone {
        new["spec"]["clusterIPs"] = json!([single]);
    }
}

/// Settles `ipFamilyPolicy` and `ipFamilies`, and drops a second address that the policy no longer wants. The fields are
/// checked before anything is made of them, so that the client is told about what it wrote.
pub fn settle(new: &mut Value, old: Option<&Value>, cluster: &[Family]) -> Result<(), Errors> {
    let Some(main) = cluster.first().copied().filter(|_| !external(new)) else { return Ok(()) };
    if old.is_some_and(|old| prefers_as_before(new, old)) {
        return Ok(());
    }
    let selectorless = new.pointer("/spec/selector").and_then(Value::as_object).is_none_or(|s| s.is_empty());
    let free_choice = headless(new) && selectorless;
    let before = old.map(|old| text(old, "ipFamilyPolicy")).unwrap_or_default();
    let policy = match (text(new, "ipFamilyPolicy"), before) {
        ("", "") if free_choice => REQUIRE,
        ("", "") => SINGLE,
        ("", before) => before,
        (policy, _) => policy,
    };
    let policy = policy.to_owned();
    new["spec"]["ipFamilyPolicy"] = json!(policy);
    refused(service::address_errors(new))?;
    refused(old.map(|old| release(new, old, &policy)).unwrap_or_default())?;
    let mut wanted = infer(new, &policy, cluster)?;
    if !free_choice {
        refused(not_configured(&wanted, &policy, cluster))?;
    }
    if wanted.is_empty() {
        wanted.push(main);
    }
    let second = wanted[0].other();
    if wanted.len() == 1 && policy != SINGLE && (free_choice || cluster.contains(&second)) {
        wanted.push(second);
    }
    new["spec"]["ipFamilies"] = json!(wanted.iter().map(|f| f.name()).collect::<Vec<_>>());
    Ok(())
}

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

fn refused(errors: Errors) -> Result<(), Errors> {
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn policy_error(policy: &str, why: &str) -> FieldError {
    FieldError::invalid(&Path::new("spec").child("ipFamilyPolicy"), policy, why)
}

/// Whether an update leaves a Service that would like two families as it is. Such a one gets or loses no address because the
/// cluster has other families by now.
fn prefers_as_before(new: &Value, old: &Value) -> bool {
    let prefers = |service: &Value| text(service, "ipFamilyPolicy") == PREFER;
    let same = |field: &str| strings(new, field).eq(strings(old, field));
    text(new, "type") == text(old, "type")
        && prefers(new)
        && prefers(old)
        && same("clusterIPs")
        && same("ipFamilies")
        && text(new, "clusterIP") == text(old, "clusterIP")
}

/// From two families to one: the second goes where the client left it in, and only a Service that says so gives it up.
fn release(new: &mut Value, old: &Value, policy: &str) -> Errors {
    let mut errors = Errors::new();
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (now, before) = (strings(new, field).count(), strings(old, field).count());
        if policy != SINGLE && now > 0 && now < before {
            errors.push(policy_error(policy, &format!("must be '{SINGLE}' to release the secondary {what}")));
        } else if policy == SINGLE && now > 1 && strings(new, field).eq(strings(old, field)) {
            new["spec"][field] = json!(strings(old, field).take(1).collect::<Vec<_>>());
        }
    }
    errors
}

/// The families that the Service names, and those that follow from its addresses.
fn infer(new: &Value, policy: &str, cluster: &[Family]) -> Result<Vec<Family>, Errors> {
    let (mut wanted, mut errors) = (listed(new), Errors::new());
    let texts: Vec<&str> = strings(new, "clusterIPs").collect();
    for (count, what) in [(texts.len(), "cluster IPs"), (wanted.len(), "IP families")] {
        if policy == SINGLE && count == 2 {
            let why = format!("must be '{REQUIRE}' or '{PREFER}' when multiple {what} are specified");
            errors.push(policy_error(policy, &why));
        }
    }
    for (at, address) in addresses(new).iter().enumerate().skip(wanted.len()) {
        let family = Family::of(address);
        if cluster.contains(&family) {
            wanted.push(family);
        } else {
            let path = Path::new("spec").child("clusterIPs").index(at);
            let why = format!("{} is not configured on this cluster", family.name());
            errors.push(FieldError::invalid(&path, &texts, &why));
        }
    }
    refused(errors).map(|()| wanted)
}

/// The errors about a policy and families that the cluster does not have.
fn not_configured(wanted: &[Family], policy: &str, cluster: &[Family]) -> Errors {
    let mut errors = Errors::new();
    if policy == REQUIRE && cluster.len() < 2 {
        errors.push(policy_error(policy, "this cluster is not configured for dual-stack services"));
    }
    for (at, family) in wanted.iter().enumerate().filter(|(_, family)| !cluster.contains(family)) {
        let path = Path::new("spec").child("ipFamilies").index(at);
        errors.push(FieldError::invalid(&path, family.name(), "not configured on this cluster"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: &[Family] = &[Family::V4];
    const BOTH: &[Family] = &[Family::V4, Family::V6];

    /// The spec with these fields of its addresses, and what becomes of them.
    fn settled(fields: &Value, old: Option<&Value>, cluster: &[Family]) -> Result<Value, Vec<String>> {
        let service = |fields: &Value| {
            let mut spec = json!({"type": "ClusterIP"});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"metadata": {"name": "s"}, "spec": spec})
        };
        let (old, mut new) = (old.map(service), service(fields));
        carry_over(old.as_ref(), &mut new);
        let told = settle(&mut new, old.as_ref(), cluster);
        told.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        new["spec"].as_object_mut().unwrap().remove("type");
        Ok(new["spec"].take())
    }

    /// The client is told about what it wrote, not about what would have been made of it.
    #[test]
    fn contradictions_are_refused() {
        let check = |fields: Value, expected: &[&str]| {
            assert_eq!(settled(&fields, None, FOUR).unwrap_err(), expected, "{fields}");
        };
        check(
            json!({"clusterIP": "a b"}),
            &[
                "spec.clusterIPs[0]: Invalid value: \"a b\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        );
        check(
            json!({"ipFamilies": ["IPv7"]}),
            &["spec.ipFamilies[0]: Unsupported value: \"IPv7\": supported values: \"IPv4\", \"IPv6\""],
        );
        let (shown, pair) = ("Invalid value: [\"10.0.0.3\"]", "Invalid value: [\"10.0.0.2\",\"10.0.0.3\"]");
        check(
            json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.3"]}),
            &[&format!("spec.clusterIPs: {shown}: first value must match `clusterIP`")],
        );
        check(
            json!({"clusterIPs": ["10.0.0.3"]}),
            &[&format!("spec.clusterIPs: {shown}: must be empty when `clusterIP` is not specified")],
        );
        check(
            json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2", "10.0.0.3"]}),
            &[&format!("spec.clusterIPs: {pair}: may specify no more than one IP for each IP family")],
        );
        let policy = "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' \
                      when multiple";
        check(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[&format!("{policy} IP families are specified")]);
        let missing = "IPv6 is not configured on this cluster";
        check(
            json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2", "fd00::1"]}),
            &[
                &format!("{policy} cluster IPs are specified"),
                &format!("spec.clusterIPs[1]: Invalid value: [\"10.0.0.2\",\"fd00::1\"]: {missing}"),
            ],
        );
        check(
            json!({"clusterIP": "fd00::1"}),
            &[&format!("spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: {missing}")],
        );
        check(
            json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "RequireDualStack"}),
            &[
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ],
        );
        // An alias is left to validation.
        let alias = json!({"type": "ExternalName", "clusterIP": "a b", "ipFamilies": ["IPv4"]});
        assert_eq!(settled(&alias, None, FOUR).unwrap(), json!({"clusterIP": "a b", "ipFamilies": ["IPv4"]}));
    }

    #[test]
    fn an_update_loses_a_family_only_when_it_says_so() {
        let of = |ips: &[&str], families: &[&str], policy: &str| json!({"clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families, "ipFamilyPolicy": policy});
        let old = of(&["10.0.0.2", "fd00::2"], &["IPv4", "IPv6"], PREFER);
        let one = of(&["10.0.0.2"], &["IPv4"], SINGLE);
        let check = |old: &Value, new: Value, expected: Result<&Value, &str>| {
            let found = settled(&new, Some(old), BOTH);
            let found = found.as_ref().map_err(|errors| errors.join("; "));
            assert_eq!(found, expected.map_err(str::to_owned), "{new}");
        };
        check(&old, json!({}), Ok(&old));
        check(&old, json!({"clusterIP": "10.0.0.2"}), Ok(&old));
        check(&old, of(&["10.0.0.2", "fd00::2"], &["IPv4", "IPv6"], SINGLE), Ok(&one));
        check(&old, of(&["10.0.0.2", "fd00::2"], &["IPv4"], SINGLE), Ok(&one));
        check(&old, of(&["10.0.0.2"], &["IPv4", "IPv6"], SINGLE), Ok(&one));
        let error =
            "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release the secondary";
        check(&old, of(&["10.0.0.2"], &["IPv4", "IPv6"], PREFER), Err(&format!("{error} cluster IP")));
        check(&old, of(&["10.0.0.2", "fd00::2"], &["IPv4"], PREFER), Err(&format!("{error} IP family")));
        // One that prefers two and got one has it until the client asks for more.
        let lonely = of(&["10.0.0.2"], &["IPv4"], PREFER);
        check(&lonely, lonely.clone(), Ok(&lonely));
        let asking = of(&["10.0.0.2"], &["IPv4"], REQUIRE);
        check(&lonely, asking, Ok(&of(&["10.0.0.2"], &["IPv4", "IPv6"], REQUIRE)));
    }
}
