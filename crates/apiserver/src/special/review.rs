//! Reviews: questions about the identity and the rights of a user. They are answered at once and never stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Value;
use api::rules::selector::{FieldRequirement, FieldSelector, Operator, Requirement, Selector, check_requirement};
use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use json::{Map, json};

use super::object::{admitted, body, created, same_namespace, text};
use crate::admission::reasons;
use crate::auth::authn::{Authentication, UNKNOWN_TOKEN, token::Refusal};
use crate::auth::{Attributes, Selected, User, Verdict};
use crate::{call::Call, http::body::Response};

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

fn strings(value: Option<&Value>) -> Vec<String> {
    let list = value.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The question in the body, as admission lets it through.
async fn asked(call: &mut Call, group: &str, kind: &str) -> Result<Value, StatusError> {
    let (review, options) = body(call, group, "v1", kind).await?;
    match call.info.definition.clone() {
        Some(definition) => admitted(call, (&definition, ""), review, &options, |_| Ok(())).await,
        None => Ok(review),
    }
}

/// `tokenreviews`
pub async fn token(mut call: Call, authentication: Arc<Authentication>) -> Result<Response, StatusError> {
    let mut review = asked(&mut call, AUTHENTICATION, "TokenReview").await?;
    let token = text(&review, "/spec/token").to_owned();
    if token.is_empty() {
        return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
    }
    let mut audiences = strings(review.pointer("/spec/audiences"));
    if audiences.is_empty() {
        audiences.clone_from(&authentication.audiences);
    }
    review["status"] = match authentication.check_token(&token, &audiences).await {
        Ok(Some(identity)) => {
            identity.notes.iter().for_each(|(key, text)| call.trail.annotate(*key, text.clone()));
            let user = User::clone(&identity.user).authenticated();
            json!({"authenticated": true, "user": user.info(), "audiences": identity.audiences})
        }
        Ok(None) => json!({"user": {}, "error": UNKNOWN_TOKEN}),
        Err(Refusal { why, notes }) => {
            notes.into_iter().for_each(|(key, text)| call.trail.annotate(key, text));
            json!({"user": {}, "error": why})
        }
    };
    Ok(created(&review))
}

/// `selfsubjectreviews`: `kubectl auth whoami`
pub async fn self_subject(mut call: Call) -> Result<Response, StatusError> {
    let mut review = asked(&mut call, AUTHENTICATION, "SelfSubjectReview").await?;
    if let Some(metadata) = api::meta::metadata_mut(&mut review) {
        metadata.insert("creationTimestamp", json!(clock::now_seconds().to_string()));
    }
    review["status"] = json!({"userInfo": call.user.info()});
    Ok(created(&review))
}

/// `subjectaccessreviews`
pub async fn access(mut call: Call) -> Result<Response, StatusError> {
    let review = asked(&mut call, AUTHORIZATION, "SubjectAccessReview").await?;
    let more = metadata_invalid(&review, None).into_iter().collect();
    let user = user_of(&review);
    answer(&call, review, "SubjectAccessReview", &user, more).await
}

/// `localsubjectaccessreviews`
pub async fn local_access(mut call: Call) -> Result<Response, StatusError> {
    let review = asked(&mut call, AUTHORIZATION, "LocalSubjectAccessReview").await?;
    same_namespace(&call, &review)?;
    let mut more: Vec<FieldError> = metadata_invalid(&review, Some("namespace")).into_iter().collect();
    more.extend(elsewhere(&review, &call.info.namespace));
    let user = user_of(&review);
    answer(&call, review, "LocalSubjectAccessReview", &user, more).await
}

/// `selfsubjectaccessreviews`: `kubectl auth can-i`
pub async fn self_access(mut call: Call) -> Result<Response, StatusError> {
    let review = asked(&mut call, AUTHORIZATION, "SelfSubjectAccessReview").await?;
    let more = metadata_invalid(&review, None).into_iter().collect();
    let user = call.user.clone();
    answer(&call, review, "SelfSubjectAccessReview", &user, more).await
}

/// A question has no metadata, since it is no object; in a namespace it may say which.
fn metadata_invalid(review: &Value, except: Option<&str>) -> Option<FieldError> {
    let metadata = review.get("metadata")?.as_object()?;
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let allowed = |field: &str| field == "managedFields" || except == Some(field);
    let detail = match except {
        Some(field) => format!("must be empty except for {field}"),
        None => "must be empty".to_owned(),
    };
    let more = metadata.iter().any(|(field, value)| !nothing(value) && !allowed(field));
    more.then(|| FieldError::invalid(&Path::new("metadata"), metadata, &detail))
}

/// The things that a question in a namespace asks about and that are not in there.
fn elsewhere(review: &Value, here: &str) -> Vec<FieldError> {
    let spec = Path::new("spec");
    let part = |field: &str| review.get("spec").and_then(|s| s.get(field)).filter(|v| v.is_object());
    let mut errors = Vec::new();
    if let Some(wanted) = part("resourceAttributes").map(|wanted| text(wanted, "/namespace"))
        && wanted != here
    {
        let path = spec.child("resourceAttributes").child("namespace");
        errors.push(FieldError::invalid(&path, wanted, "must match metadata.namespace"));
    }
    if let Some(wanted) = part("nonResourceAttributes") {
        let path = spec.child("nonResourceAttributes");
        errors.push(FieldError::invalid(&path, wanted, "disallowed on this kind of request"));
    }
    errors
}

fn user_of(review: &Value) -> User {
    let spec = review.get("spec");
    let extra = spec.and_then(|s| s.get("extra")).and_then(Value::as_object).into_iter().flatten();
    let extra: BTreeMap<String, Vec<String>> = extra.map(|(k, v)| (k.to_string(), strings(Some(v)))).collect();
    User {
        name: text(review, "/spec/user").to_owned(),
        uid: text(review, "/spec/uid").to_owned(),
        groups: strings(spec.and_then(|s| s.get("groups"))),
        extra,
    }
}

async fn answer(
    call: &Call,
    mut review: Value,
    kind: &str,
    user: &User,
    more: Vec<FieldError>,
) -> Result<Response, StatusError> {
    let spec = Path::new("spec");
    let mut errors = Vec::new();
    let part = |field: &str| review.get("spec").and_then(|s| s.get(field)).filter(|v| v.is_object());
    let (resource, path) = (part("resourceAttributes"), part("nonResourceAttributes"));
    match (resource, path) {
        (Some(_), Some(other)) => errors.push(FieldError::invalid(
            &spec.child("nonResourceAttributes"),
            other,
            "cannot be specified in combination with resourceAttributes",
        )),
        (None, None) => errors.push(FieldError::invalid(
            &spec.child("resourceAttributes"),
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    if user.name.is_empty() && user.groups.is_empty() {
        errors.push(FieldError::invalid(&spec.child("user"), "", "at least one of user or group must be specified"));
    }
    errors.extend(resource.into_iter().flat_map(|wanted| selectors_invalid(wanted, &spec.child("resourceAttributes"))));
    errors.extend(more);
    if !errors.is_empty() {
        return Err(StatusError::invalid(AUTHORIZATION, kind, "", &errors));
    }
    let selectors = resource.map(Selectors::read).unwrap_or_default();
    let attributes = match (resource, path) {
        (Some(wanted), _) => attributes(user, wanted, &selectors),
        (None, wanted) => {
            let text = |field: &str| wanted.map(|wanted| text(wanted, field)).unwrap_or_default();
            Attributes::path(user, text("/verb"), text("/path"))
        }
    };
    let verdict = call.state.authorizer.authorize(&attributes).await;
    review["status"] = status(&verdict, &selectors);
    Ok(created(&review))
}

fn attributes<'a>(user: &'a User, wanted: &'a Value, selectors: &'a Selectors) -> Attributes<'a> {
    let version = match text(wanted, "/version") {
        "" => "*",
        version => version,
    };
    Attributes {
        namespace: text(wanted, "/namespace"),
        version,
        subresource: text(wanted, "/subresource"),
        name: text(wanted, "/name"),
        selected: Selected { fields: &selectors.fields, labels: &selectors.labels },
        ..Attributes::resource(user, text(wanted, "/verb"), text(wanted, "/group"), text(wanted, "/resource"))
    }
}

/// The selectors of a question, as far as they can be read.
#[derive(Default)]
struct Selectors {
    fields: Vec<FieldRequirement>,
    labels: Vec<Requirement>,
    /// The selectors that are passed over, as the answer says it.
    ignored: Vec<&'static str>,
}

fn requirements<'v>(wanted: &'v Value, selector: &str) -> impl Iterator<Item = &'v Value> {
    let selector = wanted.get(selector).and_then(|selector| selector.get("requirements"));
    selector.and_then(Value::as_array).into_iter().flatten()
}

