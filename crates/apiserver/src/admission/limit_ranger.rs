//! LimitRanger: containers of a namespace with LimitRanges get their defaults, and nothing asks for less or more than they allow.
//! Upstream counterpart: plugin/pkg/admission/limitranger.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    Value,
    k8s_openapi::{
        api::core::v1::{LimitRange, LimitRangeItem, Pod, PodSpec, ResourceRequirements},
        apimachinery::pkg::api::resource::Quantity as Text,
    },
    meta,
    object::Object,
    rules::{
        pod::{self, Resources},
        quantity::{Quantity, parse},
        quota::amounts,
    },
    status::StatusError,
};
use json::{Value as Json, json};
use serde::Deserialize;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is},
};

pub const PLUGIN: Plugin = Plugin {
    name: "LimitRanger",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The containers of a Pod change only in a resize.
fn concerns(attributes: &Attributes<'_>) -> bool {
    let going = attributes.object.as_ref().is_some_and(|object| meta::deletion_timestamp(object).is_some());
    match attributes.operation {
        Operation::Create => is(attributes, "", "pods", "") || is(attributes, "", "persistentvolumeclaims", ""),
        Operation::Update if !going => {
            is(attributes, "", "pods", "resize") || is(attributes, "", "persistentvolumeclaims", "")
        }
        _ => false,
    }
}

async fn ranges(context: &Context, attributes: &Attributes<'_>) -> Result<Vec<LimitRange>, StatusError> {
    let all = context.objects.list("", "limitranges", attributes.namespace).await?;
    Ok(all.iter().filter_map(|range: &Arc<Value>| LimitRange::from_value(range).ok()).collect())
}

fn items(range: &LimitRange) -> impl Iterator<Item = &LimitRangeItem> {
    range.spec.iter().flat_map(|spec| &spec.limits)
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    if attributes.definition.plural != "pods" {
        return Ok(());
    }
    let ranges = ranges(context, attributes).await?;
    if let Some(pod) = &mut attributes.object {
        for range in &ranges {
            fill(pod, range);
        }
    }
    Ok(())
}

type Texts = BTreeMap<String, Text>;

/// Gives all containers the range's defaults, and says in an annotation what they were given.
fn fill(pod: &mut Json, range: &LimitRange) {
    let (mut requests, mut limits) = (Texts::new(), Texts::new());
    for item in items(range).filter(|item| item.type_ == "Container") {
        requests.extend(item.default_request.clone().into_iter().flatten());
        limits.extend(item.default.clone().into_iter().flatten());
    }
    let mut told = Vec::new();
    for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = meta::at(container, "/name").and_then(Value::as_str).unwrap_or("").to_owned();
            for (field, word, defaults) in [("requests", "request", &requests), ("limits", "limit", &limits)] {
                let set = fill_one(container, field, defaults);
                if !set.is_empty() {
                    told.push(format!("{} {word} for {title} {name}", set.join(", ")));
                }
            }
        }
    }
    if let Some(metadata) = meta::metadata_mut(pod).filter(|_| !told.is_empty()) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[ANNOTATION] = json!(format!("LimitRanger plugin set: {}", told.join("; ")));
    }
}

/// The names of what was filled in.
fn fill_one<'a>(container: &mut Json, field: &str, defaults: &'a Texts) -> Vec<&'a str> {
    let mut set = Vec::new();
    for (name, amount) in defaults {
        let stated = container.get("resources").and_then(|r| r.get(field)).and_then(|list| list.get(name));
        if stated.is_none_or(Value::is_null) {
            container["resources"][field][name] = json!(amount);
            set.push(name.as_str());
        }
    }
    set
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let ranges = ranges(context, attributes).await?;
    let Some(object) = attributes.object.as_ref().filter(|_| !ranges.is_empty()) else { return Ok(()) };
    for range in &ranges {
        let wrong = match attributes.definition.plural.as_str() {
            "pods" => Pod::from_value(object).ok().and_then(|pod| pod.spec).map(|spec| check_pod(range, &spec)),
            _ => Some(check_claim(range, object)),
        };
        let wrong = wrong.unwrap_or_default();
        match wrong.as_slice() {
            [] => {}
            [one] => return Err(forbid(attributes, one)),
            several => return Err(forbid(attributes, format!("[{}]", several.join(", ")))),
        }
    }
    Ok(())
}

