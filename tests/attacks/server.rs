//! A control plane in a process of its own, with a data folder, users and credentials, gone when the test ends.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use json::{Value, json};
use pki::{Authority, Credential, Subject};

use crate::caller::{Answer, Caller};

/// Users with a static token (`NAME-token`) who may do nothing but what a test allows them.
pub const USERS: [&str; 3] = ["jane", "mallory", "bob"];
const READY: Duration = Duration::from_secs(60);

pub struct Server {
    process: Child,
    folder: tempfile::TempDir,
    pub port: u16,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With more flags. Scheduler and DNS are left out; controllers run.
    pub async fn with(flags: &[&str]) -> Self {
        Self::ready(Self::spawn(Command::new(binary()), flags)).await
    }

    /// With so few files and connections that the process may have open.
    pub async fn with_descriptors(count: u32) -> Self {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {count} && exec \"$0\" \"$@\"")).arg(binary());
        Self::ready(Self::spawn(shell, &[])).await
    }

    async fn ready(mut server: Self) -> Self {
        server.until_ready().await;
        server
    }

    /// The message of a server that does not start with these flags.
    pub async fn refusal(flags: &[&str]) -> String {
        let mut server = Self::spawn(Command::new(binary()), flags);
        let deadline = Instant::now() + READY;
        while server.process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the server does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.log()
    }

    fn spawn(mut command: Command, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens: String = USERS.iter().map(|name| format!("{name}-token,{name},{name}-uid,people\n")).collect();
        fs::write(folder.path().join("tokens.csv"), tokens).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = folder.path().join("data");
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let here = (!flags.iter().any(|flag| flag.starts_with("--bind-address"))).then_some("--bind-address=127.0.0.1");
        let process = command
            .arg("server")
            .args(here)
            .args(["--disable=scheduler,dns", "--secure-port"])
            .arg(port.to_string())
            .arg("--data-dir")
            .arg(&data)
            .arg("--token-auth-file")
            .arg(folder.path().join("tokens.csv"))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the server's binary starts");
        Server { process, folder, port }
    }

    async fn until_ready(&mut self) {
        let deadline = Instant::now() + READY;
        loop {
            if self.data().join("admin.kubeconfig").exists()
                && let Ok(answer) = self.nobody().try_send("GET", "/readyz", &[], "").await
                && answer.code == 200
            {
                return;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "no server ({ended:?}):\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Resident memory of the process in bytes: now (`VmRSS`) or at its highest (`VmHWM`).
    pub fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the server is alive");
        let line = status.lines().find(|l| l.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    pub fn authority(&self) -> Authority {
        let read = |name: &str| fs::read_to_string(self.data().join("pki").join(name)).unwrap();
        Authority::load(&read("ca.crt"), &read("ca.key")).unwrap()
    }

    fn caller(&self) -> Caller {
        Caller::new(self.port, self.authority().certificate())
    }

    /// Somebody without credentials.
    pub fn nobody(&self) -> Caller {
        self.caller()
    }

    /// Whoever has this bearer token.
    pub fn bearer(&self, token: &str) -> Caller {
        self.caller().bearer(token)
    }

    /// One of [`USERS`].
    pub fn user(&self, name: &str) -> Caller {
        assert!(USERS.contains(&name));
        self.bearer(&format!("{name}-token"))
    }

    /// Whoever has this client certificate.
    pub fn certified(&self, credential: Credential) -> Caller {
        self.caller().certificate(credential)
    }

    pub fn admin(&self) -> Caller {
        self.certified(self.authority().issue(&Subject::client("admin", Some("system:masters"))).unwrap())
    }

    /// The credential of a node, whose Node object is made too.
    pub async fn node(&self, name: &str) -> Caller {
        let subject = Subject::client(&format!("system:node:{name}"), Some("system:nodes"));
        let node = self.certified(self.authority().issue(&subject).unwrap());
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        self.admin().create("/api/v1/nodes", &object).await.expect(201);
        node
    }

    /// The holder of a bootstrap token.
    pub async fn joiner(&self) -> Caller {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap-token-abcdef"},
            "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"}});
        self.admin().create("/api/v1/namespaces/kube-system/secrets", &secret).await.expect(201);
        self.bearer("abcdef.0123456789abcdef")
    }

    pub async fn namespace(&self, name: &str) -> Answer {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.admin().create("/api/v1/namespaces", &object).await.expect(201)
    }

    /// Lets a user do something in one namespace, or everywhere when `namespace` is empty. `resources` are
    /// `resource`, `resource/subresource` or `resource.group`.
    pub async fn allow(&self, user: &str, namespace: &str, verbs: &[&str], resources: &[&str]) {
        self.allow_rules(user, namespace, resources.iter().map(|resource| rule(verbs, resource)).collect()).await;
    }

    /// The same with whole `PolicyRule`s.
    pub async fn allow_rules(&self, user: &str, namespace: &str, rules: Vec<Value>) {
        let (place, prefix) = match namespace {
            "" => (String::new(), "Cluster"),
            inside => (format!("/namespaces/{inside}"), ""),
        };
        let admin = self.admin();
        let base = format!("/apis/rbac.authorization.k8s.io/v1{place}");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{prefix}Role"),
            "metadata": {"generateName": "allowed-"}, "rules": rules});
        let lower = prefix.to_lowercase();
        let role = admin.create(&format!("{base}/{lower}roles"), &role).await.expect(201).json();
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{prefix}RoleBinding"),
            "metadata": {"generateName": "allowed-"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": format!("{prefix}Role"), "name": role["metadata"]["name"]},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
        admin.create(&format!("{base}/{lower}rolebindings"), &binding).await.expect(201);
        self.until_bound(user, namespace, &rules).await;
    }

    /// The authorizer reads a copy that follows the store: waits until it knows the last rule.
    async fn until_bound(&self, user: &str, namespace: &str, rules: &[Value]) {
        let Some(rule) = rules.last().filter(|rule| rule["resources"].is_array()) else { return };
        let mut resource = rule["resources"][0].as_str().unwrap_or("").split('/');
        let attributes = json!({"namespace": namespace, "verb": rule["verbs"][0], "group": rule["apiGroups"][0],
            "resource": resource.next(), "subresource": resource.next().unwrap_or(""),
            "name": rule["resourceNames"][0].as_str().unwrap_or("")});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes}});
        let admin = self.admin();
        let deadline = Instant::now() + READY;
        loop {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            if admin.create(path, &review).await.expect(201).json()["status"]["allowed"] == true {
                return;
            }
            assert!(Instant::now() < deadline, "the rights of {user} do not come into force");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A `PolicyRule` for `resource`, `resource/subresource`, or either with `.group` behind the resource.
pub fn rule(verbs: &[&str], resource: &str) -> Value {
    let (path, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (plural, group) = path.split_once('.').unwrap_or((path, ""));
    let resource = if subresource.is_empty() { plural.to_owned() } else { format!("{plural}/{subresource}") };
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

fn binary() -> PathBuf {
    std::env::var_os("SKIFF").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_skiff")), PathBuf::from)
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
