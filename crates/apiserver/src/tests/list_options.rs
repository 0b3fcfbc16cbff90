//! The options of lists and watches: revisions that are still to come, pages that nobody asked to be as of a moment, pages of
//! deletions.

use json::{Value, json};

use crate::tests::conversation::{Answer, Conversation};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const EVENTS: &str = "/api/v1/namespaces/a/events";

async fn create(c: &Conversation, name: &str) -> u64 {
    let made = c.say(&format!("POST {MAPS}"), json!({"metadata": {"name": name}}).to_string()).await;
    assert_eq!(made.code, 201, "{}", made.text);
    made.at("/metadata/resourceVersion").as_str().and_then(|text| text.parse().ok()).expect("a revision")
}

fn names(answer: &Answer) -> Vec<String> {
    let list = answer.at("/items");
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    list.as_array().into_iter().flatten().map(name).collect()
}

/// Upstream's cache passes over the limit of such a list. Events are not in it.
#[tokio::test(start_paused = true)]
async fn a_list_as_of_any_revision_has_no_pages() {
    let c = Conversation::start().await;
    for name in ["p", "q", "r"] {
        create(&c, name).await;
        let about = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": "a"});
        let event = json!({"metadata": {"name": name}, "involvedObject": about}).to_string();
        let made = c.say(&format!("POST {EVENTS}"), event).await;
        assert_eq!(made.code, 201, "{}", made.text);
    }
    for (query, count) in [
        ("limit=2", 2),
        ("limit=2&resourceVersion=0", 3),
        ("limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan", 3),
        ("limit=2&resourceVersion=1&resourceVersionMatch=NotOlderThan", 2),
    ] {
        let list = c.say(&format!("GET {MAPS}?{query}"), "").await;
        assert_eq!((names(&list).len(), list.at("/metadata/continue").is_string()), (count, count < 3), "{query}");
    }
    let events = c.say(&format!("GET {EVENTS}?limit=2&resourceVersion=0"), "").await;
    assert_eq!((names(&events).len(), events.at("/metadata/remainingItemCount")), (2, json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_page_of_deletions_tells_what_is_left() {
    let c = Conversation::start().await;
    for name in ["p", "q", "r"] {
        create(&c, name).await;
    }
    let first = c.say(&format!("DELETE {MAPS}?limit=2"), "").await;
    assert_eq!((first.code, names(&first)), (200, vec!["p".to_owned(), "q".to_owned()]));
    assert_eq!(first.at("/metadata/remainingItemCount"), 1);
    let token = first.at("/metadata/continue").as_str().expect("a token").to_owned();
    assert_eq!(names(&c.say(&format!("GET {MAPS}"), "").await), ["r"]);
    let rest = c.say(&format!("DELETE {MAPS}?limit=2&continue={token}"), "").await;
    assert_eq!((names(&rest), rest.at("/metadata/continue")), (vec!["r".to_owned()], Value::Null));
    let wrong = c.say(&format!("DELETE {MAPS}?resourceVersionMatch=Exact"), "{").await;
    let place = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
    let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {place}");
    assert_eq!((wrong.code, wrong.message()), (422, message), "the options come before the body");
}

#[tokio::test(start_paused = true)]
async fn a_watch_waits_for_a_revision_that_is_still_to_come() {
    let c = Conversation::start().await;
    let now = create(&c, "p").await;
    let mut watch = c.watch(&format!("{MAPS}?watch=1&resourceVersion={}&allowWatchBookmarks=true", now + 2)).await;
    let (mut idle, uri) = (c.watch(&format!("{MAPS}?watch=1&resourceVersion=99999&timeoutSeconds=2")).await, MAPS);
    let mut lost = c.watch(&format!("{MAPS}?watch=1&resourceVersion=99999&timeoutSeconds=60")).await;
    for name in ["q", "r", "s", "t"] {
        create(&c, name).await;
    }
    assert_eq!((watch.line().await, watch.line().await), ("ADDED s".to_owned(), "ADDED t".to_owned()));
    assert_eq!(idle.line().await, "END");
    // That of another store, which will not come, is told of.
    let told = lost.next().await.unwrap();
    assert_eq!((&told["type"], &told["object"]["code"]), (&json!("ERROR"), &json!(504)));
    // A client that wants the objects first is told that they are not there yet.
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999";
    let refused = c.say(&format!("GET {uri}?watch=1&{initial}"), "").await;
    assert_eq!((refused.code, refused.at("/type"), refused.at("/object/code")), (200, json!("ERROR"), json!(504)));
    assert_eq!(refused.at("/object/details/causes/0/reason"), "ResourceVersionTooLarge");
}

/// Without words about it, a watch from anywhere begins as one that asks for the objects first.
#[tokio::test(start_paused = true)]
async fn a_watch_from_anywhere_tells_where_its_beginning_ends() {
    let c = Conversation::start().await;
    create(&c, "p").await;
    for query in ["", "&resourceVersion=0"] {
        let mut watch = c.watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=true{query}")).await;
        assert_eq!(watch.line().await, "ADDED p");
        let end = watch.next().await.expect("a bookmark");
        assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{end}");
    }
}

/// As upstream's cache answers such a get.
#[tokio::test(start_paused = true)]
async fn a_get_waits_for_a_revision_that_is_still_to_come() {
    let c = Conversation::start().await;
    let now = create(&c, "p").await;
    let (sooner, later) =
        (format!("GET {MAPS}/p?resourceVersion={now}"), format!("GET {MAPS}/p?resourceVersion={}", now + 1));
    assert_eq!(c.say(&sooner, "").await.code, 200);
    let begun = tokio::time::Instant::now();
    let (read, _) = tokio::join!(c.say(&later, ""), create(&c, "q"));
    assert_eq!(read.code, 200, "{}", read.text);
    assert!(begun.elapsed() < crate::watch_dispatch::REACH);
    for query in ["", "?resourceVersion=", "?resourceVersion=0", "?resourceVersion=0&resourceVersion=99999"] {
        assert_eq!(c.say(&format!("GET {MAPS}/p{query}"), "").await.code, 200, "{query}");
    }
    let set = json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/a/replicasets";
    let made = c.say(&format!("POST {sets}"), set.to_string()).await;
    let newest = made.at("/metadata/resourceVersion");
    let far = format!("Timeout: Too large resource version: 99999, current: {}", newest.as_str().expect("a revision"));
    for path in [format!("{MAPS}/p"), format!("{MAPS}/none"), format!("{sets}/r/status"), format!("{sets}/r/scale")] {
        let refused = c.say(&format!("GET {path}?resourceVersion=99999"), "").await;
        assert_eq!((refused.code, refused.message()), (504, far.clone()), "{path}");
        assert_eq!(refused.at("/details/retryAfterSeconds"), 1);
        assert_eq!(refused.at("/details/causes/0/reason"), "ResourceVersionTooLarge");
        for version in ["abc", "-1"] {
            let query = format!("resourceVersion={version}");
            let refused = c.say(&format!("GET {path}?{query}"), "").await;
            let list = c.say(&format!("GET {MAPS}?{query}"), "").await;
            assert_eq!((refused.code, refused.message()), (400, list.message()), "{path}?{query}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn exports_are_no_longer_to_be_had() {
    let c = Conversation::start().await;
    create(&c, "a").await;
    for (query, code) in [("export=true", 400), ("export=", 400), ("export=False", 200), ("export=0&export=1", 200)] {
        let answer = c.say(&format!("GET {MAPS}/a?{query}"), "").await;
        assert_eq!(answer.code, code, "{query}: {}", answer.text);
        let gone = "the export parameter, deprecated since v1.14, is no longer supported";
        assert_eq!(answer.at("/message") == gone, code == 400, "{}", answer.text);
    }
    assert_eq!(c.say(&format!("GET {MAPS}?export=true"), "").await.code, 200);
}