impl Selectors {
    fn read(wanted: &Value) -> Self {
        let mut read = Selectors::default();
        let raw = |selector: &str| wanted.get(selector).map(|s| text(s, "/rawSelector")).unwrap_or_default();
        let (mut fields, mut labels) = (true, true);
        match FieldSelector::parse(raw("fieldSelector")) {
            Ok(FieldSelector(list)) => read.fields = list,
            Err(_) => fields = false,
        }
        match Selector::parse(raw("labelSelector")) {
            Ok(selector) => read.labels = selector.requirements,
            Err(_) => labels = false,
        }
        for one in requirements(wanted, "fieldSelector") {
            match field_requirement(one) {
                Some(one) => read.fields.push(one),
                None => fields = false,
            }
        }
        for one in requirements(wanted, "labelSelector") {
            match label_requirement(one) {
                Some(one) => read.labels.push(one),
                None => labels = false,
            }
        }
        read.ignored.extend(match (fields, read.fields.is_empty()) {
            (true, _) => None,
            (false, true) => Some("spec.resourceAttributes.fieldSelector ignored due to parse error"),
            (false, false) => Some("spec.resourceAttributes.fieldSelector partially ignored due to parse error"),
        });
        read.ignored.extend(match (labels, read.labels.is_empty()) {
            (true, _) => None,
            (false, true) => Some("spec.resourceAttributes.labelSelector ignored due to parse error"),
            (false, false) => Some("spec.resourceAttributes.labelSelector partially ignored due to parse error"),
        });
        read
    }
}

