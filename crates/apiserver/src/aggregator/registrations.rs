//! The APIServices as requests are resolved by them: which group versions other servers serve, and in what order all are
//! shown.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api::{Value, rules::version};
use base64::Engine as _;

/// The group of APIServices themselves. No other server may serve it.
const OWN_GROUP: &str = "apiregistration.k8s.io";
/// The port of a service that names none.
const USUAL_PORT: u16 = 443;

/// One APIService.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    /// The server that serves the group version; `None` where that is this one.
    pub backend: Option<Backend>,
    /// Whether its condition `Available` holds, and with what reason.
    pub available: bool,
    pub reason: String,
}

/// Another server, by its Service, and what makes its certificate one to believe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Backend {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub trust: Trust,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Authorities in PEM; the machine's where there are none.
    Authorities(String),
    Anybody,
}

impl Registration {
    /// The registration of a stored APIService; `None` where it names no group version.
    pub fn of(object: &Value) -> Option<Registration> {
        let spec = object.get("spec")?;
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let available = conditions.and_then(|all| all.iter().find(|c| c["type"] == "Available"));
        let service = spec.get("service").filter(|service| service.is_object());
        Some(Registration {
            name: api::meta::name(object).to_owned(),
            group: text(spec, "group"),
            version: Some(text(spec, "version")).filter(|version| !version.is_empty())?,
            group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
            version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
            backend: service.map(|service| Backend {
                namespace: text(service, "namespace"),
                name: text(service, "name"),
                port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(USUAL_PORT),
                trust: trust(spec),
            }),
            available: available.is_some_and(|c| c["status"] == "True"),
            reason: available.map(|c| text(c, "reason")).unwrap_or_default(),
        })
    }

    /// The path of the group version: `/apis/GROUP/VERSION`.
    pub fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }

    /// Whether another server is asked. A group that this one is made of is not given away: the core group and that of
    /// the APIServices, without which nobody could take the rest back.
    fn is_passed_on(&self) -> bool {
        self.backend.is_some() && !self.group.is_empty() && self.group != OWN_GROUP
    }
}

fn trust(spec: &Value) -> Trust {
    if spec["insecureSkipTLSVerify"] == true {
        return Trust::Anybody;
    }
    let bundle = spec["caBundle"].as_str().unwrap_or_default();
    let bytes = base64::engine::general_purpose::STANDARD.decode(bundle).unwrap_or_default();
    Trust::Authorities(String::from_utf8_lossy(&bytes).into_owned())
}

/// All APIServices. It never changes: another state is another table.
#[derive(Default)]
pub struct Registrations {
    by_name: BTreeMap<String, Arc<Registration>>,
    /// Those that other servers serve, by group.
    passed_on: HashMap<String, Vec<Arc<Registration>>>,
}

