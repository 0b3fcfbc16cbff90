//! The default roles and bindings, read from the table in `policy.txt`.

use std::collections::BTreeMap;

use api::features::{Feature, Features};
use api::kind::KindTable;
use json::{Map, Value, json};

use super::object::{AUTOUPDATE, BootstrapObject};
use crate::auth::rbac::{GROUP, PolicyRule};

const TABLE: &str = include_str!("policy.txt");

/// One role of the table.
#[derive(Debug, Default)]
struct Role {
    name: String,
    namespace: Option<String>,
    from: Option<String>,
    to: Vec<String>,
    /// Without this feature the role does not exist.
    feature: Option<Feature>,
    rules: Vec<PolicyRule>,
}

/// Every default role and binding of a server with these kinds and features.
pub fn objects(kinds: &KindTable, features: Features) -> Vec<BootstrapObject> {
    let mut roles: Vec<Role> = Vec::new();
    let mut bindings = Vec::new();
    for line in TABLE.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (line.starts_with(' '), words.as_slice()) {
            (false, ["role", name, options @ ..]) => roles.push(role(name, options)),
            (false, ["bind", name, role, rest @ ..]) => {
                let on = feature(rest).is_none_or(|feature| features.enabled(feature));
                bindings.extend(on.then(|| binding(name, role, rest)));
            }
            (true, [option, ..]) if feature(&[option]).is_some_and(|feature| !features.enabled(feature)) => {}
            (true, ["served", _, group, resource, ..])
                if kinds.any_version(group, resource.split('/').next().unwrap_or(resource)).is_none() => {}
            (true, words) => {
                let prefixed = words.first().is_some_and(|word| *word == "served" || word.starts_with("if="));
                let words = &words[usize::from(prefixed)..];
                let role = roles.last_mut().expect("the table has no rule before the first role");
                role.rules.push(rule(words));
            }
            _ => unreachable!("the table has no other lines: {line}"),
        }
    }
    roles.retain(|role| role.feature.is_none_or(|feature| features.enabled(feature)));
    aggregate(&mut roles);
    let own = roles.iter().filter(|r| r.name.starts_with(CONTROLLER)).map(controller_binding);
    bindings.extend(own);
    roles.iter().map(role_object).chain(bindings).collect()
}

const CONTROLLER: &str = "system:controller:";

