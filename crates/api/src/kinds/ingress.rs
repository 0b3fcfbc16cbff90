//! Ingress and IngressClass: HTTP from outside to Services, and who realises it.

use json::{Value, json};
use k8s_openapi::api::networking::v1::{Ingress, IngressClass, IngressSpec};

use crate::kind::cell;
use crate::kind::{Generation, Kind, age, col, name};

pub const INGRESS: Kind<Ingress> = Kind {
    short: &["ing"],
    status: true,
    storage_prefix: Some("ingress"),
    generation: Generation::CountsChangesOf("spec"),
    prepare_create: Some(|object| object["status"] = json!({"loadBalancer": {}})),
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

fn spec(ingress: &Ingress) -> Option<&IngressSpec> {
    ingress.spec.as_ref()
}

/// The class by its field, or by the annotation that came before it.
fn class(ingress: &Ingress) -> String {
    let annotation = ingress.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/ingress.class"));
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

pub const INGRESS_CLASS: Kind<IngressClass> = Kind {
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|class| {
        if let Some(parameters) = class.spec.as_mut().and_then(|s| s.parameters.as_mut()) {
            parameters.scope.get_or_insert_with(|| "Cluster".to_owned());
        }
    }),
    columns: &[
        name(),
        col("Controller", "Controller that is responsible for handling this class", |c, _| {
            cell::text(c.spec.as_ref().and_then(|s| s.controller.as_ref()))
        }),
        col("Parameters", "A reference to a resource with additional parameters", |c, _| Value::from(parameters(c))),
        age(),
    ],
    ..Kind::BASE
};

fn parameters(class: &IngressClass) -> String {
    let Some(parameters) = class.spec.as_ref().and_then(|s| s.parameters.as_ref()) else { return "<none>".to_owned() };
    match parameters.api_group.as_deref().filter(|g| !g.is_empty()) {
        Some(group) => format!("{}.{group}/{}", parameters.kind, parameters.name),
        None => format!("{}/{}", parameters.kind, parameters.name),
    }
}