impl Registrations {
    /// With the APIService of this name as it is now, or without it.
    #[must_use]
    pub fn with(&self, name: &str, registration: Option<Registration>) -> Self {
        let mut by_name = self.by_name.clone();
        match registration {
            Some(registration) => by_name.insert(name.to_owned(), Arc::new(registration)),
            None => by_name.remove(name),
        };
        let mut passed_on: HashMap<String, Vec<Arc<Registration>>> = HashMap::new();
        for registration in by_name.values().filter(|r| r.is_passed_on()) {
            passed_on.entry(registration.group.clone()).or_default().push(registration.clone());
        }
        Registrations { by_name, passed_on }
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Registration>> {
        self.by_name.get(name)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Registration>> {
        self.by_name.values()
    }

    /// The group versions that other servers serve.
    pub fn passed_on(&self) -> impl Iterator<Item = &Arc<Registration>> {
        self.passed_on.values().flatten()
    }

    /// The registration of another server under these names.
    pub fn find(&self, group: &str, version: &str) -> Option<&Arc<Registration>> {
        self.passed_on.get(group)?.iter().find(|r| r.version == version)
    }
}

/// A group in the order of discovery, its versions with the preferred one first.
#[derive(Debug, PartialEq, Eq)]
pub struct Listed {
    pub group: String,
    pub versions: Vec<String>,
}

/// Orders group versions, each with its group's and its own priority.
pub fn in_order(versions: impl Iterator<Item = (String, String, i64, i64)>) -> Vec<Listed> {
    let mut groups: BTreeMap<String, (i64, Vec<(i64, String)>)> = BTreeMap::new();
    for (group, version, of_group, of_version) in versions {
        let (priority, versions) = groups.entry(group).or_insert((of_group, Vec::new()));
        *priority = of_group.max(*priority);
        versions.push((of_version, version));
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // The sort keeps groups of one priority in the order of their names. APIServices come before all.
    groups.sort_by_key(|(group, (priority, _))| (group != OWN_GROUP, -priority));
    let listed = groups.into_iter().map(|(group, (_, mut versions))| {
        versions.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| version::compare(&b.1, &a.1)));
        Listed { group, versions: versions.into_iter().map(|(_, version)| version).collect() }
    });
    listed.collect()
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn registration(group: &str, version: &str, service: bool) -> Registration {
        let mut object = json!({"metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 10}});
        if service {
            object["spec"]["service"] = json!({"namespace": "n", "name": "s"});
        }
        Registration::of(&object).unwrap()
    }

    #[test]
    fn only_groups_of_other_servers_are_passed_on() {
        let mut all = Registrations::default();
        let groups = [("a.io", true), ("apps", true), ("batch", false), ("", true), (OWN_GROUP, true)];
        for (group, service) in groups {
            all = all.with(&format!("v1.{group}"), Some(registration(group, "v1", service)));
        }
        let found: Vec<&str> = groups.iter().map(|g| g.0).filter(|group| all.find(group, "v1").is_some()).collect();
        assert_eq!(found, ["a.io", "apps"]);
        assert!(all.find("a.io", "v2").is_none());
        let without = all.with("v1.a.io", None);
        assert!(without.find("a.io", "v1").is_none() && without.by_name("v1.batch").is_some());
    }

    #[test]
    fn conditions_and_trust_are_read() {
        let object = json!({"metadata": {"name": "v1.a"}, "spec": {"group": "a", "version": "v1", "caBundle": "YWJj",
            "service": {"namespace": "n", "name": "s", "port": 8443}},
            "status": {"conditions": [{"type": "Available", "status": "True", "reason": "Passed"}]}});
        let read = Registration::of(&object).unwrap();
        assert!(read.available && read.reason == "Passed");
        let backend = read.backend.unwrap();
        assert_eq!((backend.port, backend.trust), (8443, Trust::Authorities("abc".to_owned())));
        let unverified = json!({"spec": {"version": "v1", "insecureSkipTLSVerify": true, "service": {}}});
        let read = Registration::of(&unverified).unwrap();
        assert_eq!((read.available, read.backend.unwrap().trust), (false, Trust::Anybody));
        assert_eq!(Registration::of(&json!({"spec": {"group": "a"}})), None);
    }

    #[test]
    fn groups_come_by_priority_and_versions_by_theirs() {
        let check = |given: &[(&str, &str, i64, i64)], expected: &str| {
            let all = given.iter().map(|(g, v, of_g, of_v)| ((*g).to_owned(), (*v).to_owned(), *of_g, *of_v));
            let shown =
                in_order(all).iter().map(|l| format!("{}:{}", l.group, l.versions.join(","))).collect::<Vec<_>>();
            assert_eq!(shown.join(" "), expected);
        };
        check(&[("b", "v1", 1, 1), ("a", "v1", 1, 1), ("c", "v1", 2, 1)], "c:v1 a:v1 b:v1");
        check(&[("a", "v1", 1, 1), (OWN_GROUP, "v1", 1, 1)], "apiregistration.k8s.io:v1 a:v1");
        check(&[("a", "v1", 1, 1), ("a", "v2", 9, 2), ("b", "v1", 5, 1)], "a:v2,v1 b:v1");
        let same = ["v1alpha1", "v10", "v1", "v1beta2", "v1beta1", "foo2", "foo1", "v2"].map(|v| ("a", v, 1, 1));
        check(&same, "a:v10,v2,v1,v1beta2,v1beta1,v1alpha1,foo1,foo2");
    }
}
