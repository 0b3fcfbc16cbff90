//! ComponentStatus: how the parts of the control plane are, asked when somebody reads it. Deprecated, and still what
//! `kubectl get componentstatuses` shows.

use api::{Value, meta, status::StatusError};
use http::StatusCode;
use serde_json::json;

use crate::{
    call::Call,
    http::{
        body::Response,
        options::ListOptions,
        respond,
        view::{self, View},
    },
    pages::health::Checks,
    storage::filter::Filter,
};

const DEPRECATED: &str = "v1 ComponentStatus is deprecated in v1.19+";

/// `componentstatuses` and `componentstatuses/NAME`
pub async fn read(call: Call, components: Checks) -> Result<Response, StatusError> {
    let objects = &call.state.objects;
    let definition = objects.definition("", "componentstatuses")?;
    let options = ListOptions::of_list(&call.query)?;
    let view = View::negotiate(&call.headers, &options.include_object)?;
    let store = objects.store.revision().await.map(|_| ()).map_err(|error| error.to_string());
    let all = components.results().chain([("etcd-0", store)]).map(|(name, result)| status(name, result));
    let answer = if call.info.verb == "list" {
        let filter = Filter::parse(&definition, &call.info.label_selector, &call.info.field_selector)?;
        view::list(&definition, view, all.filter(|one| filter.matches(&definition, one)).collect())
    } else {
        let found = all.into_iter().find(|one| meta::name(one) == call.info.name);
        let missing = || StatusError::not_found("", "componentstatus", &call.info.name);
        view::value(&definition, view, found.ok_or_else(missing)?)
    };
    let mut response = respond::value(StatusCode::OK, &answer);
    respond::warn(&mut response, &[DEPRECATED.to_owned()]);
    Ok(response)
}

fn status(name: &str, result: Result<(), String>) -> Value {
    let condition = match result {
        Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
        Err(why) => json!({"type": "Healthy", "status": "False", "error": why}),
    };
    json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]})
}
