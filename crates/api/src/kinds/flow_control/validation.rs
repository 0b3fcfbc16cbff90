//! The validation of flow schemas and priority levels.

use std::collections::BTreeSet;

use json::Value;
use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, LimitResponse, LimitedPriorityLevelConfiguration, NonResourcePolicyRule, PolicyRulesWithSubjects,
    PriorityLevelConfiguration, QueuingConfiguration, ResourcePolicyRule, Subject,
};

use crate::validation::{
    field::{Errors, FieldError, Path},
    names::{dns1123_label, dns1123_subdomain},
};

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const EXEMPT: &str = "exempt";
const LAST: i32 = 10_000;
const QUEUES: i32 = 10_000_000;
/// The number of bits of the hash by which a hand is dealt.
const HASH_BITS: i32 = 60;

pub fn schema(schema: &FlowSchema) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("spec");
    let spec = schema.spec.clone().unwrap_or_default();
    let (at, precedence) = (path.child("matchingPrecedence"), spec.matching_precedence.unwrap_or_default());
    if precedence <= 0 {
        errors.push(FieldError::invalid(&at, precedence, "must be a positive value"));
    }
    if precedence > LAST {
        errors.push(FieldError::invalid(&at, precedence, &format!("must not be greater than {LAST}")));
    }
    if precedence == 1 && schema.metadata.name.as_deref() != Some(EXEMPT) {
        let why = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(FieldError::invalid(&at, precedence, why));
    }
    let known = ["ByNamespace", "ByUser"];
    if let Some(method) = spec.distinguisher_method.filter(|method| !known.contains(&method.type_.as_str())) {
        let at = path.child("distinguisherMethod").child("type");
        errors.push(FieldError::not_supported(&at, method.type_, &known));
    }
    let (at, level) = (path.child("priorityLevelConfiguration").child("name"), spec.priority_level_configuration.name);
    if level.is_empty() {
        errors.push(FieldError::required(&at, "must reference a priority level"));
    } else {
        errors.extend(dns1123_subdomain(&level).iter().map(|why| FieldError::invalid(&at, &level, why)));
    }
    for (index, one) in spec.rules.iter().flatten().enumerate() {
        rule(one, &path.child("rules").index(index), &mut errors);
    }
    errors
}

fn rule(rule: &PolicyRulesWithSubjects, path: &Path, errors: &mut Errors) {
    if rule.subjects.is_empty() {
        errors.push(FieldError::required(&path.child("subjects"), "subjects must contain at least one value"));
    }
    for (index, one) in rule.subjects.iter().enumerate() {
        subject(one, &path.child("subjects").index(index), errors);
    }
    let resources = rule.resource_rules.as_deref().unwrap_or_default();
    let paths = rule.non_resource_rules.as_deref().unwrap_or_default();
    if resources.is_empty() && paths.is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, why));
    }
    for (index, one) in resources.iter().enumerate() {
        resource_rule(one, &path.child("resourceRules").index(index), errors);
    }
    for (index, one) in paths.iter().enumerate() {
        path_rule(one, &path.child("nonResourceRules").index(index), errors);
    }
}

fn subject(subject: &Subject, path: &Path, errors: &mut Errors) {
    // A subject has the field of its kind and no other.
    let fields = [
        ("ServiceAccount", "serviceAccount", subject.service_account.is_some()),
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
    ];
    if fields.iter().all(|(kind, ..)| *kind != subject.kind) {
        let known = &["Group", "ServiceAccount", "User"];
        return errors.push(FieldError::not_supported(&path.child("kind"), &subject.kind, known));
    }
    for (kind, field, given) in fields {
        if kind == subject.kind && !given {
            let why = format!("{field} is required when subject kind is '{kind}'");
            errors.push(FieldError::required(&path.child(field), &why));
        } else if kind != subject.kind && given {
            let why = format!("{field} is forbidden when subject kind is not '{kind}'");
            errors.push(FieldError::forbidden(&path.child(field), &why));
        }
    }
    let named = match subject.kind.as_str() {
        "User" => subject.user.as_ref().map(|user| ("user", &user.name)),
        "Group" => subject.group.as_ref().map(|group| ("group", &group.name)),
        _ => subject.service_account.as_ref().map(|account| ("serviceAccount", &account.name)),
    };
    if let Some((field, _)) = named.filter(|(_, name)| name.is_empty()) {
        errors.push(FieldError::required(&path.child(field).child("name"), ""));
    }
    if let Some(account) = subject.service_account.as_ref().filter(|_| subject.kind == "ServiceAccount") {
        let path = path.child("serviceAccount");
        if !account.name.is_empty() && account.name != "*" {
            let wrong = dns1123_subdomain(&account.name);
            errors.extend(wrong.iter().map(|why| FieldError::invalid(&path.child("name"), &account.name, why)));
        }
        let at = path.child("namespace");
        if account.namespace.is_empty() {
            errors.push(FieldError::required(&at, "must specify namespace for service account"));
        } else {
            let wrong = dns1123_label(&account.namespace);
            errors.extend(wrong.iter().map(|why| FieldError::invalid(&at, &account.namespace, why)));
        }
    }
}

