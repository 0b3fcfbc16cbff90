//! Reviews: questions about the identity and the rights of a user. They are answered at once and never stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Value;
use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use json::{Map, json};

use super::object::{admitted, body, created, text};
use crate::auth::authn::Authentication;
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
            let user = User::clone(&identity.user).authenticated();
            json!({"authenticated": true, "user": user.info(), "audiences": identity.audiences})
        }
        Ok(None) => json!({"user": {}}),
        Err(why) => json!({"user": {}, "error": why}),
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
    answer_for_other(&call, review, "SubjectAccessReview")
}

/// `localsubjectaccessreviews`
pub async fn local_access(mut call: Call) -> Result<Response, StatusError> {
    let review = asked(&mut call, AUTHORIZATION, "LocalSubjectAccessReview").await?;
    let asked = text(&review, "/spec/resourceAttributes/namespace");
    if asked != call.info.namespace {
        let here = &call.info.namespace;
        return Err(StatusError::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {here}"
        )));
    }
    answer_for_other(&call, review, "LocalSubjectAccessReview")
}

/// `selfsubjectaccessreviews`: `kubectl auth can-i`
pub async fn self_access(mut call: Call) -> Result<Response, StatusError> {
    let review = asked(&mut call, AUTHORIZATION, "SelfSubjectAccessReview").await?;
    let user = call.user.clone();
    answer(&call, review, "SelfSubjectAccessReview", &user, Vec::new())
}

fn answer_for_other(call: &Call, review: Value, kind: &str) -> Result<Response, StatusError> {
    let mut nobody = Vec::new();
    let user = user_of(&review);
    if user.name.is_empty() && user.groups.is_empty() {
        let path = Path::new("spec").child("user");
        nobody.push(FieldError::invalid(&path, "", "at least one of user or group must be specified"));
    }
    answer(call, review, kind, &user, nobody)
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

fn answer(
    call: &Call,
    mut review: Value,
    kind: &str,
    user: &User,
    about_user: Vec<FieldError>,
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
    errors.extend(about_user);
    if !errors.is_empty() {
        return Err(StatusError::invalid(AUTHORIZATION, kind, "", &errors));
    }
    let verdict = match (resource, path) {
        (Some(wanted), _) => call.state.authorizer.authorize(&attributes(user, wanted)),
        (None, Some(wanted)) => {
            let a = Attributes::path(user, text(wanted, "/verb"), text(wanted, "/path"));
            call.state.authorizer.authorize(&a)
        }
        (None, None) => Verdict::NoOpinion(String::new()),
    };
    review["status"] = status(&verdict);
    Ok(created(&review))
}

fn attributes<'a>(user: &'a User, wanted: &'a Value) -> Attributes<'a> {
    let version = match text(wanted, "/version") {
        "" => "*",
        version => version,
    };
    Attributes {
        namespace: text(wanted, "/namespace"),
        version,
        subresource: text(wanted, "/subresource"),
        name: text(wanted, "/name"),
        selected: Selected { node_name: selected_node(wanted) },
        ..Attributes::resource(user, text(wanted, "/verb"), text(wanted, "/group"), text(wanted, "/resource"))
    }
}

/// The node that a field selector in the question pins down.
fn selected_node(wanted: &Value) -> Option<&str> {
    let requirements = wanted.pointer("/fieldSelector/requirements").and_then(Value::as_array);
    requirements.into_iter().flatten().find_map(|r| {
        let values = r.get("values").and_then(Value::as_array)?;
        let pinned = text(r, "/key") == "spec.nodeName" && text(r, "/operator") == "In" && values.len() == 1;
        values.first().and_then(Value::as_str).filter(|_| pinned)
    })
}

fn status(verdict: &Verdict) -> Value {
    let mut status = Map::from_iter([("allowed".to_owned(), json!(verdict.allowed()))]);
    if matches!(verdict, Verdict::Deny(_)) {
        status.insert("denied", json!(true));
    }
    if !verdict.reason().is_empty() {
        status.insert("reason", json!(verdict.reason()));
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
    review["status"] =
        json!({"resourceRules": rules.resource, "nonResourceRules": paths, "incomplete": rules.incomplete});
    Ok(created(&review))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_becomes_attributes() {
        let user = User::new("jane", ["dev"]);
        let wanted = json!({"verb": "list", "resource": "pods", "namespace": "ns", "fieldSelector":
            {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}});
        let a = attributes(&user, &wanted);
        assert_eq!(
            (a.verb, a.resource, a.namespace, a.version, a.selected.node_name),
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
    fn verdicts_become_statuses() {
        assert_eq!(status(&Verdict::Allow(String::new())), json!({"allowed": true}));
        assert_eq!(status(&Verdict::NoOpinion("why".into())), json!({"allowed": false, "reason": "why"}));
        assert_eq!(status(&Verdict::Deny("no".into())), json!({"allowed": false, "denied": true, "reason": "no"}));
    }
}
