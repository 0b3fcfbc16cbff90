//! The rights that roles and bindings give, request by request: upstream's test/integration/auth/rbac_test.go as tables.

use api::Value;
use json::json;

use super::assembled::{Talk, options};
use crate::Options;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A server on which each of these users shows its name as its token.
async fn talk(users: &[&str]) -> Talk {
    let lines: String = users.iter().map(|user| format!("{user},{user},u\n")).collect();
    Talk::over(Options { token_file: Some(("tokens".into(), lines)), ..options() }).await
}

impl Talk {
    /// Makes ClusterRoles, each of one rule: `name: verbs group resources`.
    async fn roles(&self, roles: &[&str]) {
        for role in roles {
            let (name, rule) = role.split_once(": ").unwrap();
            let [verbs, group, resources] = rule.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
            let list = |text: &str| json!(text.split(',').collect::<Vec<_>>());
            let group = if group == "core" { "" } else { group };
            let rule = json!({"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)});
            let role = json!({"metadata": {"name": name}, "rules": [rule]});
            self.ok("+admin", &format!("POST /apis/{GROUP}/v1/clusterroles"), role).await;
        }
    }

    /// Binds ClusterRoles: `role: users`, in one namespace or everywhere.
    async fn bind(&self, namespace: &str, bindings: &[&str]) {
        for binding in bindings {
            let (role, users) = binding.split_once(": ").unwrap();
            let subjects: Vec<Value> = users.split(' ').map(|user| json!({"kind": "User", "name": user})).collect();
            let binding = json!({"metadata": {"name": role}, "subjects": subjects,
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}});
            let place = match namespace {
                "" => "clusterrolebindings".to_owned(),
                _ => format!("namespaces/{namespace}/rolebindings"),
            };
            self.ok("+admin", &format!("POST /apis/{GROUP}/v1/{place}"), binding).await;
        }
    }

    /// Sends requests, one in each line: user, method, path below the version, name of the body, code.
    pub(super) async fn table(&self, bodies: &[(&str, Value)], requests: &str) {
        self.0.objects().caught_up().await.unwrap();
        for line in requests.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let [user, method, path, body, code] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let body = bodies.iter().find(|(name, _)| *name == body).map_or(Value::Null, |(_, body)| body.clone());
            let path = match path.split_once(':') {
                Some((group, rest)) => format!("/apis/{group}/v1/{rest}"),
                None => format!("/api/v1/{path}"),
            };
            let head = match method {
                "PATCH" => format!("{method} {path}?fieldManager=rbac_test\napplication/apply-patch+yaml"),
                _ => format!("{method} {path}"),
            };
            let (found, answer) = self.say(user, &head, body).await;
            assert_eq!(found.to_string(), code, "{line}: {answer}");
        }
    }

    pub(super) async fn namespaces(&self, names: &[&str]) {
        for name in names {
            self.ok("+admin", "POST /api/v1/namespaces", json!({"metadata": {"name": name}})).await;
            let account = format!("POST /api/v1/namespaces/{name}/serviceaccounts");
            self.ok("+admin", &account, json!({"metadata": {"name": "default"}})).await;
        }
    }
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "foo", "image": "bar/foo"}]}})
}

fn job() -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "pi"}, "spec": {"template": {
        "metadata": {"name": "a", "labels": {"name": "pijob"}},
        "spec": {"containers": [{"name": "pi", "image": "perl"}], "restartPolicy": "Never"}}}})
}