/// A list that may stand for everything, and then for nothing else.
fn alone(list: &[String], path: &Path, missing: &str, others: &str, errors: &mut Errors) {
    if list.is_empty() {
        errors.push(FieldError::required(path, missing));
    } else if list.len() > 1 && list.iter().any(|one| one == "*") {
        let why = format!("if '*' is present, must not specify other {others}");
        errors.push(FieldError::invalid(path, list, &why));
    }
}

fn verbs(list: &[String], path: &Path, errors: &mut Errors) {
    let path = path.child("verbs");
    alone(list, &path, "verbs must contain at least one value", "verbs", errors);
    if !list.iter().any(|verb| verb == "*") && !list.iter().all(|verb| VERBS.contains(&verb.as_str())) {
        errors.push(FieldError::not_supported(&path, list, VERBS));
    }
}

fn resource_rule(rule: &ResourcePolicyRule, path: &Path, errors: &mut Errors) {
    verbs(&rule.verbs, path, errors);
    let missing = "resource rules must supply at least one api group";
    alone(&rule.api_groups, &path.child("apiGroups"), missing, "api groups", errors);
    let missing = "resource rules must supply at least one resource";
    alone(&rule.resources, &path.child("resources"), missing, "resources", errors);
    let (at, namespaces) = (path.child("namespaces"), rule.namespaces.as_deref().unwrap_or_default());
    if !namespaces.is_empty() || rule.cluster_scope != Some(true) {
        let missing = "resource rules that are not cluster scoped must supply at least one namespace";
        alone(namespaces, &at, missing, "namespaces", errors);
    }
    if !namespaces.iter().any(|name| name == "*") {
        for (index, name) in namespaces.iter().enumerate() {
            let why = |why: &String| format!("each member of this list must be '*' or a DNS-1123 label; {why}");
            let wrong = dns1123_label(name);
            errors.extend(wrong.iter().map(|text| FieldError::invalid(&at.index(index), name, &why(text))));
        }
    }
}

fn path_rule(rule: &NonResourcePolicyRule, path: &Path, errors: &mut Errors) {
    verbs(&rule.verbs, path, errors);
    let (at, urls) = (path.child("nonResourceURLs"), &rule.non_resource_urls);
    let missing = "nonResourceURLs must contain at least one value";
    alone(urls, &at, missing, "non-resource URLs", errors);
    if urls.iter().any(|url| url == "*") {
        return;
    }
    for (index, url) in urls.iter().enumerate() {
        let star = url.strip_suffix("/*").unwrap_or(url).contains('*');
        let why = match url.as_str() {
            "" => "must not be empty",
            "/" => continue,
            url if !url.starts_with('/') => "must start with slash",
            url if url.contains(' ') => "must not contain white-space",
            url if url.contains("//") => "must not contain double slash",
            _ if star => "wildcard can only do suffix matching",
            _ => continue,
        };
        errors.push(FieldError::invalid(&at.index(index), url, why));
    }
}

pub fn level(level: &PriorityLevelConfiguration) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("spec");
    let spec = level.spec.clone().unwrap_or_default();
    if (level.metadata.name.as_deref() == Some(EXEMPT)) != (spec.type_ == "Exempt") {
        let why = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.push(FieldError::invalid(&path.child("type"), &spec.type_, why));
    }
    match (spec.type_.as_str(), &spec.limited) {
        ("Exempt", limited) => {
            if limited.is_some() {
                errors.push(FieldError::forbidden(&path.child("limited"), "must be nil if the type is not Limited"));
            }
            if let Some(exempt) = &spec.exempt {
                let path = path.child("exempt");
                shares(exempt.nominal_concurrency_shares, exempt.lendable_percent, &path, &mut errors);
            }
        }
        ("Limited", limited) => {
            if spec.exempt.is_some() {
                errors.push(FieldError::forbidden(&path.child("exempt"), "must be nil if the type is Limited"));
            }
            match limited {
                None => {
                    let why = "must not be empty when type is Limited";
                    errors.push(FieldError::required(&path.child("limited"), why));
                }
                Some(limited) => self::limited(limited, &path.child("limited"), &mut errors),
            }
        }
        (other, _) => errors.push(FieldError::not_supported(&path.child("type"), other, &["Exempt", "Limited"])),
    }
    errors
}