/// One value is all that a field selector can compare with.
fn field_requirement(one: &Value) -> Option<FieldRequirement> {
    let equal = match text(one, "/operator") {
        "In" => true,
        "NotIn" => false,
        _ => return None,
    };
    let values = strings(one.get("values"));
    let [value] = values.as_slice() else { return None };
    Some(FieldRequirement { field: text(one, "/key").to_owned(), value: value.clone(), equal })
}

fn label_requirement(one: &Value) -> Option<Requirement> {
    let operator = match text(one, "/operator") {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return None,
    };
    let values = strings(one.get("values"));
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let requirement = Requirement::new(text(one, "/key"), operator, &values);
    check_requirement(&requirement).is_ok().then_some(requirement)
}

/// The errors of the selectors of a question. Operators that are not known are passed over later: a client may be newer.
fn selectors_invalid(wanted: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for name in ["fieldSelector", "labelSelector"] {
        let Some(selector) = wanted.get(name).filter(|selector| !selector.is_null()) else { continue };
        let (path, raw) = (path.child(name), text(selector, "/rawSelector"));
        let empty = requirements(wanted, name).next().is_none();
        if !raw.is_empty() && !empty {
            let detail = "may not specified at the same time as requirements";
            errors.push(FieldError::invalid(&path.child("rawSelector"), raw, detail));
        }
        if raw.is_empty() && empty {
            let detail = format!("when {path} is specified, requirements or rawSelector is required");
            errors.push(FieldError::required(&path.child("requirements"), &detail));
        }
        for (at, one) in requirements(wanted, name).enumerate() {
            requirement_invalid(one, name == "labelSelector", &path.child("requirements").index(at), &mut errors);
        }
    }
    errors
}

