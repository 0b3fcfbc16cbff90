//! The meaning of a request: method, path and query, resolved once against the table of what is served.
//!
//! The authorizer, the limits, the metrics and the handlers all read this one resolution, and handlers get nothing else
//! of the method and the path: what is authorized is what is done. A request for anything that the table does not serve
//! carries its refusal and never reaches the authorizer.

use std::sync::Arc;

use api::{
    kind::{Definition, KindTable, Way},
    rules::{
        selector::{FieldSelector, Selector},
        url::{percent_decode, query_pairs},
    },
    status::StatusError,
    validation::names,
};
use http::Method;

use crate::aggregator::registrations::{Registration, Registrations};

/// A resolved request. Text fields are empty where they do not apply.
#[derive(Clone, Default)]
pub struct Info {
    /// The path in its one form: decoded only where it names objects, without a slash at the end.
    pub path: String,
    /// A Kubernetes verb for resources, else the method in lower case.
    pub verb: &'static str,
    /// The definition that serves a resource request.
    pub definition: Option<Arc<Definition>>,
    pub subresource: &'static str,
    /// The namespace of a namespaced object, or of a Namespace itself: its own.
    pub namespace: String,
    pub name: String,
    /// Of a list, watch or deletecollection; a name in the path is a requirement among the others.
    pub field_selector: String,
    pub label_selector: String,
    /// The field selector, parsed; empty when it is broken, which its handler then says.
    pub fields: FieldSelector,
    /// The label selector, parsed; empty when it is broken.
    pub labels: Selector,
    /// For subresources that others answer: what they are to be asked.
    pub passed: Option<Passed>,
    /// The other API server that serves the request, instead of a definition.
    pub remote: Option<Remote>,
    /// Why nothing serves the request.
    pub refusal: Option<Refusal>,
}

/// A request for another API server. Only that one knows what its resources are; authorization is by their names.
#[derive(Debug, Clone)]
pub struct Remote {
    pub registration: Arc<Registration>,
    /// Empty for the page about the group version.
    pub resource: String,
    pub subresource: String,
}

/// The tables that say what is served: here, and by other API servers.
#[derive(Clone, Copy)]
pub struct Served<'a> {
    pub kinds: &'a KindTable,
    pub registrations: &'a Registrations,
}

/// The part of a request that is passed on to a node, a Pod or another API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    pub method: Method,
    /// The raw path as far as the subresource: `/api/v1/nodes/n/proxy`. All of it, for another API server.
    pub base: String,
    /// The path that follows it, raw: empty or beginning with a slash.
    pub rest: String,
}

/// Why a path and method lead nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No such part of the API at all: a page for people.
    NoPage,
    /// The group and version exist, the resource does not, or not in this place.
    NoResource,
    WrongMethod,
    /// A custom kind does not take the verb, which may be none, in this place.
    Unsupported {
        group: String,
        plural: String,
        verb: &'static str,
    },
    /// A custom kind has no such subresource.
    NoSubresource {
        group: String,
        plural: String,
        name: String,
    },
    /// The object of a custom kind that is to be changed has no name.
    NoName,
    BadPath(String),
}

impl Refusal {
    /// The error that the client gets; a page that is not there has none.
    pub fn error(&self) -> Option<StatusError> {
        match self {
            Refusal::NoPage => None,
            Refusal::NoResource => Some(StatusError::no_route()),
            Refusal::WrongMethod => {
                let message = "the server does not allow this method on the requested resource";
                let mut error = StatusError::new(405, "MethodNotAllowed", message);
                error.details = Some(Box::default());
                Some(error)
            }
            Refusal::Unsupported { group, plural, verb } => Some(StatusError::unsupported(group, plural, verb)),
            Refusal::NoSubresource { group, plural, name } => Some(StatusError::not_found(group, plural, name)),
            Refusal::NoName => Some(StatusError::bad_request("name must be provided")),
            Refusal::BadPath(why) => Some(StatusError::bad_request(why.clone())),
        }
    }
}

impl Info {
    /// Finds out what a request asks for among what is served.
    pub fn resolve(method: &Method, path: &str, query: &str, served: Served<'_>) -> Info {
        let mut info = Info { path: path.to_owned(), verb: method_verb(method), ..Info::default() };
        let read = match remote_of(path, served.registrations) {
            Some((registration, parts)) => info.read_remote(method, path, query, registration, &parts),
            None => info.read(method, path, query, served.kinds),
        };
        if let Err(refusal) = read {
            // The parts that were read so far describe nothing that exists: nobody decides or counts by them.
            info = Info { path: info.path, verb: method_verb(method), refusal: Some(refusal), ..Info::default() };
        }
        info
    }

