//! A container's environment: literal values, references, whole ConfigMaps and Secrets, and the variables of Services.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, Service};

use crate::{
    downward::{self, Facts},
    volumes::content::Data,
};

/// What a container's environment is made from besides its spec.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Data of the ConfigMaps and Secrets that exist, by name.
    pub config_maps: BTreeMap<String, Data>,
    pub secrets: BTreeMap<String, Data>,
    pub services: BTreeMap<String, String>,
    pub facts: Facts,
}

/// The variables in order, or the words of the CreateContainerConfigError.
pub fn render(pod: &Pod, container: &Container, given: &Given) -> Result<Vec<(String, String)>, String> {
    let mut list: Vec<(String, String)> = Vec::new();
    let mut known: BTreeMap<String, String> = given.services.clone();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let map = from.config_map_ref.iter().map(|r| ("configmap", &given.config_maps, &r.name, r.optional));
        let secret = from.secret_ref.iter().map(|r| ("secret", &given.secrets, &r.name, r.optional));
        for (kind, objects, name, optional) in map.chain(secret) {
            match objects.get(name) {
                Some(data) => known.extend(data.iter().map(|(key, value)| (format!("{prefix}{key}"), text(value)))),
                None if optional == Some(true) => {}
                None => return Err(format!("{kind} \"{name}\" not found")),
            }
        }
    }
    list.extend(known.iter().map(|(k, v)| (k.clone(), v.clone())));
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), &known)),
            Some(from) => {
                if let Some(field) = &from.field_ref {
                    Some(downward::field(pod, &field.field_path, &given.facts).map_err(|e| e.to_string())?)
                } else if let Some(resource) = &from.resource_field_ref {
                    let named = resource.container_name.as_deref().or(Some(container.name.as_str()));
                    Some(downward::resource(pod, resource, named, &given.facts).map_err(|e| e.to_string())?)
                } else if let Some(r) = &from.config_map_key_ref {
                    key(pod, "ConfigMap", &given.config_maps, &r.name, &r.key, r.optional)?
                } else if let Some(r) = &from.secret_key_ref {
                    key(pod, "Secret", &given.secrets, &r.name, &r.key, r.optional)?
                } else {
                    None
                }
            }
        };
        if let Some(value) = value {
            known.insert(variable.name.clone(), value.clone());
            list.retain(|(name, _)| *name != variable.name);
            list.push((variable.name.clone(), value));
        }
    }
    Ok(list)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One key of a ConfigMap or Secret; `Ok(None)` when it may be missing and is.
fn key(
    pod: &Pod,
    kind: &str,
    objects: &BTreeMap<String, Data>,
    name: &str,
    key: &str,
    optional: Option<bool>,
) -> Result<Option<String>, String> {
    let optional = optional == Some(true);
    let Some(data) = objects.get(name) else {
        return if optional { Ok(None) } else { Err(format!("{} \"{name}\" not found", kind.to_lowercase())) };
    };
    match data.get(key) {
        Some(value) => Ok(Some(text(value))),
        None if optional => Ok(None),
        None => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            Err(format!("couldn't find key {key} in {kind} {namespace}/{name}"))
        }
    }
}

/// `$(NAME)` becomes the value, `$$` a dollar sign; a name that is not known stays as it is.
pub fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match known.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