fn shares(nominal: Option<i32>, lendable: Option<i32>, path: &Path, errors: &mut Errors) {
    if let Some(nominal) = nominal.filter(|nominal| *nominal < 0) {
        let at = path.child("nominalConcurrencyShares");
        errors.push(FieldError::invalid(&at, nominal, "must be a non-negative integer"));
    }
    if let Some(lendable) = lendable.filter(|percent| !(0..=100).contains(percent)) {
        let at = path.child("lendablePercent");
        errors.push(FieldError::invalid(&at, lendable, "must be between 0 and 100, inclusive"));
    }
}

fn limited(limited: &LimitedPriorityLevelConfiguration, path: &Path, errors: &mut Errors) {
    shares(limited.nominal_concurrency_shares, limited.lendable_percent, path, errors);
    if let Some(percent) = limited.borrowing_limit_percent.filter(|percent| *percent < 0) {
        let at = path.child("borrowingLimitPercent");
        errors.push(FieldError::invalid(&at, percent, "if specified, must be a non-negative integer"));
    }
    let none = LimitResponse::default();
    let (response, path) = (limited.limit_response.as_ref().unwrap_or(&none), path.child("limitResponse"));
    match (response.type_.as_str(), &response.queuing) {
        ("Reject", None) => {}
        ("Reject", Some(_)) => {
            let why = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(FieldError::forbidden(&path.child("queuing"), why));
        }
        ("Queue", None) => {
            let why = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(&path.child("queuing"), why));
        }
        ("Queue", Some(queuing)) => self::queuing(queuing, &path.child("queuing"), errors),
        (other, _) => errors.push(FieldError::not_supported(&path.child("type"), other, &["Queue", "Reject"])),
    }
}

fn queuing(queuing: &QueuingConfiguration, path: &Path, errors: &mut Errors) {
    let number = |value: Option<i32>| value.unwrap_or_default();
    let [length, queues, hand] = [queuing.queue_length_limit, queuing.queues, queuing.hand_size].map(number);
    let mut wrong = |field: &str, value: i32, why: &str| {
        errors.push(FieldError::invalid(&path.child(field), value, why));
    };
    if length <= 0 {
        wrong("queueLengthLimit", length, "must be positive");
    }
    if queues <= 0 {
        wrong("queues", queues, "must be positive");
    } else if queues > QUEUES {
        wrong("queues", queues, &format!("must not be greater than {QUEUES}"));
    }
    if hand <= 0 {
        wrong("handSize", hand, "must be positive");
    } else if hand > queues {
        wrong("handSize", hand, &format!("should not be greater than queues ({queues})"));
    } else if entropy_bits(queues, hand) > HASH_BITS {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        wrong("handSize", hand, &why);
    }
}

/// The bits that it takes to deal a hand.
fn entropy_bits(queues: i32, hand: i32) -> i32 {
    let hands = (0..hand.min(HASH_BITS + 1)).map(|card| f64::from(queues - card).log2()).sum::<f64>();
    hands.ceil() as i32
}

