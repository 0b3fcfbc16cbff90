//! The SubjectAccessReview that a webhook is sent, and the one that it answers with.

use api::codec::decode::{self, Format};
use api::rules::selector::{FieldRequirement, Operator, Requirement};
use json::{Map, Value, json};

use crate::auth::{Attributes, Failure, Verdict};

/// The version of the reviews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V1beta1,
}

impl Version {
    pub const ALL: [&'static str; 2] = ["v1", "v1beta1"];

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "v1" => Some(Version::V1),
            "v1beta1" => Some(Version::V1beta1),
            _ => None,
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Version::V1 => "authorization.k8s.io/v1",
            Version::V1beta1 => "authorization.k8s.io/v1beta1",
        }
    }
}

/// The fields with a text; empty ones are left out.
fn part(pairs: &[(&str, &str)]) -> Map {
    let pairs = pairs.iter().filter(|(_, text)| !text.is_empty());
    pairs.map(|(name, text)| ((*name).to_owned(), json!(*text))).collect()
}

/// The spec of version v1 for a request.
pub(super) fn spec(a: &Attributes<'_>) -> Value {
    let mut spec = Map::new();
    if a.is_resource() {
        let mut asked = part(&[
            ("namespace", a.namespace),
            ("verb", a.verb),
            ("group", a.group),
            ("version", a.version),
            ("resource", a.resource),
            ("subresource", a.subresource),
            ("name", a.name),
        ]);
        let fields: Vec<Value> = a.selected.fields.iter().map(of_field).collect();
        let labels: Vec<Value> = a.selected.labels.iter().filter_map(of_label).collect();
        for (name, requirements) in [("fieldSelector", fields), ("labelSelector", labels)] {
            if !requirements.is_empty() {
                asked.insert(name, json!({ "requirements": requirements }));
            }
        }
        spec.insert("resourceAttributes", Value::Object(asked));
    } else {
        spec.insert("nonResourceAttributes", Value::Object(part(&[("path", a.path), ("verb", a.verb)])));
    }
    let user = a.user;
    if !user.name.is_empty() {
        spec.insert("user", json!(user.name));
    }
    if !user.groups.is_empty() {
        spec.insert("groups", json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra", json!(user.extra));
    }
    if !user.uid.is_empty() {
        spec.insert("uid", json!(user.uid));
    }
    Value::Object(spec)
}

fn of_field(one: &FieldRequirement) -> Value {
    json!({"key": one.field, "operator": if one.equal { "In" } else { "NotIn" }, "values": [one.value]})
}

/// Of what the review has no word for nothing is said: all requirements hold, so that the question is only broader.
fn of_label(one: &Requirement) -> Option<Value> {
    let operator = match one.operator {
        Operator::In => "In",
        Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::GreaterThan | Operator::LessThan => return None,
    };
    let mut requirement = part(&[("key", &one.key), ("operator", operator)]);
    if !one.values.is_empty() {
        requirement.insert("values", json!(one.values));
    }
    Some(Value::Object(requirement))
}

/// The whole document; the older version has another name for the groups.
pub(super) fn document(version: Version, mut spec: Value) -> Value {
    if version == Version::V1beta1
        && let Some(spec) = spec.as_object_mut()
        && let Some(groups) = spec.remove("groups")
    {
        spec.insert("group", groups);
    }
    json!({
        "kind": "SubjectAccessReview",
        "apiVersion": version.api_version(),
        "metadata": {},
        "spec": spec,
        "status": {"allowed": false},
    })
}

/// The answer of the webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub allowed: bool,
    pub denied: bool,
    pub reason: String,
}

