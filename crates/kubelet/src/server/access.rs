//! Authenticates and authorizes requests to the kubelet. The API server proves itself by its certificate. About everyone else
//! the API server is asked.

use std::sync::Arc;

use client::{Api, Client};
use http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use listener::{Peer, Place, Places};
use rustls_pki_types::CertificateDer;

use super::endpoint::Asked;

/// The name in the certificate by which the API server goes to kubelets.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const MASTERS: &str = "system:masters";
/// The API server is asked about this many clients at once, in all and from one address: strangers must not use up what the
/// node itself may ask of it.
const ASKED_ABOUT: (usize, usize) = (32, 8);

pub struct Guard {
    client: Client,
    certificates: pki::tls::ClientCertificates,
    node_name: String,
    asked_about: Arc<Places>,
}

#[derive(Default)]
struct User {
    name: String,
    groups: Vec<String>,
    uid: Option<String>,
    extra: Option<std::collections::BTreeMap<String, Vec<String>>>,
}

type Refusal = (StatusCode, String);

impl Guard {
    pub fn new(client: Client, authority: &str, node_name: &str) -> Result<Self, String> {
        let certificates = pki::tls::ClientCertificates::new(authority).map_err(|e| e.to_string())?;
        let asked_about = Places::new(ASKED_ABOUT.0, ASKED_ABOUT.1);
        Ok(Guard { client, certificates, node_name: node_name.to_owned(), asked_about })
    }

    pub async fn check(&self, peer: &Peer, headers: &HeaderMap, asked: &Asked<'_>) -> Result<(), Refusal> {
        let chain = &*peer.certificates;
        if chain.is_empty() {
            let _place = self.place(peer)?;
            return self.authorize(&self.of_token(headers).await?, asked).await;
        }
        let user = self.of_certificate(chain)?;
        // Only a certificate proves to be the API server, whose users it has checked itself.
        if user.name == API_SERVER || user.groups.iter().any(|g| g == MASTERS) {
            return Ok(());
        }
        let _place = self.place(peer)?;
        self.authorize(&user, asked).await
    }

    /// The name of the node whose certificate a client shows. Nobody else is let in, whatever the API server would say.
    pub fn node(&self, peer: &Peer) -> Result<String, Refusal> {
        let user = self.of_certificate(&peer.certificates)?;
        let name = user.name.strip_prefix("system:node:").filter(|_| user.groups.iter().any(|g| g == "system:nodes"));
        name.map(str::to_owned).ok_or_else(|| {
            (StatusCode::FORBIDDEN, format!("Forbidden (user={}): only nodes share images\n", user.name))
        })
    }

