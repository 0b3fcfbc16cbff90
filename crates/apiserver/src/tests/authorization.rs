//! The authorizers of the whole server: modes, policies in a file, and webhooks over HTTPS.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use api::Value;
use clock::Duration;
use json::json;

use super::{
    assembled::{Talk, options},
    hook::{Hook, Mood},
};
use crate::{
    Options, User,
    auth::{
        abac::Policies,
        modes::{
            Settings,
            configuration::{Configuration, Entry, Mode},
        },
        webhook::{self, Version},
    },
    http::body::Body,
};

const PODS: &str = "GET /api/v1/namespaces/default/pods";
const CAN_I: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const SELECTED: &str = "GET /api/v1/namespaces/default/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=app%3Da";

fn entry(mode: Mode, name: &str, webhook: Option<webhook::Settings>) -> Entry {
    Entry { mode, name: name.to_owned(), webhook }
}

async fn talk(authorizers: Vec<Entry>, policies: Option<Policies>) -> Talk {
    let authorization = Settings { configuration: Configuration { authorizers }, policies, file: None };
    Talk::over(Options { authorization, ..options() }).await
}

fn hook_at(kubeconfig: &Path) -> webhook::Settings {
    webhook::Settings {
        kubeconfig: kubeconfig.to_owned(),
        version: Version::V1,
        timeout: Duration::from_millis(500),
        authorized: Duration::from_secs(300),
        unauthorized: Duration::ZERO,
        denies_on_failure: false,
        conditions: Vec::new(),
    }
}

fn message(value: &Value) -> &str {
    value["message"].as_str().unwrap_or_default()
}

/// The value of a series.
async fn metric(talk: &Talk, name: &str, labels: &str) -> Option<String> {
    let request = http::Request::get("/metrics").extension(Arc::new(User::new("root", ["system:masters"])));
    let response = talk.0.handle(request.body(Body::empty()).unwrap()).await;
    let page = response.into_body().collect(1 << 24).await.unwrap();
    let page = String::from_utf8_lossy(&page);
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{{labels}}}")))?;
    line.rsplit(' ').next().map(str::to_owned)
}

#[tokio::test]
async fn modes_are_asked_in_their_order() {
    let everything = || Policies::parse("f", "{\"user\": \"jane\"}").unwrap();
    let (allow, deny) =
        (|| entry(Mode::AlwaysAllow, "alwaysallow", None), || entry(Mode::AlwaysDeny, "alwaysdeny", None));
    let (abac, rbac) = (|| entry(Mode::Abac, "abac", None), || entry(Mode::Rbac, "rbac", None));
    let refused =
        r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#;
    for (list, expected) in [
        (vec![allow()], ""),
        (vec![deny()], ": Everything is forbidden."),
        (vec![deny(), allow()], ""),
        (vec![rbac(), abac()], ""),
        (vec![rbac()], "nothing"),
    ] {
        let talk = talk(list, Some(everything())).await;
        let (code, answer) = talk.say("secret", PODS, json!(null)).await;
        match expected {
            "" => assert_eq!(code, 200, "{answer}"),
            "nothing" => assert_eq!((code, message(&answer)), (403, refused)),
            why => assert_eq!((code, message(&answer)), (403, &*format!("{refused}{why}"))),
        }
        // The administrators are let through whatever the modes are.
        assert_eq!(talk.say("+root", PODS, json!(null)).await.0, 200);
    }
    let talk = talk(vec![abac()], Some(everything())).await;
    let rules = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = talk.ok("secret", rules, json!({"spec": {"namespace": "default"}})).await;
    assert_eq!(rules["status"]["resourceRules"], json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]));
}

/// Jane may read, and nobody may see Secrets.
fn janes(review: &Value) -> Value {
    let (user, asked) = (&review["spec"]["user"], &review["spec"]["resourceAttributes"]);
    let status = match asked["resource"].as_str() {
        Some("secrets") => json!({"allowed": false, "denied": true, "reason": "they are secret"}),
        _ => json!({"allowed": *user == "jane" && asked["verb"] == "list", "reason": "said the webhook"}),
    };
    json!({"kind": "SubjectAccessReview", "apiVersion": review["apiVersion"], "status": status})
}

