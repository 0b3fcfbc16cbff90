//! Front proxies over real connections: whose certificates speak for others, under which names and in which headers.

use api::Value;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use json::json;
use pki::{Authority, ClientCertificates, Credential, Subject};

use super::{assembled::options, listening::Reached};
use crate::{Options, auth::authn::front_proxy::Headers, bootstrap::Cluster};

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn issued(authority: &Authority, name: &str) -> Credential {
    authority.issue(&Subject::client(name, None)).unwrap()
}

/// A server that believes clients of one authority, and proxies of another one.
struct Scene {
    reached: Reached,
    _listening: crate::Listening,
    clients: Authority,
    proxies: Authority,
    certificates: ClientCertificates,
}

impl Scene {
    async fn start(names: &[&str], headers: Headers) -> Scene {
        let (clients, proxies) = (Authority::create("clients").unwrap(), Authority::create("proxies").unwrap());
        let certificates = ClientCertificates::new(proxies.certificate()).unwrap();
        let cluster = Cluster { front_proxy_names: list(names), front_proxy_headers: headers, ..Cluster::example() };
        let options = Options {
            cluster,
            client_certificates: Some(ClientCertificates::new(clients.certificate()).unwrap()),
            front_proxy: Some(certificates.clone()),
            ..options()
        };
        let (reached, listening) = Reached::start(options).await;
        Scene { reached, _listening: listening, clients, proxies, certificates }
    }

    /// The user that the server takes the sender for; the code where that is nobody who may ask.
    async fn who(&self, shown: Option<&Credential>, headers: &[(&str, &str)]) -> String {
        let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews").header("host", "us");
        let request = request.header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = self.reached.ask(shown, request.body(Full::from(Bytes::from("{}"))).unwrap()).await;
        if answer.code != 201 {
            return answer.code.to_string();
        }
        let review: Value = json::parse(&answer.text).unwrap();
        let user = &review["status"]["userInfo"];
        let groups = user["groups"].as_array().unwrap().iter().map(|group| group.as_str().unwrap());
        format!("{} {}", user["username"].as_str().unwrap(), groups.collect::<Vec<_>>().join(","))
    }
}

#[tokio::test]
async fn only_a_proxy_of_an_allowed_name_speaks_for_others() {
    let scene = Scene::start(&["proxy"], Headers::default()).await;
    let root = [("x-remote-user", "jane"), ("x-remote-group", "dev")];
    let proxy = issued(&scene.proxies, "proxy");
    assert_eq!(scene.who(Some(&proxy), &root).await, "jane dev,system:authenticated");
    // The proxy itself is nobody here.
    assert_eq!(scene.who(Some(&proxy), &[]).await, "401");
    assert_eq!(scene.who(Some(&issued(&scene.proxies, "other")), &root).await, "401", "another name");
    let namesake = issued(&scene.clients, "proxy");
    let themselves = "proxy system:authenticated";
    assert_eq!(scene.who(Some(&namesake), &root).await, themselves, "the name comes from another authority");
    let stranger = issued(&Authority::create("proxies").unwrap(), "proxy");
    assert_eq!(scene.who(Some(&stranger), &root).await, "401", "the authority is a namesake");
    // A certificate for servers is none for clients.
    let server = scene.proxies.issue(&Subject::server("proxy", vec!["127.0.0.1".into()])).unwrap();
    assert_eq!(scene.who(Some(&server), &root).await, "401");
    assert_eq!(scene.who(None, &root).await, "403", "headers alone name nobody");
    let twice = [root[0], ("x-remote-user", "root")];
    assert_eq!(scene.who(Some(&proxy), &twice).await, "401");
    // Other authorities take the place of those before.
    let later = Authority::create("later").unwrap();
    scene.certificates.replace(later.certificate()).unwrap();
    assert_eq!(scene.who(Some(&proxy), &root).await, "401");
    assert_eq!(scene.who(Some(&issued(&later, "proxy")), &root).await, "jane dev,system:authenticated");
}

#[tokio::test]
async fn without_names_every_proxy_of_the_authorities_speaks_and_no_client() {
    let scene = Scene::start(&[], Headers::default()).await;
    let root = [("x-remote-user", "jane")];
    for name in ["proxy", "any"] {
        assert_eq!(scene.who(Some(&issued(&scene.proxies, name)), &root).await, "jane system:authenticated");
    }
    assert_eq!(scene.who(Some(&issued(&scene.clients, "bob")), &root).await, "bob system:authenticated");
}

#[tokio::test]
async fn headers_of_other_names_count_instead_of_the_usual_ones() {
    let headers = Headers {
        user: list(&["X-User"]),
        uid: Vec::new(),
        groups: list(&["X-Team"]),
        extra_prefixes: list(&["X-More-"]),
    };
    let scene = Scene::start(&["proxy"], headers).await;
    let proxy = issued(&scene.proxies, "proxy");
    let check = async |headers: &[(&str, &str)], expected: &str| {
        assert_eq!(scene.who(Some(&proxy), headers).await, expected, "{headers:?}");
    };
    check(&[("x-user", "jane"), ("x-team", "a"), ("x-team", "b")], "jane a,b,system:authenticated").await;
    check(&[("x-remote-user", "root"), ("x-remote-group", "system:masters")], "401").await;
    check(&[("x-user", "jane"), ("x-remote-group", "system:masters")], "jane system:authenticated").await;
    let objects = scene.reached.server.objects();
    let maps = objects.definition("", "configmaps").unwrap();
    let told = objects.get(&maps, "kube-system", "extension-apiserver-authentication").await.unwrap();
    let of = |key: &str| told["data"][format!("requestheader-{key}").as_str()].clone();
    assert_eq!(
        ["allowed-names", "username-headers", "uid-headers", "group-headers", "extra-headers-prefix"].map(of),
        ["[\"proxy\"]", "[\"X-User\"]", "[]", "[\"X-Team\"]", "[\"X-More-\"]"].map(|text| json!(text))
    );
}