fn check_pod(range: &LimitRange, spec: &PodSpec) -> Vec<String> {
    let mut wrong = Vec::new();
    for item in items(range) {
        match item.type_.as_str() {
            "Container" => {
                for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
                    let none = ResourceRequirements::default();
                    let resources = container.resources.as_ref().unwrap_or(&none);
                    let (requests, limits) = (amounts(resources.requests.as_ref()), amounts(resources.limits.as_ref()));
                    wrong.extend(check(item, &requests, &limits));
                }
            }
            "Pod" => {
                let bare = PodSpec { overhead: None, ..spec.clone() };
                wrong.extend(check(item, &pod::requests(&bare), &pod::limits(&bare)));
            }
            _ => {}
        }
    }
    wrong
}

fn check_claim(range: &LimitRange, claim: &Json) -> Vec<String> {
    let requests = meta::at(claim, "/spec/resources/requests").and_then(|r| Texts::deserialize(r).ok());
    let requests = amounts(requests.as_ref());
    let mut wrong = Vec::new();
    for item in items(range).filter(|item| item.type_ == "PersistentVolumeClaim") {
        for (name, least) in bounds(&item.min) {
            wrong.extend(too_small(item, name, least, &requests, &Resources::new()));
        }
        for (name, most) in bounds(&item.max) {
            let bound = Bound { word: "maximum", name, kind: &item.type_, amount: most };
            wrong.extend(match requests.get(name) {
                None => Some(bound.missing("request")),
                Some(request) => (*request > most).then(|| bound.broken("request", *request)),
            });
        }
    }
    wrong
}

fn bounds(texts: &Option<Texts>) -> impl Iterator<Item = (&str, Quantity)> {
    texts.iter().flatten().map(|(name, text)| (name.as_str(), parse(text)))
}

/// A bound, in upstream's words.
struct Bound<'a> {
    word: &'a str,
    name: &'a str,
    kind: &'a str,
    amount: Quantity,
}

impl Bound<'_> {
    fn text(&self) -> String {
        format!("{} {} usage per {} is {}", self.word, self.name, self.kind, self.amount)
    }

    fn missing(&self, what: &str) -> String {
        format!("{}.  No {what} is specified", self.text())
    }

    fn broken(&self, what: &str, amount: Quantity) -> String {
        format!("{}, but {what} is {amount}", self.text())
    }

    /// The first amount has to be there, and both have to keep the bound.
    fn broken_by(
        &self,
        (first, held): (&str, Option<&Quantity>),
        (second, other): (&str, Option<&Quantity>),
        breaks: impl Fn(Quantity) -> bool,
    ) -> Option<String> {
        match (held, other) {
            (None, _) => Some(self.missing(first)),
            (Some(amount), _) if breaks(*amount) => Some(self.broken(first, *amount)),
            (_, Some(amount)) if breaks(*amount) => Some(self.broken(second, *amount)),
            _ => None,
        }
    }
}

fn too_small(
    item: &LimitRangeItem,
    name: &str,
    least: Quantity,
    requests: &Resources,
    limits: &Resources,
) -> Option<String> {
    let bound = Bound { word: "minimum", name, kind: &item.type_, amount: least };
    bound.broken_by(("request", requests.get(name)), ("limit", limits.get(name)), |amount| amount < least)
}

fn too_large(
    item: &LimitRangeItem,
    name: &str,
    most: Quantity,
    requests: &Resources,
    limits: &Resources,
) -> Option<String> {
    let bound = Bound { word: "maximum", name, kind: &item.type_, amount: most };
    bound.broken_by(("limit", limits.get(name)), ("request", requests.get(name)), |amount| amount > most)
}

fn too_wide(
    item: &LimitRangeItem,
    name: &str,
    most: Quantity,
    requests: &Resources,
    limits: &Resources,
) -> Option<String> {
    let text = format!("{name} max limit to request ratio per {} is {most}", item.type_);
    let is_set = |amount: &&Quantity| !amount.is_zero();
    let Some(request) = requests.get(name).filter(is_set) else {
        return Some(format!("{text}, but no request is specified or request is 0"));
    };
    let Some(limit) = limits.get(name).filter(is_set) else {
        return Some(format!("{text}, but no limit is specified or limit is 0"));
    };
    let ratio = limit.as_f64() / request.as_f64();
    (ratio > most.as_f64()).then(|| format!("{text}, but provided ratio is {ratio:.6}"))
}

