//! The audit policy: how much is said about a request, which is decided once, by the first rule that is about it.
//!
//! Upstream counterpart: apiserver/pkg/audit/policy.

use api::{
    codec::decode,
    validation::{field::quote, names, section::Section},
};

use crate::{auth::User, document, http::request::Info};

/// How much of a request its events say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    None,
    Metadata,
    /// And the object that came with the request.
    Request,
    /// And the object that the answer is.
    RequestResponse,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// The moments of a request that have an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    RequestReceived,
    /// The answer begins, of requests that may take any time.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    pub fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// A set of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages(u8);

impl Stages {
    pub fn has(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    fn with(self, stage: Stage) -> Self {
        Stages(self.0 | (1 << stage as u8))
    }

    fn and(self, others: Stages) -> Self {
        Stages(self.0 | others.0)
    }
}

/// The policy's decision about one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub level: Level,
    /// Stages without an event.
    pub omitted: Stages,
    /// Objects are told of without the field managers.
    pub omits_managed_fields: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq)]
struct Rule {
    decision: Decision,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    namespaces: Vec<String>,
    resources: Vec<Resources>,
    paths: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Resources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

impl Policy {
    /// Decides about a request. Nobody is known to have sent one whose credentials are wrong. Without a rule there is no event.
    pub fn decide(&self, user: Option<&User>, info: &Info) -> Decision {
        let none = Decision { level: Level::None, omitted: Stages::default(), omits_managed_fields: false };
        self.rules.iter().find(|rule| rule.is_about(user, info)).map_or(none, |rule| rule.decision)
    }

    /// Reads a policy file. The error says what is wrong and where. Fields that are not known, or stand there twice, are warned
    /// about.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (policy, faults) = Policy::read(text)?;
        if !faults.is_empty() {
            let error = decode::strict_error(&faults);
            tracing::warn!("Audit policy contains errors, falling back to lenient decoding: {error}");
        }
        Ok(policy)
    }

    /// The second part names what a strict reader would refuse.
    fn read(text: &str) -> Result<(Self, Vec<String>), String> {
        let (value, mut faults) = document::read_leniently(text)?;
        let section = Section::of("", &value)?;
        section.is("Policy", &["audit.k8s.io/v1"])?;
        let known = ["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
        note_unknown(&section, &known, &mut faults);
        let omitted = stages(&section)?;
        let omits_managed_fields = section.flag("omitManagedFields")?.unwrap_or(false);
        let rules = section.sections("rules")?;
        let rules: Result<Vec<Rule>, String> =
            rules.iter().map(|rule| Rule::parse(rule, omitted, omits_managed_fields, &mut faults)).collect();
        match rules? {
            rules if rules.is_empty() => Err(section.wrong("rules", "there must be at least one")),
            rules => Ok((Policy { rules }, faults)),
        }
    }
}

fn note_unknown(section: &Section<'_>, known: &[&str], faults: &mut Vec<String>) {
    let unknown = section.keys().filter(|key| !known.contains(key));
    faults.extend(unknown.map(|key| format!("unknown field {}", quote(&section.place(key)))));
}

fn stages(section: &Section<'_>) -> Result<Stages, String> {
    let texts = section.plain_texts("omitStages")?;
    texts.iter().enumerate().try_fold(Stages::default(), |all, (at, text)| {
        let stage = Stage::ALL.into_iter().find(|stage| stage.name() == text);
        let known = Stage::ALL.map(Stage::name).join(",");
        let why = || format!("Invalid value: {}: allowed stages are {known}", quote(text));
        stage.map(|stage| all.with(stage)).ok_or_else(|| section.wrong(&format!("omitStages[{at}]"), &why()))
    })
}

impl Rule {
    fn parse(
        section: &Section<'_>,
        omitted: Stages,
        omits_managed_fields: bool,
        faults: &mut Vec<String>,
    ) -> Result<Self, String> {
        let known = [
            "level",
            "users",
            "userGroups",
            "verbs",
            "resources",
            "namespaces",
            "nonResourceURLs",
            "omitStages",
            "omitManagedFields",
        ];
        note_unknown(section, &known, faults);
        let given = section.text("level")?.unwrap_or("");
        if given.is_empty() {
            return Err(section.wrong("level", "Required value"));
        }
        let known = Level::ALL.map(|level| quote(level.name())).join(", ");
        let level = Level::ALL.into_iter().find(|level| level.name() == given).ok_or_else(|| {
            section.wrong("level", &format!("Unsupported value: {}: supported values: {known}", quote(given)))
        })?;
        let decision = Decision {
            level,
            omitted: stages(section)?.and(omitted),
            omits_managed_fields: section.flag("omitManagedFields")?.unwrap_or(omits_managed_fields),
        };
        let resources = section.sections("resources")?;
        let rule = Rule {
            decision,
            users: section.plain_texts("users")?,
            groups: section.plain_texts("userGroups")?,
            verbs: section.plain_texts("verbs")?,
            namespaces: section.plain_texts("namespaces")?,
            resources: resources.iter().map(|one| Resources::parse(one, faults)).collect::<Result<_, _>>()?,
            paths: paths(section)?,
        };
        let of_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
        if of_resources && !rule.paths.is_empty() {
            return Err(
                section.wrong("nonResourceURLs", "rules cannot apply to both regular resources and non-resource URLs")
            );
        }
        Ok(rule)
    }

