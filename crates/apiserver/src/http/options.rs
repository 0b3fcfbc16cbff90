//! The options of requests: query parameters, and `DeleteOptions` in the body.

use std::str::FromStr;

use api::{
    Value,
    codec::decode::Validation,
    meta,
    status::StatusError,
    validation::field::{FieldError, Path},
};
use json::json;
use store::Revision;

use crate::audit::Trail;
use api::rules::url::{is_true, query_firsts, query_pairs};

/// Options of creates, updates and patches.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    /// The manager is the client's word, not derived from its user agent.
    pub manager_given: bool,
    pub validation: Validation,
    /// The client's word for it, if there is one.
    pub validation_given: String,
    /// Apply takes fields that others own. No other patch may say anything about it.
    pub force: Option<bool>,
}

impl WriteOptions {
    pub fn parse(query: &str, kind: &str, user_agent: &str) -> Result<Self, StatusError> {
        let mut options = WriteOptions::default();
        let mut errors = Vec::new();
        let dry_run: Vec<String> = dry_run(query).collect();
        for (key, value) in query_firsts(query) {
            match key.as_str() {
                "fieldManager" => options.manager = value,
                "fieldValidation" => match Validation::parse(&value) {
                    Ok(validation) => (options.validation, options.validation_given) = (validation, value),
                    Err(error) => errors.push(error),
                },
                "force" => options.force = Some(is_true(&value)),
                _ => {}
            }
        }
        options.dry_run = !dry_run.is_empty();
        errors.extend(dry_run_error(&dry_run));
        errors.extend(manager_errors(&options.manager));
        if_valid(kind, &errors)?;
        options.manager_given = !options.manager.is_empty();
        if !options.manager_given {
            options.manager = api::write::managed_fields::default_manager(user_agent).to_owned();
        }
        Ok(options)
    }

    /// Those of a patch: only an apply has a name for its fields, and may take those of others.
    pub fn of_patch(query: &str, user_agent: &str, apply: bool) -> Result<Self, StatusError> {
        let options = Self::parse(query, "PatchOptions", user_agent)?;
        let error = match (apply, options.force) {
            (true, _) if !options.manager_given => {
                FieldError::required(&Path::new("fieldManager"), "is required for apply patch")
            }
            (false, Some(_)) => FieldError::forbidden(&Path::new("force"), "may not be specified for non-apply patch"),
            _ => return Ok(options),
        };
        if_valid("PatchOptions", &[error]).map(|()| options)
    }

    /// As admission sees them.
    pub fn object(&self, kind: &str) -> Value {
        let mut object = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        if self.dry_run {
            object["dryRun"] = json!(["All"]);
        }
        if self.manager_given {
            object["fieldManager"] = json!(self.manager);
        }
        if !self.validation_given.is_empty() {
            object["fieldValidation"] = json!(self.validation_given);
        }
        object
    }
}

fn if_valid(kind: &str, errors: &[FieldError]) -> Result<(), StatusError> {
    if errors.is_empty() { Ok(()) } else { Err(StatusError::invalid("meta.k8s.io", kind, "", errors)) }
}

/// A dry run alone is asked for by a list.
fn dry_run(query: &str) -> impl Iterator<Item = String> {
    query_pairs(query).filter(|(key, _)| key == "dryRun").map(|(_, value)| value)
}

/// A dry run is asked for by the one word `All`, however often.
fn dry_run_error(values: &[String]) -> Option<FieldError> {
    let unknown = values.iter().any(|value| value != "All");
    unknown.then(|| FieldError::not_supported(&Path::new("dryRun"), values, &["All"]))
}

const MANAGER_MAX: usize = 128;

fn manager_errors(manager: &str) -> Vec<FieldError> {
    let path = Path::new("fieldManager");
    let mut errors = Vec::new();
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError::too_long(&path, MANAGER_MAX));
    }
    for (at, c) in manager.char_indices().filter(|(_, c)| c.is_control()).take(1) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid(&path, manager, &detail));
    }
    errors
}