    fn read(&mut self, method: &Method, path: &str, query: &str, served: &KindTable) -> Result<(), Refusal> {
        let raw = path.strip_prefix('/').ok_or(Refusal::NoPage)?;
        let mut raw: Vec<&str> = raw.split('/').collect();
        if !matches!(raw[..], ["api" | "apis", ..]) || raw.len() < 3 {
            return self.page(&mut raw);
        }
        let grouped = raw[0] == "apis";
        let head = if grouped { 3 } else { 2 };
        if raw.get(head).is_none_or(|first| first.is_empty() && raw.len() == head + 1) {
            return self.page(&mut raw);
        }
        let (group, version) = if grouped { (raw[1], raw[2]) } else { ("", raw[1]) };
        if grouped && group.is_empty() || !served.serves(group, version) {
            return Err(Refusal::NoPage);
        }
        let old_watch = raw[head] == "watch" && raw.len() > head + 1;
        let parts = &raw[head + usize::from(old_watch)..];
        let place = Place::find(parts, |plural| served.find(group, version, plural)).map_err(|refusal| {
            // Upstream's custom kinds serve what is theirs, and nobody serves what is below their version otherwise.
            let any = served.all().iter().find(|d| d.group == group && d.version == version);
            if refusal == Refusal::NoResource && any.is_some_and(|d| d.is_custom()) { Refusal::NoPage } else { refusal }
        })?;
        self.take(&place, method, old_watch)?;
        let behind = path.len() - parts.iter().map(|part| part.len() + 1).sum::<usize>();
        self.pass(method, path, behind, parts);
        if self.subresource.is_empty() {
            self.read_query(query);
        }
        match (&self.definition, old_watch) {
            (_, true) if *method != Method::GET => Err(Refusal::WrongMethod),
            (Some(definition), _) if self.names_nothing(definition) => Err(Refusal::NoResource),
            (Some(definition), _) if !self.allowed(definition, method) => Err(self.not_allowed(definition)),
            _ => Ok(()),
        }
    }

    /// Reads a request for another API server, which reads it by the same rules: namespace, resource, name, subresource.
    /// A request that it could read otherwise than is authorized here is refused.
    fn read_remote(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        registration: &Arc<Registration>,
        parts: &[&str],
    ) -> Result<(), Refusal> {
        let mut remote =
            Remote { registration: registration.clone(), resource: String::new(), subresource: String::new() };
        let parts = parts.strip_suffix(&[""]).unwrap_or(parts);
        let mut base = path.to_owned();
        if parts.is_empty() {
            base.truncate(path.trim_end_matches('/').len());
            self.path.clone_from(&base);
        } else {
            let old_watch = parts[0] == "watch" && parts.len() > 1;
            if matches!(parts, ["watch"] | ["proxy", ..]) || (old_watch && *method != Method::GET) {
                return Err(if old_watch { Refusal::WrongMethod } else { Refusal::NoResource });
            }
            let parts = &parts[usize::from(old_watch)..];
            let climbs = |part: &&str| matches!(&*percent_decode(part), "." | "..");
            if let Some(part) = parts.iter().find(|part| climbs(part)) {
                segment("Path", part)?;
            }
            let (namespace, below) = match parts {
                ["namespaces", namespace, third, ..] if !matches!(*third, "status" | "finalize") => {
                    (*namespace, &parts[2..])
                }
                ["namespaces", namespace, ..] => (*namespace, parts),
                _ => ("", parts),
            };
            if parts.iter().take(parts.len() - below.len() + 3).any(|part| part.is_empty()) {
                return Err(Refusal::NoResource);
            }
            let at = |index: usize, what| below.get(index).map_or(Ok(String::new()), |raw| segment(what, raw));
            self.namespace = segment("Namespace", namespace)?;
            remote.resource = at(0, "Resource")?;
            self.name = at(1, "Name")?;
            remote.subresource = at(2, "Subresource")?;
            self.verb = match (resource_verb(method), self.name.is_empty()) {
                _ if old_watch => "watch",
                ("get", true) => "list",
                ("delete", true) => "deletecollection",
                (verb, _) => verb,
            };
        }
        self.passed = Some(Passed { method: method.clone(), base, rest: String::new() });
        self.remote = Some(remote);
        self.read_query(query);
        Ok(())
    }

