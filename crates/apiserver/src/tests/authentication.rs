//! The tokens that the whole server believes: of issuers of a file that is followed, of strangers, and of a webhook.

use api::Value;
use clock::Duration;
use json::json;
use pki::SigningKey;

use super::{
    assembled::{Talk, options},
    hook::{Hook, Mood},
    idp::{Idp, signed},
};
use crate::{
    Options,
    auth::authn::{
        structured::{Configuration, Settings},
        token_webhook,
    },
};

const WHO: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";

fn config(idp: &Idp, prefix: &str, more: &str) -> String {
    let authorities = json!(idp.authorities());
    format!(
        "{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, jwt: [{{issuer: {{url: '{}', \
         audiences: [us], certificateAuthority: {authorities}}}, claimMappings: {{username: {{claim: sub, prefix: '{prefix}'}}}}}}]{more}}}",
        idp.url()
    )
}

async fn who(talk: &Talk, token: &str) -> String {
    let (code, answer) = talk.say(token, WHO, json!({})).await;
    let name = answer["status"]["userInfo"]["username"].as_str().map(str::to_owned);
    name.unwrap_or_else(|| code.to_string())
}

#[tokio::test]
async fn issuers_are_believed_as_the_file_says_now() {
    let key = SigningKey::create().unwrap();
    let idp = Idp::start(&[&key.public]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("authentication.yaml");
    const ANONYMOUS: &str = ", anonymous: {enabled: true, conditions: [{path: /livez}]}";
    let text = config(&idp, "a:", ANONYMOUS);
    std::fs::write(&file, &text).unwrap();
    let configuration = Configuration::parse(&text, &["https://us".to_owned()]).unwrap();
    let authentication = Settings { configuration, file: Some((file.clone(), text)) };
    let talk = Talk::over(Options { authentication, ..options() }).await;
    let token = signed(&key, &idp.claims(json!({})));
    assert_eq!(who(&talk, &token).await, "a:jane");
    assert_eq!(who(&talk, "secret").await, "jane", "other tokens are known as before");
    let review = json!({"spec": {"token": token, "audiences": ["https://us"]}});
    let review = talk.ok("+root", "POST /apis/authentication.k8s.io/v1/tokenreviews", review).await;
    assert_eq!(review["status"]["user"]["groups"], json!(["system:authenticated"]));
    let nobodys = json!({"spec": {"token": "nobodys"}});
    let review = talk.ok("+root", "POST /apis/authentication.k8s.io/v1/tokenreviews", nobodys).await;
    assert_eq!(review["status"], json!({"user": {}, "error": "invalid bearer token"}));
    // Users who are remembered by their tokens go with the configuration.
    std::fs::write(&file, config(&idp, "b:", ANONYMOUS)).unwrap();
    while who(&talk, &token).await == "a:jane" {
        tokio::task::yield_now().await;
    }
    assert_eq!(who(&talk, &token).await, "b:jane");
    assert_eq!(talk.say("", "GET /livez", Value::Null).await.0, 200);
    assert_eq!(talk.say("", "GET /readyz", Value::Null).await.0, 401, "strangers may ask for the one path");
    assert_eq!(talk.say("", "GET /livez/ping", Value::Null).await.0, 401);
    // The server's own issuer cannot be somebody else's: such a file changes nothing.
    let failed = async || {
        let request =
            http::Request::get("/metrics").extension(std::sync::Arc::new(crate::User::new("root", ["system:masters"])));
        let response = talk.0.handle(request.body(crate::http::body::Body::empty()).unwrap()).await;
        let page = response.into_body().collect(1 << 24).await.unwrap();
        let page = String::from_utf8_lossy(&page).into_owned();
        let name = "apiserver_authentication_config_controller_automatic_reloads_total{status=\"failure\"";
        let line = page.lines().find(|line| line.starts_with(name));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap())
    };
    // Nor may strangers be let in otherwise than at the start.
    let hijack = config(&idp, "c:", ANONYMOUS).replace(&idp.url(), "https://us");
    for (count, text) in [hijack, config(&idp, "c:", ", anonymous: {enabled: true}")].into_iter().enumerate() {
        std::fs::write(&file, text).unwrap();
        while failed().await <= count as u32 {
            tokio::task::yield_now().await;
        }
        assert_eq!(who(&talk, &token).await, "b:jane");
    }
    let empty = format!("{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration{ANONYMOUS}}}");
    std::fs::write(&file, empty).unwrap();
    while who(&talk, &token).await != "401" {
        tokio::task::yield_now().await;
    }
    assert_eq!(talk.say("", "GET /readyz", Value::Null).await.0, 401);
}

#[tokio::test]
async fn a_webhook_is_asked_about_tokens_that_nobody_else_knows() {
    let hook = Hook::start().await;
    hook.be("/", Mood::Lying(|review| {
        let user = json!({"username": "joe", "groups": ["ops"]});
        let known = review["spec"]["token"] == "joes";
        json!({"kind": "TokenReview", "apiVersion": review["apiVersion"], "status": {"authenticated": known, "user": user}})
    }));
    let (_folder, kubeconfig) = hook.kubeconfig("/", "");
    let settings = token_webhook::Settings { kubeconfig, version: "v1".into(), remembered: Duration::from_secs(60) };
    let talk = Talk::over(Options { token_webhook: Some(settings), ..options() }).await;
    assert_eq!(who(&talk, "joes").await, "joe");
    assert_eq!(who(&talk, "secret").await, "jane");
    assert_eq!(who(&talk, "nobodys").await, "401");
    let asked: Vec<Value> = hook.questions().into_iter().map(|(.., review)| review["spec"].clone()).collect();
    assert_eq!(
        asked,
        [
            json!({"token": "joes", "audiences": ["https://us"]}),
            json!({"token": "nobodys", "audiences": ["https://us"]})
        ]
    );
}