/// The fate of the objects that depend on a deleted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl Propagation {
    fn name(self) -> &'static str {
        match self {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        }
    }
}

/// `DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    /// The older form of the propagation, whose answer tells whether the deletion is still under way.
    pub orphan_dependents: Option<bool>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// From the body, in whichever format, or, without one, from the query. The trail is told of a body before it is judged.
    pub fn read(query: &str, body: &[u8], media_type: &str, trail: &Trail) -> Result<Self, StatusError> {
        if body.is_empty() {
            return Self::of(&of_query(query)?);
        }
        let object = api::codec::decode::options("DeleteOptions", body, media_type)?;
        spans::event("Decoded delete options");
        trail.requested_options(&object);
        spans::event("Recorded the audit event");
        Self::of(&object)
    }

    /// From options whose types were checked.
    pub fn of(object: &Value) -> Result<Self, StatusError> {
        let policy = object["propagationPolicy"].as_str();
        let orphan_dependents = object["orphanDependents"].as_bool();
        let path = Path::new("propagationPolicy");
        let mut errors = Vec::new();
        if policy.is_some() && orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(&path, policy, detail));
        }
        let propagation = match (policy, orphan_dependents) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(&path, other, &known));
                None
            }
            (None, None) => None,
        };
        let dry_run = object["dryRun"].as_array().into_iter().flatten();
        let dry_run: Vec<String> = dry_run.map(|value| value.as_str().unwrap_or_default().to_owned()).collect();
        errors.extend(dry_run_error(&dry_run));
        if_valid("DeleteOptions", &errors)?;
        let precondition = |name: &str| object["preconditions"][name].as_str().map(ToOwned::to_owned);
        Ok(DeleteOptions {
            // Less than nothing is read as one second.
            grace_seconds: object["gracePeriodSeconds"].as_i64().map(|grace| if grace < 0 { 1 } else { grace }),
            propagation,
            orphan_dependents,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            dry_run: !dry_run.is_empty(),
        })
    }
}

impl DeleteOptions {
    /// As admission sees them.
    pub fn object(&self) -> Value {
        let mut object = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        if let Some(seconds) = self.grace_seconds {
            object["gracePeriodSeconds"] = json!(seconds);
        }
        for (field, value) in [("uid", &self.uid), ("resourceVersion", &self.resource_version)] {
            if let Some(value) = value {
                object["preconditions"][field] = json!(value);
            }
        }
        match (self.orphan_dependents, self.propagation) {
            (Some(orphan), _) => object["orphanDependents"] = json!(orphan),
            (None, Some(propagation)) => object["propagationPolicy"] = json!(propagation.name()),
            (None, None) => {}
        }
        if self.dry_run {
            object["dryRun"] = json!(["All"]);
        }
        object
    }
}

/// The options that can stand in a query. Preconditions cannot.
fn of_query(query: &str) -> Result<Value, StatusError> {
    let mut object = json!({});
    for (key, value) in query_firsts(query) {
        match key.as_str() {
            "gracePeriodSeconds" => {
                let seconds: i64 = value.parse().map_err(|_| unparsed(&value))?;
                object[key] = json!(seconds);
            }
            "orphanDependents" => object[key] = json!(is_true(&value)),
            "propagationPolicy" => object[key] = json!(value),
            "dryRun" => object[key] = json!(dry_run(query).collect::<Vec<_>>()),
            _ => {}
        }
    }
    Ok(object)
}

/// `includeObject` of a Table.
pub fn include_object(query: &str) -> String {
    query_pairs(query).find(|(key, _)| key == "includeObject").map(|(_, value)| value).unwrap_or_default()
}

/// How a list's resourceVersion is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    Exact,
    NotOlderThan,
    /// Nothing that passes the rules.
    Unknown(String),
}

impl Match {
    fn of(given: String) -> Option<Self> {
        match given.as_str() {
            "" => None,
            "Exact" => Some(Match::Exact),
            "NotOlderThan" => Some(Match::NotOlderThan),
            _ => Some(Match::Unknown(given)),
        }
    }

