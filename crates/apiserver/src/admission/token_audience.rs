//! The audiences that a node may ask tokens for: those that a Pod's volumes name, and those granted to the node.
//! Upstream: the node audience restriction of NodeRestriction (KEP-4935).

use api::Value;
use api::status::StatusError;

use super::{
    attributes::Attributes,
    plugin::{Context, items, text},
};
use crate::auth;

const VERB: &str = "request-serviceaccounts-token-audience";

/// Whether a volume of the Pod wants tokens for the audience: a projected one, or one whose CSI driver asks for them. The
/// empty audience is the API server's own.
pub async fn names(context: &Context, pod: &Value, audience: &str) -> Result<bool, StatusError> {
    for volume in items(pod, "/spec/volumes") {
        let projected = items(volume, "/projected/sources").filter_map(|s| s.get("serviceAccountToken"));
        if projected.into_iter().any(|token| text(token, "/audience") == audience) {
            return Ok(true);
        }
        let driver = driver(context, pod, volume).await?;
        if !driver.is_empty() && driver_wants(context, &driver, audience).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The CSI driver behind a volume; empty when there is none.
async fn driver(context: &Context, pod: &Value, volume: &Value) -> Result<String, StatusError> {
    let set = |field: &str| volume.get(field).is_some_and(|v| !v.is_null());
    let claim = if set("ephemeral") {
        format!("{}-{}", api::meta::name(pod), text(volume, "/name"))
    } else {
        text(volume, "/persistentVolumeClaim/claimName").to_owned()
    };
    if claim.is_empty() {
        return Ok(text(volume, "/csi/driver").to_owned());
    }
    let namespace = api::meta::namespace(pod);
    let Some(claim) = context.objects.get("", "persistentvolumeclaims", namespace, &claim).await? else {
        return Ok(String::new());
    };
    let name = text(&claim, "/spec/volumeName");
    let bound = if name.is_empty() { None } else { context.objects.get("", "persistentvolumes", "", name).await? };
    Ok(bound.map(|volume| text(&volume, "/spec/csi/driver").to_owned()).unwrap_or_default())
}

async fn driver_wants(context: &Context, driver: &str, audience: &str) -> Result<bool, StatusError> {
    let driver = context.objects.get("storage.k8s.io", "csidrivers", "", driver).await?;
    let wanted = driver.iter().flat_map(|d| items(d, "/spec/tokenRequests"));
    Ok(wanted.into_iter().any(|token| text(token, "/audience") == audience))
}

/// Whether the node may ask for the audience, whatever its Pods say: the audience is the resource, the account the name.
pub async fn granted(context: &Context, attributes: &Attributes<'_>, audience: &str) -> bool {
    let a = auth::Attributes {
        version: "v1",
        namespace: attributes.namespace,
        name: attributes.name,
        ..auth::Attributes::resource(attributes.user, VERB, "", audience)
    };
    !audience.is_empty() && context.authorizer.authorize(&a).await.allowed()
}