fn requirement_invalid(one: &Value, of_label: bool, path: &Path, errors: &mut Vec<FieldError>) {
    let key = text(one, "/key");
    if key.is_empty() && !of_label {
        errors.push(FieldError::required(&path.child("key"), "must be specified"));
    }
    let valued = !strings(one.get("values")).is_empty();
    let values = path.child("values");
    match text(one, "/operator") {
        "In" | "NotIn" if !valued => {
            errors.push(FieldError::required(&values, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if valued => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&values, detail));
        }
        _ => {}
    }
    if of_label {
        let wrong = api::validation::names::qualified_name(key);
        errors.extend(wrong.iter().map(|why| FieldError::invalid(&path.child("key"), key, why)));
    }
}

fn status(verdict: &Verdict, selectors: &Selectors) -> Value {
    let mut status = Map::from_iter([("allowed".to_owned(), json!(verdict.allowed()))]);
    if verdict.denied() {
        status.insert("denied", json!(true));
    }
    if !verdict.reason().is_empty() {
        status.insert("reason", json!(verdict.reason()));
    }
    let errors: Vec<&str> = verdict.error().into_iter().chain(selectors.ignored.iter().copied()).collect();
    if !errors.is_empty() {
        status.insert("evaluationError", json!(errors.join("; ")));
    }
    Value::Object(status)
}

