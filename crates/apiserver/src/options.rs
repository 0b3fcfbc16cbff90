//! The options of requests: query parameters, and `DeleteOptions` in the body.

use std::str::FromStr;

use api::{
    Value,
    decode::Validation,
    field::{FieldError, Path},
    status::StatusError,
};
use serde_json::json;
use store::Revision;

use crate::request::is_true;
use api::url::query_pairs;

/// Options of creates, updates and patches.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    /// The manager is the client's word, not derived from its user agent.
    pub manager_given: bool,
    pub validation: Validation,
    /// Apply takes fields that others own.
    pub force: bool,
}

impl WriteOptions {
    pub fn parse(query: &str, kind: &str, user_agent: &str) -> Result<Self, StatusError> {
        let mut options = WriteOptions::default();
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "dryRun" => options.dry_run = dry_run(&value, kind)?,
                "fieldManager" if value.len() > 128 => {
                    return Err(invalid_option(
                        kind,
                        "fieldManager: Too long: may not be more than 128 bytes".to_owned(),
                    ));
                }
                "fieldManager" => options.manager = value,
                "fieldValidation" => {
                    options.validation = Validation::parse(&value).map_err(|why| invalid_option(kind, why))?;
                }
                "force" => options.force = is_true(&value),
                _ => {}
            }
        }
        options.manager_given = !options.manager.is_empty();
        if !options.manager_given {
            options.manager = api::managed_fields::default_manager(user_agent).to_owned();
        }
        Ok(options)
    }

    /// As admission sees them.
    pub fn object(&self, kind: &str) -> Value {
        let mut object = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "fieldManager": self.manager});
        if self.dry_run {
            object["dryRun"] = json!(["All"]);
        }
        object
    }
}

fn dry_run(value: &str, kind: &str) -> Result<bool, StatusError> {
    match value {
        "All" => Ok(true),
        "" => Ok(false),
        other => {
            Err(invalid_option(kind, format!("dryRun: Unsupported value: [{other:?}]: supported values: \"All\"")))
        }
    }
}

fn invalid_option(kind: &str, detail: String) -> StatusError {
    StatusError::new(422, "Invalid", format!("{kind}.meta.k8s.io \"\" is invalid: {detail}"))
}

/// What happens to the objects that depend on a deleted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// `DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// From the body or, without one, from the query.
    pub fn parse(query: &str, body: &[u8], yaml: bool) -> Result<Self, StatusError> {
        let mut object = if body.is_empty() {
            let mut map = serde_json::Map::new();
            for (key, value) in query_pairs(query) {
                let value = match key.as_str() {
                    "gracePeriodSeconds" => value.parse::<i64>().map(Value::from).unwrap_or(Value::from(value)),
                    "orphanDependents" => Value::from(is_true(&value)),
                    "dryRun" => json!([value]),
                    _ => Value::from(value),
                };
                map.insert(key, value);
            }
            Value::Object(map)
        } else if yaml {
            serde_saphyr::from_slice(body).map_err(|e| StatusError::bad_request(e.to_string()))?
        } else {
            serde_json::from_slice(body).map_err(|e| StatusError::bad_request(e.to_string()))?
        };
        DeleteOptions::read(&mut object)
    }

    fn read(object: &mut Value) -> Result<Self, StatusError> {
        let mut options = DeleteOptions::default();
        match &object["gracePeriodSeconds"] {
            Value::Null => {}
            Value::Number(n) if n.as_i64().is_some_and(|n| n >= -1) => {
                options.grace_seconds = n.as_i64().map(|n| n.max(0))
            }
            other => return Err(StatusError::bad_request(format!("invalid gracePeriodSeconds {other}"))),
        }
        for value in object["dryRun"].as_array().into_iter().flatten() {
            options.dry_run |= dry_run(value.as_str().unwrap_or("?"), "DeleteOptions")?;
        }
        let policy = object["propagationPolicy"].as_str();
        let orphan = object["orphanDependents"].as_bool();
        if policy.is_some() && orphan.is_some() {
            return Err(invalid_option(
                "DeleteOptions",
                format!(
                    "propagationPolicy: Invalid value: {}: orphanDependents and deletionPropagation cannot be both set",
                    api::field::show(policy)
                ),
            ));
        }
        options.propagation = match (policy, orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                return Err(invalid_option(
                    "DeleteOptions",
                    format!(
                        "propagationPolicy: Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                    ),
                ));
            }
            (None, None) => None,
        };
        let precondition = |name: &str| object["preconditions"][name].as_str().map(ToOwned::to_owned);
        options.uid = precondition("uid");
        options.resource_version = precondition("resourceVersion");
        Ok(options)
    }
}

