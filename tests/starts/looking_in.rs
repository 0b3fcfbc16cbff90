//! The metrics that a monitoring system finds: those that dashboards and alerts ask for, by name, type and labels.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

use json::{Value, json};

use crate::skiff::{PATIENCE, Server};

const TABLE: &str = include_str!("metrics.tsv");

/// The families of a page: what sort they are of, and the sets of labels that their series have.
#[derive(Debug, Default)]
struct Pages(BTreeMap<(String, String), Family>);

type Family = (String, BTreeSet<BTreeSet<String>>);

impl Pages {
    fn read(&mut self, page: &str, text: &str) {
        let mut announced = BTreeSet::new();
        for line in text.lines() {
            if let Some((name, sort)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                assert!(announced.insert(name.to_owned()), "{page} announces {name} twice");
                self.0.entry((page.to_owned(), name.to_owned())).or_default().0 = sort.to_owned();
            } else if !line.starts_with('#') {
                self.series(page, line);
            }
        }
    }

    fn series(&mut self, page: &str, line: &str) {
        let (name, _) = line.split_once(['{', ' ']).unwrap_or_else(|| panic!("no series: {line:?}"));
        let family = ["_bucket", "_sum", "_count", ""].iter().find_map(|suffix| {
            let key = (page.to_owned(), name.strip_suffix(suffix)?.to_owned());
            self.0.contains_key(&key).then_some(key)
        });
        let family = family.unwrap_or_else(|| panic!("{page} does not announce {name}"));
        // A label's name stands before `="`, and none of their values holds that.
        let names = line.split("=\"").map(|part| part.rsplit(['{', ',']).next().unwrap_or("").to_owned());
        let mut names: BTreeSet<String> = names.take(line.matches("=\"").count()).collect();
        names.remove("le");
        if let Some((_, labels)) = self.0.get_mut(&family) {
            labels.insert(names);
        }
    }

    /// The part of a row of the table that is missing.
    fn missing(&self, row: &str) -> Option<String> {
        let columns: Vec<&str> = row.split('\t').collect();
        let [name, sort, labels, page] = columns[..] else { return None };
        let wanted: BTreeSet<String> = labels.split(',').filter(|l| !l.is_empty()).map(str::to_owned).collect();
        match self.0.get(&(page.to_owned(), name.to_owned())) {
            None => Some(format!("{page} has no {name}")),
            Some((found, _)) if found != sort => Some(format!("{name} is a {found}")),
            Some((_, found)) if !found.contains(&wanted) => Some(format!("{name} has {found:?}")),
            Some(_) => None,
        }
    }
}

struct Cluster<'a> {
    server: Server,
    data: &'a Path,
}

impl Cluster<'_> {
    fn ask(&self, request: &str, body: &Value) -> u16 {
        let (method, path) = request.split_once(' ').unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.server.ask(self.data, method, path, &body).0
    }

    #[track_caller]
    fn until(&self, request: &str, body: &Value, wanted: u16) {
        let deadline = Instant::now() + PATIENCE;
        let mut code = 0;
        while code != wanted {
            assert!(Instant::now() < deadline, "{request}: {code}");
            code = self.ask(request, body);
        }
    }

    /// Does what leads to every sort of series.
    fn live(&self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        self.until("POST /api/v1/nodes", &node, 201);
        let ready = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {
            "capacity": {"cpu": "4", "memory": "4Gi", "pods": "10"}, "allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
        self.until("PUT /api/v1/nodes/n/status", &ready, 200);
        let pod = |name: &str, cpu: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [
                {"name": "a", "image": "a", "resources": {"requests": {"cpu": cpu}}}]}})
        };
        // The first has room, the second has not, until the controllers made the account of both.
        self.until("POST /api/v1/namespaces/default/pods", &pod("fits", "1"), 201);
        self.until("POST /api/v1/namespaces/default/pods", &pod("waits", "100"), 201);
        self.until("GET /api/v1/namespaces/default/endpoints", &Value::Null, 200);
        // A server of others that is not there.
        let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.other.io"},
            "spec": {"group": "other.io", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
                "service": {"namespace": "default", "name": "nobody"}, "insecureSkipTLSVerify": true}});
        self.until("POST /apis/apiregistration.k8s.io/v1/apiservices", &service, 201);
        self.until("GET /apis/other.io/v1/things", &Value::Null, 503);
        // The administrator waits for no place; a stranger's requests are shared out.
        assert_eq!(self.server.ask_as(None, self.data, ("GET", "/version"), "").0, 200);
        for path in ["/livez", "/readyz"] {
            self.until(&format!("GET {path}"), &Value::Null, 200);
        }
    }
}

#[test]
fn dashboards_and_alerts_find_what_they_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_with(&data, &folder.path().join("log"), &["--disable=dns"]);
    let cluster = Cluster { server, data: &data };
    cluster.live();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut pages = Pages::default();
        for page in ["/metrics", "/metrics/slis"] {
            let (code, text) = cluster.server.ask(&data, "GET", page, "");
            assert_eq!(code, 200, "{page}: {text}");
            pages.read(page, &text);
        }
        let rows = TABLE.lines().filter(|row| !row.starts_with('#'));
        let missing: Vec<String> = rows.filter_map(|row| pages.missing(row)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "missing:\n{}", missing.join("\n"));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
