//! While etcd is away, or says nothing, the server says so in a sentence, soon, and is not ready; then it goes on.

use std::time::Duration;

use client::{Client, Error, error::Status, rest};
use http::Method;

use crate::{
    clients::{OBJECTS, carry_out},
    processes::{Etcd, Server},
    record::{Answer, Call},
};

async fn refused(client: &Client, method: Method, path: &str, body: &str) -> Status {
    match rest::open(client, method.clone(), path, "application/json", "application/json", body.into()).await {
        Err(Error::Api(status)) => *status,
        other => panic!("{method} {path}: {:?}", other.map(|answer| answer.status())),
    }
}

/// Compares the sentences that a client is told in these moments.
async fn check(client: &Client, sentences: &[&str]) {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#;
    let named = format!("{OBJECTS}/a");
    let asked = [
        (Method::GET, OBJECTS, ""),
        (Method::GET, &named, ""),
        (Method::POST, OBJECTS, object),
        (Method::DELETE, &named, ""),
        (Method::PUT, &named, &object.replace("\"x\"", "\"a\"")),
    ];
    for (method, path, body) in asked {
        let status = refused(client, method.clone(), path, body).await;
        assert!(matches!(status.code, 503 | 504), "{method} {path}: {status:?}");
        let said = sentences.iter().any(|sentence| status.message == *sentence);
        assert!(said, "{method} {path}: {}", status.message);
    }
    // A finding holds for half a second.
    while rest::read(client, "/readyz", rest::Form::Whole).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let unready = refused(client, Method::GET, "/readyz", "").await;
    assert!(unready.code == 500 && unready.message.contains("[-]etcd failed"), "{unready:?}");
}

const ENDED: &str = "the store is unavailable: etcd: the connection to it ended; does etcd still run, and answer?";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_away_is_told_in_a_sentence() {
    let Some(mut etcd) = Etcd::start().await else { return };
    let server = Server::start(Some(&etcd)).await;
    let client = server.client();
    let create = Call::Create { name: "a".to_owned(), value: "1".to_owned() };
    assert!(matches!(carry_out(&client, &create).await, Answer::Written(_)));
    etcd.kill();
    check(
        &client,
        &[
            "the store is unavailable: etcd: nothing listens there; does etcd run, and are address and port right?",
            ENDED,
        ],
    )
    .await;
    etcd.kill_and_start().await;
    server.until_ready().await;
    etcd.signal("STOP");
    // Calls that wait while the silent connection is given up end with it.
    check(&client, &["the store is unavailable: etcd did not answer in time", ENDED]).await;
    etcd.signal("CONT");
    server.until_ready().await;
    assert!(matches!(carry_out(&client, &Call::Get { name: "a".to_owned() }).await, Answer::Found(_)));
    // Not a line for each attempt to reach it.
    let log = server.log();
    let told = log.lines().filter(|line| line.starts_with('W') || line.starts_with('E')).count();
    assert!(told <= 12, "{log}");
}