    /// A path of no resource has one form: no empty parts, no slash at the end.
    fn page(&mut self, raw: &mut Vec<&str>) -> Result<(), Refusal> {
        if raw.len() > 1 && raw.last() == Some(&"") {
            raw.pop();
        }
        if raw.len() > 1 && raw.contains(&"") {
            return Err(Refusal::NoPage);
        }
        self.path = format!("/{}", raw.join("/"));
        Ok(())
    }

    /// Takes over what the place says, and the verb that follows from it and the method.
    fn take(&mut self, place: &Place<'_>, method: &Method, old_watch: bool) -> Result<(), Refusal> {
        let mut named = place.below.iter();
        self.namespace = place.namespace.map_or(Ok(String::new()), |text| segment("Namespace", text))?;
        self.name = named.next().map_or(Ok(String::new()), |text| segment("Name", text))?;
        if place.definition.group.is_empty() && place.definition.plural == "namespaces" {
            self.namespace.clone_from(&self.name);
        }
        if let Some(subresource) = named.next() {
            let Definition { group, plural, .. } = &**place.definition;
            let missing = || match place.definition.is_custom() {
                true => {
                    Refusal::NoSubresource { group: group.clone(), plural: plural.clone(), name: self.name.clone() }
                }
                false => Refusal::NoResource,
            };
            let (name, _, way) = place.definition.subresource(subresource).ok_or_else(missing)?;
            self.subresource = name;
            if old_watch || (way != Way::Proxy && named.next().is_some()) {
                return Err(Refusal::NoResource);
            }
        }
        self.verb = match (resource_verb(method), self.name.is_empty()) {
            ("get", _) if old_watch => "watch",
            ("get", true) => "list",
            ("delete", true) => "deletecollection",
            (verb, _) => verb,
        };
        self.definition = Some(place.definition.clone());
        Ok(())
    }

    /// Keeps what a node or Pod is to be asked. `behind` is where the parts begin in the path.
    fn pass(&mut self, method: &Method, path: &str, behind: usize, parts: &[&str]) {
        if self.way() == Way::Own {
            return;
        }
        let end = if self.definition.as_ref().is_some_and(|d| d.namespaced()) { 5 } else { 3 };
        let base = behind + parts[..end].iter().map(|part| part.len() + 1).sum::<usize>();
        let (base, rest) = path.split_at(base.min(path.len()));
        self.passed = Some(Passed { method: method.clone(), base: base.to_owned(), rest: rest.to_owned() });
    }

    /// A list may be a watch, and either that selects a single name counts as a request for that name.
    fn read_query(&mut self, query: &str) {
        if !matches!(self.verb, "list" | "watch" | "deletecollection") {
            return;
        }
        let mut watch = false;
        // Other API servers count the first of several values, and as a no only these two.
        let mut read = std::collections::HashSet::new();
        let remote = self.remote.is_some();
        for (key, value) in query_pairs(query) {
            if remote && !read.insert(key.clone()) {
                continue;
            }
            match key.as_str() {
                "watch" if remote => watch = !matches!(&*value.to_ascii_lowercase(), "0" | "false"),
                "watch" => watch = is_true(&value),
                "fieldSelector" => self.field_selector = value,
                "labelSelector" => self.label_selector = value,
                _ => {}
            }
        }
        if self.verb == "list" && watch {
            self.verb = "watch";
        }
        if !self.name.is_empty() {
            // Only the old form of a watch has a name here. It selects that name, whatever else is selected.
            let others = if self.field_selector.is_empty() { "" } else { "," };
            self.field_selector =
                format!("metadata.name={}{others}{}", api::rules::selector::escape(&self.name), self.field_selector);
        }
        if let Ok(fields) = FieldSelector::parse(&self.field_selector) {
            self.fields = fields;
        }
        if let Ok(labels) = Selector::parse(&self.label_selector) {
            self.labels = labels;
        }
        // No object has another name, and authorizers are to see none. A deletion is always of the collection.
        let reads = self.verb != "deletecollection";
        let is_name = |name: &&str| reads && self.name.is_empty() && names::path_segment(name, false).is_empty();
        if let Some(name) = self.fields.exact("metadata.name").filter(is_name) {
            self.name = name.to_owned();
        }
    }

