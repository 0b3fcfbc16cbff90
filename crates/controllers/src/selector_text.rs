//! A selector as upstream's messages show it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// The selector as Go prints the object.
pub fn selector_text(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels: String = selector.match_labels.iter().flatten().map(|(k, v)| format!("{k}: {v},")).collect();
    let expression = |e: &LabelSelectorRequirement| {
        let values = e.values.clone().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", e.key, e.operator)
    };
    let expressions: String = selector.match_expressions.iter().flatten().map(expression).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_selector_is_shown_as_go_prints_it() {
        let check = |selector: json::Value, expected: &str| {
            let selector: Option<LabelSelector> = json::from_value(selector).unwrap();
            assert_eq!(selector_text(selector.as_ref()), expected);
        };
        check(json!(null), "nil");
        check(
            json!({"matchLabels": {"a": "b", "c": "d"}}),
            "&LabelSelector{MatchLabels:map[string]string{a: b,c: d,},MatchExpressions:[]LabelSelectorRequirement{},}",
        );
        check(
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}),
            "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{\
             LabelSelectorRequirement{Key:a,Operator:In,Values:[x y],},},}",
        );
    }
}
