//! Priority: a Pod's number comes from its PriorityClass, never from the Pod itself; one class at most is the default.

use api::Value;
use api::status::StatusError;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "Priority",
    concerns: |attributes| concerns_pod(attributes) || concerns_class(attributes),
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const GROUP: &str = "scheduling.k8s.io";

fn concerns_pod(attributes: &Attributes<'_>) -> bool {
    matches!(attributes.operation, Operation::Create | Operation::Update) && is(attributes, "", "pods", "")
}

fn concerns_class(attributes: &Attributes<'_>) -> bool {
    matches!(attributes.operation, Operation::Create | Operation::Update)
        && is(attributes, GROUP, "priorityclasses", "")
}

/// The part of a class that a Pod gets.
struct Class {
    name: String,
    value: i64,
    policy: String,
}

impl Class {
    fn of(object: &Value) -> Self {
        let policy = match text(object, "/preemptionPolicy") {
            "" => "PreemptLowerPriority",
            policy => policy,
        };
        let value = object.get("value").and_then(Value::as_i64).unwrap_or(0);
        Class { name: api::meta::name(object).to_owned(), value, policy: policy.to_owned() }
    }
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    if !concerns_pod(attributes) {
        return Ok(());
    }
    if attributes.operation == Operation::Update {
        // Neither can change, and old clients leave them out.
        if let (Some(pod), Some(old)) = (&mut attributes.object, attributes.old) {
            for field in ["priority", "preemptionPolicy"] {
                let kept = old.get("spec").and_then(|s| s.get(field));
                if let Some(kept) = kept.filter(|_| pod.get("spec").is_some_and(|s| s.get(field).is_none())) {
                    pod["spec"][field] = kept.clone();
                }
            }
        }
        return Ok(());
    }
    let Some(pod) = &attributes.object else { return Ok(()) };
    let class = class(context, attributes, text(pod, "/spec/priorityClassName")).await?;
    let pod = attributes.object.as_ref();
    let given = pod.and_then(|p| api::meta::at(p, "/spec/priority")).and_then(Value::as_i64);
    if let Some(given) = given.filter(|g| *g != class.value) {
        return Err(forbid(
            attributes,
            format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
                 controller computed {} from the given PriorityClass name",
                class.value
            ),
        ));
    }
    let policy = pod.map_or("", |p| text(p, "/spec/preemptionPolicy")).to_owned();
    if !policy.is_empty() && policy != class.policy {
        return Err(forbid(
            attributes,
            format!(
                "the string value of PreemptionPolicy ({policy}) must not be provided in pod spec; priority admission \
                 controller computed {} from the given PriorityClass name",
                class.policy
            ),
        ));
    }
    if let Some(pod) = &mut attributes.object {
        if !class.name.is_empty() {
            pod["spec"]["priorityClassName"] = json!(class.name);
        }
        pod["spec"]["priority"] = json!(class.value);
        pod["spec"]["preemptionPolicy"] = json!(class.policy);
    }
    Ok(())
}

/// The class that a Pod names, else the default one, else none: zero.
async fn class(context: &Context, attributes: &Attributes<'_>, name: &str) -> Result<Class, StatusError> {
    if !name.is_empty() {
        let found = context.objects.get(GROUP, "priorityclasses", "", name).await?;
        let class = found.ok_or_else(|| forbid(attributes, format!("no PriorityClass with name {name} was found")))?;
        return Ok(Class::of(&class));
    }
    // Of several defaults (a race made them) the lowest counts.
    let all = context.objects.list(GROUP, "priorityclasses", "").await?;
    let defaults = all.iter().filter(|c| is_default(c)).map(|c| Class::of(c));
    let none = || Class { name: String::new(), value: 0, policy: "PreemptLowerPriority".to_owned() };
    Ok(defaults.min_by_key(|c| c.value).unwrap_or_else(none))
}