fn check(item: &LimitRangeItem, requests: &Resources, limits: &Resources) -> Vec<String> {
    let low = bounds(&item.min).filter_map(|(name, least)| too_small(item, name, least, requests, limits));
    let high = bounds(&item.max).filter_map(|(name, most)| too_large(item, name, most, requests, limits));
    let ratios = &item.max_limit_request_ratio;
    let wide = bounds(ratios).filter_map(|(name, most)| too_wide(item, name, most, requests, limits));
    low.chain(high).chain(wide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    fn range(limits: Value) -> (&'static str, Value) {
        ("limitranges", json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": {"limits": limits}}))
    }

    fn pod(resources: Value) -> Write {
        let spec = json!({"containers": [{"name": "c", "resources": resources}], "initContainers": [{"name": "i",
            "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m", "memory": "1Gi"}}}]});
        Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}))
    }

    #[tokio::test]
    async fn containers_get_what_they_do_not_state() {
        let limits = json!([{"type": "Container", "default": {"cpu": "100m", "memory": "1Gi"},
            "defaultRequest": {"cpu": "50m"}}]);
        let context = context(vec![range(limits)]).await;
        let out = pod(json!({"limits": {"cpu": "200m"}})).through(&context, &PLUGIN).await.unwrap();
        let expected = json!({"limits": {"cpu": "200m", "memory": "1Gi"}, "requests": {"cpu": "50m"}});
        assert_eq!(out["spec"]["containers"][0]["resources"], expected);
        let expected = "LimitRanger plugin set: cpu request for container c; memory limit for container c";
        assert_eq!(out["metadata"]["annotations"][ANNOTATION], expected);
        let bare = pod(Value::Null).through(&context, &PLUGIN).await.unwrap();
        let expected = "LimitRanger plugin set: cpu request for container c; cpu, memory limit for container c";
        assert_eq!(bare["metadata"]["annotations"][ANNOTATION], expected);
    }

    #[tokio::test]
    async fn pods_stay_within_the_range() {
        let check = async |item: Value, resources: Value, expected: &str| {
            let context = context(vec![range(json!([item]))]).await;
            let outcome = pod(resources.clone()).through(&context, &PLUGIN).await;
            let refusal = outcome.map_or_else(|error| error, |_| String::new());
            let refusal = refusal.strip_prefix("pods \"p\" is forbidden: ").unwrap_or(&refusal);
            assert_eq!(refusal, expected, "{item} {resources}");
        };
        let cpu = |request: &str, limit: &str| json!({"requests": {"cpu": request}, "limits": {"cpu": limit}});
        let container = |field: &str, value: &str| json!({"type": "Container", field: {"cpu": value}});
        check(container("min", "50m"), cpu("50m", "50m"), "").await;
        check(container("min", "50m"), cpu("40m", "50m"), "minimum cpu usage per Container is 50m, but request is 40m")
            .await;
        let expected = "minimum cpu usage per Container is 50m.  No request is specified";
        check(container("min", "50m"), json!({}), expected).await;
        check(container("max", "100m"), cpu("50m", "100m"), "").await;
        check(container("max", "100m"), cpu("1", "2"), "maximum cpu usage per Container is 100m, but limit is 2").await;
        let expected = "maximum cpu usage per Container is 100m.  No limit is specified";
        check(container("max", "100m"), json!({}), expected).await;
        check(container("maxLimitRequestRatio", "2"), cpu("1", "2"), "").await;
        let expected = "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000";
        check(container("maxLimitRequestRatio", "2"), cpu("1", "3"), expected).await;
        // The Pod's sums count its init container.
        let whole = json!({"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "1"}});
        let expected =
            "[minimum cpu usage per Pod is 1, but request is 50m, maximum cpu usage per Pod is 1, but limit is 2]";
        check(whole, json!({"limits": {"cpu": "2"}}), expected).await;
    }

    /// Pods have a number of containers with the same resources, written as `cpu:request/limit` or `memory:request/limit`.
    #[tokio::test]
    async fn sums_of_containers_stay_within_the_range() {
        let check = async |kind: &str, field: &str, bound: &str, count: usize, resources: &str, fits: bool| {
            let (name, bound) = bound.split_once(':').unwrap();
            let (_, amounts) = resources.split_once(':').unwrap();
            let (request, limit) = amounts.split_once('/').unwrap();
            let mut stated = json!({});
            for (field, amount) in [("requests", request), ("limits", limit)] {
                if !amount.is_empty() {
                    stated[field] = json!({name: amount});
                }
            }
            let containers: Vec<Value> =
                (0..count).map(|at| json!({"name": format!("c{at}"), "resources": stated})).collect();
            let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": containers}});
            let context = context(vec![range(json!([{"type": kind, field: {name: bound}}]))]).await;
            let outcome = Write::create("pods", pod).through(&context, &PLUGIN).await;
            assert_eq!(outcome.is_ok(), fits, "{kind} {field} {name}:{bound} {count} times {resources}: {outcome:?}");
        };
        for (kind, field, bound, count, resources, fits) in [
            ("Container", "min", "cpu:50m", 1, "cpu:100m/", true),
            ("Container", "min", "memory:50Mi", 1, "memory:60Mi/100Mi", true),
            ("Container", "min", "memory:50Mi", 1, "memory:40Mi/100Mi", false),
            ("Container", "min", "memory:50Mi", 1, "memory:/", false),
            ("Container", "max", "cpu:2", 1, "cpu:/1", true),
            ("Container", "max", "memory:1Gi", 1, "memory:250Mi/500Mi", true),
            ("Container", "max", "memory:1Gi", 1, "memory:250Mi/2Gi", false),
            ("Container", "max", "cpu:2", 1, "cpu:/2500m", false),
            ("Container", "maxLimitRequestRatio", "cpu:1500m", 1, "cpu:500m/750m", true),
            ("Container", "maxLimitRequestRatio", "cpu:1", 1, "cpu:1250m/2500m", false),
            ("Pod", "min", "cpu:100m", 2, "cpu:75m/", true),
            ("Pod", "min", "cpu:100m", 1, "cpu:75m/200m", false),
            ("Pod", "min", "memory:100Mi", 2, "memory:60Mi/100Mi", true),
            ("Pod", "min", "memory:100Mi", 1, "memory:60Mi/", false),
            ("Pod", "max", "cpu:2", 2, "cpu:500m/1", true),
            ("Pod", "max", "cpu:2", 3, "cpu:/1", false),
            ("Pod", "max", "memory:1Gi", 2, "memory:/500Mi", true),
            ("Pod", "max", "memory:1Gi", 3, "memory:250Mi/500Mi", false),
            ("Pod", "maxLimitRequestRatio", "memory:1500m", 3, "memory:300Mi/450Mi", true),
            ("Pod", "maxLimitRequestRatio", "memory:1500m", 3, "memory:250Mi/500Mi", false),
        ] {
            check(kind, field, bound, count, resources, fits).await;
        }
    }

    #[tokio::test]
    async fn claims_stay_within_the_range() {
        let item = json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}});
        let context = context(vec![range(json!([item]))]).await;
        let claim = async |size: Option<&str>| {
            let requests = size.map_or(json!({}), |size| json!({"storage": size}));
            let claim = json!({"metadata": {"name": "d", "namespace": "ns"},
                "spec": {"resources": {"requests": requests}}});
            let outcome = Write::create("persistentvolumeclaims", claim).through(&context, &PLUGIN).await;
            outcome.map_or_else(|error| error, |_| String::new())
        };
        assert_eq!(claim(Some("3Gi")).await, "");
        let head = "persistentvolumeclaims \"d\" is forbidden: ";
        let of = "storage usage per PersistentVolumeClaim is";
        assert_eq!(claim(Some("512Mi")).await, format!("{head}minimum {of} 1Gi, but request is 512Mi"));
        assert_eq!(claim(Some("6Gi")).await, format!("{head}maximum {of} 5Gi, but request is 6Gi"));
        let missing =
            format!("[minimum {of} 1Gi.  No request is specified, maximum {of} 5Gi.  No request is specified]");
        assert_eq!(claim(None).await, format!("{head}{missing}"));
    }
}
