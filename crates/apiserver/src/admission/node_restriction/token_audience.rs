//! The audiences that a node may ask tokens for: those that a Pod's volumes name, and those granted to the node.
//! Upstream: the node audience restriction of NodeRestriction (KEP-4935).

use api::Value;
use api::status::StatusError;

use crate::{
    admission::{
        attributes::Attributes,
        plugin::{Context, items, text},
        reasons,
    },
    auth,
};

const VERB: &str = "request-serviceaccounts-token-audience";

/// Volumes of plugins that were part of Kubernetes once, with the drivers that do their work now.
const MIGRATED: &[(&str, &str)] = &[
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

/// Whether a volume of the Pod wants tokens for the audience: a projected one, or one whose CSI driver asks for them. The
/// empty audience is the API server's own. The inner error says which objects are missing that could have told.
pub async fn names(context: &Context, pod: &Value, audience: &str) -> Result<Result<bool, String>, StatusError> {
    let mut missing = Vec::new();
    for volume in items(pod, "/spec/volumes") {
        let projected = items(volume, "/projected/sources").filter_map(|s| s.get("serviceAccountToken"));
        if projected.into_iter().any(|token| text(token, "/audience") == audience) {
            return Ok(Ok(true));
        }
        let wants = match driver(context, pod, volume).await? {
            Ok(driver) if driver.is_empty() => Ok(false),
            Ok(driver) => driver_wants(context, &driver, audience).await?,
            Err(why) => Err(why),
        };
        match wants {
            Ok(true) => return Ok(Ok(true)),
            Ok(false) => {}
            Err(why) => missing.push(why),
        }
    }
    Ok(reasons::together(&missing).map_or(Ok(false), Err))
}

/// The CSI driver behind a volume; empty when there is none.
async fn driver(context: &Context, pod: &Value, volume: &Value) -> Result<Result<String, String>, StatusError> {
    let set = |field: &str| volume.get(field).is_some_and(|v| !v.is_null());
    let claim = if set("ephemeral") {
        format!("{}-{}", api::meta::name(pod), text(volume, "/name"))
    } else if set("persistentVolumeClaim") {
        text(volume, "/persistentVolumeClaim/claimName").to_owned()
    } else {
        return Ok(Ok(of_source(volume)));
    };
    let namespace = api::meta::namespace(pod);
    let Some(found) = context.objects.get("", "persistentvolumeclaims", namespace, &claim).await? else {
        return Ok(Err(format!("persistentvolumeclaim {claim:?} not found")));
    };
    let name = text(&found, "/spec/volumeName");
    let bound = if name.is_empty() { None } else { context.objects.get("", "persistentvolumes", "", name).await? };
    Ok(match bound {
        Some(volume) => Ok(of_source(&volume["spec"])),
        None => Err(format!("persistentvolume {name:?} not found")),
    })
}

/// The driver of a volume's source, in a Pod or in a persistent volume.
fn of_source(volume: &Value) -> String {
    let driver = text(volume, "/csi/driver");
    let is_set = |(field, _): &&(&str, &str)| volume.get(field).is_some_and(|source| !source.is_null());
    match driver {
        "" => MIGRATED.iter().find(is_set).map(|(_, driver)| (*driver).to_owned()).unwrap_or_default(),
        driver => driver.to_owned(),
    }
}

async fn driver_wants(context: &Context, name: &str, audience: &str) -> Result<Result<bool, String>, StatusError> {
    let Some(driver) = context.objects.get("storage.k8s.io", "csidrivers", "", name).await? else {
        return Ok(Err(format!("csidriver.storage.k8s.io {name:?} not found")));
    };
    let wanted = items(&driver, "/spec/tokenRequests").any(|token| text(token, "/audience") == audience);
    Ok(Ok(wanted))
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