fn is_default(class: &Value) -> bool {
    class.get("globalDefault").and_then(Value::as_bool) == Some(true)
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    if !concerns_class(attributes) || !attributes.object.as_ref().is_some_and(is_default) {
        return Ok(());
    }
    let all = context.objects.list(GROUP, "priorityclasses", "").await?;
    match all.iter().find(|c| is_default(c) && api::meta::name(c) != attributes.name) {
        None => Ok(()),
        Some(other) => {
            let other = api::meta::name(other);
            let why = format!("PriorityClass {other} is already marked as default. Only one default can exist");
            Err(forbid(attributes, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn the_class_sets_the_number() {
        let class = |name: &str, value: i64, default: bool| {
            ("priorityclasses", json!({"metadata": {"name": name}, "value": value, "globalDefault": default}))
        };
        let some = context(vec![class("high", 100, false), class("usual", 5, true)]).await;
        let none = context(vec![]).await;
        let pod =
            |spec: Value| Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}));
        let high = pod(json!({"priorityClassName": "high"})).through(&some, &PLUGIN).await.unwrap();
        let expected =
            json!({"priorityClassName": "high", "priority": 100, "preemptionPolicy": "PreemptLowerPriority"});
        assert_eq!(high["spec"], expected);
        let usual = pod(json!({})).through(&some, &PLUGIN).await.unwrap();
        assert_eq!((&usual["spec"]["priorityClassName"], &usual["spec"]["priority"]), (&json!("usual"), &json!(5)));
        let plain = pod(json!({})).through(&none, &PLUGIN).await.unwrap();
        assert_eq!(plain["spec"], json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}));
        let missing = pod(json!({"priorityClassName": "x"})).through(&none, &PLUGIN).await.unwrap_err();
        assert_eq!(missing, r#"pods "p" is forbidden: no PriorityClass with name x was found"#);
        let own = pod(json!({"priority": 7})).through(&none, &PLUGIN).await.unwrap_err();
        assert!(own.contains("the integer value of priority (7) must not be provided in pod spec"), "{own}");
        let never = |name: &str| json!({"priorityClassName": name, "priority": 100, "preemptionPolicy": "Never"});
        let other = pod(never("high")).through(&some, &PLUGIN).await.unwrap_err();
        assert!(
            other.contains("the string value of PreemptionPolicy (Never) must not be provided in pod spec"),
            "{other}"
        );
        let same = json!({"priorityClassName": "high", "priority": 100, "preemptionPolicy": "PreemptLowerPriority"});
        assert_eq!(pod(same.clone()).through(&some, &PLUGIN).await.unwrap()["spec"], same);
        let of = |priority: i64| json!({"priority": priority});
        assert_eq!(pod(of(0)).through(&none, &PLUGIN).await.unwrap()["spec"]["priority"], 0, "what comes of no class");
        assert_eq!(pod(of(5)).through(&some, &PLUGIN).await.unwrap()["spec"]["priorityClassName"], "usual");
        let mut patient = class("patient", 2000, true);
        patient.1["preemptionPolicy"] = json!("Never");
        let patient = context(vec![patient, class("system-cluster-critical", 2_000_000_000, false)]).await;
        for spec in
            [json!({"priorityClassName": "patient"}), json!({"priority": 2000}), json!({"preemptionPolicy": "Never"})]
        {
            let out = pod(spec).through(&patient, &PLUGIN).await.unwrap();
            assert_eq!((&out["spec"]["priority"], &out["spec"]["preemptionPolicy"]), (&json!(2000), &json!("Never")));
        }
        let hasty =
            pod(json!({"preemptionPolicy": "PreemptLowerPriority"})).through(&patient, &PLUGIN).await.unwrap_err();
        assert!(hasty.ends_with("computed Never from the given PriorityClass name"), "{hasty}");
        // Names of the system are open to every namespace, and a mirror Pod is a Pod as any other.
        let mut critical = pod(json!({"priorityClassName": "system-cluster-critical"}));
        critical.object.as_mut().unwrap()["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        let critical = critical.through(&patient, &PLUGIN).await.unwrap();
        assert_eq!(critical["spec"]["priority"], 2_000_000_000);
        // Of two defaults the lower one counts.
        let two = context(vec![class("dear", 9, true), class("cheap", -3, true)]).await;
        assert_eq!(pod(json!({})).through(&two, &PLUGIN).await.unwrap()["spec"]["priority"], -3);
        // Old clients leave out what they do not know.
        let kept = Write { operation: Operation::Update, old: Some(json!({"spec": high["spec"]})), ..pod(json!({})) };
        let kept = kept.through(&some, &PLUGIN).await.unwrap();
        assert_eq!((&kept["spec"]["priority"], &kept["spec"]["priorityClassName"]), (&json!(100), &Value::Null));
        let second = json!({"metadata": {"name": "b"}, "globalDefault": true});
        let second = Write { kind: (GROUP, "priorityclasses", ""), ..Write::create("", second) };
        assert!(second.through(&some, &PLUGIN).await.unwrap_err().contains("usual is already marked as default"));
        let itself = json!({"metadata": {"name": "usual"}, "value": 6, "globalDefault": true});
        let old = Some(json!({"metadata": {"name": "usual"}, "value": 5, "globalDefault": true}));
        let itself = Write {
            kind: (GROUP, "priorityclasses", ""),
            operation: Operation::Update,
            old,
            ..Write::create("", itself)
        };
        assert!(itself.through(&some, &PLUGIN).await.is_ok());
    }

    /// The classes of upstream's tests: a name is followed by `!` where the class is the default one.
    fn classes(names: &str) -> Vec<(&'static str, Value)> {
        let one = |word: &str| {
            let name = word.trim_end_matches('!');
            let (value, policy) = match name {
                "default1" => (1000, None),
                "system-cluster-critical" => (2_000_000_000, None),
                "never" => (2000, Some("Never")),
                "lower" => (2000, Some("PreemptLowerPriority")),
                _ => (2000, None),
            };
            let mut class = json!({"metadata": {"name": name}, "value": value, "globalDefault": word.ends_with('!')});
            if let Some(policy) = policy {
                class["preemptionPolicy"] = json!(policy);
            }
            ("priorityclasses", class)
        };
        names.split_whitespace().map(one).collect()
    }

    /// Upstream: TestPriorityClassAdmission, TestDefaultPriority.
    #[tokio::test]
    async fn there_is_one_default_and_a_pod_without_a_class_gets_it() {
        let pod = || Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {}}));
        for (there, changed, priority) in [
            ("default1!", "", 1000),
            ("nondefault1", "default1!", 0),
            ("default1! default2!", "", 1000),
            ("default2!", "", 2000),
            ("", "default1!", 0),
            ("", "system-test", 0),
            ("default1!", "default1", 1000),
            ("default1", "", 0),
        ] {
            let context = context(classes(there)).await;
            let spec = pod().through(&context, &PLUGIN).await.unwrap()["spec"].take();
            assert_eq!(spec["priority"], priority, "{there}");
            for (_, class) in classes(changed) {
                let write = Write { kind: (GROUP, "priorityclasses", ""), ..Write::create("", class) };
                assert!(write.through(&context, &PLUGIN).await.is_ok(), "{changed} beside {there}");
            }
        }
        let context = context(classes("default1!")).await;
        let write = |operation, subresource: &'static str| {
            let (_, class) = classes("default2!").remove(0);
            Write { operation, kind: (GROUP, "priorityclasses", subresource), ..Write::create("", class) }
                .through(&context, &PLUGIN)
        };
        for operation in [Operation::Create, Operation::Update] {
            let refused = write(operation, "").await.unwrap_err();
            let expected = "priorityclasses.scheduling.k8s.io \"default2\" is forbidden: PriorityClass default1 is already \
                            marked as default. Only one default can exist";
            assert_eq!(refused, expected);
        }
        assert!(write(Operation::Delete, "").await.is_ok());
    }

    /// Upstream: TestPodAdmission.
    #[tokio::test]
    async fn the_number_comes_from_the_class_or_the_pod_is_refused() {
        let of = |class: &str, priority: i64, policy: &str| {
            let mut spec = json!({});
            if !class.is_empty() {
                spec["priorityClassName"] = json!(class);
            }
            if priority >= 0 {
                spec["priority"] = json!(priority);
            }
            if !policy.is_empty() {
                spec["preemptionPolicy"] = json!(policy);
            }
            spec
        };
        let (critical, lower) = ("system-cluster-critical", "PreemptLowerPriority");
        for (there, spec, expected) in [
            ("default1! nondefault1", of("default1", -1, ""), Some((1000, lower))),
            ("default1!", of("", -1, ""), Some((1000, lower))),
            ("", of("", -1, ""), Some((0, lower))),
            ("nondefault1", of("", -1, ""), Some((0, lower))),
            ("system-cluster-critical!", of(critical, -1, ""), Some((2_000_000_000, lower))),
            ("default1! nondefault1", of("non-existing", -1, ""), None),
            ("", of("default1", 1000, ""), None),
            ("nondefault1", of("", 0, ""), Some((0, lower))),
            ("default2!", of("", 2000, ""), Some((2000, lower))),
            ("default2!", of("", 1000, ""), None),
            ("system-cluster-critical!", of(critical, 2_000_000_000, ""), Some((2_000_000_000, lower))),
            ("never!", of("never", 2000, ""), Some((2000, "Never"))),
            ("never!", of("never", 2000, "Never"), Some((2000, "Never"))),
            ("lower!", of("lower", 2000, lower), Some((2000, lower))),
            ("lower!", of("lower", 2000, "Never"), None),
        ] {
            let context = context(classes(there)).await;
            for (namespace, annotations) in
                [("kube-system", json!({})), ("ns", json!({})), ("ns", json!({"kubernetes.io/config.mirror": ""}))]
            {
                let metadata = json!({"name": "p", "namespace": namespace, "annotations": annotations});
                let pod = json!({"metadata": metadata, "spec": spec});
                let outcome = Write::create("pods", pod).again(&context, &PLUGIN).await.ok();
                let got = outcome.as_ref().map(|pod| {
                    let spec = &pod["spec"];
                    (spec["priority"].as_i64().unwrap(), spec["preemptionPolicy"].as_str().unwrap())
                });
                assert_eq!(got, expected, "{there} {spec}");
            }
        }
    }
}