/// `NAME_SERVICE_HOST` and the rest for the Services of the Pod's namespace and, always, for `kubernetes`.
pub fn services(namespace: &str, links: bool, all: &[std::sync::Arc<Service>]) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for service in all {
        let (name, home) = (service.metadata.name.as_deref(), service.metadata.namespace.as_deref());
        let (Some(name), Some(home), Some(spec)) = (name, home, &service.spec) else { continue };
        let master = name == "kubernetes" && home == "default";
        let ip = spec.cluster_ip.as_deref().unwrap_or_default();
        if !(master || links && home == namespace) || ip.is_empty() || ip == "None" {
            continue;
        }
        let prefix = name.to_uppercase().replace('-', "_");
        out.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let (number, lower) = (port.port, protocol.to_lowercase());
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
            let url = format!("{lower}://{host}:{number}");
            if index == 0 {
                out.insert(format!("{prefix}_SERVICE_PORT"), number.to_string());
                out.insert(format!("{prefix}_PORT"), url.clone());
            }
            if let Some(port_name) = &port.name {
                let port_name = port_name.to_uppercase().replace('-', "_");
                out.insert(format!("{prefix}_SERVICE_PORT_{port_name}"), number.to_string());
            }
            let base = format!("{prefix}_PORT_{number}_{protocol}");
            out.insert(format!("{base}_PROTO"), lower);
            out.insert(format!("{base}_PORT"), number.to_string());
            out.insert(format!("{base}_ADDR"), ip.to_owned());
            out.insert(base, url);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion() {
        let known = BTreeMap::from([("A".to_owned(), "x".to_owned())]);
        for (text, expected) in
            [("$(A)/$(B)", "x/$(B)"), ("$$(A)", "$(A)"), ("a$", "a$"), ("$A", "$A"), ("$(A", "$(A"), ("$$$(A)", "$x")]
        {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    #[test]
    fn variables_come_from_everywhere_in_order() {
        let wanted = crate::fixture::pod_of(
            serde_json::json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{
                "name": "c",
                "resources": {"limits": {"memory": "64Mi"}},
                "envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "s"}},
                    {"configMapRef": {"name": "none", "optional": true}}],
                "env": [
                    {"name": "PLAIN", "value": "1"},
                    {"name": "JOINED", "value": "$(PLAIN)-$(a)-$(LATER)-$(SVC)"},
                    {"name": "LATER", "value": "2"},
                    {"name": "a", "value": "over"},
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                    {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "a"}}},
                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "NO", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x", "optional": true}}},
                ],
            }]}}),
        );
        let data = |key: &str, value: &str| Data::from([(key.to_owned(), value.as_bytes().to_vec())]);
        let given = Given {
            config_maps: [("m".to_owned(), data("a", "A"))].into(),
            secrets: [("s".to_owned(), data("k", "K"))].into(),
            services: [("SVC".to_owned(), "s".to_owned())].into(),
            facts: Facts { pod_ips: vec!["10.0.0.9".into()], ..Default::default() },
        };
        let got = render(&wanted.pod, &wanted.spec().containers[0], &given).unwrap();
        let text: Vec<String> = got.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let expected = [
            "SVC=s",
            "S_k=K",
            "PLAIN=1",
            "JOINED=1-A-$(LATER)-s",
            "LATER=2",
            "a=over",
            "NAME=web",
            "IP=10.0.0.9",
            "MEM=64",
            "KEY=A",
            "SECRET=K",
        ];
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (container, expected) in [
            (serde_json::json!({"envFrom": [{"configMapRef": {"name": "m"}}]}), "configmap \"m\" not found"),
            (serde_json::json!({"envFrom": [{"secretRef": {"name": "m"}}]}), "secret \"m\" not found"),
            (
                serde_json::json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "m", "key": "k"}}}]}),
                "secret \"m\" not found",
            ),
            (
                serde_json::json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "here", "key": "k"}}}]}),
                "couldn't find key k in ConfigMap d/here",
            ),
        ] {
            let mut container = container;
            container["name"] = "c".into();
            let wanted = crate::fixture::pod_of(serde_json::json!({"spec": {"containers": [container]}}));
            let given = Given { config_maps: [("here".to_owned(), Data::new())].into(), ..Default::default() };
            assert_eq!(render(&wanted.pod, &wanted.spec().containers[0], &given).unwrap_err(), expected);
        }
    }

    #[test]
    fn services_of_the_namespace_are_named_as_docker_links_were() {
        let service = |namespace: &str, name: &str, ip: &str| {
            let object = serde_json::json!({
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterIP": ip, "ports": [{"name": "http-web", "port": 80, "protocol": "TCP"}]},
            });
            std::sync::Arc::new(serde_json::from_value::<Service>(object).unwrap())
        };
        let all = [
            service("default", "kubernetes", "10.96.0.1"),
            service("d", "my-db", "10.96.0.5"),
            service("d", "headless", "None"),
            service("other", "away", "10.96.0.6"),
        ];
        let got = services("d", true, &all);
        for (name, expected) in [
            ("MY_DB_SERVICE_HOST", "10.96.0.5"),
            ("MY_DB_SERVICE_PORT", "80"),
            ("MY_DB_SERVICE_PORT_HTTP_WEB", "80"),
            ("MY_DB_PORT", "tcp://10.96.0.5:80"),
            ("MY_DB_PORT_80_TCP", "tcp://10.96.0.5:80"),
            ("MY_DB_PORT_80_TCP_PROTO", "tcp"),
            ("MY_DB_PORT_80_TCP_PORT", "80"),
            ("MY_DB_PORT_80_TCP_ADDR", "10.96.0.5"),
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ] {
            assert_eq!(got.get(name).map(String::as_str), Some(expected), "{name}");
        }
        assert_eq!(got.len(), 16);
        assert_eq!(services("d", false, &all).len(), 8, "without links only the API server");
    }
}
