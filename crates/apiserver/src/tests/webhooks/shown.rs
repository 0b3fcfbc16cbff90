//! The credentials that webhooks are shown: those that the administrator's file has for them, and nothing else.

use pki::Subject;

use super::*;
use crate::{
    admission::{Configuration, webhook::shown::Shown},
    assemble::Options,
    outbound::credentials::Credentials,
    tests::assembled::options,
};

fn encoded(pem: &str) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem)
}

#[tokio::test]
async fn each_webhook_is_shown_the_credentials_of_its_name() {
    let hook = Hook::start().await;
    let known = hook.authority.issue(&Subject::client("apiserver", None)).unwrap();
    let (certificate, key) = (encoded(&known.certificate), encoded(&known.key));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, users: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("users: [{users}]")).unwrap();
        Credentials::of_file(&path).unwrap()
    };
    let port = hook.address.port();
    let certified = format!("client-certificate-data: {certificate}, client-key-data: {key}");
    let mutating = format!("{{name: 'localhost:{port}', user: {{token: t, {certified}}}}}");
    let webhooks = Shown {
        mutating: file("mutating", &mutating),
        validating: file("validating", "{name: '*', user: {username: u, password: p}}, {name: localhost, user: {}}"),
    };
    let admission = Configuration { webhooks, ..Configuration::default() };
    let scene = Scene { talk: Talk::over(Options { admission, ..options() }).await, hook };
    scene.configure("mutating", "m", &[scene.webhook("m", json!({}))]).await;
    scene.configure("validating", "v", &[scene.webhook("v", json!({}))]).await;
    scene.ok(&format!("POST {MAPS}"), map("m")).await;
    let said = scene.hook.questions().into_iter().map(|(path, headers, _)| {
        let said = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        (path.split('?').next().unwrap().to_owned(), said)
    });
    let said = said.collect::<Vec<_>>();
    let expected = [("/m", "Bearer t"), ("/v", "Basic dTpw")];
    assert_eq!(said, expected.map(|(path, said)| (path.to_owned(), Some(said.to_owned()))));
    // One connection shows the certificate; a webhook that is not meant to see it is asked over another one.
    let shown = scene.hook.shown();
    let certificate = pki::inspect::chain(&known.certificate).unwrap()[0].to_vec();
    assert_eq!(shown, [Some(certificate), None]);
}
