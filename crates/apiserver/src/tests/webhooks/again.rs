//! Webhooks that are asked a second time, and the time that they have.
//! Upstream counterpart: test/integration/apiserver/admissionwebhook, `reinvocation_test.go` and `timeout_test.go`.

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The webhooks of the cases, by their names. A label is added where it is not there.
fn moods() -> [(&'static str, Mood); 6] {
    fn set_label(name: &str, value: &str) -> Value {
        patched(json!([{"op": "replace", "path": format!("/metadata/labels/{name}"), "value": value}]))
    }
    fn set_class(class: &str) -> Value {
        patched(json!([{"op": "add", "path": "/spec/priorityClassName", "value": class},
            {"op": "remove", "path": "/spec/priority"}]))
    }
    fn allowed() -> Value {
        json!({"allowed": true})
    }
    [
        (
            "addlabel",
            Mood::Saying(|request| match request["object"]["metadata"]["labels"]["a"].is_null() {
                true => set_label("a", "true"),
                false => allowed(),
            }),
        ),
        (
            "conditionaladdlabel",
            Mood::Saying(|request| match request["object"]["metadata"]["labels"]["a"].is_null() {
                true => allowed(),
                false => set_label("b", "true"),
            }),
        ),
        ("settrue", Mood::Saying(|_| set_label("fight", "true"))),
        ("setfalse", Mood::Saying(|_| set_label("fight", "false"))),
        (
            "setpriority",
            Mood::Saying(|request| match request["object"]["spec"]["priorityClassName"] == "high-priority" {
                true => allowed(),
                false => set_class("high-priority"),
            }),
        ),
        ("setinvalidpriority", Mood::Saying(|_| set_class("invalid"))),
    ]
}

#[tokio::test]
async fn plugins_and_webhooks_see_what_the_others_made() {
    let scene = Scene::start().await;
    scene.ok("POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    for (name, value) in [("low-priority", 1), ("high-priority", 10)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        scene.ok("POST /apis/scheduling.k8s.io/v1/priorityclasses", class).await;
    }
    moods().into_iter().for_each(|(path, mood)| scene.hook.be(&format!("/{path}"), mood));
    // The Pod's labels and priority afterwards, or the reason why there is none.
    let check = async |webhooks: &[(&str, Value)], expected: Result<Value, &str>, asked: &str| {
        let fields = |fields: &Value| {
            let mut fields = fields.clone();
            fields["rules"] = rule(&["CREATE"], "", &["pods"]);
            fields
        };
        let all: Vec<Value> = webhooks.iter().map(|(name, more)| scene.webhook(name, fields(more))).collect();
        scene.configure("mutating", "c", &all).await;
        let spec = json!({"priorityClassName": "low-priority", "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": "p", "labels": {"x": "true"}}, "spec": spec});
        let (code, made) = scene.talk.say("+root", &format!("POST {PODS}?dryRun=All"), pod).await;
        match expected {
            Ok(expected) => {
                assert_eq!(
                    json!([made["metadata"]["labels"], made["spec"]["priority"]]),
                    expected,
                    "{webhooks:?}: {made}"
                );
            }
            Err(why) => assert!(code >= 400 && made["message"].to_string().contains(why), "{made}"),
        }
        assert_eq!(scene.hook.paths(), asked, "{webhooks:?}");
        scene.ok(&format!("DELETE {GROUP}/mutatingwebhookconfigurations/c"), Value::Null).await;
        scene.talk.0.objects().caught_up().await.unwrap();
    };
    let (again, once) = (json!({"reinvocationPolicy": "IfNeeded"}), json!({"reinvocationPolicy": "Never"}));
    let both =
        |first: &'static str, second: &'static str, fields: &Value| [(first, fields.clone()), (second, fields.clone())];
    let labels = |labels: Value| Ok(json!([labels, 1]));
    check(&[("noop", again.clone())], labels(json!({"x": "true"})), "/noop").await;
    check(&[("addlabel", again.clone())], labels(json!({"x": "true", "a": "true"})), "/addlabel").await;
    let high = Ok(json!([{"x": "true"}, 10]));
    check(&[("setpriority", again.clone())], high, "/setpriority /setpriority").await;
    let all = labels(json!({"x": "true", "a": "true", "b": "true"}));
    let asked = "/addlabel /conditionaladdlabel /addlabel";
    check(&both("addlabel", "conditionaladdlabel", &again), all, asked).await;
    let fight = labels(json!({"x": "true", "fight": "false"}));
    check(&both("settrue", "setfalse", &again), fight, "/settrue /setfalse /settrue /setfalse").await;
    // One that was not asked in the first round is not asked in the second.
    let mut later = again.clone();
    later["objectSelector"] = json!({"matchLabels": {"a": "true"}});
    let given = [("conditionaladdlabel", later), ("addlabel", again.clone())];
    check(&given, labels(json!({"x": "true", "a": "true"})), "/addlabel").await;
    let missing = Err("no PriorityClass with name invalid was found");
    check(&[("setinvalidpriority", again)], missing, "/setinvalidpriority").await;
    for policy in [once, json!({})] {
        let given = both("conditionaladdlabel", "addlabel", &policy);
        check(&given, labels(json!({"x": "true", "a": "true"})), "/conditionaladdlabel /addlabel").await;
    }
}

#[tokio::test]
async fn webhooks_have_no_more_time_than_the_request() {
    let scene = Scene::start().await;
    for sort in ["mutating", "validating"] {
        let webhook =
            |name: &str, seconds: u8| scene.webhook(&format!("{name}-{sort}"), json!({"timeoutSeconds": seconds}));
        scene.configure(sort, sort, &[webhook("long", 20), webhook("short", 5)]).await;
    }
    let asked = async |given: &str| {
        scene.ok(&format!("POST {MAPS}?dryRun=All&timeout={given}"), map("m")).await;
        let mut asked: Vec<String> = scene.hook.questions().into_iter().map(|(uri, ..)| uri).collect();
        asked.sort();
        asked
    };
    let expected = |long: u8| {
        ["long-mutating", "long-validating", "short-mutating", "short-validating"]
            .map(|name| format!("/{name}?timeout={}s", if name.starts_with("long") { long } else { 5 }))
    };
    assert_eq!(asked("10s").await, expected(10));
    for given in ["", "0s", "1h", "-5s"] {
        assert_eq!(asked(given).await, expected(20), "{given}");
    }
    let wrong = "invalid timeout specified in the request URL - time: ";
    for (given, why) in [("10", "missing unit in duration \"10\""), ("soon", "invalid duration \"soon\"")] {
        let (code, found) = scene.refusal(&format!("POST {MAPS}?timeout={given}"), map("m")).await;
        assert_eq!((code, found), (400, format!("{wrong}{why}")));
    }
}

#[tokio::test]
async fn a_request_whose_time_is_over_asks_no_more_webhooks() {
    let scene = Scene::start().await;
    let open = json!({"failurePolicy": "Ignore", "timeoutSeconds": 4});
    let webhooks = ["one", "two"].map(|name| scene.webhook(name, open.clone()));
    scene.configure("mutating", "c", &webhooks).await;
    scene.hook.be("/one", Mood::Hanging);
    let asking = async {
        let found = scene.refusal(&format!("POST {MAPS}?timeout=3s"), map("m")).await;
        assert_eq!(found, (504, "Timeout: request did not complete within the allotted timeout".to_owned()));
    };
    let waiting = async {
        scene.hook.asked().await;
        // Nothing is left to happen but the end of its time.
        tokio::time::pause();
    };
    tokio::join!(asking, waiting);
    assert_eq!(scene.hook.paths(), "/one");
}