    fn is_about(&self, user: Option<&User>, info: &Info) -> bool {
        let one_of = |list: &[String], text: &str| list.is_empty() || list.iter().any(|known| known == text);
        let member = |user: &User| user.groups.iter().any(|group| self.groups.contains(group));
        if !(self.users.is_empty() || user.is_some_and(|user| self.users.contains(&user.name)))
            || !(self.groups.is_empty() || user.is_some_and(member))
            || !one_of(&self.verbs, info.verb)
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            let listed = || self.resources.is_empty() || self.resources.iter().any(|list| list.have(info));
            return info.is_resource() && one_of(&self.namespaces, &info.namespace) && listed();
        }
        self.paths.is_empty() || (!info.is_resource() && self.paths.iter().any(|path| covers(path, &info.path)))
    }
}

/// Paths, which may end with a star.
fn paths(section: &Section<'_>) -> Result<Vec<String>, String> {
    let paths = section.plain_texts("nonResourceURLs")?;
    for (at, path) in paths.iter().enumerate().filter(|(_, path)| *path != "*") {
        let wrong = |why: &str| {
            section.wrong(&format!("nonResourceURLs[{at}]"), &format!("Invalid value: {}: {why}", quote(path)))
        };
        if !path.starts_with('/') {
            return Err(wrong("non-resource URL rules must begin with a '/' character"));
        }
        if path.strip_suffix('*').unwrap_or(path).contains('*') {
            return Err(wrong("non-resource URL wildcards '*' must be the final character of the rule"));
        }
    }
    Ok(paths)
}

fn covers(rule: &str, path: &str) -> bool {
    rule.strip_suffix('*').map_or(rule == path, |start| path.starts_with(start))
}

impl Resources {
    fn parse(section: &Section<'_>, faults: &mut Vec<String>) -> Result<Self, String> {
        note_unknown(section, &["group", "resources", "resourceNames"], faults);
        let parsed = Resources {
            group: section.text("group")?.unwrap_or("").to_owned(),
            resources: section.plain_texts("resources")?,
            names: section.plain_texts("resourceNames")?,
        };
        let wrong = if parsed.group.is_empty() { Vec::new() } else { names::dns1123_subdomain(&parsed.group) };
        if !wrong.is_empty() {
            let why = format!("Invalid value: {}: {}", quote(&parsed.group), wrong.join(","));
            return Err(section.wrong("group", &why));
        }
        if !parsed.names.is_empty() && parsed.resources.is_empty() {
            return Err(section.wrong("resourceNames", "using resourceNames requires at least one resource"));
        }
        Ok(parsed)
    }