/// The feature that a line belongs to.
fn feature(options: &[&str]) -> Option<Feature> {
    let name = options.iter().find_map(|option| option.strip_prefix("if="))?;
    Some(Feature::named(name).expect("the table names features that there are"))
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

fn role(name: &str, options: &[&str]) -> Role {
    let mut role = Role { name: name.to_owned(), feature: feature(options), ..Role::default() };
    for option in options.iter().filter(|option| !option.starts_with("if=")) {
        match option.split_once('=') {
            Some(("to", roles)) => role.to = split(roles),
            Some(("from", roles)) => role.from = Some(roles.to_owned()),
            Some(("in", namespace)) => role.namespace = Some(namespace.to_owned()),
            _ => unreachable!("the table has no other options: {option}"),
        }
    }
    role
}

fn rule(words: &[&str]) -> PolicyRule {
    let verbs = |list: &str| {
        split(match list {
            "read" => "get,list,watch",
            "write" => "create,delete,deletecollection,patch,update",
            list => list,
        })
    };
    match words {
        ["events"] => PolicyRule::resources(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        ["url", list, urls] => {
            PolicyRule { verbs: verbs(list), non_resource_urls: split(urls), ..PolicyRule::default() }
        }
        [list, groups, resources, names @ ..] => PolicyRule {
            verbs: verbs(list),
            api_groups: groups.split(',').map(|g| if g == "core" { String::new() } else { g.to_owned() }).collect(),
            resources: split(resources),
            resource_names: names.iter().flat_map(|n| split(n)).collect(),
            non_resource_urls: Vec::new(),
        },
        _ => unreachable!("the table has no other rules: {words:?}"),
    }
}

/// Fills the aggregated roles, as the controller does later with roles of users: `admin`, `edit` and `view` work from
/// the first moment. `view` feeds `edit` feeds `admin`, so the order is fixed by going through them from the bottom.
fn aggregate(roles: &mut [Role]) {
    for target in ["view", "edit", "admin"] {
        let mut sources: Vec<&Role> = roles.iter().filter(|r| r.to.iter().any(|t| t == target)).collect();
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        let mut rules: Vec<PolicyRule> = Vec::new();
        for rule in sources.iter().flat_map(|r| &r.rules) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        if let Some(role) = roles.iter_mut().find(|r| r.from.as_deref() == Some(target)) {
            role.rules = rules;
        }
    }
}

fn metadata(name: &str, namespace: Option<&str>, labels: BTreeMap<String, String>) -> Value {
    let mut labels = labels;
    labels.insert("kubernetes.io/bootstrapping".to_owned(), "rbac-defaults".to_owned());
    let annotations = json!({AUTOUPDATE: "true"});
    let mut metadata = Map::from_iter([
        ("name".to_owned(), json!(name)),
        ("labels".to_owned(), json!(labels)),
        ("annotations".to_owned(), annotations),
    ]);
    if let Some(namespace) = namespace {
        metadata.insert("namespace", json!(namespace));
    }
    Value::Object(metadata)
}

fn role_object(role: &Role) -> BootstrapObject {
    let label = |to: &String| (format!("rbac.authorization.k8s.io/aggregate-to-{to}"), "true".to_owned());
    let namespace = role.namespace.as_deref();
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": if namespace.is_some() { "Role" } else { "ClusterRole" },
        "metadata": metadata(&role.name, namespace, role.to.iter().map(label).collect()),
        "rules": role.rules,
    });
    if let Some(from) = &role.from {
        let (label, value) = label(from);
        object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: value}}]});
    }
    BootstrapObject::new(GROUP, if namespace.is_some() { "roles" } else { "clusterroles" }, object)
}

fn binding_object(name: &str, role: &str, namespace: Option<&str>, subjects: &[Value]) -> BootstrapObject {
    let (kind, role_kind, plural) = match namespace {
        Some(_) => ("RoleBinding", "Role", "rolebindings"),
        None => ("ClusterRoleBinding", "ClusterRole", "clusterrolebindings"),
    };
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(name, namespace, BTreeMap::new()),
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role},
    });
    if !subjects.is_empty() {
        object["subjects"] = json!(subjects);
    }
    BootstrapObject::new(GROUP, plural, object)
}

fn binding(name: &str, role: &str, rest: &[&str]) -> BootstrapObject {
    let namespace = rest.iter().find_map(|w| w.strip_prefix("in="));
    let subject = |word: &&str| {
        let (kind, name) = word.split_once(':')?;
        Some(match kind {
            "group" => json!({"apiGroup": GROUP, "kind": "Group", "name": name}),
            "user" => json!({"apiGroup": GROUP, "kind": "User", "name": name}),
            "sa" => {
                let (namespace, name) = name.split_once('/')?;
                json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
            }
            _ => return None,
        })
    };
    let subjects: Vec<Value> = rest.iter().filter(|w| !w.starts_with("in=")).filter_map(subject).collect();
    binding_object(name, role, namespace, &subjects)
}