impl Said {
    /// The answer is read once, within the bounds of every document; one of another sort counts for nothing.
    pub fn read(version: Version, answer: &[u8]) -> Result<Said, String> {
        let (review, _) = decode::raw(answer, Format::Json)
            .map_err(|why| format!("couldn't get version/kind; json parse error: {why}"))?;
        let text = |field: &str| review.get(field).and_then(Value::as_str).unwrap_or_default();
        let (kind, given) = (text("kind"), text("apiVersion"));
        if (kind, given) != ("SubjectAccessReview", version.api_version()) {
            let wanted = version.api_version();
            return Err(format!("the answer is a {kind:?} of {given:?}, not a SubjectAccessReview of {wanted:?}"));
        }
        let status = review.get("status").filter(|status| !status.is_null());
        let field = |name: &str| status.and_then(|status| status.get(name)).filter(|value| !value.is_null());
        let flag = |name: &str| match field(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(format!("status.{name} of the answer is neither true nor false")),
        };
        let reason = match field("reason") {
            None => String::new(),
            Some(Value::String(text)) => text.to_string(),
            Some(_) => return Err("status.reason of the answer is no text".to_owned()),
        };
        Ok(Said { allowed: flag("allowed")?, denied: flag("denied")?, reason })
    }

    pub fn verdict(self) -> Verdict {
        let reason = self.reason;
        match (self.allowed, self.denied) {
            (true, true) => {
                let error = "webhook subject access review returned both allow and deny response".to_owned();
                Verdict::Failed(Failure { denied: true, reason, error })
            }
            (false, true) => Verdict::Deny(reason),
            (true, false) => Verdict::Allow(reason),
            (false, false) => Verdict::NoOpinion(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use api::rules::selector::{FieldSelector, Selector};

    use super::*;
    use crate::auth::{Selected, User};

    #[test]
    fn a_request_becomes_a_question() {
        let user = User { uid: "7".into(), ..User::new("jane", ["dev"]) };
        let (fields, labels) =
            (FieldSelector::parse("c!=d,a=b").unwrap(), Selector::parse("y in (2,1),z>3,x").unwrap());
        let a = Attributes {
            namespace: "ns",
            version: "v1",
            selected: Selected { fields: &fields.0, labels: &labels.requirements },
            ..Attributes::resource(&user, "list", "", "pods")
        };
        let expected = json!({
            "resourceAttributes": {
                "namespace": "ns", "verb": "list", "version": "v1", "resource": "pods",
                "fieldSelector": {"requirements": [
                    {"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "NotIn", "values": ["d"]}]},
                "labelSelector": {"requirements": [
                    {"key": "x", "operator": "Exists"}, {"key": "y", "operator": "In", "values": ["1", "2"]}]},
            },
            "user": "jane", "groups": ["dev"], "uid": "7",
        });
        assert_eq!(spec(&a), expected);
        let path = spec(&Attributes::path(&user, "get", "/metrics"));
        assert_eq!(path["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
        let older = document(Version::V1beta1, path);
        let found = (&older["apiVersion"], &older["spec"]["group"], &older["spec"]["groups"]);
        assert_eq!(found, (&json!("authorization.k8s.io/v1beta1"), &json!(["dev"]), &Value::Null));
    }

    #[test]
    fn only_an_answer_of_the_right_sort_counts() {
        let check = |status: &str, expected: Result<Verdict, &str>| {
            let text =
                format!(r#"{{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{status}}}"#);
            let said = Said::read(Version::V1, text.as_bytes()).map(Said::verdict);
            assert_eq!(said, expected.map_err(str::to_owned), "{status}");
        };
        check(r#"{"allowed":true,"reason":"r"}"#, Ok(Verdict::Allow("r".into())));
        check(r#"{"allowed":false}"#, Ok(Verdict::NoOpinion(String::new())));
        check("null", Ok(Verdict::NoOpinion(String::new())));
        check(r#"{"denied":true}"#, Ok(Verdict::Deny(String::new())));
        let both = "webhook subject access review returned both allow and deny response".to_owned();
        check(
            r#"{"allowed":true,"denied":true}"#,
            Ok(Verdict::Failed(Failure { denied: true, reason: String::new(), error: both })),
        );
        check(r#"{"allowed":"true"}"#, Err("status.allowed of the answer is neither true nor false"));
        check(r#"{"allowed":true,"reason":1}"#, Err("status.reason of the answer is no text"));
        for (text, why) in [
            ("", "json parse error"),
            ("[]", "not a SubjectAccessReview"),
            (r#"{"kind":"Status","apiVersion":"v1"}"#, r#"the answer is a "Status" of "v1""#),
            (
                r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1beta1","status":{"allowed":true}}"#,
                "not a",
            ),
        ] {
            let said = Said::read(Version::V1, text.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
