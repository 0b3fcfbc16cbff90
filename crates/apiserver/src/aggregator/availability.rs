//! The condition `Available` of an APIService: whether its Service is there, leads to somebody, and answers.
//! Upstream counterpart: kube-aggregator/pkg/controllers/status.

use api::{Value, kind::Target, status::StatusError};
use clock::Duration;
use futures::future::select_ok;
use json::json;

use super::{
    Aggregator, backend,
    registrations::{Backend, Registration},
};
use crate::{
    auth::User,
    outbound::{dialer::why, service::slices},
    storage::object_store::ObjectStore,
};

/// A server that answers is asked again after this time, and one that does not at the latest then.
const PERIOD: Duration = Duration::from_secs(30);
/// The first pause after a failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The number of questions that are sent together: the address may lead to several servers, some of which have just
/// gone.
const ATTEMPTS: usize = 5;

/// The condition as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn wrong(reason: &'static str, message: String) -> Self {
        Verdict { status: "False", reason, message }
    }

    pub fn local() -> Self {
        let message = "Local APIServices are always available".to_owned();
        Verdict { status: "True", reason: "Local", message }
    }

    fn passed() -> Self {
        Verdict { status: "True", reason: "Passed", message: "all checks passed".to_owned() }
    }

    fn failed(why: String) -> Self {
        Verdict::wrong("FailedDiscoveryCheck", why)
    }
}

/// The verdict about the Service or its endpoints that needs no question to the server. Pure.
fn about_service(to: &Backend, service: Option<&Value>, slices: &[Value]) -> Option<Verdict> {
    let shown = format!("service/{} in {:?}", to.name, to.namespace);
    let Some(service) = service else {
        return Some(Verdict::wrong("ServiceNotFound", format!("{shown} is not present")));
    };
    if service["spec"]["type"] != "ClusterIP" {
        return None;
    }
    let list = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    let ports = list(&service["spec"], "ports");
    let Some(port) = ports.iter().find(|port| port["port"] == to.port) else {
        return Some(Verdict::wrong("ServicePortError", format!("{shown} is not listening on port {}", to.port)));
    };
    let name = port["name"].as_str().unwrap_or_default();
    if slices.is_empty() {
        return Some(Verdict::wrong("EndpointsNotFound", format!("cannot find endpointslices for {shown}")));
    }
    let serves = |slice: &Value| {
        let ready = list(slice, "endpoints").iter().any(|e| e["conditions"]["ready"] != false);
        let named = |p: &Value| p["name"].as_str().unwrap_or_default() == name && p["port"].is_number();
        ready && list(slice, "ports").iter().any(named)
    };
    if slices.iter().any(serves) {
        return None;
    }
    let message = format!("endpointslices for {shown} have no addresses with port name {name:?}");
    Some(Verdict::wrong("MissingEndpoints", message))
}

/// Finds out how it is now.
async fn check(aggregator: &Aggregator, objects: &ObjectStore, registration: &Registration, to: &Backend) -> Verdict {
    let unknown = |reason, error: StatusError| Verdict {
        status: "Unknown",
        reason,
        message: format!("service/{} in {:?} cannot be checked due to: {error}", to.name, to.namespace),
    };
    let service = match service(objects, to).await {
        Ok(service) => service,
        Err(error) => return unknown("ServiceAccessError", error),
    };
    let slices = match slices(objects, &to.namespace, &to.name).await {
        Ok(slices) => slices,
        Err(error) => return unknown("EndpointsAccessError", error),
    };
    if let Some(verdict) = about_service(to, service.as_ref(), &slices) {
        return verdict;
    }
    let asked = (0..ATTEMPTS).map(|_| Box::pin(ask(aggregator, objects, registration, to)));
    select_ok(asked).await.map_or_else(Verdict::failed, |_| Verdict::passed())
}