    /// Whether a name is asked for among objects that are only made, and never there.
    fn names_nothing(&self, definition: &Definition) -> bool {
        let about_one = |verb: &String| matches!(verb.as_str(), "get" | "update" | "patch" | "delete");
        self.subresource.is_empty() && !self.name.is_empty() && !definition.verbs.iter().any(about_one)
    }

    /// Whether the resource takes the verb in this place. Of built-in kinds no headers can be had without a body.
    fn allowed(&self, definition: &Definition, method: &Method) -> bool {
        let heads = *method != Method::HEAD || definition.is_custom();
        if let Some((_, verbs, way)) = definition.subresource(self.subresource) {
            let proxied = way == Way::Proxy;
            return verbs.contains(&self.verb) && (heads || proxied) || (proxied && *method == Method::OPTIONS);
        }
        if !heads {
            return false;
        }
        let collection = matches!(self.verb, "list" | "watch" | "create" | "deletecollection");
        // All namespaces together can only be read, and a POST makes an object in a collection.
        let everywhere = definition.namespaced() && self.namespace.is_empty();
        let named = !self.name.is_empty() && self.verb == "create";
        let fits = if everywhere { matches!(self.verb, "list" | "watch") } else { collection || !self.name.is_empty() };
        fits && !named && definition.verbs.iter().any(|verb| verb == self.verb)
    }

    /// Why the resource does not take the verb in this place.
    fn not_allowed(&self, definition: &Definition) -> Refusal {
        let Definition { group, plural, .. } = definition;
        match self.verb {
            _ if !definition.is_custom() => Refusal::WrongMethod,
            _ if definition.namespaced() && self.namespace.is_empty() => Refusal::NoPage,
            "update" | "patch" if self.name.is_empty() => Refusal::NoName,
            verb => Refusal::Unsupported { group: group.clone(), plural: plural.clone(), verb },
        }
    }

    pub fn is_resource(&self) -> bool {
        self.definition.is_some() || self.remote_resource().is_some()
    }

    /// The other API server whose resource is asked for.
    fn remote_resource(&self) -> Option<&Remote> {
        self.remote.as_ref().filter(|remote| !remote.resource.is_empty())
    }

    pub fn group(&self) -> &str {
        let remote = || self.remote_resource().map_or("", |r| &r.registration.group);
        self.definition.as_ref().map_or_else(remote, |d| &d.group)
    }

    pub fn version(&self) -> &str {
        let remote = || self.remote_resource().map_or("", |r| &r.registration.version);
        self.definition.as_ref().map_or_else(remote, |d| &d.version)
    }

    /// The plural name.
    pub fn resource(&self) -> &str {
        let remote = || self.remote_resource().map_or("", |r| &r.resource);
        self.definition.as_ref().map_or_else(remote, |d| &d.plural)
    }

    /// The name of the subresource, wherever it is served.
    pub fn subresource_name(&self) -> &str {
        self.remote.as_ref().map_or(self.subresource, |remote| &remote.subresource)
    }

    /// Whether the server itself answers, or a node or Pod.
    pub fn way(&self) -> Way {
        let subresource = self.definition.as_ref().and_then(|d| d.subresource(self.subresource));
        subresource.map_or(Way::Own, |(_, _, way)| way)
    }

    /// Whether the answer is a document of the API (an object, a list, discovery), and no stream of changes.
    pub fn is_document(&self) -> bool {
        self.is_of_api() && self.verb != "watch" && self.way() == Way::Own && self.remote.is_none()
    }

    pub fn is_of_api(&self) -> bool {
        self.path == "/api" || self.path.starts_with("/api/") || self.path.starts_with("/apis")
    }

    /// Requests that stay open as long as the client likes: no deadline, no place among the requests in flight.
    pub fn long_running(&self) -> bool {
        let streams =
            |remote: &Remote| matches!(&*remote.subresource, "attach" | "exec" | "proxy" | "log" | "portforward");
        let passed = self.way() != Way::Own || self.remote.as_ref().is_some_and(streams);
        let profiles = self.path.starts_with("/debug/pprof/");
        if self.is_resource() { self.verb == "watch" || passed } else { profiles }
    }
}

/// The other API server that a path leads to, and what follows the version in the path. Names that are written in another way
/// than the server's lead nowhere.
fn remote_of<'p, 'r>(path: &'p str, all: &'r Registrations) -> Option<(&'r Arc<Registration>, Vec<&'p str>)> {
    let (at, described) = match path.strip_prefix("/openapi/v3") {
        Some(rest) => (rest, true),
        None => (path, false),
    };
    let mut parts = at.strip_prefix("/apis/")?.split('/');
    let (group, version) = (parts.next()?, parts.next()?);
    let parts: Vec<&str> = parts.collect();
    // Of the description there is one page, with nothing below it.
    if described && !parts.is_empty() {
        return None;
    }
    Some((all.find(group, version)?, parts))
}