#[tokio::test]
async fn a_webhook_decides_and_is_not_asked_twice() {
    let hook = Hook::start().await;
    hook.be("/", Mood::Lying(janes));
    let (_folder, file) = hook.kubeconfig("/", "token: t");
    let talk = talk(
        vec![entry(Mode::Webhook, "w", Some(hook_at(&file))), entry(Mode::AlwaysAllow, "alwaysallow", None)],
        None,
    )
    .await;
    assert_eq!(talk.say("secret", SELECTED, json!(null)).await.0, 200);
    assert_eq!(talk.say("secret", SELECTED, json!(null)).await.0, 200);
    let asked = hook.questions();
    assert_eq!(asked.len(), 1, "what was allowed is remembered");
    let (uri, headers, review) = &asked[0];
    assert_eq!((&**uri, headers["authorization"].as_bytes()), ("/?timeout=1s", &b"Bearer t"[..]));
    let expected = json!({"namespace": "default", "verb": "list", "version": "v1", "resource": "pods",
        "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]},
        "labelSelector": {"requirements": [{"key": "app", "operator": "In", "values": ["a"]}]}});
    assert_eq!(review["spec"]["resourceAttributes"], expected);
    assert_eq!(review["spec"]["groups"], json!(["dev", "system:authenticated"]));
    // A request that it denies nobody behind it allows.
    for _ in 0..2 {
        let (code, refused) = talk.say("secret", "GET /api/v1/namespaces/default/secrets", json!(null)).await;
        assert!(code == 403 && message(&refused).ends_with(": they are secret"), "{refused}");
    }
    assert_eq!(hook.questions().len(), 2, "what was not allowed is not remembered here");
    let rules = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let listed = talk.ok("secret", rules, json!({"spec": {"namespace": "default"}})).await;
    assert_eq!(listed["status"]["incomplete"], true);
    assert_eq!(listed["status"]["evaluationError"], "webhook authorizer does not support user rule resolution");
    // The next mode decides where it has no opinion, also in reviews.
    let review = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/x"}}});
    assert_eq!(talk.ok("secret", CAN_I, review).await["status"]["allowed"], true);
    let labels = "decision=\"denied\"";
    let denied = format!("type=\"Webhook\",name=\"w\",{labels}");
    assert_eq!(metric(&talk, "apiserver_authorization_decisions_total", &denied).await.as_deref(), Some("2"));
    let success = "name=\"w\",result=\"success\"";
    assert!(metric(&talk, "apiserver_authorization_webhook_evaluations_total", success).await.is_some());
}

#[tokio::test]
async fn a_webhook_that_fails_harms_its_own_requests_alone() {
    let hook = Hook::start().await;
    let (_folder, file) = hook.kubeconfig("/", "");
    let condition = || vec!["request.user == 'jane'".to_owned()];
    let settings =
        |denies: bool| webhook::Settings { denies_on_failure: denies, conditions: condition(), ..hook_at(&file) };
    let others = || entry(Mode::AlwaysAllow, "alwaysallow", None);
    let open = talk(vec![entry(Mode::Webhook, "w", Some(settings(false))), others()], None).await;
    let closed = talk(vec![entry(Mode::Webhook, "w", Some(settings(true))), others()], None).await;
    for (mood, why) in [
        (Mood::Hanging, "context deadline exceeded"),
        (Mood::Endless, "the answer has more than 1048576 bytes"),
        (Mood::Redirecting, "responded with the status code 307"),
        (Mood::Dying, ""),
        (Mood::Text(401, ""), "provide credentials"),
        (
            Mood::Text(200, "{\"kind\":\"SubjectAccessReview\",\"status\":{\"allowed\":true}}"),
            "not a SubjectAccessReview",
        ),
        (
            Mood::Lying(
                |_| json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": {"allowed": "yes"}}),
            ),
            "neither true nor false",
        ),
        (
            Mood::Lying(
                |_| json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": {"allowed": true, "denied": true}}),
            ),
            "both allow and deny",
        ),
    ] {
        let both = why == "both allow and deny";
        hook.be("/", mood);
        let answer = closed.send("secret", PODS, json!(null)).await;
        let (code, media_type) = (answer.status().as_u16(), answer.headers()["content-type"].clone());
        assert_eq!((code, media_type.to_str().unwrap()), (500, "text/plain"), "{why}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        let answer = answer.into_body().collect(1 << 24).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        let begins = "Internal Server Error: \"/api/v1/namespaces/default/pods\": ";
        assert!(answer.starts_with(begins) && answer.contains(why), "{why}: {answer}");
        let review = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}});
        let (code, _) = closed.say("secret", CAN_I, review).await;
        assert_eq!(code, 500, "also to ask needs the right to");
        assert_eq!(open.say("secret", PODS, json!(null)).await.0, if both { 500 } else { 200 }, "{why}");
        // Others are not asked about, and wait for nobody.
        let nobody = tokio::time::timeout(Duration::from_secs(60), closed.say("", PODS, json!(null)));
        assert_eq!(nobody.await.unwrap().0, 200);
    }
    let failed = "name=\"w\",result=\"timeout\"";
    assert!(metric(&open, "apiserver_authorization_webhook_evaluations_fail_open_total", failed).await.is_some());
    let excluded = "type=\"Webhook\",name=\"w\"";
    assert!(metric(&open, "apiserver_authorization_match_condition_exclusions_total", excluded).await.is_none());
    assert!(metric(&closed, "apiserver_authorization_match_condition_exclusions_total", excluded).await.is_some());
}

