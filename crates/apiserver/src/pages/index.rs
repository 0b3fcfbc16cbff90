//! `/`: the paths that the server answers, apart from those for developers.
//! Upstream counterpart: apiserver/pkg/server/routes, its `index.go`, and what is registered as listed.

use std::collections::BTreeSet;

use api::Value;
use json::json;

use super::{discovery, health::Checks, issuer::IssuerDocuments, zpages::Zpages};
use crate::state::State;

/// The pages that every server has.
const PAGES: [&str; 6] = ["/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/version"];

/// The document, with the pages that there are of these.
pub fn paths(state: &State, checks: &Checks, issuer: Option<&IssuerDocuments>, zpages: &Zpages) -> Value {
    let issuer = issuer.into_iter().flat_map(|_| IssuerDocuments::PATHS);
    let pages = PAGES.into_iter().chain(issuer).chain(zpages.paths()).map(ToOwned::to_owned);
    let paths: BTreeSet<String> = discovery::paths(state).into_iter().chain(checks.paths()).chain(pages).collect();
    json!({"paths": paths})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Request, StatusCode};

    use super::*;
    use crate::{User, http::body::Body, tests::assembled::Talk};

    #[tokio::test(start_paused = true)]
    async fn what_is_listed_is_served() {
        let talk = Talk::start().await;
        let get = async |path: &str| {
            let root = Arc::new(User::new("root", ["system:masters"]).authenticated());
            let answer = talk.0.handle(Request::get(path).extension(root).body(Body::empty()).unwrap()).await;
            (answer.status(), answer.into_body().collect(1 << 24).await.unwrap())
        };
        let (_, text) = get("/").await;
        let document: Value = serde_json::from_slice(&text).unwrap();
        let listed: Vec<&str> =
            document["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
        assert!(listed.is_sorted(), "{listed:?}");
        for path in [
            "/api",
            "/api/v1",
            "/apis",
            "/apis/",
            "/apis/apps",
            "/apis/apps/v1",
            "/healthz",
            "/healthz/etcd",
            "/healthz/ping",
            "/healthz/poststarthook/rbac/bootstrap-roles",
            "/livez/autoregister-completion",
            "/livez/ping",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/",
            "/readyz/informer-sync",
            "/readyz/ping",
            "/version",
        ] {
            assert!(listed.contains(&path), "{path}: {listed:?}");
        }
        let hidden = ["/", "/debug", "/configz", "/skiff", "/livez/informer-sync", "/statusz", "/flagz"];
        for path in hidden {
            assert!(!listed.contains(&path), "{path}");
        }
        for path in IssuerDocuments::PATHS {
            assert_eq!(listed.contains(&path), get(path).await.0 == StatusCode::OK, "{path}");
        }
        for path in listed {
            // A check says what it finds.
            let (code, text) = get(path).await;
            let check = code == StatusCode::INTERNAL_SERVER_ERROR && path.contains("z");
            assert!(code == StatusCode::OK || check, "{path}: {code} {text:?}");
        }
    }
}