async fn service(objects: &ObjectStore, to: &Backend) -> Result<Option<Value>, StatusError> {
    match objects.get(&*objects.definition("", "services")?, &to.namespace, &to.name).await {
        Ok(service) => Ok(Some(service)),
        Err(error) if error.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks for a page that every server of the group version has. Its certificate is not checked: it is told nothing, and its
/// answer changes no more than this condition.
async fn ask(
    aggregator: &Aggregator,
    objects: &ObjectStore,
    registration: &Registration,
    to: &Backend,
) -> Result<(), String> {
    let dialer = aggregator.checker.as_ref().map_err(Clone::clone)?;
    let endpoint = aggregator.endpoint(objects, to).await.map_err(|error| error.message)?;
    let path = registration.path();
    let url = format!("https://{}{path}", endpoint.authority());
    let asker = User::new("system:kube-aggregator", ["system:masters"]);
    let failed = |why: &str| format!("failing or missing response from {url}: {why}");
    match backend::get(dialer, &endpoint, &path, &asker, &[]).await {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(failed(&format!("bad status from {url}: {}", answer.status().as_u16()))),
        Err(error) => Err(failed(&format!("Get {url:?}: {}", why(&error)))),
    }
}

/// Writes the condition, if it is another than the one there is.
pub async fn tell(objects: &ObjectStore, name: &str, verdict: &Verdict) -> Result<(), StatusError> {
    let definition = objects.definition("apiregistration.k8s.io", "apiservices")?;
    let change = |object: &mut Value| Ok(set(object, verdict, &clock::now_seconds().to_string()));
    match objects.update(&definition, ("", name), Target::Status, change).await {
        Err(error) if error.code == 404 => Ok(()),
        done => done,
    }
}

/// Returns whether anything changed. Pure.
fn set(object: &mut Value, verdict: &Verdict, now: &str) -> bool {
    // The object may have become local, or another server's, since it was looked at.
    let local = object["spec"].get("service").is_none_or(Value::is_null);
    if local != (verdict.reason == "Local") || !object.is_object() {
        return false;
    }
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let old = conditions.iter().position(|c| c["type"] == "Available");
    let since = old.map(|at| &conditions[at]).filter(|c| c["status"] == verdict.status);
    let since = since.map_or_else(|| json!(now), |c| c["lastTransitionTime"].clone());
    let new = json!({"type": "Available", "status": verdict.status, "reason": verdict.reason, "message": verdict.message,
        "lastTransitionTime": since});
    match old {
        Some(at) if conditions[at] == new => return false,
        Some(at) => conditions[at] = new,
        None => conditions.push(new),
    }
    object["status"]["conditions"] = json!(conditions);
    true
}

/// Keeps the condition right for as long as another server serves the group version.
pub async fn keep(aggregator: &Aggregator, objects: &ObjectStore, name: &str) {
    let mut pause = FIRST_PAUSE;
    loop {
        let table = aggregator.table();
        let registration = table.passed_on().find(|r| r.name == name);
        let Some((registration, to)) = registration.and_then(|r| Some((r, r.backend.as_ref()?))) else { return };
        let wake = aggregator.wakes(name);
        let verdict = check(aggregator, objects, registration, to).await;
        let told = tell(objects, name, &verdict).await;
        let failed = told.is_err() || verdict.reason == "FailedDiscoveryCheck";
        if let Err(error) = told {
            tracing::debug!(name, %error, "the condition of an APIService cannot be written");
        }
        pause = if failed { (pause * 2).min(PERIOD) } else { FIRST_PAUSE };
        let _ = clock::timeout(if failed { pause } else { PERIOD }, wake.check.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::registrations::Trust;

    #[test]
    fn a_service_has_a_port_and_endpoints() {
        let to = Backend { namespace: "n".into(), name: "s".into(), port: 443, trust: Trust::Anybody };
        let check = |service: Value, slices: Value, expected: &str| {
            let service = Some(json!({ "spec": service })).filter(|s| !s["spec"].is_null());
            let found = about_service(&to, service.as_ref(), slices.as_array().unwrap());
            let found = found.map_or(String::new(), |v| format!("{} {}: {}", v.status, v.reason, v.message));
            assert_eq!(found, expected);
        };
        let service = |ports: Value| json!({"type": "ClusterIP", "ports": ports});
        let slice =
            |ready: Value, port: Value| json!({"endpoints": [{"conditions": {"ready": ready}}], "ports": [port]});
        check(json!(null), json!([]), "False ServiceNotFound: service/s in \"n\" is not present");
        let other = "False ServicePortError: service/s in \"n\" is not listening on port 443";
        check(service(json!([{"port": 80}])), json!([]), other);
        let web = || service(json!([{"port": 443, "name": "web"}]));
        let none = "False EndpointsNotFound: cannot find endpointslices for service/s in \"n\"";
        check(web(), json!([]), none);
        let missing =
            "False MissingEndpoints: endpointslices for service/s in \"n\" have no addresses with port name \"web\"";
        check(web(), json!([slice(json!(false), json!({"name": "web", "port": 1}))]), missing);
        check(web(), json!([slice(json!(true), json!({"name": "other", "port": 1}))]), missing);
        check(web(), json!([slice(json!(true), json!({"name": "web"}))]), missing);
        check(web(), json!([slice(json!(null), json!({"name": "web", "port": 1}))]), "");
        check(json!({"type": "ExternalName"}), json!([]), "");
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_last_turn() {
        let mut object = json!({"spec": {"service": {"name": "s"}}});
        let told = |object: &mut Value, verdict: &Verdict, now: &str| {
            let changed = set(object, verdict, now);
            let c = &object["status"]["conditions"][0];
            format!("{changed} {} {} {}", c["status"], c["reason"], c["lastTransitionTime"]).replace('"', "")
        };
        let failed = |why: &str| Verdict::failed(why.to_owned());
        assert_eq!(told(&mut object, &failed("a"), "1"), "true False FailedDiscoveryCheck 1");
        assert_eq!(told(&mut object, &failed("a"), "2"), "false False FailedDiscoveryCheck 1");
        assert_eq!(told(&mut object, &failed("b"), "3"), "true False FailedDiscoveryCheck 1");
        assert_eq!(told(&mut object, &Verdict::passed(), "4"), "true True Passed 4");
        // A finding about a server says nothing of a group that is local by now.
        assert_eq!(told(&mut object, &Verdict::local(), "5"), "false True Passed 4");
        object["spec"]["service"] = Value::Null;
        assert_eq!(told(&mut object, &failed("a"), "6"), "false True Passed 4");
        assert_eq!(told(&mut object, &Verdict::local(), "7"), "true True Local 4");
    }
}
