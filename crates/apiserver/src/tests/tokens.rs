//! The tokens that the server makes for service accounts: for which account, bound to what, and checked by others.

use api::Value;
use json::json;

use super::assembled::Talk;

#[tokio::test(start_paused = true)]
async fn tokens_can_be_checked_elsewhere() {
    let talk = Talk::start().await;
    const CONFIGURATION: &str = "GET /.well-known/openid-configuration";
    assert_eq!(talk.say("", CONFIGURATION, json!(null)).await.0, 403);
    let configuration = talk.ok("+root", CONFIGURATION, json!(null)).await;
    assert_eq!(configuration["issuer"], "https://us");
    assert_eq!(configuration["id_token_signing_alg_values_supported"], json!(["ES256"]));
    assert!(configuration["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"));
    let account =
        talk.ok("+root", "POST /api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "a"}}));
    account.await;
    let path = "POST /api/v1/namespaces/default/serviceaccounts/a/token";
    let token = talk.ok("+root", path, json!({"spec": {}})).await["status"]["token"].as_str().unwrap().to_owned();
    let keys = talk.ok(&token, "GET /openid/v1/jwks", json!(null)).await;
    assert_eq!((&keys["keys"][0]["kty"], &keys["keys"][0]["use"]), (&json!("EC"), &json!("sig")));
    let header = jsonwebtoken::decode_header(&token).unwrap();
    assert_eq!(header.kid.as_deref(), keys["keys"][0]["kid"].as_str());
}

#[tokio::test(start_paused = true)]
async fn a_token_is_for_the_account_that_is_meant() {
    let talk = Talk::start().await;
    const ACCOUNTS: &str = "POST /api/v1/namespaces/default/serviceaccounts";
    let account = talk.ok("+root", ACCOUNTS, json!({"metadata": {"name": "a"}})).await;
    let ask = async |request: Value| talk.say("+root", &format!("{ACCOUNTS}/a/token"), request).await;
    let (code, answer) = ask(json!({"metadata": {"name": "b"}, "spec": {}})).await;
    let said = "TokenRequest.authentication.k8s.io \"a\" is invalid: metadata.name: Invalid value: \"b\": must match the service \
                account name if specified";
    assert_eq!((code, answer["message"].as_str().unwrap()), (422, said));
    assert_eq!(ask(json!({"metadata": {"namespace": "kube-system"}, "spec": {}})).await.0, 400);
    assert_eq!(ask(json!({"metadata": {"uid": "another"}, "spec": {}})).await.0, 409);
    let uid = &account["metadata"]["uid"];
    let (code, answer) = ask(json!({"metadata": {"name": "a", "namespace": "default", "uid": uid}, "spec": {}})).await;
    assert_eq!((code, &answer["metadata"]["uid"]), (201, uid));
    let bind = async |version: &str, kind: &str, uid: &str| {
        let object = json!({"apiVersion": version, "kind": kind, "name": "s", "uid": uid});
        let (code, answer) = ask(json!({"spec": {"boundObjectRef": object}})).await;
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    let refused = "cannot bind token to object of type apps/v1, Kind=Deployment".to_owned();
    assert_eq!(bind("apps/v1", "Deployment", "").await, (400, refused));
    assert_eq!(bind("v1", "Secret", "").await, (404, "secrets \"s\" not found".to_owned()));
    talk.ok("+root", "POST /api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).await;
    let (code, message) = bind("v1", "Secret", "another").await;
    assert_eq!(code, 409, "{message}");
    assert!(
        message.starts_with("Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference")
    );
    assert_eq!(bind("v1", "Secret", "").await.0, 201);
}
