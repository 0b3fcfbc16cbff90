//! A container's environment: literal values, references, whole ConfigMaps and Secrets, and the variables of Services.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Container, FileKeySelector, Pod, Service};

use crate::{
    pod::spec::{
        downward::{self, Facts},
        env_file,
    },
    volumes::sources::Data,
};

/// The sources of a container's environment besides its spec.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Data of the ConfigMaps and Secrets that exist, by name.
    pub config_maps: BTreeMap<String, Data>,
    pub secrets: BTreeMap<String, Data>,
    pub services: BTreeMap<String, String>,
    pub facts: Facts,
    /// The content of files in volumes, by volume and path, as far as they can be read; none where variables do not come
    /// from files.
    pub files: Option<BTreeMap<(String, String), Vec<u8>>>,
}

/// The most that the kernel passes to a program in one string, its end included (MAX_ARG_STRLEN).
const MOST: usize = 128 << 10;
/// The most that it ever passes in all (three quarters of _STK_LIM).
const MOST_IN_ALL: usize = 6 << 20;

/// The bytes that may still be handed to a program. A value may name another twice, so a few lines of a Pod can double their
/// size with each line: it is counted while it grows. No kernel would start a program with more than these bounds.
#[derive(Debug)]
pub struct Budget {
    left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { left: MOST_IN_ALL }
    }
}

impl Budget {
    /// The budget that is left beside these variables.
    pub fn beside(env: &[(String, String)]) -> Self {
        let used = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        Budget { left: MOST_IN_ALL.saturating_sub(used) }
    }

    fn take(&mut self, what: &str, bytes: usize) -> Result<(), String> {
        if bytes > MOST {
            return Err(format!("{what} has more than {MOST} bytes, the most that a program can be given"));
        }
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            format!("environment, command and arguments have more than {MOST_IN_ALL} bytes together, the most that a program can be given")
        })?;
        Ok(())
    }

    /// A command or its arguments, expanded.
    pub fn words(&mut self, list: &[String], known: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
        let word = |word: &String| {
            let word = expand("an argument", word, known)?;
            self.take("an argument", word.len() + 1)?;
            Ok(word)
        };
        list.iter().map(word).collect()
    }
}

/// Variables in the order in which they were last set.
#[derive(Default)]
struct Variables {
    list: Vec<Option<(String, String)>>,
    places: HashMap<String, usize>,
    budget: Budget,
}

impl Variables {
    fn put(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some((name, value)) = self.places.get(name).and_then(|place| self.list[*place].take()) {
            self.budget.left += name.len() + value.len() + 2;
        }
        self.budget.take(&format!("the variable {name}"), name.len() + value.len() + 2)?;
        self.places.insert(name.to_owned(), self.list.len());
        self.list.push(Some((name.to_owned(), value.to_owned())));
        Ok(())
    }
}

/// The variables in order, or the words of the CreateContainerConfigError.
pub fn render(pod: &Pod, container: &Container, given: &Given) -> Result<Vec<(String, String)>, String> {
    let mut variables = Variables::default();
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
    known.iter().try_for_each(|(name, value)| variables.put(name, value))?;
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            None => {
                let what = format!("the variable {}", variable.name);
                Some(expand(&what, variable.value.as_deref().unwrap_or_default(), &known)?)
            }
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
                } else if let Some(r) = &from.file_key_ref {
                    in_file(r, given)?
                } else {
                    None
                }
            }
        };
        if let Some(value) = value {
            variables.put(&variable.name, &value)?;
            known.insert(variable.name.clone(), value);
        }
    }
    Ok(variables.list.into_iter().flatten().collect())
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

/// A variable from a file; `Ok(None)` when it may be missing and is.
fn in_file(wanted: &FileKeySelector, given: &Given) -> Result<Option<String>, String> {
    let Some(files) = &given.files else { return Ok(Some(String::new())) };
    let optional = wanted.optional == Some(true);
    let value = match files.get(&(wanted.volume_name.clone(), wanted.path.clone())) {
        Some(content) => env_file::value(&text(content), &wanted.key).map_err(|why| {
            tracing::warn!(file = wanted.path, why, "a file of variables cannot be read");
            "couldn't parse env file".to_owned()
        })?,
        None if optional => String::new(),
        None => return Err("couldn't parse env file".to_owned()),
    };
    match value.len() {
        0 if optional => Ok(None),
        0 => Err(format!("environment variable key {:?} not found in file", wanted.key)),
        long if long > env_file::LONGEST_VALUE => Err("environment variable value exceeds max length".to_owned()),
        _ => Ok(Some(value)),
    }
}