/// Where in the API a path leads.
struct Place<'a> {
    definition: &'a Arc<Definition>,
    namespace: Option<&'a str>,
    /// The parts behind the resource: name, subresource, and what follows.
    below: &'a [&'a str],
}

impl<'a> Place<'a> {
    /// A namespaced kind is served below a namespace (and, as a whole, above them all), any other kind never.
    fn find(parts: &'a [&'a str], served: impl Fn(&str) -> Option<&'a Arc<Definition>>) -> Result<Self, Refusal> {
        let parts = parts.strip_suffix(&[""]).unwrap_or(parts);
        let place = match parts {
            ["namespaces", namespace, third, below @ ..] if !belongs_to_namespace(&served, parts) => {
                let definition = served(third).filter(|d| d.namespaced()).ok_or(Refusal::NoResource)?;
                Place { definition, namespace: Some(namespace), below }
            }
            [plural, below @ ..] => {
                let definition = served(plural).ok_or(Refusal::NoResource)?;
                if definition.namespaced() && !below.is_empty() {
                    return Err(Refusal::NoResource);
                }
                Place { definition, namespace: None, below }
            }
            [] => return Err(Refusal::NoResource),
        };
        // Up to the subresource no part is empty; what follows it is the business of whoever answers.
        let empty = place.namespace == Some("") || place.below.iter().take(2).any(|part| part.is_empty());
        if empty { Err(Refusal::NoResource) } else { Ok(place) }
    }
}

/// Whether the third part of `namespaces/x/…` is a subresource of the Namespace, not a resource in it.
fn belongs_to_namespace<'a>(served: &impl Fn(&str) -> Option<&'a Arc<Definition>>, parts: &[&str]) -> bool {
    served("namespaces").is_some_and(|namespaces| parts.len() == 3 && namespaces.subresource(parts[2]).is_some())
}