fn controller_binding(role: &Role) -> BootstrapObject {
    let account = &role.name[CONTROLLER.len()..];
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": "kube-system"});
    binding_object(&role.name, &role.name, role.namespace.as_deref(), &[subject])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::rbac::Rbac;
    use crate::auth::{Attributes, User};

    fn rbac() -> Rbac {
        let rbac = Rbac::default();
        for wanted in objects(api::kinds::built_in(), Features::default()) {
            let name = api::meta::name(&wanted.object);
            rbac.changed(wanted.plural, api::meta::namespace(&wanted.object), name, Some(&wanted.object));
        }
        rbac
    }

    #[test]
    fn the_table_is_whole() {
        let all = objects(api::kinds::built_in(), Features::default());
        let count = |plural: &str| all.iter().filter(|w| w.plural == plural).count();
        assert_eq!(count("roles"), count("rolebindings"));
        assert_eq!(count("roles"), 7);
        let named = |plural: &str, name: &str| {
            all.iter().find(|w| w.plural == plural && api::meta::name(&w.object) == name).unwrap().object.clone()
        };
        for binding in all.iter().filter(|w| w.plural == "clusterrolebindings") {
            named("clusterroles", binding.object["roleRef"]["name"].as_str().unwrap());
        }
        let edit = named("clusterroles", "edit");
        assert_eq!(edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"], "true");
        assert_eq!(
            edit["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"]["rbac.authorization.k8s.io/aggregate-to-edit"],
            "true"
        );
        assert_eq!(edit["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"], "true");
    }

    #[test]
    fn features_have_roles_of_their_own() {
        let check = |features: Features, name: &str, expected: usize| {
            let all = objects(api::kinds::built_in(), features);
            let named = all.iter().filter(|object| api::meta::name(&object.object) == name);
            assert_eq!(named.count(), expected, "{name}");
        };
        let on = Features::default().with(Feature::ClusterTrustBundle, true);
        for name in [
            "system:cluster-trust-bundle-discovery",
            "system:controller:kube-apiserver-serving-clustertrustbundle-publisher",
        ] {
            check(Features::default(), name, 0);
            // The role and its binding.
            check(on, name, 2);
        }
        for (feature, name) in [
            (Feature::PodCertificateRequest, "system:controller:podcertificaterequestcleaner"),
            (Feature::StorageVersionAPI, "system:controller:storage-version-garbage-collector"),
        ] {
            check(Features::default(), name, 0);
            check(Features::default().with(feature, true), name, 2);
        }
        check(on, "system:controller:storage-version-migrator-controller", 0);
        check(on, "system:discovery", 2);
    }

    #[test]
    fn the_defaults_let_the_right_ones_through() {
        let rbac = rbac();
        let bind = |role: &str| {
            json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": role}]})
        };
        for role in ["view", "edit", "admin"] {
            rbac.changed("rolebindings", "ns", role, Some(&bind(role)));
        }
        let authenticated = ["system:authenticated"];
        let user = |name: &str| User::new(name, authenticated);
        let scheduler = user("system:kube-scheduler");
        let controller = User::service_account("kube-system", "deployment-controller", "");
        for (user, verb, group, resource, expected) in [
            (&scheduler, "list", "scheduling.k8s.io", "workloads", false),
            (&user("view"), "list", "", "pods", true),
            (&user("view"), "list", "", "secrets", false),
            (&user("view"), "create", "", "pods", false),
            (&user("view"), "list", "metrics.k8s.io", "pods", true),
            (&user("somebody"), "list", "metrics.k8s.io", "pods", false),
            (&user("edit"), "create", "apps", "deployments", true),
            (&user("edit"), "get", "", "secrets", true),
            (&user("edit"), "create", "rbac.authorization.k8s.io", "roles", false),
            (&user("admin"), "create", "rbac.authorization.k8s.io", "roles", true),
            (&user("admin"), "delete", "apps", "deployments", true),
            (&user("admin"), "update", "", "resourcequotas", false),
            (&scheduler, "list", "", "nodes", true),
            (&scheduler, "delete", "", "nodes", false),
            (&controller, "create", "apps", "replicasets", true),
            (&controller, "create", "", "secrets", false),
        ] {
            let a = Attributes { namespace: "ns", ..Attributes::resource(user, verb, group, resource) };
            assert_eq!(rbac.decide(&a).allowed(), expected, "{} {verb} {resource}", user.name);
        }
        let path = |user: &User, path: &str| rbac.decide(&Attributes::path(user, "get", path)).allowed();
        assert!(path(&User::anonymous(), "/healthz") && !path(&User::anonymous(), "/api"));
        assert!(path(&user("x"), "/apis/apps/v1") && !path(&user("x"), "/metrics"));
    }
}