    fn place(&self, peer: &Peer) -> Result<Place, Refusal> {
        let full = |_| (StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.".to_owned());
        self.asked_about.take(&peer.address.ip()).map_err(full)
    }

    fn of_certificate(&self, chain: &[CertificateDer<'static>]) -> Result<User, Refusal> {
        let facts = self.certificates.verify(chain).map_err(|_| unauthorized())?;
        Ok(User { name: facts.common_name, groups: facts.organizations, ..Default::default() })
    }

    async fn of_token(&self, headers: &HeaderMap) -> Result<User, Refusal> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        // Of two credentials none is the one that is meant.
        let (Some(given), None) = (given.next(), given.next()) else { return Err(unauthorized()) };
        let token = given.to_str().ok().and_then(|h| h.split_once(' '));
        let (_, token) = token.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")).ok_or_else(unauthorized)?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..Default::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = api.create(&TokenReview { spec, ..Default::default() }).await;
        let status = review.ok().and_then(|r| r.status).ok_or_else(unauthorized)?;
        let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or_else(unauthorized)?;
        Ok(User {
            name: user.username.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            uid: user.uid,
            extra: user.extra,
        })
    }

    /// One of the rights that would do is enough.
    async fn authorize(&self, user: &User, asked: &Asked<'_>) -> Result<(), Refusal> {
        for subresource in asked.subresources {
            if self.may(user, asked.verb, subresource).await? {
                return Ok(());
            }
        }
        let text = format!(
            "Forbidden (user={}, verb={}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            asked.verb,
            asked.subresources.join(" ")
        );
        Err((StatusCode::FORBIDDEN, text))
    }

    async fn may(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, Refusal> {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.node_name.clone()),
            ..Default::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            uid: user.uid.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(attributes),
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = api.create(&SubjectAccessReview { spec, ..Default::default() }).await;
        match review.ok().and_then(|r| r.status) {
            Some(status) => Ok(status.allowed && status.denied != Some(true)),
            None => {
                let text = format!(
                    "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                    user.name
                );
                Err((StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }
}

fn unauthorized() -> Refusal {
    (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::endpoint::resolve;
    use bytes::Bytes;
    use http::{Method, Response};
    use http_body_util::Full;
    use json::{Value, json};

    /// A client without a certificate.
    fn somebody() -> Peer {
        Peer { address: ([10, 0, 0, 1], 1).into(), certificates: Arc::from([]) }
    }

    /// An API server that knows the token `good` (of the user `u`) and `masters`, and grants `u` what `rights` lists as
    /// `verb/subresource`.
    fn guard(rights: &'static [&'static str]) -> (Guard, pki::Authority) {
        let client = client::in_process(tower::service_fn(move |request: http::Request<client::Body>| async move {
            let body = request.into_body().collect_bytes().await.unwrap_or_default();
            let mut object: Value = serde_json::from_slice(&body).unwrap();
            object["status"] = if object["kind"] == "TokenReview" {
                match object["spec"]["token"].as_str().unwrap() {
                    "good" => json!({"authenticated": true, "user": {"username": "u", "groups": ["g"]}}),
                    "server" => json!({"authenticated": true, "user": {"username": API_SERVER}}),
                    // The name without the word that it is true.
                    _ => json!({"authenticated": false, "user": {"username": "u"}}),
                }
            } else {
                let attributes = &object["spec"]["resourceAttributes"];
                assert_eq!((&attributes["resource"], &attributes["name"]), (&json!("nodes"), &json!("n1")));
                let asked = [&attributes["verb"], &attributes["subresource"]].map(|v| v.as_str().unwrap_or_default());
                let mine = object["spec"]["user"] == "u";
                json!({"allowed": mine && rights.contains(&asked.join("/").as_str())})
            };
            let answer = Response::builder().status(201).body(Full::new(Bytes::from(object.to_string())));
            Ok::<_, std::convert::Infallible>(answer.unwrap())
        }));
        let authority = pki::Authority::create("ca").unwrap();
        (Guard::new(client, authority.certificate(), "n1").unwrap(), authority)
    }

    fn bearer(list: &[&str]) -> HeaderMap {
        let value = |text: &&str| (header::AUTHORIZATION, http::HeaderValue::from_str(text).unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in list.iter().map(value) {
            headers.append(name, value);
        }
        headers
    }

    async fn code(guard: &Guard, headers: &HeaderMap, method: &str, path: &str) -> u16 {
        let method: Method = method.parse().unwrap();
        guard
            .check(&somebody(), headers, &resolve(&method, path))
            .await
            .map_or_else(|(code, _)| code.as_u16(), |()| 200)
    }

    #[tokio::test]
    async fn only_a_certificate_of_a_node_proves_to_be_a_node() {
        let (guard, authority) = guard(&["get/proxy"]);
        let (other, nobody) = (pki::Authority::create("other").unwrap(), somebody());
        let shows = |authority: &pki::Authority, name: &str, group: Option<&str>| {
            let credential = authority.issue(&pki::Subject::client(name, group)).unwrap();
            let chain = pki::inspect::chain(&credential.certificate).unwrap();
            guard.node(&Peer { certificates: chain.into(), ..somebody() }).map_err(|(code, _)| code.as_u16())
        };
        assert_eq!(shows(&authority, "system:node:n2", Some("system:nodes")), Ok("n2".to_owned()));
        assert_eq!(shows(&authority, "system:node:n2", None), Err(403));
        assert_eq!(shows(&authority, "n2", Some("system:nodes")), Err(403));
        assert_eq!(shows(&authority, API_SERVER, Some(MASTERS)), Err(403));
        assert_eq!(shows(&other, "system:node:n2", Some("system:nodes")), Err(401));
        assert_eq!(guard.node(&nobody).map_err(|(code, _)| code.as_u16()), Err(401));
    }

    #[tokio::test]
    async fn nobody_is_let_in_without_one_credential_that_holds() {
        let (guard, _) = guard(&["get/healthz", "get/proxy"]);
        for (headers, expected) in [
            (bearer(&[]), 401),
            (bearer(&["Bearer good"]), 200),
            (bearer(&["Bearer bad"]), 401),
            (bearer(&["Basic good"]), 401),
            (bearer(&["bearer good"]), 200),
            (bearer(&["Bearer"]), 401),
            (bearer(&["Bearer bad", "Bearer good"]), 401),
            (bearer(&["Bearer good", "Bearer good"]), 401),
        ] {
            assert_eq!(code(&guard, &headers, "GET", "/healthz").await, expected, "{headers:?}");
            // An unknown path answers alike: a stranger does not learn which paths there are.
            assert_eq!(code(&guard, &headers, "GET", "/nothing").await, expected, "{headers:?}");
        }
        let named = bearer(&["Bearer server"]);
        assert_eq!(code(&guard, &named, "GET", "/pods").await, 403, "a token is not the API server, whatever its name");
    }

    #[tokio::test]
    async fn a_right_opens_what_it_names_and_no_more() {
        let all = [
            ("GET", "/healthz"),
            ("GET", "/pods"),
            ("GET", "/configz"),
            ("GET", "/metrics"),
            ("GET", "/stats/summary"),
            ("GET", "/containerLogs/n/p/c"),
            ("GET", "/exec/n/p/c"),
            ("POST", "/exec/n/p/c"),
            ("POST", "/portForward/n/p"),
            ("GET", "/metrics/../exec/n/p/c"),
            ("GET", "//metrics"),
            ("GET", "/metrics/resource"),
            ("GET", "/logs/syslog"),
            ("POST", "/checkpoint/n/p/c"),
            ("PUT", "/debug/flags/v"),
        ];
        let check = async |rights: &'static [&'static str], expected: &[usize]| {
            let (guard, _) = guard(rights);
            let headers = bearer(&["Bearer good"]);
            let mut open = Vec::new();
            for (place, (method, path)) in all.iter().enumerate() {
                if code(&guard, &headers, method, path).await == 200 {
                    open.push(place);
                }
            }
            assert_eq!(open, expected, "{rights:?}");
        };
        check(&[], &[]).await;
        check(&["get/healthz"], &[0]).await;
        check(&["get/pods"], &[1]).await;
        check(&["get/configz"], &[2]).await;
        check(&["get/metrics"], &[3, 11]).await;
        check(&["get/stats"], &[4]).await;
        check(&["get/log"], &[12]).await;
        check(&["create/checkpoint"], &[13]).await;
        check(&["create/log", "get/checkpoint", "create/metrics", "get/status", "get/"], &[]).await;
        // Reading runs nothing.
        check(&["get/proxy"], &[0, 1, 2, 5, 9, 10]).await;
        check(&["create/proxy"], &[6, 7, 8]).await;
        check(&["update/proxy"], &[14]).await;
        let (guard, _) = guard(&[]);
        let refused =
            guard.check(&somebody(), &bearer(&["Bearer good"]), &resolve(&Method::GET, "/pods")).await.unwrap_err();
        let words = "Forbidden (user=u, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
        assert_eq!(refused, (StatusCode::FORBIDDEN, words.to_owned()));
    }
}
