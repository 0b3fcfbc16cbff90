//! The parameters of operations: which ones a verb takes, and what they are for.

use json::{Value, json};

use super::Dialect;

/// The names and types of what may stand in the query.
pub(super) fn query(verb: &str) -> &'static [(&'static str, &'static str)] {
    const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
    match verb {
        "create" | "update" => WRITE,
        "patch" => {
            &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")]
        }
        "delete" => &[
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
        ],
        "list" => &[
            ("allowWatchBookmarks", "boolean"),
            ("continue", "string"),
            ("fieldSelector", "string"),
            ("labelSelector", "string"),
            ("limit", "integer"),
            ("resourceVersion", "string"),
            ("resourceVersionMatch", "string"),
            ("sendInitialEvents", "boolean"),
            ("timeoutSeconds", "integer"),
            ("watch", "boolean"),
        ],
        "deletecollection" => &[
            ("continue", "string"),
            ("dryRun", "string"),
            ("fieldSelector", "string"),
            ("gracePeriodSeconds", "integer"),
            ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
            ("labelSelector", "string"),
            ("limit", "integer"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
            ("resourceVersion", "string"),
            ("resourceVersionMatch", "string"),
            ("sendInitialEvents", "boolean"),
            ("timeoutSeconds", "integer"),
        ],
        _ => &[],
    }
}

pub(super) fn parameter(dialect: Dialect, place: &str, name: &str, ty: &str, description: &str) -> Value {
    let mut parameter = match dialect {
        Dialect::V3 => json!({ "in": place, "name": name, "schema": { "type": ty, "uniqueItems": true } }),
        Dialect::V2 => json!({ "in": place, "name": name, "type": ty, "uniqueItems": true }),
    };
    if !description.is_empty() {
        parameter["description"] = description.into();
    }
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

/// The purpose of a parameter of a query, for people. The texts stand at each operation, so they are short.
pub(super) fn purpose(name: &str) -> &'static str {
    match name {
        "allowWatchBookmarks" => {
            "Ask for watch events of the type BOOKMARK, which say how far the watch has come. The server decides when it \
             sends them, and servers that know none pass over the flag."
        }
        "continue" => {
            "The value that an earlier answer gave when there was more than its limit: the list goes on from there. It holds \
             for a few minutes, with all other parameters as they were; after that the server answers 410, perhaps with a \
             value to go on with from a newer state."
        }
        "dryRun" => {
            "When present, indicates that modifications should not be persisted. Valid values are: - All: all dry run \
             stages will be processed"
        }
        "fieldManager" => {
            "The name of the actor or entity that makes these changes, of printable characters and at most 128 of them. It \
             is required of apply requests; others have the beginning of their user agent instead."
        }
        "fieldSelector" => {
            "A selector to restrict the list of returned objects by their fields. Defaults to everything."
        }
        "fieldValidation" => {
            "What the server does about unknown and duplicate fields. Valid values are: - Ignore: drop them silently. - \
             Warn: drop them and send a warning for each; this is the default. - Strict: refuse the request, naming all of \
             them."
        }
        "force" => "Force an apply request: it takes fields that other managers own. Unset for patches of other types.",
        "gracePeriodSeconds" => {
            "The duration in seconds before the object should be deleted; zero means delete immediately. Defaults to what \
             is usual for its kind."
        }
        "ignoreStoreReadErrorWithClusterBreakingPotential" => {
            "Delete an object that cannot be read from the store, without regard to finalizers and preconditions. This may \
             break the cluster."
        }
        "labelSelector" => {
            "A selector to restrict the list of returned objects by their labels. Defaults to everything."
        }
        "limit" => {
            "The maximum number of answers to a list. If there are more, the server sets the field `continue` of the list's \
             metadata, to get the rest with. Not supported if watch is true."
        }
        "orphanDependents" => "Deprecated: please use the propagationPolicy. Should the dependent objects be orphaned.",
        "pretty" => {
            "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or \
             command-line HTTP tool (curl and wget)."
        }
        "propagationPolicy" => {
            "Whether and how garbage collection will be performed: 'Orphan' orphans the dependents, 'Background' deletes \
             them afterwards, 'Foreground' before the object."
        }
        "resourceVersion" => {
            "A constraint on the resource versions that the request may be served from. See \
             https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details."
        }
        "resourceVersionMatch" => {
            "How resourceVersion is applied to list calls, for which it is recommended wherever resourceVersion is set. See \
             https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details."
        }
        "sendInitialEvents" => {
            "Begin a watch with events of the objects that there are, and a bookmark after them. resourceVersionMatch has \
             to be NotOlderThan then."
        }
        "timeoutSeconds" => {
            "Timeout for the list/watch call. It limits the call's duration, regardless of any activity."
        }
        "watch" => {
            "Watch for changes to the described resources and return them as a stream of add, update, and remove \
             notifications. Specify resourceVersion."
        }
        _ => "",
    }
}