/// A part of the path that becomes a part of a storage key: none may reach into another's.
fn segment(what: &str, raw: &str) -> Result<String, Refusal> {
    let text = percent_decode(raw);
    if text.contains('/') || text == "." || text == ".." || text.contains(['\0', char::REPLACEMENT_CHARACTER]) {
        let why = format!("{what} parameter invalid: {text:?}: may not contain '/' or be '.' or '..'");
        return Err(Refusal::BadPath(why));
    }
    Ok(text)
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

fn resource_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// How query parameters say yes, as Go's `strconv.ParseBool` and the conversion of flags read it.
pub fn is_true(value: &str) -> bool {
    !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::registrations::{Backend, Trust};

    fn resolve(method: &str, uri: &str) -> Info {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let registrations = Registrations::default().with(
            "v1.a.io",
            Some(Registration {
                name: "v1.a.io".to_owned(),
                group: "a.io".to_owned(),
                version: "v1".to_owned(),
                group_priority: 1,
                version_priority: 1,
                backend: Some(Backend { namespace: "n".into(), name: "s".into(), port: 443, trust: Trust::Anybody }),
                available: true,
                reason: String::new(),
            }),
        );
        let served = Served { kinds: api::kinds::built_in(), registrations: &registrations };
        Info::resolve(&method.parse().unwrap(), path, query, served)
    }

    /// `verb group/version/resource/subresource namespace name`, or the refusal.
    fn check(method: &str, uri: &str, expected: &str) {
        let i = resolve(method, uri);
        let got = match &i.refusal {
            Some(refusal) => {
                assert!(!i.is_resource() && i.name.is_empty() && i.namespace.is_empty(), "{method} {uri}");
                format!("{refusal:?}").split('(').next().unwrap().to_owned()
            }
            None if !i.is_resource() => format!("{} {}", i.verb, i.path),
            None => {
                let named = format!("{}/{}/{}", i.group(), i.version(), i.resource());
                format!("{} {named}/{} ns={} n={}", i.verb, i.subresource_name(), i.namespace, i.name)
            }
        };
        assert_eq!(got, expected, "{method} {uri}");
    }

    #[test]
    fn paths_become_requests() {
        check("GET", "/api/v1/pods", "list /v1/pods/ ns= n=");
        check("GET", "/api/v1/pods/", "list /v1/pods/ ns= n=");
        check("GET", "/api/v1/pods?watch=1", "watch /v1/pods/ ns= n=");
        check("GET", "/api/v1/namespaces/a/pods/b", "get /v1/pods/ ns=a n=b");
        check("GET", "/api/v1/namespaces/a/pods/b?watch=1", "get /v1/pods/ ns=a n=b");
        check("POST", "/api/v1/namespaces/a/pods/b/exec", "create /v1/pods/exec ns=a n=b");
        check("GET", "/api/v1/namespaces/a", "get /v1/namespaces/ ns=a n=a");
        check("PUT", "/api/v1/namespaces/a/finalize", "update /v1/namespaces/finalize ns=a n=a");
        check("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1/deployments/ ns=a n=");
        check("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list /v1/pods/ ns= n=x");
        check("GET", "/api/v1/nodes/a%20b", "get /v1/nodes/ ns= n=a b");
        check("GET", "/apis/apps/v1", "get /apis/apps/v1");
        check("GET", "/api/v1/", "get /api/v1");
        check("GET", "/healthz", "get /healthz");
        check("POST", "/", "post /");
    }

    #[test]
    fn what_the_table_does_not_serve_is_refused() {
        // A kind of the cluster below a namespace, and the reverse.
        for path in [
            "/apis/rbac.authorization.k8s.io/v1/namespaces/x/clusterrolebindings/x",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/x/clusterrolebindings",
            "/api/v1/namespaces/x/nodes/x",
            "/api/v1/namespaces/x/nodes/n/proxy/a",
            "/api/v1/namespaces/x/namespaces/x",
            "/api/v1/namespaces/x/persistentvolumes",
            "/apis/authorization.k8s.io/v1/namespaces/x/subjectaccessreviews",
            "/apis/authentication.k8s.io/v1/namespaces/x/tokenreviews",
            "/api/v1/pods/p",
            "/api/v1/pods/p/exec",
            "/api/v1/serviceaccounts/s/token",
            "/apis/apps/v1/namespaces/x",
            "/api/v1/namespaces/x/pods/p/nothing",
            "/api/v1/namespaces/x/pods/p/log/more",
            "/api/v1/namespaces/x/configmaps/c/status",
            "/api/v1/nothing",
            "/api/v1//pods",
            "/api/v1/namespaces//pods",
            "/api/v1/namespaces/a//b",
            "/api/v1/watch/namespaces/x/pods/p/exec",
        ] {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
                check(method, path, "NoResource");
            }
        }
        for path in
            ["/api/v2/pods", "/apis/none/v1/pods", "/apis/apps/v7/deployments", "/apis//v1/pods", "//api/v1/pods"]
        {
            check("GET", path, "NoPage");
        }
        for path in ["/api//v1", "//metrics", "/healthz//ping"] {
            check("GET", path, "NoPage");
        }
        check("GET", "/metrics/", "get /metrics");
        for path in ["/api/v1/nodes/..", "/api/v1/nodes/a%2Fb", "/api/v1/namespaces/%2e%2e/pods", "/api/v1/nodes/%ff"] {
            check("GET", path, "BadPath");
        }
    }

    #[test]
    fn methods_fit_their_place() {
        for (method, path) in [
            ("POST", "/api/v1/namespaces/x/pods/p"),
            ("POST", "/api/v1/nodes/n"),
            ("POST", "/api/v1/pods"),
            ("DELETE", "/api/v1/pods"),
            ("PUT", "/api/v1/namespaces/x/pods"),
            ("PATCH", "/api/v1/nodes"),
            ("DELETE", "/api/v1/namespaces"),
            ("OPTIONS", "/api/v1/nodes"),
            ("TRACE", "/api/v1/nodes/n"),
            ("HEAD", "/api/v1/pods/"),
            ("HEAD", "/api/v1/namespaces/x/pods/p"),
            ("HEAD", "/api/v1/namespaces/x/pods/p/log"),
            ("GET", "/api/v1/namespaces/x/bindings"),
            ("PUT", "/api/v1/componentstatuses/c"),
            ("GET", "/api/v1/namespaces/x/pods/p/eviction"),
            ("GET", "/api/v1/namespaces/x/serviceaccounts/s/token"),
            ("DELETE", "/api/v1/namespaces/x/pods/p/status"),
            ("POST", "/api/v1/namespaces/x/pods/p/log"),
            ("GET", "/api/v1/namespaces/x/finalize"),
        ] {
            check(method, path, "WrongMethod");
        }
    }

    #[test]
    fn what_is_only_made_has_no_names() {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            check(method, "/api/v1/namespaces/x/bindings/b", "NoResource");
            check(method, "/apis/authorization.k8s.io/v1/subjectaccessreviews/r", "NoResource");
        }
    }

    #[test]
    fn the_old_form_of_watches_watches_only() {
        check("GET", "/api/v1/watch/namespaces/a/pods", "watch /v1/pods/ ns=a n=");
        check("GET", "/api/v1/watch/nodes", "watch /v1/nodes/ ns= n=");
        check("GET", "/api/v1/watch/namespaces/a", "watch /v1/namespaces/ ns=a n=a");
        check("GET", "/api/v1/watch", "NoResource");
        for method in ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
            check(method, "/api/v1/watch/namespaces/a/pods", "WrongMethod");
            check(method, "/api/v1/watch/namespaces/a/pods/p", "WrongMethod");
        }
        for method in ["GET", "POST", "PUT", "DELETE"] {
            check(method, "/api/v1/watch/namespaces/a/serviceaccounts/s/token", "NoResource");
            check(method, "/api/v1/watch/nodes/n/proxy", "NoResource");
            check(method, "/apis/authentication.k8s.io/v1/watch/tokenreviews", "WrongMethod");
        }
        let selected = |uri: &str| resolve("GET", uri).field_selector;
        let base = "/api/v1/watch/namespaces/y/secrets/allowed";
        assert_eq!(selected(base), "metadata.name=allowed");
        let other = format!("{base}?fieldSelector=metadata.name=other");
        assert_eq!(selected(&other), "metadata.name=allowed,metadata.name=other");
        assert_eq!(resolve("GET", &other).name, "allowed");
        assert_eq!(selected("/api/v1/watch/namespaces/y/secrets/a%2Cb"), "metadata.name=a\\,b");
    }

    #[test]
    fn a_name_counts_only_where_the_selector_demands_it() {
        let selected = "/apis/apps/v1/namespaces/a/deployments?fieldSelector=metadata.name%3Dx";
        check("GET", selected, "list apps/v1/deployments/ ns=a n=x");
        check("DELETE", selected, "deletecollection apps/v1/deployments/ ns=a n=");
        check(
            "DELETE",
            "/apis/a.io/v1/things?fieldSelector=metadata.name%3Dx",
            "deletecollection a.io/v1/things/ ns= n=",
        );
        let named = |query: &str| resolve("GET", &format!("/api/v1/namespaces/y/secrets?fieldSelector={query}")).name;
        assert_eq!(named("metadata.name==a"), "a");
        assert_eq!(named("type=x,metadata.name=a"), "a");
        assert_eq!(named("metadata.name!=a"), "");
        assert_eq!(named("metadata.name=a&fieldSelector=type=x"), "");
        assert_eq!(named("type=x\\,metadata.name=a"), "");
        assert_eq!(named("metadata.name=a,broken"), "");
        for no_name in ["a/b", "a%25b", ".", ".."] {
            assert_eq!(named(&format!("metadata.name={no_name}")), "", "{no_name}");
        }
    }

    #[test]
    fn what_is_passed_on_is_raw() {
        let passed = |uri: &str| resolve("GET", uri).passed.map(|p| (p.base, p.rest));
        let parts = |base: &str, rest: &str| Some((base.to_owned(), rest.to_owned()));
        assert_eq!(passed("/api/v1/nodes/n/proxy/a%2F//b?c"), parts("/api/v1/nodes/n/proxy", "/a%2F//b"));
        assert_eq!(passed("/api/v1/nodes/n/proxy"), parts("/api/v1/nodes/n/proxy", ""));
        let pod = "/api/v1/namespaces/x/pods/p:80/proxy";
        assert_eq!(passed(&format!("{pod}/")), parts(pod, "/"));
        assert_eq!(passed("/api/v1/nodes/n"), None);
        check("OPTIONS", "/api/v1/nodes/n/proxy/a", " /v1/nodes/proxy ns= n=n");
        check("HEAD", "/api/v1/nodes/n/proxy/a", "get /v1/nodes/proxy ns= n=n");
    }

    #[test]
    fn what_other_servers_serve_is_read_by_their_names() {
        check("GET", "/apis/a.io/v1/things", "list a.io/v1/things/ ns= n=");
        check("GET", "/apis/a.io/v1/things?watch=1", "watch a.io/v1/things/ ns= n=");
        check("GET", "/apis/a.io/v1/things?fieldSelector=metadata.name%3Dx", "list a.io/v1/things/ ns= n=x");
        check("POST", "/apis/a.io/v1/namespaces/n/things", "create a.io/v1/things/ ns=n n=");
        check("DELETE", "/apis/a.io/v1/namespaces/n/things", "deletecollection a.io/v1/things/ ns=n n=");
        check("DELETE", "/apis/a.io/v1/namespaces/n/things/t", "delete a.io/v1/things/ ns=n n=t");
        check("GET", "/apis/a.io/v1/namespaces/n/things/t/log/a//b", "get a.io/v1/things/log ns=n n=t");
        check("GET", "/apis/a.io/v1/namespaces/n/things/t?watch=1", "get a.io/v1/things/ ns=n n=t");
        check("GET", "/apis/a.io/v1/namespaces/n", "get a.io/v1/namespaces/ ns=n n=n");
        check("GET", "/apis/a.io/v1/namespaces/n/status", "get a.io/v1/namespaces/status ns=n n=n");
        check("GET", "/apis/a.io/v1/watch/things", "watch a.io/v1/things/ ns= n=");
        check("POST", "/apis/a.io/v1/watch/things", "WrongMethod");
        check("GET", "/apis/a.io/v1/watch", "NoResource");
        check("GET", "/apis/a.io/v1/proxy/things/t", "NoResource");
        check("GET", "/apis/a.io/v1/things?watch=0&watch=1", "list a.io/v1/things/ ns= n=");
        check("GET", "/apis/a.io/v1/things?watch=f&watch=0", "watch a.io/v1/things/ ns= n=");
        check("BREW", "/apis/a.io/v1/things", " a.io/v1/things/ ns= n=");
        // The pages about a group version are no resources.
        check("GET", "/apis/a.io/v1", "get /apis/a.io/v1");
        check("POST", "/apis/a.io/v1/", "post /apis/a.io/v1");
        check("GET", "/openapi/v3/apis/a.io/v1", "get /openapi/v3/apis/a.io/v1");
        assert!(resolve("GET", "/openapi/v3/apis/a.io/v1").remote.is_some());
        assert!(resolve("GET", "/openapi/v3/apis/a.io/v1/x").remote.is_none());
        assert!(resolve("GET", "/openapi/v3/apis/apps/v1").remote.is_none());
        check("GET", "/apis/a.io/v2/things", "NoPage");
        check("GET", "/apis/a%2Eio/v1/things", "NoPage");
        // Nothing that the other server could read as another name.
        for path in ["namespaces/../x", "things/a%2Fb", "things/t/log/..", "things/%2e%2e", "%2E/x", "a%2Fb"] {
            check("GET", &format!("/apis/a.io/v1/{path}"), "BadPath");
        }
        for path in ["/things", "namespaces//things", "namespaces/n//t", "things//log"] {
            check("GET", &format!("/apis/a.io/v1/{path}"), "NoResource");
        }
        let long = |path: &str| resolve("GET", &format!("/apis/a.io/v1/{path}")).long_running();
        assert!(long("things?watch=1") && long("namespaces/n/things/t/exec") && !long("things") && !long("things/t"));
        assert!(!resolve("GET", "/apis/a.io/v1/things").is_document());
    }

    #[test]
    fn every_resource_is_found_where_discovery_says() {
        for d in api::kinds::built_in().all() {
            let base = if d.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", d.api_version()) };
            let place = if d.namespaced() { "/namespaces/x" } else { "" };
            let at = |verb: &str| match verb {
                "create" => ("POST", ""),
                "deletecollection" => ("DELETE", ""),
                "list" => ("GET", ""),
                "watch" => ("GET", "?watch=true"),
                "get" => ("GET", "/n"),
                "update" => ("PUT", "/n"),
                "patch" => ("PATCH", "/n"),
                "delete" => ("DELETE", "/n"),
                other => panic!("{other}"),
            };
            for verb in ["create", "deletecollection", "list", "watch", "get", "update", "patch", "delete"] {
                let (method, rest) = at(verb);
                let info = resolve(method, &format!("{base}{place}/{}{rest}", d.plural));
                let served = d.verbs.iter().any(|v| v == verb);
                assert_eq!(info.refusal.is_none(), served, "{verb} {}", d.plural);
                assert!(!served || info.verb == verb, "{verb} {}", d.plural);
            }
        }
    }
}