    fn name(&self) -> &str {
        match self {
            Match::Exact => "Exact",
            Match::NotOlderThan => "NotOlderThan",
            Match::Unknown(given) => given,
        }
    }
}

/// `ListOptions`, for lists, watches and deletecollection; the selectors are the resolved request's.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub limit: usize,
    pub continue_token: String,
    /// `None` when it is not given; `Some(0)` is "any".
    pub resource_version: Option<Revision>,
    pub version_match: Option<Match>,
    /// A watch with a negative one ends at once.
    pub timeout_seconds: Option<i64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
    /// `includeObject` of a Table.
    pub include_object: String,
}

impl ListOptions {
    /// Of a list.
    pub fn of_list(query: &str) -> Result<Self, StatusError> {
        Self::checked(query, ListErrors::of_list)
    }

    /// Of a watch. One that begins anywhere begins with the objects that there are.
    pub fn of_watch(query: &str) -> Result<Self, StatusError> {
        Self::checked(query, |options, version| {
            if options.send_initial_events.is_none() && options.version_match.is_none() && matches!(version, "" | "0") {
                options.send_initial_events = Some(true);
                options.version_match = Some(Match::NotOlderThan);
            }
            ListErrors::of_watch(options)
        })
    }

    /// The options of a query that these rules let pass; they see the resourceVersion as it is given.
    fn checked(
        query: &str,
        rules: impl FnOnce(&mut ListOptions, &str) -> Vec<FieldError>,
    ) -> Result<Self, StatusError> {
        let (mut options, version) = Self::parse(query)?;
        if_valid("ListOptions", &rules(&mut options, &version))?;
        options.resource_version = revision(&version)?;
        Ok(options)
    }

    fn parse(query: &str) -> Result<(Self, String), StatusError> {
        let (mut options, mut version) = (ListOptions::default(), String::new());
        for (key, value) in query_firsts(query) {
            match key.as_str() {
                // Less than one is no limit.
                "limit" => options.limit = usize::try_from(number::<i64>(&value)?).unwrap_or(0),
                "continue" => options.continue_token = value,
                "resourceVersion" => version = value,
                "resourceVersionMatch" => options.version_match = Match::of(value),
                "timeoutSeconds" => options.timeout_seconds = Some(number(&value)?).filter(|t| *t != 0),
                "allowWatchBookmarks" => options.bookmarks = is_true(&value),
                "sendInitialEvents" => options.send_initial_events = Some(is_true(&value)),
                "includeObject" => options.include_object = value,
                _ => {}
            }
        }
        Ok((options, version))
    }
}

/// The revision that a `resourceVersion` stands for; an empty one stands for none.
pub fn revision(version: &str) -> Result<Option<Revision>, StatusError> {
    if version.is_empty() {
        return Ok(None);
    }
    parse_uint(version)
        .map(Some)
        .map_err(|why| StatusError::bad_request(format!("resourceVersion: Invalid value: {version:?}: {why}")))
}

/// The revision that an object says it is of; 0 where it says nothing. Upstream gives Go's error as it is.
pub fn revision_of(object: &Value) -> Result<Revision, StatusError> {
    match meta::resource_version(object) {
        "" => Ok(0),
        version => parse_uint(version).map_err(|why| StatusError::new(500, "", why)),
    }
}

/// As Go reads a number; the error is in its words.
fn parse_uint(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if digits { "value out of range" } else { "invalid syntax" };
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| format!("strconv.ParseUint: parsing {text:?}: {why}"))
}

/// Upstream's rules for the options of lists and watches.
struct ListErrors {
    place: Path,
    errors: Vec<FieldError>,
}

impl ListErrors {
    fn new() -> Self {
        ListErrors { place: Path::new("resourceVersionMatch"), errors: Vec::new() }
    }

    fn forbid(&mut self, when: bool, detail: &str) {
        if when {
            self.errors.push(FieldError::forbidden(&self.place, detail));
        }
    }

