//! The view of a write that expressions and webhooks have.

use std::sync::Arc;

use api::kind::Definition;
use api::rules::cel::admission::REQUEST_RESOURCE;
use api::rules::cel::authorizer::{self, Question};
use api::status::StatusError;
use api::{Value, meta};
use cel::{Value as Cel, Variables};
use json::{Map, json};

use super::super::attributes::Attributes;
use super::authority::UsersRights;
use super::matching::is_namespace;
use crate::auth::Authorizer;
use crate::storage::loopback::Loopback;

pub(crate) struct Input {
    pub(crate) object: Value,
    pub(crate) old: Value,
    /// The request as AdmissionReview has it, without the objects.
    pub(crate) request: Value,
    namespace: Option<Arc<Value>>,
    authority: Arc<UsersRights>,
    question: Question,
}

static NULL: Value = Value::Null;

impl Input {
    /// The write in the kind in which the policy or webhook wants to see it.
    pub(crate) async fn new(
        (objects, authorizer): (&Loopback, Arc<dyn Authorizer>),
        attributes: &Attributes<'_>,
        definition: &Definition,
        namespace: Option<Arc<Value>>,
    ) -> Result<Input, StatusError> {
        // The object of a subresource is of a kind of its own, which has no other versions.
        let own = |object: &Value| object["kind"].as_str().is_none_or(|kind| kind == attributes.definition.kind);
        let seen = async |object: Option<&Value>| match object {
            Some(object) if !own(object) => Ok(object.clone()),
            Some(object) => objects.between(attributes.definition, definition, object).await,
            None => Ok(Value::Null),
        };
        let user = attributes.user.clone();
        Ok(Input {
            object: seen(attributes.object.as_ref()).await?,
            old: seen(attributes.old).await?,
            request: request(attributes, definition),
            namespace: namespace.filter(|_| !is_namespace(attributes)),
            authority: Arc::new(UsersRights::new(user, authorizer)),
            question: Question {
                group: attributes.definition.group.clone(),
                resource: attributes.definition.plural.clone(),
                subresource: attributes.subresource.to_owned(),
                namespace: attributes.namespace.to_owned(),
                name: attributes.name.to_owned(),
                ..Question::default()
            },
        })
    }

    /// The result of expressions about this write, with the answers to all that they ask about rights.
    pub(crate) async fn settled<T>(&self, evaluate: impl Fn() -> T) -> T {
        loop {
            let open = {
                let result = evaluate();
                let Some(open) = self.authority.open() else { return result };
                open
            };
            self.authority.settle(open).await;
        }
    }

    /// The variables of conditions, which see no namespace.
    pub(super) fn of_conditions<'a>(&'a self, params: Option<&'a Value>) -> Variables<'a> {
        self.base(params, &NULL).with("authorizer", self.authorizer()).with(REQUEST_RESOURCE, self.request_resource())
    }

    pub(super) fn of_validations<'a>(&'a self, params: Option<&'a Value>) -> Variables<'a> {
        let namespace = self.namespace.as_deref().unwrap_or(&NULL);
        self.base(params, namespace)
            .with("authorizer", self.authorizer())
            .with(REQUEST_RESOURCE, self.request_resource())
    }

    /// The variables of messages and audit annotations, which ask for no rights.
    pub(super) fn of_messages<'a>(&'a self, params: Option<&'a Value>) -> Variables<'a> {
        self.base(params, self.namespace.as_deref().unwrap_or(&NULL))
    }

    fn base<'a>(&'a self, params: Option<&'a Value>, namespace: &'a Value) -> Variables<'a> {
        Variables::new()
            .with("object", Cel::json(&self.object))
            .with("oldObject", Cel::json(&self.old))
            .with("request", Cel::json(&self.request))
            .with("namespaceObject", Cel::json(namespace))
            .with("params", Cel::json(params.unwrap_or(&NULL)))
    }

    fn authorizer(&self) -> Cel<'static> {
        authorizer::authorizer(self.authority.clone())
    }

    fn request_resource(&self) -> Cel<'static> {
        authorizer::request_resource(self.authority.clone(), self.question.clone())
    }
}

/// The request as AdmissionReview has it, without the objects.
fn request(attributes: &Attributes<'_>, seen: &Definition) -> Value {
    let own = attributes.definition;
    let kind = |d: &Definition| json!({"group": d.group, "version": d.version, "kind": d.kind});
    let resource = |d: &Definition| json!({"group": d.group, "version": d.version, "resource": d.plural});
    // The object of a subresource is of a kind of its own.
    let of_object = |d: &Definition| match attributes.object.as_ref().filter(|_| !attributes.subresource.is_empty()) {
        Some(object) => {
            let text = |field: &str| meta::at(object, field).and_then(Value::as_str).unwrap_or_default();
            let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
            if text("/kind").is_empty() {
                kind(d)
            } else {
                json!({"group": group, "version": version, "kind": text("/kind")})
            }
        }
        None => kind(d),
    };
    let mut fields = Map::from_iter([
        ("uid".to_owned(), json!("")),
        ("kind".to_owned(), of_object(seen)),
        ("resource".to_owned(), resource(seen)),
        ("requestKind".to_owned(), of_object(own)),
        ("requestResource".to_owned(), resource(own)),
        ("operation".to_owned(), json!(attributes.operation.name())),
        ("userInfo".to_owned(), attributes.user.info()),
        ("dryRun".to_owned(), json!(attributes.dry_run)),
        ("options".to_owned(), attributes.options.clone()),
    ]);
    // A Namespace is in itself.
    let own_namespace = is_namespace(attributes) && attributes.namespace.is_empty();
    let namespace = if own_namespace { attributes.name } else { attributes.namespace };
    let texts = [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", if attributes.collection { "" } else { attributes.name }),
        ("namespace", namespace),
    ];
    for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        fields.insert(name.to_owned(), json!(text));
    }
    Value::Object(fields)
}