    /// `pods`, `pods/log`, `pods/*`, `*/log` and `*` stand for what they say; a resource alone is not its subresources.
    fn have(&self, info: &Info) -> bool {
        let (resource, subresource) = (info.resource(), info.subresource_name());
        let stands_for = |rule: &String| match rule.split_once('/') {
            None if rule == "*" => true,
            None => rule == resource && subresource.is_empty(),
            Some((of, "*")) if of == resource => true,
            Some((of, name)) => (of == "*" || of == resource) && !subresource.is_empty() && name == subresource,
        };
        self.group == info.group()
            && (self.resources.is_empty()
                || (self.names.is_empty() || self.names.contains(&info.name)) && self.resources.iter().any(stands_for))
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::http::request::Served;

    fn policy(rules: &str) -> Result<Policy, String> {
        Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}"))
    }

    fn decided(rules: &str, user: Option<&User>, request: &str) -> Decision {
        let (method, uri) = request.split_once(' ').unwrap();
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let registrations = Default::default();
        let served = Served { kinds: api::kinds::built_in(), registrations: &registrations };
        let info = Info::resolve(&method.parse::<Method>().unwrap(), path, query, served);
        policy(rules).unwrap().decide(user, &info)
    }

    /// The requests of upstream's own cases, each against one rule.
    #[test]
    fn a_rule_is_about_what_all_its_fields_name() {
        let tim = User::new("tim@k8s.io", ["humans", "developers"]);
        let about = |rule: &str, request: &str| {
            decided(&format!("rules: [{{level: Metadata, {rule}}}]"), Some(&tim), request).level == Level::Metadata
        };
        let check = |rule: &str, expected: [bool; 5]| {
            let requests = [
                "GET /api/v1/namespaces/default/pods/busybox",
                "GET /api/v1/namespaces/default/pods/busybox/log",
                "GET /api/v1/nodes/worker1",
                "GET /logs/kubelet",
                "GET /apis/metrics.k8s.io",
            ];
            assert_eq!(requests.map(|request| about(rule, request)), expected, "{rule}");
        };
        check("", [true; 5]);
        check("users: [tim@k8s.io]", [true; 5]);
        check("users: [other], verbs: [get]", [false; 5]);
        check("userGroups: [cats, humans]", [true; 5]);
        check("userGroups: [cats]", [false; 5]);
        check("verbs: [watch]", [false; 5]);
        check("namespaces: [default]", [true, true, false, false, false]);
        check("namespaces: [secure]", [false; 5]);
        check("namespaces: ['']", [false, false, true, false, false]);
        check("resources: [{resources: [pods]}]", [true, false, false, false, false]);
        check("resources: [{resources: [pods/log]}]", [false, true, false, false, false]);
        check("resources: [{resources: ['pods/*']}]", [true, true, false, false, false]);
        check("resources: [{resources: ['*/log']}]", [false, true, false, false, false]);
        check("resources: [{resources: ['*']}]", [true, true, true, false, false]);
        check("resources: [{group: ''}]", [true, true, true, false, false]);
        check("resources: [{group: apps}]", [false; 5]);
        check("resources: [{resources: [pods], resourceNames: [busybox]}]", [true, false, false, false, false]);
        check("resources: [{resources: [pods], resourceNames: [other]}]", [false; 5]);
        check("nonResourceURLs: [/logs*]", [false, false, false, true, false]);
        check("nonResourceURLs: ['*']", [false, false, false, true, true]);
        check("nonResourceURLs: [/logs]", [false; 5]);
    }

