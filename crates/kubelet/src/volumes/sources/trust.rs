//! The authorities that a Pod's volume names: the certificates of ClusterTrustBundles.
//! Upstream counterpart: pkg/kubelet/clustertrustbundle.

use api::rules::selector::Selector;
use client::{Api, Client};
use k8s_openapi::api::{certificates::v1beta1::ClusterTrustBundle, core::v1::ClusterTrustBundleProjection};

use crate::volumes::{error::VolumeError, sources::pem};

fn error(why: impl Into<String>) -> VolumeError {
    VolumeError::TrustBundle(why.into())
}

/// The certificates of the bundle of that name, or of all that the signer and the labels select. Nothing is an error, unless the
/// source is optional.
pub async fn anchors(client: &Client, wanted: &ClusterTrustBundleProjection) -> Result<String, VolumeError> {
    let bundles: Api<ClusterTrustBundle> = Api::all(client.clone());
    let (found, missing) = match (&wanted.name, &wanted.signer_name) {
        (Some(name), _) => {
            let found =
                bundles.find(name).await.map_err(|e| error(format!("while getting ClusterTrustBundle: {e}")))?;
            let missing =
                format!("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found");
            (found.into_iter().collect(), missing)
        }
        (None, Some(signer)) => {
            let missing = "combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned();
            (of_signer(&bundles, signer, wanted).await?, missing)
        }
        (None, None) => {
            return Err(error("ClusterTrustBundle projection requires either name or signerName to be set"));
        }
    };
    if found.is_empty() && wanted.optional != Some(true) {
        return Err(error(missing));
    }
    Ok(pem::merged(found.iter().map(|bundle| bundle.spec.trust_bundle.as_str())))
}

async fn of_signer(
    bundles: &Api<ClusterTrustBundle>,
    signer: &str,
    wanted: &ClusterTrustBundleProjection,
) -> Result<Vec<ClusterTrustBundle>, VolumeError> {
    // A selector that is not there selects nothing.
    let Some(selector) = &wanted.label_selector else { return Ok(Vec::new()) };
    let selector =
        Selector::of_object(Some(selector)).map_err(|e| error(format!("while parsing label selector: {e}")))?;
    let fields = format!("spec.signerName={signer}");
    let listed = bundles.list(&[("fieldSelector", &fields), ("labelSelector", &selector.to_string())]).await;
    listed.map_err(|e| error(format!("while listing ClusterTrustBundles matching label selector {selector}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
    const TWO: &str = "-----BEGIN CERTIFICATE-----\nBAUG\n-----END CERTIFICATE-----\n";

    /// An API server with the bundles `a` and `b` of the signer `x.y/z` and one without a signer.
    fn client() -> Client {
        client::in_process(tower::service_fn(|request: http::Request<client::Body>| async move {
            let bundle = |name: &str, text: String| json!({"metadata": {"name": name}, "spec": {"trustBundle": text}});
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
            let (code, body) = match path.rsplit('/').next() {
                Some("clustertrustbundles") if query.contains("fieldSelector=spec.signerName%3Dx.y%2Fz") => {
                    let all = [bundle("a", format!("{TWO}{ONE}")), bundle("b", format!("# ours\n{ONE}"))];
                    let items: Vec<Value> = if query.contains("a%3Db") { all[1..].to_vec() } else { all.to_vec() };
                    (200, json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
                }
                Some("clustertrustbundles") => {
                    (200, json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}))
                }
                Some("plain") => (200, bundle("plain", TWO.to_owned())),
                _ => (404, json!({"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"})),
            };
            let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }))
    }

    #[tokio::test]
    async fn bundles_are_named_or_selected_and_each_authority_comes_once() {
        let client = client();
        let check = async |wanted: Value, expected: Result<&str, &str>| {
            let mut source = wanted.clone();
            source["path"] = "ca".into();
            let got = anchors(&client, &json::from_value(source).unwrap()).await.map_err(|e| e.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{wanted}");
        };
        let both = format!("{ONE}{TWO}");
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        check(json!({"name": "plain"}), Ok(TWO)).await;
        check(json!({"name": "gone", "optional": true}), Ok("")).await;
        let missing = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"gone\" not found";
        check(json!({"name": "gone"}), Err(missing)).await;
        check(json!({"signerName": "x.y/z", "labelSelector": {}}), Ok(&both)).await;
        check(json!({"signerName": "x.y/z", "labelSelector": {"matchLabels": {"a": "b"}}}), Ok(ONE)).await;
        // A selector that is not there selects nothing.
        check(json!({"signerName": "x.y/z"}), Err(none)).await;
        check(json!({"signerName": "x.y/other", "labelSelector": {}}), Err(none)).await;
        check(json!({"signerName": "x.y/other", "labelSelector": {}, "optional": true}), Ok("")).await;
    }
}