#[tokio::test]
async fn expressions_of_policies_wait_for_a_webhook() {
    let hook = Hook::start().await;
    hook.be(
        "/",
        Mood::Lying(|review| {
            let asked = &review["spec"]["resourceAttributes"];
            let allowed = asked["verb"] != "paint" || asked["name"] == "red";
            json!({"kind": "SubjectAccessReview", "apiVersion": review["apiVersion"], "status": {"allowed": allowed}})
        }),
    );
    let (_folder, file) = hook.kubeconfig("/", "");
    let talk = talk(vec![entry(Mode::Webhook, "w", Some(hook_at(&file)))], None).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
        "validations": [{"expression":
            "['colour', 'second'].all(k, authorizer.group('').resource('configmaps').name(object.data[k]).check('paint').allowed())"}]}});
    talk.ok("+root", &format!("POST {group}/validatingadmissionpolicies"), policy).await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    talk.ok("+root", &format!("POST {group}/validatingadmissionpolicybindings"), binding).await;
    talk.0.objects().caught_up().await.unwrap();
    for (second, expected) in [("red", 201), ("blue", 422)] {
        let map = json!({"metadata": {"name": second}, "data": {"colour": "red", "second": second}});
        let (code, answer) = talk.say("secret", "POST /api/v1/namespaces/default/configmaps", map).await;
        assert_eq!(code, expected, "{answer}");
    }
    let painted =
        hook.questions().into_iter().filter(|(.., review)| review["spec"]["resourceAttributes"]["verb"] == "paint");
    assert_eq!(painted.count(), 2, "each answer is waited for once");
}

fn config(hooks: &[&PathBuf], more: &str) -> String {
    let hooks: Vec<String> = hooks.iter().enumerate().map(|(at, file)| {
        format!("{{type: Webhook, name: w{at}, webhook: {{timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, \
            connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}}}}}", file.display())
    }).collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{}{more}]\n",
        hooks.join(", ")
    )
}

#[tokio::test]
async fn the_file_is_followed() {
    let hook = Hook::start().await;
    hook.be("/no", Mood::Lying(|review| json!({"kind": "SubjectAccessReview", "apiVersion": review["apiVersion"], "status": {"denied": true, "reason": "no"}})));
    hook.be("/yes", Mood::Lying(|review| json!({"kind": "SubjectAccessReview", "apiVersion": review["apiVersion"], "status": {"allowed": true}})));
    let (folder, no) = hook.kubeconfig("/no", "");
    let (_other, yes) = hook.kubeconfig("/yes", "");
    let file = folder.path().join("authorization.yaml");
    let rbac = ", {type: RBAC, name: rbac}";
    let text = config(&[&no], rbac);
    std::fs::write(&file, &text).unwrap();
    let configuration = Configuration::parse(&text).unwrap();
    let authorization = Settings { configuration, policies: None, file: Some((file.clone(), text.clone())) };
    let talk = Talk::over(Options { authorization, ..options() }).await;
    let until = async |code: u16, status: &str, count: &str| {
        let labels =
            format!("status=\"{status}\",apiserver_id_hash=\"{}\"", crate::auth::metrics::hash("apiserver-test"));
        let name = "apiserver_authorization_config_controller_automatic_reloads_total";
        while metric(&talk, name, &labels).await.as_deref() != Some(count) {
            tokio::task::yield_now().await;
        }
        assert_eq!(talk.say("secret", PODS, json!(null)).await.0, code);
    };
    assert_eq!(talk.say("secret", PODS, json!(null)).await.0, 403);
    for (wrong, count) in [
        ("rubbish".to_owned(), "1"),
        (config(&[&yes], ""), "2"),
        (config(&[&yes], &format!("{rbac}, {{type: Node, name: node}}")), "3"),
    ] {
        std::fs::write(&file, wrong).unwrap();
        until(403, "failure", count).await;
    }
    std::fs::write(&file, config(&[&yes, &no], rbac)).unwrap();
    until(200, "success", "1").await;
    std::fs::write(&file, config(&[&no, &yes], rbac)).unwrap();
    until(403, "success", "2").await;
    // Those that need nothing of the start may come and go.
    std::fs::write(
        &file,
        config(&[], &format!("{rbac}, {{type: AlwaysAllow, name: alwaysallow}}").replacen(", ", "", 1)),
    )
    .unwrap();
    until(200, "success", "3").await;
    std::fs::write(&file, config(&[&no, &yes], rbac)).unwrap();
    until(403, "success", "4").await;
    let info = format!(
        "apiserver_id_hash=\"{}\",hash=\"{}\"",
        crate::auth::metrics::hash("apiserver-test"),
        crate::auth::metrics::hash(&config(&[&no, &yes], rbac))
    );
    assert_eq!(
        metric(&talk, "apiserver_authorization_config_controller_last_config_info", &info).await.as_deref(),
        Some("1")
    );
}