/// `$(NAME)` becomes the value, `$$` a dollar sign; a name that is not known stays as it is.
fn expand(what: &str, text: &str, known: &BTreeMap<String, String>) -> Result<String, String> {
    substitute(what, text, |name| known.get(name).map(String::as_str))
}

/// The path that a `subPathExpr` stands for. Upstream refuses names that are unknown or empty: what is left without them
/// would be another folder than the one that was meant.
pub fn expand_path(text: &str, known: &HashMap<&str, &str>) -> Result<String, String> {
    let mut missing = std::collections::BTreeSet::new();
    let path = substitute("the subPathExpr", text, |name| {
        let value = known.get(name).copied().filter(|value| !value.is_empty());
        if value.is_none() {
            missing.insert(name.to_owned());
        }
        value
    })?;
    if missing.is_empty() {
        return Ok(path);
    }
    Err(format!("missing value for {}", missing.into_iter().collect::<Vec<_>>().join(", ")))
}

fn substitute<'a>(what: &str, text: &str, mut value: impl FnMut(&str) -> Option<&'a str>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len().min(MOST));
    let mut rest = text;
    // Where no bracket closes any more none is looked for again: the time stays in proportion to the text.
    let last = text.rfind(')').unwrap_or(0);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').filter(|r| text.len() - r.len() <= last).and_then(|r| r.split_once(')'))
        {
            match value(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
        if out.len() > MOST {
            return Err(format!("{what} has more than {MOST} bytes, the most that a program can be given"));
        }
    }
    Ok(out + rest)
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
            let url = format!("{lower}://{}", api::rules::ip::with_port(ip, number));
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
            assert_eq!(expand("it", text, &known).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_doubles_with_every_line_ends_at_the_bound_of_the_kernel() {
        let chain = |length: usize| {
            let mut env = vec![json::json!({"name": "E0", "value": "0123456789abcdef"})];
            for n in 1..length {
                env.push(json::json!({"name": format!("E{n}"), "value": format!("$(E{0})$(E{0})", n - 1)}));
            }
            let desired =
                crate::pod::fixture::pod_of(json::json!({"spec": {"containers": [{"name": "c", "env": env}]}}));
            render(&desired.pod, &desired.spec().containers[0], &Given::default())
        };
        // 16 bytes doubled twelve times are 64 KiB, which a program can be given; once more and its end no longer fits.
        assert_eq!(chain(13).unwrap().last().unwrap().1.len(), 16 << 12);
        let refused = "the variable E13 has more than 131072 bytes, the most that a program can be given";
        assert_eq!(chain(14).unwrap_err(), refused);
        assert_eq!(chain(40_000).unwrap_err(), refused);
        // The same value many times over is counted together.
        let many: Vec<_> = std::iter::once(json::json!({"name": "A", "value": "x".repeat(65_536)}))
            .chain((0..200).map(|n| json::json!({"name": format!("B{n}"), "value": "$(A)"})))
            .collect();
        let desired = crate::pod::fixture::pod_of(json::json!({"spec": {"containers": [{"name": "c", "env": many}]}}));
        let error = render(&desired.pod, &desired.spec().containers[0], &Given::default()).unwrap_err();
        assert!(error.contains("more than 6291456 bytes together"), "{error}");
        let known = BTreeMap::from([("A".to_owned(), "x".repeat(65_536))]);
        let words = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|w| (*w).to_owned()).collect();
            Budget::default().words(&list, &known).map(|words| words.len())
        };
        assert_eq!(words(&["$(A)", "$(A)"]), Ok(2));
        assert!(words(&["$(A)$(A)"]).is_err());
        assert!(words(&["$(A)"; 200]).unwrap_err().contains("together"));
    }

    #[test]
    fn variables_come_from_files() {
        let check =
            |optional: bool, key: &str, files: Option<&[(&str, &str)]>, expected: Result<Option<&str>, &str>| {
                let from = json::json!({"volumeName": "v", "path": "e", "key": key, "optional": optional});
                let env = json::json!([{"name": "X", "valueFrom": {"fileKeyRef": from}}]);
                let desired =
                    crate::pod::fixture::pod_of(json::json!({"spec": {"containers": [{"name": "c", "env": env}]}}));
                let file = |(path, content): &(&str, &str)| {
                    (("v".to_owned(), (*path).to_owned()), content.as_bytes().to_vec())
                };
                let files = files.map(|files| files.iter().map(file).collect());
                let got = render(&desired.pod, &desired.spec().containers[0], &Given { files, ..Given::default() });
                let expected =
                    expected.map(|value| value.map(|value| ("X".to_owned(), value.to_owned())).into_iter().collect());
                assert_eq!(got, expected.map_err(str::to_owned), "{optional} {key}");
            };
        let long = format!("A='{}'", "x".repeat(40_000));
        let files: &[(&str, &str)] = &[("e", "A='1'\nB=2\n")];
        check(false, "A", Some(files), Ok(Some("1")));
        check(false, "A", Some(&[("e", "B='1'")]), Err("environment variable key \"A\" not found in file"));
        check(true, "A", Some(&[("e", "B='1'")]), Ok(None));
        check(false, "B", Some(files), Err("couldn't parse env file"));
        check(true, "B", Some(files), Err("couldn't parse env file"));
        check(false, "A", Some(&[("f", "A='1'")]), Err("couldn't parse env file"));
        check(true, "A", Some(&[]), Ok(None));
        check(false, "A", Some(&[("e", &long)]), Err("environment variable value exceeds max length"));
        // A feature that is off leaves the variable empty.
        check(false, "A", None, Ok(Some("")));
    }

    #[test]
    fn a_variable_set_again_takes_the_place_of_the_first() {
        let env =
            json::json!([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "A", "value": "$(A)2"}]);
        let desired = crate::pod::fixture::pod_of(json::json!({"spec": {"containers": [{"name": "c", "env": env}]}}));
        let got = render(&desired.pod, &desired.spec().containers[0], &Given::default()).unwrap();
        assert_eq!(got, [("B", "1"), ("A", "12")].map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn a_path_is_made_of_variables_that_have_a_value() {
        let known = HashMap::from([("POD", "p-1"), ("EMPTY", "")]);
        for (text, expected) in [
            ("logs/$(POD)", Ok("logs/p-1")),
            ("$$(POD)", Ok("$(POD)")),
            ("$(NO)/$(POD)", Err("missing value for NO")),
            ("$(EMPTY)", Err("missing value for EMPTY")),
            ("$(X)$(EMPTY)$(A)", Err("missing value for A, EMPTY, X")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(expand_path(text, &known), expected, "{text}");
        }
    }

    #[test]
    fn variables_come_from_everywhere_in_order() {
        let desired =
            crate::pod::fixture::pod_of(json::json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{
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
            }]}}));
        let data = |key: &str, value: &str| Data::from([(key.to_owned(), value.as_bytes().to_vec())]);
        let given = Given {
            config_maps: [("m".to_owned(), data("a", "A"))].into(),
            secrets: [("s".to_owned(), data("k", "K"))].into(),
            services: [("SVC".to_owned(), "s".to_owned())].into(),
            facts: Facts { pod_ips: vec!["10.0.0.9".into()], ..Default::default() },
            files: None,
        };
        let got = render(&desired.pod, &desired.spec().containers[0], &given).unwrap();
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
            (json::json!({"envFrom": [{"configMapRef": {"name": "m"}}]}), "configmap \"m\" not found"),
            (json::json!({"envFrom": [{"secretRef": {"name": "m"}}]}), "secret \"m\" not found"),
            (
                json::json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "m", "key": "k"}}}]}),
                "secret \"m\" not found",
            ),
            (
                json::json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "here", "key": "k"}}}]}),
                "couldn't find key k in ConfigMap d/here",
            ),
        ] {
            let mut container = container;
            container["name"] = "c".into();
            let desired = crate::pod::fixture::pod_of(json::json!({"spec": {"containers": [container]}}));
            let given = Given { config_maps: [("here".to_owned(), Data::new())].into(), ..Default::default() };
            assert_eq!(render(&desired.pod, &desired.spec().containers[0], &given).unwrap_err(), expected);
        }
    }

    #[test]
    fn services_of_the_namespace_are_named_as_docker_links_were() {
        let service = |namespace: &str, name: &str, ip: &str| {
            let object = json::json!({
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"clusterIP": ip, "ports": [{"name": "http-web", "port": 80, "protocol": "TCP"}]},
            });
            std::sync::Arc::new(json::from_value::<Service>(object).unwrap())
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
