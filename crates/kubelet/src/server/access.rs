//! Who may ask a kubelet: the API server by its certificate; everyone else as the API server says when asked.

use client::Client;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, api::PostParams};
use rustls_pki_types::CertificateDer;

/// The name in the certificate by which the API server goes to kubelets.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const MASTERS: &str = "system:masters";

pub struct Guard {
    client: Client,
    certificates: pki::tls::ClientCertificates,
    node_name: String,
}

struct User {
    name: String,
    groups: Vec<String>,
}

type Refusal = (StatusCode, String);

impl Guard {
    pub fn new(client: Client, authority: &str, node_name: &str) -> Result<Self, String> {
        let certificates = pki::tls::ClientCertificates::new(authority).map_err(|e| e.to_string())?;
        Ok(Guard { client, certificates, node_name: node_name.to_owned() })
    }

    pub async fn check(&self, chain: &[CertificateDer<'static>], request: &Request<Incoming>) -> Result<(), Refusal> {
        let user = self.authenticate(chain, request).await?;
        if user.name == API_SERVER || user.groups.iter().any(|g| g == MASTERS) {
            return Ok(());
        }
        self.authorize(user, request).await
    }

    async fn authenticate(
        &self,
        chain: &[CertificateDer<'static>],
        request: &Request<Incoming>,
    ) -> Result<User, Refusal> {
        let unauthorized = || (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned());
        if !chain.is_empty() {
            let facts = self.certificates.verify(chain).map_err(|_| unauthorized())?;
            return Ok(User { name: facts.common_name, groups: facts.organizations });
        }
        let header = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let token = header.and_then(|h| h.strip_prefix("Bearer ")).ok_or_else(unauthorized)?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..Default::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &TokenReview { spec, ..Default::default() }).await;
        let status = review.ok().and_then(|r| r.status).ok_or_else(unauthorized)?;
        let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or_else(unauthorized)?;
        Ok(User { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() })
    }

    async fn authorize(&self, user: User, request: &Request<Incoming>) -> Result<(), Refusal> {
        let verb = match request.method().as_str() {
            "POST" => "create",
            "PUT" => "update",
            "DELETE" => "delete",
            _ => "get",
        };
        let subresource = match request.uri().path().split('/').nth(1) {
            Some("metrics") => "metrics",
            Some("stats") => "stats",
            Some("logs") => "log",
            Some("pods" | "runningpods") => "pods",
            Some("healthz") => "healthz",
            Some("configz") => "configz",
            _ => "proxy",
        };
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.node_name.clone()),
            ..Default::default()
        };
        let name = user.name.clone();
        let spec = SubjectAccessReviewSpec {
            user: Some(user.name),
            groups: Some(user.groups),
            resource_attributes: Some(attributes),
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &SubjectAccessReview { spec, ..Default::default() }).await;
        match review.ok().and_then(|r| r.status) {
            Some(status) if status.allowed => Ok(()),
            Some(_) => {
                let text = format!("Forbidden (user={name}, verb={verb}, resource=nodes, subresource={subresource})");
                Err((StatusCode::FORBIDDEN, text))
            }
            None => Err((StatusCode::INTERNAL_SERVER_ERROR, "Authorization error".to_owned())),
        }
    }
}