    fn unknown(&mut self, found: &Match, known: &[&str]) {
        self.errors.push(FieldError::not_supported(&self.place, found.name(), known));
    }

    fn of_list(options: &mut ListOptions, version: &str) -> Vec<FieldError> {
        let mut found = Self::new();
        if let Some(given) = &options.version_match {
            found.forbid(version.is_empty(), "resourceVersionMatch is forbidden unless resourceVersion is provided");
            found.forbid(
                !options.continue_token.is_empty(),
                "resourceVersionMatch is forbidden when continue is provided",
            );
            if matches!(given, Match::Unknown(_)) {
                found.unknown(given, &["Exact", "NotOlderThan", ""]);
            }
            found.forbid(
                *given == Match::Exact && version == "0",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        if options.send_initial_events.is_some() {
            let place = Path::new("sendInitialEvents");
            found.errors.push(FieldError::forbidden(&place, "sendInitialEvents is forbidden for list"));
        }
        found.errors
    }

    fn of_watch(options: &ListOptions) -> Vec<FieldError> {
        let (mut found, given) = (Self::new(), &options.version_match);
        let initial = options.send_initial_events.is_some();
        found.forbid(
            initial && *given != Some(Match::NotOlderThan),
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
        if let Some(given) = given {
            found.forbid(!initial, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
            if *given != Match::NotOlderThan {
                found.unknown(given, &["NotOlderThan"]);
            }
            found.forbid(
                !options.continue_token.is_empty(),
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        found.errors
    }
}

fn number<T: FromStr + Default>(value: &str) -> Result<T, StatusError> {
    if value.is_empty() {
        return Ok(T::default());
    }
    value.parse().map_err(|_| unparsed(value))
}

fn unparsed(value: &str) -> StatusError {
    StatusError::bad_request(format!(
        "strconv.ParseInt: parsing {}: invalid syntax",
        api::validation::field::quote(value)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused<T>(result: Result<T, StatusError>, code: u16, message: &str) {
        let error = result.err().expect("refused");
        assert_eq!((error.code, error.message.as_str()), (code, message));
    }

    #[test]
    fn options_of_writes() {
        let parse = |query: &str| WriteOptions::parse(query, "UpdateOptions", "kubectl/v1 (linux)");
        let options = parse("dryRun=All&dryRun=All&fieldManager=me&fieldValidation=Strict").unwrap();
        assert_eq!((options.dry_run, options.manager.as_str(), options.manager_given), (true, "me", true));
        assert_eq!(parse("fieldManager=me&fieldManager=you").unwrap().manager, "me");
        assert_eq!((parse("").unwrap().manager.as_str(), parse("").unwrap().dry_run), ("kubectl", false));
        let start = "UpdateOptions.meta.k8s.io \"\" is invalid: ";
        let bad = "dryRun: Unsupported value: [\"All\",\"\"]: supported values: \"All\"";
        refused(parse("dryRun=All&dryRun="), 422, &format!("{start}{bad}"));
        let bad = "fieldManager: Invalid value: \"a\\nb\": invalid character U+000A (at position 1)";
        refused(parse("fieldManager=a%0Ab"), 422, &format!("{start}{bad}"));
        let long = format!("fieldManager={}", "x".repeat(129));
        refused(parse(&long), 422, &format!("{start}fieldManager: Too long: may not be more than 128 bytes"));
    }

    #[test]
    fn only_an_apply_takes_fields() {
        let start = "PatchOptions.meta.k8s.io \"\" is invalid: ";
        let forbidden = format!("{start}force: Forbidden: may not be specified for non-apply patch");
        refused(WriteOptions::of_patch("force=false", "", false), 422, &forbidden);
        let required = format!("{start}fieldManager: Required value: is required for apply patch");
        refused(WriteOptions::of_patch("force=true", "", true), 422, &required);
        assert_eq!(WriteOptions::of_patch("force=true&fieldManager=me", "", true).unwrap().force, Some(true));
    }

    #[test]
    fn options_of_deletes() {
        let query = |query: &str| DeleteOptions::read(query, b"", "", &Trail::default());
        let options = query("gracePeriodSeconds=-5&propagationPolicy=Orphan&dryRun=All&pretty=1").unwrap();
        assert_eq!((options.grace_seconds, options.propagation), (Some(1), Some(Propagation::Orphan)));
        assert!(options.dry_run);
        refused(query("gracePeriodSeconds=x"), 400, "strconv.ParseInt: parsing \"x\": invalid syntax");
        refused(query("gracePeriodSeconds="), 400, "strconv.ParseInt: parsing \"\": invalid syntax");
        let start = "DeleteOptions.meta.k8s.io \"\" is invalid: ";
        let both =
            "propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set";
        refused(query("orphanDependents=true&propagationPolicy=Orphan"), 422, &format!("{start}{both}"));
        // A body speaks for the whole: what the query says beside it does not count.
        let body = br#"{"preconditions": {"uid": "u"}, "orphanDependents": false}"#;
        let query = "gracePeriodSeconds=x&dryRun=All";
        let options = DeleteOptions::read(query, body, "application/json", &Trail::default()).unwrap();
        assert_eq!((options.uid.as_deref(), options.dry_run), (Some("u"), false));
        assert_eq!((options.propagation, options.orphan_dependents), (Some(Propagation::Background), Some(false)));
    }

    #[test]
    fn options_of_lists_and_watches() {
        #[track_caller]
        fn check(result: Result<ListOptions, StatusError>, expected: &[&str]) {
            let message = match expected {
                [one] => (*one).to_owned(),
                many => format!("[{}]", many.join(", ")),
            };
            refused(result, 422, &format!("ListOptions.meta.k8s.io \"\" is invalid: {message}"));
        }
        const PLACE: &str = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden";
        let (list, watch) = (ListOptions::of_list, ListOptions::of_watch);
        let (without, paged) =
            (format!("{PLACE} unless resourceVersion is provided"), format!("{PLACE} when continue is provided"));
        let unknown = "resourceVersionMatch: Unsupported value: \"Foo\": supported values:";
        check(list("resourceVersionMatch=Exact"), &[&without]);
        check(list("resourceVersionMatch=Exact&resourceVersion=1&continue=a"), &[&paged]);
        check(
            list("resourceVersionMatch=Foo&continue=a"),
            &[&without, &paged, &format!("{unknown} \"Exact\", \"NotOlderThan\", \"\"")],
        );
        check(
            list("resourceVersionMatch=Exact&resourceVersion=0"),
            &["resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""],
        );
        check(
            list("sendInitialEvents=false&resourceVersion=x"),
            &["sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"],
        );
        // A watch from anywhere has a match of its own, which does not go with a page.
        check(watch("continue=a"), &[&paged]);
        check(watch("continue=a&resourceVersion=0"), &[&paged]);
        assert!(watch("continue=a&resourceVersion=5").is_ok());
        let initial =
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        check(watch("sendInitialEvents=false"), &[initial]);
        check(
            watch("sendInitialEvents=true&resourceVersionMatch=Foo"),
            &[initial, &format!("{unknown} \"NotOlderThan\"")],
        );
        let alone = format!("{PLACE} for watch unless sendInitialEvents is provided");
        check(watch("resourceVersionMatch=NotOlderThan&resourceVersion=0"), &[&alone]);
        let exact = "resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"";
        check(watch("resourceVersionMatch=Exact&resourceVersion=3"), &[&alone, exact]);
        let begins = |query: &str| watch(query).expect("valid").send_initial_events;
        assert_eq!(
            (begins(""), begins("resourceVersion=0"), begins("resourceVersion=7")),
            (Some(true), Some(true), None)
        );
        let text = "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax";
        refused(list("resourceVersion=x"), 400, text);
        let limit = |query: &str| list(query).expect("valid").limit;
        assert_eq!((limit("limit=2&limit=100"), limit("limit=0&limit=2")), (2, 0));
    }
}