/// The conditions of either kind: each has a type, and none twice.
pub fn status(new: &Value) -> Errors {
    let path = Path::new("status").child("conditions");
    let list = new.get("status").and_then(|status| status.get("conditions")).and_then(Value::as_array);
    let (mut seen, mut errors) = (BTreeSet::new(), Errors::new());
    for (i, condition) in list.into_iter().flatten().enumerate() {
        let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
        let path = path.index(i).child("type");
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&path, kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&path, "must not be empty"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;
    use crate::kinds::flow_control::{FLOW_SCHEMA, PRIORITY_LEVEL_CONFIGURATION};
    use crate::kinds::rollout;

    #[test]
    fn conditions_have_types_of_their_own() {
        let check = |types: &[&str], expected: &[&str]| {
            let conditions: Vec<Value> = types.iter().map(|of| json!({"type": of, "status": "any"})).collect();
            for check in [FLOW_SCHEMA.validate_status, PRIORITY_LEVEL_CONFIGURATION.validate_status] {
                rollout::check_status(check, &json!({"conditions": conditions}), &Value::Null, expected);
            }
        };
        check(&["Dangling", "b c"], &[]);
        check(
            &["a", "", "a"],
            &[
                "status.conditions[1].type: Required value: must not be empty",
                "status.conditions[2].type: Duplicate value: \"a\"",
            ],
        );
    }

    fn check_schema(name: &str, spec: Value, expected: &[&str]) {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let found: Vec<String> =
            schema(&json::from_value(object.clone()).unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{object}");
    }

    fn check_level(name: &str, spec: Value, expected: &[&str]) {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let found: Vec<String> =
            level(&json::from_value(object.clone()).unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{object}");
    }

    #[test]
    fn schemas_say_what_is_wrong_as_upstream() {
        let with = |precedence: i32, rules: Value| json!({"matchingPrecedence": precedence, "priorityLevelConfiguration": {"name": "l"}, "rules": rules});
        let paths = json!([{"verbs": ["*"], "nonResourceURLs": ["/a/*"]}]);
        let rule = |subject: Value| json!([{"subjects": [subject], "nonResourceRules": paths}]);
        let user = json!({"kind": "User", "user": {"name": "u"}});
        check_schema("s", with(5, rule(user.clone())), &[]);
        check_schema("exempt", with(1, rule(user.clone())), &[]);
        let first =
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1";
        check_schema("s", with(1, json!([])), &[first]);
        check_schema("s", with(0, json!([])), &["spec.matchingPrecedence: Invalid value: 0: must be a positive value"]);
        let last = "spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000";
        check_schema("s", with(10_001, json!([])), &[last]);
        let at = "spec.rules[0]";
        let none = [
            format!("{at}.subjects: Required value: subjects must contain at least one value"),
            format!("{at}: Required value: at least one of resourceRules and nonResourceRules has to be non-empty"),
        ];
        check_schema("s", with(5, json!([{"subjects": []}])), &none.each_ref().map(String::as_str));
        let both = json!({"kind": "Group", "user": {"name": "u"}});
        let wrong = [
            format!("{at}.subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'"),
            format!("{at}.subjects[0].group: Required value: group is required when subject kind is 'Group'"),
        ];
        check_schema("s", with(5, rule(both)), &wrong.each_ref().map(String::as_str));
        let account = json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": ""}});
        let missing = format!(
            "{at}.subjects[0].serviceAccount.namespace: Required value: must specify namespace for service account"
        );
        check_schema("s", with(5, rule(account)), &[&missing]);
        let resource = json!([{"verbs": ["get", "*"], "apiGroups": [], "resources": ["a"]}]);
        let resource = json!([{"subjects": [user], "resourceRules": resource}]);
        let at = "spec.rules[0].resourceRules[0]";
        let wrong = [
            format!("{at}.verbs: Invalid value: [\"get\",\"*\"]: if '*' is present, must not specify other verbs"),
            format!("{at}.apiGroups: Required value: resource rules must supply at least one api group"),
            format!(
                "{at}.namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace"
            ),
        ];
        check_schema("s", with(5, resource), &wrong.each_ref().map(String::as_str));
    }

    #[test]
    fn levels_say_what_is_wrong_as_upstream() {
        let queues = |queues: i32, hand: i32| {
            let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 5});
            json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": queuing}}})
        };
        check_level("l", queues(64, 8), &[]);
        check_level("exempt", json!({"type": "Exempt"}), &[]);
        let at = "spec.limited.limitResponse";
        let hand = format!("{at}.queuing.handSize: Invalid value");
        check_level("l", queues(4, 5), &[&format!("{hand}: 5: should not be greater than queues (4)")]);
        let bits = "required entropy bits of deckSize 512 and handSize 8 should not be greater than 60";
        check_level("l", queues(512, 8), &[&format!("{hand}: 8: {bits}")]);
        let name = "spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'";
        check_level("l", json!({"type": "Exempt"}), &[name]);
        let limited = "spec.limited: Required value: must not be empty when type is Limited";
        check_level("l", json!({"type": "Limited"}), &[limited]);
        let percent = json!({"lendablePercent": 101, "limitResponse": {"type": "Drop"}});
        let wrong = [
            "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
            "spec.limited.limitResponse.type: Unsupported value: \"Drop\": supported values: \"Queue\", \"Reject\"",
        ];
        check_level("l", json!({"type": "Limited", "limited": percent}), &wrong);
    }
}
