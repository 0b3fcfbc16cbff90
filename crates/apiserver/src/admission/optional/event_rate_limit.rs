//! EventRateLimit: how many events a second are taken, of all, of a namespace, of a user, or about one thing from one source.

use api::{Value, status::StatusError};

use super::settings::event_limits::Sort;
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Outcome, Plugin, done, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "EventRateLimit",
    // A dry run writes nothing, and is not counted.
    concerns: |attributes| {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && !attributes.dry_run
            && attributes.definition.plural == "events"
            && ["", "events.k8s.io"].contains(&&*attributes.definition.group)
    },
    admit: None,
    validate: Some(validate),
};

fn key(sort: Sort, attributes: &Attributes<'_>) -> String {
    match sort {
        Sort::Server => String::new(),
        Sort::Namespace => attributes.namespace.to_owned(),
        Sort::User => attributes.user.name.clone(),
        Sort::SourceAndObject => attributes.object.as_ref().map_or_else(String::new, |event| {
            let event: &Value = &attributes.definition.as_stored(event);
            let of_object = ["kind", "namespace", "name", "uid", "apiVersion"];
            let source = ["component", "host"].map(|field| text(event, &format!("/source/{field}")));
            let object = of_object.map(|field| text(event, &format!("/involvedObject/{field}")));
            source.concat() + &object.concat()
        }),
    }
}

fn validate<'a>(context: &'a Context, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
    let taken = context.optional.event_limits.take(|sort| key(sort, attributes));
    done(taken.map_err(|why| StatusError::new(429, "TooManyRequests", why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::optional::settings::event_limits::Limits;
    use crate::auth::User;
    use crate::tests::admission::{Write, context};
    use api::validation::section::Section;
    use clock::Duration;
    use json::json;

    #[tokio::test(start_paused = true)]
    async fn who_writes_more_events_than_allowed_is_refused() {
        let mut context = context(Vec::new()).await;
        let limit = json!({"type": "User", "qps": 1, "burst": 2, "cacheSize": 1});
        let config = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": [limit]});
        context.optional.event_limits = Limits::parse(&Section::of("", &config).unwrap()).unwrap();
        let write = |user: &str| {
            let event = json!({"metadata": {"name": "e", "namespace": "n"}});
            Write { user: User::new(user, ["dev"]), ..Write::create("events", event) }.through(&context, &PLUGIN)
        };
        for _ in 0..2 {
            write("jane").await.unwrap();
        }
        assert_eq!(write("jane").await.unwrap_err(), "Too many requests: limit reached on type User for key jane");
        clock::sleep(Duration::from_secs(1)).await;
        write("jane").await.unwrap();
        assert!(write("jane").await.is_err());
        // There is room for one: the other is forgotten.
        write("jim").await.unwrap();
        write("jane").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn all_limits_that_are_reached_are_told() {
        let mut context = context(Vec::new()).await;
        let limits = ["Server", "User"].map(|sort| json!({"type": sort, "qps": 1, "burst": 1, "cacheSize": 10}));
        let config = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": limits});
        context.optional.event_limits = Limits::parse(&Section::of("", &config).unwrap()).unwrap();
        let write = || Write::create("events", json!({"metadata": {"name": "e", "namespace": "n"}}));
        write().through(&context, &PLUGIN).await.unwrap();
        let refused = write().refused(&context, &PLUGIN).await;
        let both =
            "Too many requests: [limit reached on type Server for key , limit reached on type User for key jane]";
        assert_eq!((refused.code, &*refused.message), (429, both));
    }

    /// Letters stand for the values that the limit counts by: one behind `!` is refused, one behind `~` is a dry run, and `_` is a
    /// second's pause. Upstream: TestEventRateLimiting.
    #[tokio::test(start_paused = true)]
    async fn each_limit_counts_by_what_it_is_of() {
        let check = async |sort: &str, (burst, cache): (i64, i64), by: &str, story: &str| {
            let limit = json!({"type": sort, "qps": 1, "burst": burst, "cacheSize": cache});
            let config = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": [limit]});
            let mut context = context(Vec::new()).await;
            context.optional.event_limits = Limits::parse(&Section::of("", &config).unwrap()).unwrap();
            for step in story.split_whitespace() {
                if step == "_" {
                    clock::sleep(Duration::from_secs(1)).await;
                    continue;
                }
                // No two events come at one moment, so that one of them is the older one.
                clock::sleep(Duration::from_millis(1)).await;
                let value = step.trim_start_matches(['!', '~']);
                let mut event = json!({"metadata": {"name": "e", "namespace": "n"}});
                let mut user = "jane";
                match by.split_once('/') {
                    Some((part, field)) => event[part][field] = json!(value),
                    None => user = value,
                }
                let write = Write { user: User::new(user, ["dev"]), ..Write::create("events", event) };
                let is_dry = step.starts_with('~');
                let taken =
                    if is_dry { write.dry(&context, &PLUGIN).await } else { write.through(&context, &PLUGIN).await };
                assert_eq!(taken.is_ok(), !step.starts_with('!'), "{sort} by {by}: {step} of {story}");
            }
            // Anything else is written as before, and does not count.
            assert!(Write::create("pods", json!({"metadata": {"name": "p"}})).through(&context, &PLUGIN).await.is_ok());
        };
        check("Server", (3, 0), "user", "A B A !A _ A !A").await;
        check("Server", (3, 0), "user", "~A A ~A A A !A ~A _ A").await;
        let of = [("Namespace", "metadata/namespace"), ("User", "user"), ("SourceAndObject", "source/component")];
        for (sort, by) in of {
            check(sort, (3, 10), by, "A A A !A _ A").await;
            check(sort, (3, 10), by, "A A B A !A B B !B").await;
            // The one that was used least lately makes room for another.
            check(sort, (3, 2), by, "A A B B B A !B !A C !A B").await;
        }
        let parts = ["kind", "namespace", "name", "uid", "apiVersion"].map(|field| format!("involvedObject/{field}"));
        for by in parts.iter().map(String::as_str).chain(["source/host"]) {
            check("SourceAndObject", (1, 10), by, "A !A B").await;
        }
    }
}