/// How a list's resourceVersion is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    Exact,
    NotOlderThan,
}

/// `ListOptions`, for lists, watches and deletecollection; the selectors are the resolved request's.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub limit: usize,
    pub continue_token: String,
    /// `None` when it is not given; `Some(0)` is "any".
    pub resource_version: Option<Revision>,
    pub version_match: Option<Match>,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
    /// `includeObject` of a Table.
    pub include_object: String,
}

impl ListOptions {
    /// Of a list.
    pub fn of_list(query: &str) -> Result<Self, StatusError> {
        let options = Self::parse(query)?;
        let place = Path::new("resourceVersionMatch");
        let forbidden = |detail: &str| FieldError::forbidden(&place, detail);
        let mut errors = Vec::new();
        if options.version_match.is_some() && options.resource_version.is_none() {
            errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if options.version_match.is_some() && !options.continue_token.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if options.version_match == Some(Match::Exact) && options.resource_version == Some(0) {
            errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
        if options.send_initial_events.is_some() {
            let place = Path::new("sendInitialEvents");
            errors.push(FieldError::forbidden(&place, "sendInitialEvents is forbidden for list"));
        }
        options.if_valid(&errors)
    }

    /// Of a watch.
    pub fn of_watch(query: &str) -> Result<Self, StatusError> {
        let options = Self::parse(query)?;
        let place = Path::new("resourceVersionMatch");
        let forbidden = |detail: &str| FieldError::forbidden(&place, detail);
        let mut errors = Vec::new();
        if options.send_initial_events.is_some() && options.version_match != Some(Match::NotOlderThan) {
            errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        }
        if options.version_match.is_some() && options.send_initial_events.is_none() {
            errors.push(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
        }
        if options.version_match == Some(Match::Exact) {
            errors.push(FieldError::not_supported(&place, "Exact", &["NotOlderThan"]));
        }
        if options.version_match.is_some() && !options.continue_token.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        options.if_valid(&errors)
    }

    fn if_valid(self, errors: &[FieldError]) -> Result<Self, StatusError> {
        if errors.is_empty() { Ok(self) } else { Err(StatusError::invalid("meta.k8s.io", "ListOptions", "", errors)) }
    }

    fn parse(query: &str) -> Result<Self, StatusError> {
        let mut options = ListOptions::default();
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "limit" => options.limit = number(&value)?,
                "continue" => options.continue_token = value,
                "resourceVersion" if value.is_empty() => {}
                "resourceVersion" => {
                    let revision = value.parse().map_err(|_| {
                        StatusError::bad_request(format!(
                            "resourceVersion: Invalid value: {value:?}: strconv.ParseUint: parsing {value:?}: invalid syntax"
                        ))
                    })?;
                    options.resource_version = Some(revision);
                }
                "resourceVersionMatch" => {
                    options.version_match = match value.as_str() {
                        "" => None,
                        "Exact" => Some(Match::Exact),
                        "NotOlderThan" => Some(Match::NotOlderThan),
                        other => {
                            return Err(invalid_option(
                                "ListOptions",
                                format!(
                                    "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                                ),
                            ));
                        }
                    }
                }
                "timeoutSeconds" => options.timeout_seconds = Some(number::<u64>(&value)?).filter(|t| *t > 0),
                "allowWatchBookmarks" => options.bookmarks = is_true(&value),
                "sendInitialEvents" => options.send_initial_events = Some(is_true(&value)),
                "includeObject" => options.include_object = value,
                _ => {}
            }
        }
        Ok(options)
    }
}

fn number<T: FromStr + Default>(value: &str) -> Result<T, StatusError> {
    if value.is_empty() {
        return Ok(T::default());
    }
    value.parse().map_err(|_| StatusError::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax")))
}