/// `selfsubjectrulesreviews`: `kubectl auth can-i --list`
pub async fn self_rules(mut call: Call) -> Result<Response, StatusError> {
    let mut review = asked(&mut call, AUTHORIZATION, "SelfSubjectRulesReview").await?;
    let namespace = text(&review, "/spec/namespace").to_owned();
    if namespace.is_empty() {
        return Err(StatusError::bad_request("no namespace on request"));
    }
    let rules = call.state.authorizer.rules_for(&call.user, &namespace);
    let paths: Vec<Value> =
        rules.path.iter().map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls})).collect();
    let error = reasons::together(&rules.unlisted);
    review["status"] =
        json!({"resourceRules": rules.resource, "nonResourceRules": paths, "incomplete": error.is_some()});
    if let Some(error) = error {
        review["status"]["evaluationError"] = json!(error);
    }
    Ok(created(&review))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Failure;

    #[test]
    fn a_question_becomes_attributes() {
        let user = User::new("jane", ["dev"]);
        let wanted = json!({"verb": "list", "resource": "pods", "namespace": "ns", "fieldSelector":
            {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}});
        let selectors = Selectors::read(&wanted);
        let a = attributes(&user, &wanted, &selectors);
        assert_eq!(
            (a.verb, a.resource, a.namespace, a.version, a.selected.node_name()),
            ("list", "pods", "ns", "*", Some("n1"))
        );
        let review = json!({"spec": {"user": "bob", "groups": ["a"], "extra": {"k": ["v"]}}});
        let bob = user_of(&review);
        assert_eq!(
            (bob.name.as_str(), bob.groups, bob.extra["k"].clone()),
            ("bob", vec!["a".to_owned()], vec!["v".to_owned()])
        );
    }

    #[test]
    fn a_question_is_no_object_and_stays_in_its_namespace() {
        let metadata = |metadata: Value, except: Option<&str>| {
            let review = json!({"metadata": metadata, "spec": {}});
            metadata_invalid(&review, except).map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(metadata(json!({}), None), "");
        assert_eq!(metadata(json!({"creationTimestamp": null, "name": "", "managedFields": [{}]}), None), "");
        assert_eq!(metadata(json!({"name": "a"}), None), "metadata: Invalid value: {\"name\":\"a\"}: must be empty");
        assert_eq!(metadata(json!({"namespace": "ns"}), Some("namespace")), "");
        let said = "metadata: Invalid value: {\"labels\":{\"a\":\"b\"}}: must be empty except for namespace";
        assert_eq!(metadata(json!({"labels": {"a": "b"}}), Some("namespace")), said);
        let asked = |spec: Value| {
            let errors = elsewhere(&json!({"spec": spec}), "foo");
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(asked(json!({"resourceAttributes": {"namespace": "foo"}})), "");
        let said = |wanted: &str| {
            format!("spec.resourceAttributes.namespace: Invalid value: {wanted}: must match metadata.namespace")
        };
        assert_eq!(asked(json!({"resourceAttributes": {"namespace": "bar"}})), said("\"bar\""));
        assert_eq!(asked(json!({"resourceAttributes": {"verb": "list"}})), said("\"\""));
        let said = "spec.nonResourceAttributes: Invalid value: {\"path\":\"/\"}: disallowed on this kind of request";
        assert_eq!(asked(json!({"nonResourceAttributes": {"path": "/"}})), said);
    }

    /// The fields, the labels, and what is passed over.
    type Expected<'e> = (&'e [(&'e str, bool, &'e str)], &'e [&'e str], &'e str);

    #[test]
    fn selectors_are_read_as_far_as_they_can_be() {
        let check = |fields: Value, labels: Value, expected: Expected<'_>| {
            let read = Selectors::read(&json!({"fieldSelector": fields, "labelSelector": labels}));
            let fields: Vec<_> = read.fields.iter().map(|f| (f.field.as_str(), f.equal, f.value.as_str())).collect();
            let labels: Vec<String> = read.labels.iter().map(ToString::to_string).collect();
            assert_eq!(
                (&fields[..], &labels[..], &*read.ignored.join("; ")),
                (expected.0, &expected.1.iter().map(ToString::to_string).collect::<Vec<_>>()[..], expected.2)
            );
        };
        let one =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        check(
            json!({"rawSelector": "a=b,c!=d"}),
            json!({"rawSelector": "x,y in (1,2)"}),
            (&[("a", true, "b"), ("c", false, "d")], &["x", "y in (1,2)"], ""),
        );
        check(
            json!({"rawSelector": "&"}),
            json!({"rawSelector": "&"}),
            (
                &[],
                &[],
                "spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error",
            ),
        );
        check(
            json!({"requirements": [one("a", "In", &["b"]), one("a", "NotIn", &["b", "c"])]}),
            json!({"requirements": [one("x", "Exists", &[]), one("y", "Gone", &[])]}),
            (
                &[("a", true, "b")],
                &["x"],
                "spec.resourceAttributes.fieldSelector partially ignored due to parse error; spec.resourceAttributes.labelSelector partially ignored due to parse error",
            ),
        );
    }

    #[test]
    fn selectors_that_cannot_be_are_refused() {
        let check = |selector: Value, expected: &[&str]| {
            let errors =
                selectors_invalid(&json!({"fieldSelector": selector}), &Path::new("spec").child("resourceAttributes"));
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(
                said,
                expected.iter().map(|e| format!("spec.resourceAttributes.fieldSelector.{e}")).collect::<Vec<_>>()
            );
        };
        let one = json!({"key": "a", "operator": "In", "values": ["b"]});
        check(
            json!({"rawSelector": "foo", "requirements": [one]}),
            &["rawSelector: Invalid value: \"foo\": may not specified at the same time as requirements"],
        );
        check(
            json!({}),
            &[
                "requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required",
            ],
        );
        check(
            json!({"requirements": [{"operator": "In"}, {"key": "a", "operator": "Exists", "values": ["b"]}, {"key": "a", "operator": "New"}]}),
            &[
                "requirements[0].key: Required value: must be specified",
                "requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "requirements[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ],
        );
    }

    #[test]
    fn verdicts_become_statuses() {
        let status = |verdict: Verdict| status(&verdict, &Selectors::default());
        assert_eq!(status(Verdict::Allow(String::new())), json!({"allowed": true}));
        assert_eq!(status(Verdict::NoOpinion("why".into())), json!({"allowed": false, "reason": "why"}));
        assert_eq!(status(Verdict::Deny("no".into())), json!({"allowed": false, "denied": true, "reason": "no"}));
        let failed = Verdict::Failed(Failure { denied: true, reason: "no".into(), error: "gone".into() });
        let expected = json!({"allowed": false, "denied": true, "reason": "no", "evaluationError": "gone"});
        assert_eq!(status(failed), expected);
    }
}
