//! EventRateLimit: how many events a second are taken, of all, of a namespace, of a user, or about one thing from one source.

use api::{Value, status::StatusError};

use super::settings::event_limits::Sort;
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Outcome, Plugin, done, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "EventRateLimit",
    concerns: |attributes| {
        matches!(attributes.operation, Operation::Create | Operation::Update)
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
        assert_eq!(write("jane").await.unwrap_err(), "limit reached on type User for key jane");
        clock::sleep(Duration::from_secs(1)).await;
        write("jane").await.unwrap();
        assert!(write("jane").await.is_err());
        // There is room for one: the other is forgotten.
        write("jim").await.unwrap();
        write("jane").await.unwrap();
    }
}
