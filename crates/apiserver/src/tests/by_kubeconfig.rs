//! Servers that kubeconfig files name, asked over real connections: good ones, and those that hang, flood, redirect and die.

use api::Value;
use bytes::Bytes;
use clock::Duration;
use json::json;

use super::hook::{Hook, Mood};
use crate::outbound::kubeconfig::{Failure, PATIENCE, Server, retried};

const LIMIT: usize = 1 << 16;

async fn ask(server: &Server) -> Result<Value, Failure> {
    let answer = server.post("tests", Bytes::from("{\"kind\":\"Question\"}"), LIMIT).await?;
    Ok(json::parse(std::str::from_utf8(&answer).unwrap()).unwrap())
}

#[tokio::test]
async fn questions_go_where_the_file_says_and_show_what_it_says() {
    let hook = Hook::start().await;
    hook.be("/some/path", Mood::Lying(|question| json!({"asked": question["kind"]})));
    let check = async |user: &str, expected: Option<&str>| {
        let (_folder, file) = hook.kubeconfig("/some/path", user);
        let server = Server::of_file(&file, PATIENCE).unwrap();
        assert_eq!(ask(&server).await.unwrap(), json!({"asked": "Question"}));
        let (uri, headers, _) = hook.questions().pop().unwrap();
        assert_eq!((&*uri, headers["user-agent"].as_bytes()), ("/some/path?timeout=30s", &b"tests"[..]));
        assert_eq!(headers.get("authorization").map(|v| v.to_str().unwrap()), expected, "{user}");
    };
    check("", None).await;
    check("token: t", Some("Bearer t")).await;
    check("username: u, password: p", Some("Basic dTpw")).await;
    let (_folder, file) = hook.kubeconfig("/", "exec: {command: aws}");
    let error = Server::of_file(&file, PATIENCE).err().unwrap();
    let said = std::error::Error::source(&error).unwrap().to_string();
    assert!(said.contains("runs a plugin (exec), which skiff does not"), "{said}");
}

#[tokio::test]
async fn what_is_no_answer_is_told() {
    let hook = Hook::start().await;
    let (_folder, file) = hook.kubeconfig("/", "");
    let server = Server::of_file(&file, Duration::from_millis(200)).unwrap();
    let check = async |mood: Mood, code: Option<u16>, (late, again): (bool, bool), said: &str| {
        hook.be("/", mood);
        let failure = ask(&server).await.unwrap_err();
        assert_eq!((failure.code, failure.late, failure.again), (code, late, again), "{failure}");
        assert!(failure.message.contains(said), "{failure}");
    };
    check(Mood::Hanging, None, (true, false), "context deadline exceeded").await;
    // It is far from sending that much within the time, or it is cut.
    let server = Server::of_file(&file, PATIENCE).unwrap();
    hook.be("/", Mood::Endless);
    assert_eq!(ask(&server).await.unwrap_err().message, "the answer has more than 65536 bytes");
    let check = async |mood: Mood, code: Option<u16>, again: bool, said: &str| {
        hook.be("/", mood);
        let failure = ask(&server).await.unwrap_err();
        assert_eq!((failure.code, failure.late, failure.again), (code, code == Some(504), again), "{failure}");
        assert!(failure.message.contains(said), "{failure}");
    };
    check(Mood::Redirecting, Some(307), false, "responded with the status code 307").await;
    check(Mood::Text(500, "it broke"), Some(500), true, "an error on the server (\"it broke\")").await;
    check(Mood::Text(503, ""), Some(503), false, "currently unable to handle the request").await;
    check(Mood::Text(504, ""), Some(504), true, "in the time allotted").await;
    check(Mood::Text(429, ""), Some(429), true, "too many requests").await;
    check(Mood::Text(401, ""), Some(401), false, "provide credentials").await;
    check(Mood::Dying, None, false, "").await;
    // Whoever else has the address is not believed.
    let other = Hook::start().await;
    let (_folder, file) = other.kubeconfig("/", "");
    let text = std::fs::read_to_string(&file).unwrap().replace(&other.bundle(), &hook.bundle());
    std::fs::write(&file, text).unwrap();
    let failure = ask(&Server::of_file(&file, PATIENCE).unwrap()).await.unwrap_err();
    assert!(failure.message.contains("tls") && other.questions().is_empty(), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn questions_are_put_again_five_times_at_most() {
    let check = async |fails: u32, again: bool, expected: Result<u32, u32>, seconds: std::ops::Range<f64>| {
        let (begin, mut tries) = (clock::Instant::now(), 0);
        let answer = retried(
            Duration::from_secs(1),
            |_: &u32| again,
            || {
                tries += 1;
                std::future::ready(if tries <= fails { Err(tries) } else { Ok(tries) })
            },
        );
        assert_eq!(answer.await, expected);
        assert!(seconds.contains(&begin.elapsed().as_secs_f64()), "{:?}", begin.elapsed());
    };
    check(0, true, Ok(1), 0.0..0.1).await;
    check(2, true, Ok(3), 2.5..3.1).await;
    check(9, true, Err(5), 8.0..9.8).await;
    check(9, false, Err(1), 0.0..0.1).await;
}
