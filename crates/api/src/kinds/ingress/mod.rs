//! Ingress: HTTP from outside to Services.

mod class;
mod validate;

pub use class::INGRESS_CLASS;

use json::{Value, json};
use k8s_openapi::api::networking::v1::{Ingress, IngressSpec};

use crate::kind::{Generation, Kind, age, col, name};
use crate::kinds::service::validate::balancer_status;

pub const INGRESS: Kind<Ingress> = Kind {
    short: &["ing"],
    status: true,
    storage_prefix: Some("ingress"),
    generation: Generation::CountsChangesOf("spec"),
    prepare_create: Some(|object| object["status"] = json!({"loadBalancer": {}})),
    validate_create: Some(validate::create),
    validate_update: Some(|new, old, _| validate::update(new, old)),
    validate_status: Some(|new, _| balancer_status(new)),
    warnings: Some(warnings),
    columns: &[
        name(),
        col(
            "Class",
            "The name of the IngressClass resource that should be used for additional configuration",
            |i, _| Value::from(class(i)),
        ),
        col("Hosts", "Hosts that incoming requests are matched against before the ingress rule", |i, _| {
            Value::from(hosts(i))
        }),
        col("Address", "Address is a list containing ingress points for the load-balancer", |i, _| {
            Value::from(addresses(i))
        }),
        col("Ports", "Ports of TLS configurations that open", |i, _| {
            let tls = spec(i).and_then(|s| s.tls.as_ref()).is_some_and(|t| !t.is_empty());
            Value::from(if tls { "80, 443" } else { "80" })
        }),
        age(),
    ],
    ..Kind::BASE
};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// New Ingresses name their class by the field.
fn warnings(ingress: &Ingress, old: Option<&Ingress>) -> Vec<String> {
    let annotated = ingress.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CLASS_ANNOTATION));
    let named = spec(ingress).is_some_and(|spec| spec.ingress_class_name.is_some());
    let told = old.is_none() && annotated && !named;
    let warning =
        || format!("annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead");
    told.then(warning).into_iter().collect()
}

fn spec(ingress: &Ingress) -> Option<&IngressSpec> {
    ingress.spec.as_ref()
}

/// The class by its field, or by the annotation that came before it.
fn class(ingress: &Ingress) -> String {
    let annotation = ingress.metadata.annotations.as_ref().and_then(|a| a.get(CLASS_ANNOTATION));
    spec(ingress).and_then(|s| s.ingress_class_name.as_ref()).or(annotation).map_or("<none>", |c| c).to_owned()
}

fn hosts(ingress: &Ingress) -> String {
    let rules = spec(ingress).and_then(|s| s.rules.as_deref()).unwrap_or_default();
    let list: Vec<&str> = rules.iter().filter_map(|r| r.host.as_deref()).filter(|h| !h.is_empty()).collect();
    match list.len() {
        0 => "*".to_owned(),
        1..=3 => list.join(","),
        n => format!("{} + {} more...", list[..3].join(","), n - 3),
    }
}

fn addresses(ingress: &Ingress) -> String {
    let balancer = ingress.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let points = balancer.and_then(|b| b.ingress.as_deref()).unwrap_or_default();
    let one = |p: &k8s_openapi::api::networking::v1::IngressLoadBalancerIngress| {
        p.ip.clone().filter(|i| !i.is_empty()).or_else(|| p.hostname.clone())
    };
    points.iter().filter_map(one).collect::<Vec<_>>().join(",")
}
