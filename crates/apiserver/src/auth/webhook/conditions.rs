//! Match conditions: expressions about a request, all of which have to hold for the webhook to be asked.
//!
//! Upstream counterpart: apiserver/pkg/authorization/cel.

use api::rules::cel::{access_review::ENVIRONMENT, admission};
use cel::{Budget, Composition, PER_CALL_LIMIT, Program, Type, Value as Cel, Variables};
use json::{Value, json};
use meter::{Metric, Metrics, Sort};

use super::review;
use crate::auth::Attributes;

static ERRORS: Metric = Metric {
    name: "apiserver_authorization_match_condition_evaluation_errors_total",
    help: "Total number of errors when an authorization webhook encounters a match condition error split by authorizer type and name.",
    sort: Sort::Counter,
};
static EXCLUSIONS: Metric = Metric {
    name: "apiserver_authorization_match_condition_exclusions_total",
    help: "Total number of exclusions when an authorization webhook is skipped because match conditions exclude it.",
    sort: Sort::Counter,
};
static SECONDS: Metric = Metric {
    name: "apiserver_authorization_match_condition_evaluation_seconds",
    help: "Authorization match condition evaluation time in seconds, split by authorizer type and name.",
    sort: Sort::Histogram(&[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25]),
};

pub struct Conditions(Vec<(String, Program)>);

/// The program of an expression. The error is what upstream says behind the value of the field.
pub fn compile(expression: &str) -> Result<Program, String> {
    admission::compile(&ENVIRONMENT, expression, &[Type::Bool])
}

/// The request as expressions see it: what it does not say is empty, not absent.
fn seen(a: &Attributes<'_>) -> Value {
    let mut request = json!({"user": a.user.name, "groups": a.user.groups, "uid": a.user.uid, "extra": a.user.extra});
    if !a.is_resource() {
        request["nonResourceAttributes"] = json!({"path": a.path, "verb": a.verb});
        return request;
    }
    let mut asked = json!({
        "namespace": a.namespace, "verb": a.verb, "group": a.group, "version": a.version,
        "resource": a.resource, "subresource": a.subresource, "name": a.name,
    });
    let said = review::spec(a);
    for selector in ["fieldSelector", "labelSelector"] {
        if let Some(selected) = said["resourceAttributes"].get(selector) {
            asked[selector] = selected.clone();
        }
    }
    request["resourceAttributes"] = asked;
    request
}

impl Conditions {
    pub fn new(expressions: &[String]) -> Result<Self, String> {
        let programs = expressions.iter().map(|text| Ok((text.clone(), compile(text)?)));
        programs.collect::<Result<_, String>>().map(Conditions)
    }

    /// Whether all hold. One that does not decides over others that failed.
    pub fn hold(&self, a: &Attributes<'_>, webhook: &str, metrics: &Metrics) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let (begin, labels) = (clock::Instant::now(), [("type", "Webhook"), ("name", webhook)]);
        let held = self.evaluate(&seen(a));
        metrics.observe(&SECONDS, &labels, begin.elapsed().as_secs_f64());
        match &held {
            Ok(true) => {}
            Ok(false) => metrics.count(&EXCLUSIONS, &labels),
            Err(_) => metrics.count(&ERRORS, &labels),
        }
        held
    }

    fn evaluate(&self, request: &Value) -> Result<bool, String> {
        let mut failures = Vec::new();
        for (text, program) in &self.0 {
            let variables = Variables::new().with("request", Cel::json(request));
            let mut budget = Budget::new(PER_CALL_LIMIT);
            match program.evaluate_with(&Composition::new(&[], variables), &mut budget) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(why) => {
                    failures.push(format!("cel evaluation error: expression '{text}' resulted in error: {why}"));
                }
            }
        }
        match failures.as_slice() {
            [] => Ok(true),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use api::rules::selector::FieldSelector;

    use super::*;
    use crate::auth::{Selected, User};

    #[test]
    fn conditions_see_the_request_whole() {
        let user = User::new("jane", ["dev"]);
        let fields = FieldSelector::parse("spec.nodeName=n1").unwrap();
        let selected = Selected { fields: &fields.0, ..Selected::default() };
        let pods = Attributes { namespace: "kube-system", selected, ..Attributes::resource(&user, "list", "", "pods") };
        let path = Attributes::path(&user, "get", "/metrics");
        let check = |conditions: &[&str], a: &Attributes<'_>, expected: Result<bool, &str>| {
            let conditions: Vec<String> = conditions.iter().map(|text| (*text).to_owned()).collect();
            let held = Conditions::new(&conditions).unwrap().hold(a, "w", &Metrics::default());
            match (&held, expected) {
                (Err(said), Err(wanted)) => assert!(said.contains(wanted), "{said}"),
                _ => assert_eq!(held.as_ref().ok().copied(), expected.ok(), "{conditions:?}: {held:?}"),
            }
        };
        check(&[], &path, Ok(true));
        check(&["has(request.resourceAttributes)"], &path, Ok(false));
        check(&["request.resourceAttributes.namespace == 'kube-system'", "'dev' in request.groups"], &pods, Ok(true));
        check(&["!('system:serviceaccounts' in request.groups)", "request.uid == ''"], &pods, Ok(true));
        check(
            &[
                "request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName' && r.values == ['n1'])",
            ],
            &pods,
            Ok(true),
        );
        check(&["has(request.resourceAttributes.labelSelector)"], &pods, Ok(false));
        check(&["request.resourceAttributes.verb == 'get'"], &path, Err("resulted in error: no such key"));
        check(&["request.resourceAttributes.verb == 'get'", "request.user == 'bob'"], &path, Ok(false));
        // An expression that would never end is ended.
        let long = "request.extra.all(a, true) && '".to_owned()
            + &"x".repeat(4000)
            + "'.matches('(a|x)*') && \
            [1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, \
            [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a + b + c + d + e + f > 0))))))";
        check(&[&long], &pods, Err("cost limit exceeded"));
    }

    #[test]
    fn an_expression_that_is_none_is_refused() {
        let check = |text: &str, expected: &str| {
            let said = compile(text).err().unwrap_or_default();
            assert!(said.contains(expected), "{text}: {said}");
        };
        check("request.user == 'bob'", "");
        check("request.user", "must evaluate to bool but got string");
        check("request.users == 'bob'", "compilation failed: ");
        check("object.metadata", "undeclared reference to 'object'");
    }
}
