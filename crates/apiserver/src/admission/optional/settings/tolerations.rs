//! Which tolerations Pods get, and may have: the settings of PodTolerationRestriction.

use api::{
    k8s_openapi::api::core::v1::Toleration,
    validation::{field::FieldError, section::Section},
};
use json::json;

/// The tolerations that count in namespaces that say nothing themselves.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Restriction {
    pub default: Vec<Toleration>,
    pub allowed: Vec<Toleration>,
}

impl Restriction {
    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        section.is("Configuration", &["podtolerationrestriction.admission.k8s.io/v1alpha1"])?;
        section.has_only(&["apiVersion", "kind", "default", "whitelist"])?;
        let list = |field: &str| {
            let one = |entry: Section<'_>| {
                entry.has_only(&["key", "operator", "value", "effect", "tolerationSeconds"])?;
                json::from_value(entry.to_value()).map_err(|why| section.wrong(field, &why.to_string()))
            };
            section.sections(field)?.into_iter().map(one).collect::<Result<Vec<Toleration>, String>>()
        };
        let parsed = Restriction { default: list("default")?, allowed: list("whitelist")? };
        let wrong = [wrong("default", &parsed.default), wrong("whitelist", &parsed.allowed)].concat();
        if wrong.is_empty() { Ok(parsed) } else { Err(format!("invalid config: [{}]", wrong.join(" "))) }
    }
}

/// Everything that is wrong with a list of tolerations: as much as with those of a Pod, whose rules are its kind's.
fn wrong(field: &str, list: &[Toleration]) -> Vec<String> {
    const OF_PODS: &str = "spec.tolerations";
    let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"tolerations": list}});
    let pods = api::kinds::built_in().find("", "v1", "pods").into_iter();
    let errors = pods.flat_map(|pods| pods.strategy.validate(&pod));
    let told = |error: FieldError| {
        let error = error.to_string();
        error.strip_prefix(OF_PODS).map(|rest| format!("podtolerationrestriction.{field}{rest}"))
    };
    errors.filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(default: &str, allowed: &str, expected: &str) {
        let text = format!(
            "{{apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{default}], \
             whitelist: [{allowed}]}}"
        );
        let value = crate::document::read(&text).unwrap();
        let parsed = Restriction::parse(&Section::of("", &value).unwrap());
        assert_eq!(parsed.err().unwrap_or_default(), expected, "{text}");
    }

    /// Upstream's cases (validation_test.go), each with all that is said about it.
    #[test]
    fn only_what_a_pod_could_have_is_taken() {
        check("", "", "");
        let good = "{key: foo, operator: Exists, effect: NoExecute, tolerationSeconds: 20}";
        check(good, "{operator: Exists}, {key: a, value: b}", "");
        let empty = "operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all \
                     values and all keys\"";
        check("{}", good, &format!("invalid config: [podtolerationrestriction.default[0].{empty}]"));
        let value = "operator: Invalid value: \"bar\": value must be empty when `operator` is 'Exists'";
        check(
            &format!("{good}, {{key: foo, operator: Exists, value: bar}}"),
            "{}",
            &format!(
                "invalid config: [podtolerationrestriction.default[1].{value} podtolerationrestriction.whitelist[0].{empty}]"
            ),
        );
        let effect =
            "effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set";
        check(
            "{key: foo, operator: Exists, effect: NoSchedule, tolerationSeconds: 20}",
            "",
            &format!("invalid config: [podtolerationrestriction.default[0].{effect}]"),
        );
    }
}