    #[test]
    fn the_first_rule_decides_and_nobody_is_no_user() {
        let rules = "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n- {level: None, users: [a]}\n\
                     - {level: Request, verbs: [create], omitStages: [Panic], omitManagedFields: false}\n- level: Metadata\n";
        let (a, b) = (User::new("a", ["g"]), User::new("b", ["g"]));
        assert_eq!(decided(rules, Some(&a), "GET /").level, Level::None);
        let create = decided(rules, Some(&b), "POST /api/v1/namespaces");
        assert_eq!((create.level, create.omits_managed_fields), (Level::Request, false));
        assert!(create.omitted.has(Stage::RequestReceived) && create.omitted.has(Stage::Panic));
        assert!(!create.omitted.has(Stage::ResponseComplete));
        let nobody = decided(rules, None, "GET /api/v1/pods");
        assert_eq!((nobody.level, nobody.omits_managed_fields), (Level::Metadata, true));
        assert_eq!(decided("rules: [{level: Request, userGroups: [g]}]", None, "GET /").level, Level::None);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let check = |rules: &str, expected: &str| assert_eq!(policy(rules).unwrap_err(), expected, "{rules}");
        let rule = |rule: &str, expected: &str| check(&format!("rules: [{{{rule}}}]"), expected);
        check("rules: []", "rules: there must be at least one");
        check("rule: []", "rules: there must be at least one");
        check("rules: [{level: None, user: [a]}, {users: [a]}]", "rules[1].level: Required value");
        rule("users: [a]", "rules[0].level: Required value");
        let known = "supported values: \"None\", \"Metadata\", \"Request\", \"RequestResponse\"";
        rule("level: metadata", &format!("rules[0].level: Unsupported value: \"metadata\": {known}"));
        let url = "rules[0].nonResourceURLs[0]: Invalid value";
        let start = "non-resource URL rules must begin with a '/' character";
        rule("level: None, nonResourceURLs: [logs]", &format!("{url}: \"logs\": {start}"));
        let star = "non-resource URL wildcards '*' must be the final character of the rule";
        rule("level: None, nonResourceURLs: ['/a*b']", &format!("{url}: \"/a*b\": {star}"));
        let both = "rules[0].nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs";
        rule("level: None, nonResourceURLs: [/a], namespaces: [a]", both);
        let names = "rules[0].resources[0].resourceNames: using resourceNames requires at least one resource";
        rule("level: None, resources: [{resourceNames: [a]}]", names);
        let stage = "rules[0].omitStages[0]: Invalid value: \"Done\": allowed stages are \
                     RequestReceived,ResponseStarted,ResponseComplete,Panic";
        rule("level: None, omitStages: [Done]", stage);
        rule("level: None, omitManagedFields: 'yes'", "rules[0].omitManagedFields: it must be true or false");
        let group = policy("rules: [{level: None, resources: [{group: rbac.authorization.k8s.io/v1beta1}]}]");
        assert!(group.unwrap_err().starts_with("rules[0].resources[0].group: Invalid value: "));
        let version = Policy::parse("apiVersion: audit.k8s.io/v2\nkind: Policy\nrules: [{level: None}]").unwrap_err();
        assert_eq!(version, "apiVersion: it must be audit.k8s.io/v1, not \"audit.k8s.io/v2\"");
    }

    #[test]
    fn what_a_strict_reader_refuses_is_warned_about() {
        let check = |rules: &str, expected: &[&str]| {
            let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
            let (policy, faults) = Policy::read(&text).unwrap();
            assert_eq!((faults, policy.rules.len()), (expected.iter().map(|one| (*one).to_owned()).collect(), 1));
            assert_eq!(Policy::parse(&text), Ok(policy), "{rules}");
        };
        check("rules: [{level: None}]", &[]);
        check(
            "rule: []\nrules: [{level: None, user: [a], resources: [{groups: [a]}]}]",
            &[
                "unknown field \"rule\"",
                "unknown field \"rules[0].user\"",
                "unknown field \"rules[0].resources[0].groups\"",
            ],
        );
        check(
            "rules: [{level: Metadata}]\nrules: [{level: None}]\n---\n[",
            &["line 4: key \"rules\" already set in map"],
        );
    }
}