#[tokio::test(start_paused = true)]
async fn readers_read_everywhere_and_write_nowhere() {
    let talk = talk(&["bob", "pod-reader"]).await;
    talk.namespaces(&["pod-namespace"]).await;
    talk.roles(&["allow-all: * * *", "read-pods: list,get,watch core pods"]).await;
    talk.bind("", &["read-pods: pod-reader"]).await;
    talk.table(
        &[("pod", pod())],
        "+admin     GET  pods                            -   200
         +admin     GET  namespaces/pod-namespace/pods/a -   404
         +admin     POST namespaces/pod-namespace/pods   pod 201
         +admin     GET  namespaces/pod-namespace/pods/a -   200
         bob        GET  pods                            -   403
         bob        GET  namespaces/pod-namespace/pods/a -   403
         pod-reader GET  pods                            -   200
         pod-reader POST namespaces/pod-namespace/pods   pod 403",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_binds_roles_has_what_they_grant_or_may_bind_them() {
    let users = [
        "job-writer",
        "job-writer-namespace",
        "nonescalating-rolebinding-writer",
        "any-rolebinding-writer",
        "any-rolebinding-writer-namespace",
        "user-with-no-permissions",
    ];
    let talk = talk(&users).await;
    talk.namespaces(&["job-namespace", "forbidden-namespace"]).await;
    talk.roles(&[
        "write-jobs: * batch *",
        "create-rolebindings: create rbac.authorization.k8s.io rolebindings",
        "bind-any-clusterrole: bind rbac.authorization.k8s.io clusterroles",
    ])
    .await;
    talk.bind(
        "",
        &[
            "write-jobs: job-writer",
            "create-rolebindings: job-writer nonescalating-rolebinding-writer any-rolebinding-writer",
            "bind-any-clusterrole: any-rolebinding-writer",
        ],
    )
    .await;
    talk.bind(
        "job-namespace",
        &[
            "write-jobs: job-writer-namespace",
            "create-rolebindings: job-writer-namespace any-rolebinding-writer-namespace",
            "bind-any-clusterrole: any-rolebinding-writer-namespace",
        ],
    )
    .await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "pi"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "write-jobs"},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": "admin"}]});
    talk.table(
        &[("job", job()), ("binding", binding)],
        "user-with-no-permissions POST batch:namespaces/job-namespace/jobs          job 403
         user-with-no-permissions GET  batch:namespaces/job-namespace/jobs/pi       -   403
         job-writer-namespace     GET  batch:namespaces/forbidden-namespace/jobs    -   403
         job-writer-namespace     GET  batch:namespaces/forbidden-namespace/jobs/pi -   403
         job-writer-namespace     POST batch:namespaces/forbidden-namespace/jobs    job 403
         job-writer-namespace     GET  batch:namespaces/forbidden-namespace/jobs/pi -   403
         job-writer               GET  batch:namespaces/forbidden-namespace/jobs    -   200
         job-writer               GET  batch:namespaces/forbidden-namespace/jobs/pi -   404
         job-writer               POST batch:namespaces/forbidden-namespace/jobs    job 201
         job-writer               GET  batch:namespaces/forbidden-namespace/jobs/pi -   200
         job-writer-namespace     GET  batch:namespaces/job-namespace/jobs          -   200
         job-writer-namespace     GET  batch:namespaces/job-namespace/jobs/pi       -   404
         job-writer-namespace     POST batch:namespaces/job-namespace/jobs          job 201
         job-writer-namespace     GET  batch:namespaces/job-namespace/jobs/pi       -   200

         user-with-no-permissions         POST   rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings          binding 403
         any-rolebinding-writer-namespace POST   rbac.authorization.k8s.io:namespaces/forbidden-namespace/rolebindings    binding 403
         job-writer-namespace             POST   rbac.authorization.k8s.io:namespaces/forbidden-namespace/rolebindings    binding 403
         job-writer-namespace             POST   rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings          binding 201
         +admin                           DELETE rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings/pi       -       200
         job-writer                       POST   rbac.authorization.k8s.io:namespaces/forbidden-namespace/rolebindings    binding 201
         +admin                           DELETE rbac.authorization.k8s.io:namespaces/forbidden-namespace/rolebindings/pi -       200
         nonescalating-rolebinding-writer POST   rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings          binding 403
         any-rolebinding-writer           POST   rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings          binding 201
         +admin                           DELETE rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings/pi       -       200
         any-rolebinding-writer-namespace POST   rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings          binding 201
         +admin                           DELETE rbac.authorization.k8s.io:namespaces/job-namespace/rolebindings/pi       -       200",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_update_that_creates_takes_the_right_to_create() {
    let talk = talk(&["limitrange-updater", "limitrange-patcher"]).await;
    talk.namespaces(&["updated", "patched"]).await;
    talk.roles(&["update-limitranges: update core limitranges", "patch-limitranges: patch core limitranges"]).await;
    talk.bind("", &["update-limitranges: limitrange-updater", "patch-limitranges: limitrange-patcher"]).await;
    let limits = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "a"}});
    talk.table(
        &[("limits", limits)],
        "limitrange-updater PUT   namespaces/updated/limitranges/a limits 403
         +admin             PUT   namespaces/updated/limitranges/a limits 201
         +admin             PUT   namespaces/updated/limitranges/a limits 200
         limitrange-updater PUT   namespaces/updated/limitranges/a limits 200
         limitrange-patcher PATCH namespaces/patched/limitranges/a limits 403
         +admin             PATCH namespaces/patched/limitranges/a limits 201
         +admin             PATCH namespaces/patched/limitranges/a limits 200
         limitrange-patcher PATCH namespaces/patched/limitranges/a limits 200",
    )
    .await;
}
