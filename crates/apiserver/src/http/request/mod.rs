//! The meaning of a request: method, path and query, resolved once against the table of what is served.
//!
//! The authorizer, the limits, the metrics and the handlers all read this one resolution, and handlers get nothing else
//! of the method and the path: what is authorized is what is done. A request for anything that the table does not serve
//! carries its refusal. Authorizers and the audit are told of the names in its path, so that who may not ask does not learn
//! whether something serves them; nothing is ever done by these names.

mod unserved;

use std::sync::Arc;

use api::{
    kind::{Definition, KindTable, Way},
    rules::{
        selector::{FieldSelector, Selector},
        url::{is_true, percent_decode, query_firsts},
    },
    status::StatusError,
    validation::names,
};
use http::Method;

use self::unserved::Names;
pub use self::unserved::Unserved;
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
    /// The resource that the path of a refused request names.
    pub unserved: Option<Box<Unserved>>,
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
            // The parts that were read so far describe nothing that exists.
            info = Info { path: info.path, verb: method_verb(method), refusal: Some(refusal), ..Info::default() };
            info.read_names(method, query);
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

    /// Takes the names in the path of a request that nothing serves.
    fn read_names(&mut self, method: &Method, query: &str) {
        let Some(names) = Names::read(&self.path, resource_verb(method)) else { return };
        let Names { verb, namespace, name, unserved } = names;
        (self.verb, self.namespace, self.name, self.unserved) = (verb, namespace, name, Some(Box::new(unserved)));
        self.read_query(query);
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
        for (key, value) in query_firsts(query) {
            match key.as_str() {
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
        // All namespaces together can only be read, and a POST makes an object in a collection. Custom kinds take one to the
        // path of the object, too.
        let everywhere = definition.namespaced() && self.namespace.is_empty();
        let named = !self.name.is_empty() && self.verb == "create" && !definition.is_custom();
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
        self.is_served_resource() || self.unserved.is_some()
    }

    /// Whether this server or another one serves the resource: there are no more of these than are served.
    pub fn is_served_resource(&self) -> bool {
        self.definition.is_some() || self.remote_resource().is_some()
    }

    /// The other API server whose resource is asked for.
    fn remote_resource(&self) -> Option<&Remote> {
        self.remote.as_ref().filter(|remote| !remote.resource.is_empty())
    }

    pub fn group(&self) -> &str {
        self.named(|d| &d.group, |r| &r.registration.group, |u| &u.group)
    }

    pub fn version(&self) -> &str {
        self.named(|d| &d.version, |r| &r.registration.version, |u| &u.version)
    }

    /// The plural name.
    pub fn resource(&self) -> &str {
        self.named(|d| &d.plural, |r| &r.resource, |u| &u.resource)
    }

    /// The name of the subresource, wherever it is served.
    pub fn subresource_name(&self) -> &str {
        self.named(|_| self.subresource, |r| &r.subresource, |u| &u.subresource)
    }

    /// A name of the resource: empty where there is none.
    fn named<'a>(
        &'a self,
        served: impl Fn(&'a Definition) -> &'a str,
        elsewhere: impl Fn(&'a Remote) -> &'a str,
        unserved: impl Fn(&'a Unserved) -> &'a str,
    ) -> &'a str {
        match (&self.definition, self.remote_resource(), &self.unserved) {
            (Some(definition), ..) => served(definition),
            (_, Some(remote), _) => elsewhere(remote),
            (.., Some(names)) => unserved(names),
            (None, None, None) => "",
        }
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
        match self.refusal {
            Some(_) => false,
            None if self.is_resource() => self.verb == "watch" || passed,
            None => profiles,
        }
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

pub fn method_verb(method: &Method) -> &'static str {
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

/// Whether a list of this kind has pages, perhaps as of any revision: upstream's cache answers such a list, and in one piece; of
/// kinds whose objects end by themselves it has nothing.
pub fn has_pages(definition: &Definition, as_of_any: bool) -> bool {
    !as_of_any || definition.lifetime_seconds.is_some()
}

#[cfg(test)]
mod tests;
