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
    reasons,
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
        // Containers that are alike break a bound alike, which is said once.
        if let Some(why) = reasons::together(&wrong.unwrap_or_default()) {
            return Err(forbid(attributes, why));
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
                let bare = counted(spec);
                wrong.extend(check(item, &pod::requests(&bare), &pod::limits(&bare)));
            }
            _ => {}
        }
    }
    wrong
}

/// The spec without overhead, which nobody asked for. Of the resources of the Pod as a whole only these two are counted.
fn counted(spec: &PodSpec) -> PodSpec {
    let mut bare = PodSpec { overhead: None, ..spec.clone() };
    if let Some(whole) = &mut bare.resources {
        for list in [&mut whole.requests, &mut whole.limits].into_iter().flatten() {
            list.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
        }
    }
    bare
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

    /// Upstream: TestMergePodResourceRequirements, TestPodLimitFuncApplyDefault.
    #[tokio::test]
    async fn only_amounts_that_are_not_stated_are_filled_in() {
        let limits = json!([{"type": "Pod", "max": {"cpu": "200m", "memory": "4Gi"}, "min": {"cpu": "50m", "memory": "2Mi"}},
            {"type": "Container", "default": {"cpu": "75m", "memory": "10Mi"},
                "defaultRequest": {"cpu": "50m", "memory": "5Mi"}}]);
        let context = context(vec![range(limits)]).await;
        let late = Plugin { validate: None, ..PLUGIN };
        let check = async |own: Value, init: Option<Value>, expected: Value, told: &str| {
            let mut spec = json!({"containers": [{"name": "foo-0", "resources": own}]});
            if let Some(init) = &init {
                spec["initContainers"] = json!([{"name": "foo-1", "resources": init}]);
            }
            let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
            let out = Write::create("pods", pod).through(&context, &late).await.unwrap();
            assert_eq!(out["spec"]["containers"][0]["resources"], expected, "{own}");
            if let Some(init) = init {
                let wanted = if init == own { &expected } else { &init };
                assert_eq!(out["spec"]["initContainers"][0]["resources"], *wanted, "{own}");
            }
            let head = if told.is_empty() { "" } else { "LimitRanger plugin set: " };
            let said = out["metadata"]["annotations"][ANNOTATION].as_str().unwrap_or_default();
            assert_eq!(said, format!("{head}{told}"), "{own}");
        };
        let defaults = json!({"cpu": "75m", "memory": "10Mi"});
        let all = "cpu, memory request for container foo-0; cpu, memory limit for container foo-0";
        let filled = json!({"requests": {"cpu": "50m", "memory": "5Mi"}, "limits": defaults});
        check(json!({}), None, filled, all).await;
        let some = json!({"requests": {"memory": "512Mi"}});
        let filled = json!({"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": defaults});
        let told = "cpu request for container foo-0; cpu, memory limit for container foo-0; cpu request for init container \
                    foo-1; cpu, memory limit for init container foo-1";
        check(some.clone(), Some(some), filled, told).await;
        let stated = json!({"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "200m", "memory": "1G"}});
        let more = json!({"requests": {"cpu": "200m", "memory": "1G"}, "limits": {"cpu": "400m", "memory": "2G"}});
        check(stated.clone(), Some(more), stated, "").await;
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

    /// Pods have a number of containers with the same resources, written as `cpu:request/limit` or `memory:request/limit`, and
    /// init containers behind each `+`. Upstream: TestPodLimitFunc.
    #[tokio::test]
    async fn sums_of_containers_stay_within_the_range() {
        let check = async |kind: &str, field: &str, bound: &str, count: usize, resources: &str, fits: bool| {
            let (name, bound) = bound.split_once(':').unwrap();
            let container = |amounts: &str| {
                let (request, limit) = amounts.split_once('/').unwrap();
                let mut stated = json!({"name": "c", "resources": {}});
                for (field, amount) in [("requests", request), ("limits", limit)] {
                    if !amount.is_empty() {
                        stated["resources"][field] = json!({name: amount});
                    }
                }
                stated
            };
            let mut parts = resources.split('+');
            let containers = vec![container(parts.next().unwrap()); count];
            let init: Vec<Value> = parts.map(container).collect();
            let spec = json!({"containers": containers, "initContainers": init});
            let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
            let context = context(vec![range(json!([{"type": kind, field: {name: bound}}]))]).await;
            let outcome = Write::create("pods", pod).through(&context, &PLUGIN).await;
            assert_eq!(outcome.is_ok(), fits, "{kind} {field} {name}:{bound} {count} times {resources}: {outcome:?}");
        };
        for (kind, field, bound, count, resources, fits) in [
            ("Container", "min", "cpu:50m", 1, "100m/", true),
            ("Container", "min", "cpu:50m", 1, "100m/200m", true),
            ("Container", "min", "cpu:50m", 1, "40m/", false),
            ("Container", "min", "cpu:50m", 1, "40m/200m", false),
            ("Container", "min", "cpu:50m", 1, "/", false),
            ("Container", "min", "cpu:50m", 1, "100m/+40m/", false),
            ("Container", "max", "cpu:2", 1, "500m/1", true),
            ("Container", "max", "cpu:2", 1, "/1", true),
            ("Container", "max", "cpu:2", 1, "500m/2500m", false),
            ("Container", "max", "cpu:2", 1, "/2500m", false),
            ("Container", "max", "cpu:2", 1, "/", false),
            ("Container", "max", "cpu:2", 1, "/1+/2500m", false),
            ("Container", "maxLimitRequestRatio", "cpu:1500m", 1, "500m/750m", true),
            ("Container", "maxLimitRequestRatio", "cpu:1", 1, "1250m/2500m", false),
            ("Container", "maxLimitRequestRatio", "cpu:1", 1, "0/1", false),
            ("Container", "maxLimitRequestRatio", "cpu:1", 1, "1/", false),
            ("Pod", "min", "cpu:100m", 2, "75m/", true),
            ("Pod", "min", "cpu:100m", 2, "75m/200m", true),
            ("Pod", "min", "cpu:100m", 1, "75m/", false),
            ("Pod", "min", "cpu:100m", 1, "75m/200m", false),
            ("Pod", "max", "cpu:2", 2, "500m/1", true),
            ("Pod", "max", "cpu:2", 2, "/1", true),
            ("Pod", "max", "cpu:2", 3, "500m/1", false),
            ("Pod", "max", "cpu:2", 3, "/1", false),
            ("Pod", "max", "cpu:2", 2, "500m/1+1/2+1/1", true),
            ("Pod", "max", "cpu:2", 2, "/1+/2+/2", true),
        ] {
            check(kind, field, bound, count, resources, fits).await;
        }
        // Memory and the storage of containers are counted alike.
        for name in ["memory", "ephemeral-storage"] {
            for (kind, field, bound, count, resources, fits) in [
                ("Container", "min", "50Mi", 1, "60Mi/", true),
                ("Container", "min", "50Mi", 2, "60Mi/", true),
                ("Container", "min", "50Mi", 2, "60Mi/100Mi", true),
                ("Container", "min", "50Mi", 1, "40Mi/", false),
                ("Container", "min", "50Mi", 2, "40Mi/100Mi", false),
                ("Container", "min", "50Mi", 1, "/", false),
                ("Container", "max", "1Gi", 1, "250Mi/500Mi", true),
                ("Container", "max", "600Mi", 2, "/500Mi", true),
                ("Container", "max", "1Gi", 1, "250Mi/2Gi", false),
                ("Container", "max", "1Gi", 2, "/2Gi", false),
                ("Container", "max", "1Gi", 1, "/", false),
                // Beyond what 64 bits hold.
                ("Container", "max", "1000", 1, "/18446744073709551616", false),
                ("Container", "min", "18446744073709551616", 1, "1/", false),
                ("Container", "maxLimitRequestRatio", "2", 1, "1/9223372036854775809", false),
                ("Container", "maxLimitRequestRatio", "1", 1, "18446744073709551616/18446744073709551616", true),
                ("Pod", "min", "100Mi", 2, "60Mi/", true),
                ("Pod", "min", "100Mi", 2, "60Mi/100Mi", true),
                ("Pod", "min", "100Mi", 1, "60Mi/", false),
                ("Pod", "min", "100Mi", 1, "60Mi/100Mi", false),
                ("Pod", "min", "100Mi", 1, "60Mi/+100Mi/", true),
                ("Pod", "min", "100Mi", 2, "60Mi/100Mi+80Mi/100Mi", true),
                ("Pod", "max", "1Gi", 2, "250Mi/500Mi", true),
                ("Pod", "max", "1Gi", 2, "/500Mi", true),
                ("Pod", "max", "1Gi", 3, "250Mi/500Mi", false),
                ("Pod", "max", "1Gi", 3, "/500Mi", false),
                ("Pod", "max", "1Gi", 1, "/500Mi+/1.5Gi", false),
                ("Pod", "maxLimitRequestRatio", "1500m", 3, "300Mi/450Mi", true),
                ("Pod", "maxLimitRequestRatio", "1.5", 3, "250Mi/500Mi", false),
            ] {
                check(kind, field, &format!("{name}:{bound}"), count, resources, fits).await;
            }
        }
    }

    #[tokio::test]
    async fn containers_that_break_a_bound_alike_are_told_once() {
        let check = async |bounds: Value, limits: &[&str], expected: &str| {
            let of = |limit: &&str| match *limit {
                "" => json!({"name": "c"}),
                limit => json!({"name": "c", "resources": {"limits": {"cpu": limit}}}),
            };
            let spec = json!({"containers": limits.iter().map(of).collect::<Vec<_>>()});
            let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
            let context = context(vec![range(json!([bounds]))]).await;
            let refusal = Write::create("pods", pod).through(&context, &PLUGIN).await.unwrap_err();
            assert_eq!(refusal, format!("pods \"p\" is forbidden: {expected}"), "{limits:?}");
        };
        let most = json!({"type": "Container", "max": {"cpu": "1"}});
        let missing = "maximum cpu usage per Container is 1.  No limit is specified";
        check(most.clone(), &["", ""], missing).await;
        let two = "maximum cpu usage per Container is 1, but limit is 2";
        check(most, &["", "2", "", "2"], &format!("[{missing}, {two}]")).await;
    }

    /// The Pod as a whole states its cpu and memory. Huge pages that it states so are not looked at, as upstream.
    #[tokio::test]
    async fn resources_of_the_pod_as_a_whole_are_those_of_cpu_and_memory() {
        let check = async |name: &str, whole: &str, fits: bool| {
            let resources = json!({"requests": {name: "1"}, "limits": {name: "1"}});
            let spec = json!({"containers": [{"name": "c", "resources": resources}],
                "resources": {"requests": {name: whole}, "limits": {name: whole}}});
            let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
            let context = context(vec![range(json!([{"type": "Pod", "max": {name: "2"}}]))]).await;
            let outcome = Write::create("pods", pod).through(&context, &PLUGIN).await;
            assert_eq!(outcome.is_ok(), fits, "{name} {whole}: {outcome:?}");
        };
        check("cpu", "2", true).await;
        check("cpu", "3", false).await;
        check("memory", "3", false).await;
        check("hugepages-2Mi", "3", true).await;
    }

    /// Upstream: TestLimitRangerIgnoresSubresource, TestLimitRangerAdmitPod.
    #[tokio::test]
    async fn a_write_is_looked_at_if_it_may_change_resources() {
        let item = json!({"type": "Container", "max": {"cpu": "100m"}});
        let volumes = json!({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}});
        let context = context(vec![range(json!([item, volumes]))]).await;
        let object = |going: bool| {
            let spec = json!({"containers": [{"name": "c"}], "resources": {"requests": {"storage": "2Gi"}}});
            let mut object = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
            if going {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            object
        };
        let told = async |operation: Operation, plural: &'static str, subresource: &'static str, going: bool| {
            let old = (operation != Operation::Create).then(|| object(going));
            let write = Write { operation, kind: ("", plural, subresource), old, ..Write::create("", object(going)) };
            write.through(&context, &PLUGIN).await.is_err()
        };
        for (operation, plural, subresource, refused) in [
            (Operation::Create, "pods", "", true),
            (Operation::Create, "pods", "binding", false),
            (Operation::Update, "pods", "", false),
            (Operation::Update, "pods", "status", false),
            (Operation::Update, "pods", "resize", true),
            (Operation::Delete, "pods", "", false),
            (Operation::Create, "persistentvolumeclaims", "", true),
            (Operation::Update, "persistentvolumeclaims", "", true),
            (Operation::Update, "persistentvolumeclaims", "status", false),
            (Operation::Create, "services", "", false),
        ] {
            assert_eq!(
                told(operation, plural, subresource, false).await,
                refused,
                "{operation:?} {plural} {subresource}"
            );
            // Nothing keeps an object from its end.
            if operation == Operation::Update {
                assert!(!told(operation, plural, subresource, true).await, "{plural} {subresource}");
            }
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
