//! The plugins of a server block with what their directives say. Pure.

use std::net::SocketAddr;

use super::{
    Around, Directive, Error, Line,
    cache::Cache,
    forward::Forward,
    hosts::Hosts,
    kubernetes::{Kubernetes, PodMode},
    log::Log,
    rewrite::Rewrite,
    template::Template,
    values,
};

/// How many rules one server block may have of a sort.
const MAX_RULES: usize = 256;

/// CoreDNS asks plugins in a fixed order, whatever the file's: this one, from top to bottom.
#[derive(Debug, Default)]
pub struct Settings {
    pub health: Option<SocketAddr>,
    pub ready: Option<SocketAddr>,
    pub prometheus: Option<SocketAddr>,
    pub errors: bool,
    pub log: Vec<Log>,
    pub loadbalance: bool,
    pub rewrites: Vec<Rewrite>,
    pub autopath: Option<Autopath>,
    pub cache: Option<Cache>,
    pub templates: Vec<Template>,
    pub hosts: Option<Hosts>,
    pub kubernetes: Option<Kubernetes>,
    pub looping: bool,
    pub forwards: Vec<Forward>,
}

/// For the names of which zones the search domains of the asking Pod are tried here.
#[derive(Debug, PartialEq, Eq)]
pub struct Autopath {
    pub zones: Vec<String>,
    /// The node's own search domains, behind the cluster's.
    pub search: Vec<String>,
}

impl Settings {
    pub fn read(directives: &[Directive], zones: &[String], around: &Around) -> Result<Self, Error> {
        let mut settings = Settings::default();
        for directive in directives {
            settings.add(directive, zones, around)?;
        }
        let verified = settings.kubernetes.as_ref().is_some_and(|k| k.pods == PodMode::Verified);
        if settings.autopath.is_some() && !verified {
            let line = directives.iter().find(|d| d.name == "autopath").map_or(1, |d| d.line);
            return Err(Error::new(
                line,
                "autopath needs the kubernetes plugin with `pods verified` in the same block",
            ));
        }
        Ok(settings)
    }

    fn add(&mut self, directive: &Directive, zones: &[String], around: &Around) -> Result<(), Error> {
        match directive.name.as_str() {
            "errors" => once(&mut self.errors, directive.bare(), directive)?,
            "loop" => once(&mut self.looping, directive.bare(), directive)?,
            "reload" => reload(directive)?,
            "loadbalance" => once(&mut self.loadbalance, loadbalance(directive), directive)?,
            "health" => one(&mut self.health, health(directive)?, directive)?,
            "ready" => one(&mut self.ready, ready(directive)?, directive)?,
            "prometheus" => one(&mut self.prometheus, page(directive, "localhost:9153")?, directive)?,
            "log" => several(&mut self.log, Log::read(directive)?, directive)?,
            "rewrite" => several(&mut self.rewrites, Rewrite::read(directive)?, directive)?,
            "template" => several(&mut self.templates, Template::read(directive, zones)?, directive)?,
            "forward" => several(&mut self.forwards, Forward::read(directive, around)?, directive)?,
            "autopath" => one(&mut self.autopath, autopath(directive, zones, around)?, directive)?,
            "cache" => one(&mut self.cache, Cache::read(directive, zones)?, directive)?,
            "hosts" => one(&mut self.hosts, Hosts::read(directive, zones, around)?, directive)?,
            "kubernetes" => one(&mut self.kubernetes, Kubernetes::read(directive, zones)?, directive)?,
            other => return Err(Error::new(directive.line, format!("Unknown directive '{other}'"))),
        }
        Ok(())
    }
}

fn twice(directive: &Directive) -> Error {
    Error::new(directive.line, format!("plugin/{}: this plugin can only be used once per Server Block", directive.name))
}

fn one<T>(place: &mut Option<T>, value: T, directive: &Directive) -> Result<(), Error> {
    if place.replace(value).is_some() { Err(twice(directive)) } else { Ok(()) }
}

fn once(place: &mut bool, read: Result<(), Error>, directive: &Directive) -> Result<(), Error> {
    read?;
    if std::mem::replace(place, true) { Err(twice(directive)) } else { Ok(()) }
}

fn several<T>(place: &mut Vec<T>, value: T, directive: &Directive) -> Result<(), Error> {
    place.push(value);
    if place.len() > MAX_RULES {
        Err(Error::new(directive.line, format!("more than {MAX_RULES} rules")))
    } else {
        Ok(())
    }
}

/// A changed file is read at once, however long the interval is: it only has to be one.
fn reload(directive: &Directive) -> Result<(), Error> {
    directive.no_body()?;
    let [interval, jitter] = match directive.args.as_slice() {
        [] => return Ok(()),
        [interval] => [interval, "1s"],
        [interval, jitter] => [interval.as_str(), jitter],
        _ => return Err(directive.wrong()),
    };
    for (word, least) in [(interval, 2), (jitter, 1)] {
        let time = values::duration(word).map_err(|what| directive.error(what))?;
        if time.as_secs() < least {
            return Err(directive.error(format!("{word} is less than {least}s")));
        }
    }
    Ok(())
}

fn loadbalance(directive: &Directive) -> Result<(), Error> {
    directive.no_body()?;
    match directive.args.as_slice() {
        [] => Ok(()),
        [policy] if policy == "round_robin" => Ok(()),
        _ => Err(directive.error("only the policy round_robin is supported")),
    }
}

fn health(directive: &Directive) -> Result<SocketAddr, Error> {
    for line in &directive.body {
        match line.property() {
            // DNS ends with the node's process, in which nothing waits for it.
            "lameduck" => drop(line.read(values::duration)?),
            _ => return Err(line.unknown()),
        }
    }
    address(directive, "localhost:8080")
}

fn ready(directive: &Directive) -> Result<SocketAddr, Error> {
    for line in &directive.body {
        if line.words != ["monitor", "until-ready"] && line.words != ["monitor", "continuously"] {
            return Err(line.unknown());
        }
    }
    address(directive, "localhost:8181")
}

fn page(directive: &Directive, standard: &str) -> Result<SocketAddr, Error> {
    directive.no_body()?;
    address(directive, standard)
}

/// Where a page is. In a container, no address means all of them; here it is the node's own, and pages without TLS
/// and authentication are for the node alone.
fn address(directive: &Directive, standard: &str) -> Result<SocketAddr, Error> {
    let word = match directive.args.as_slice() {
        [] => standard,
        [word] => word,
        _ => return Err(directive.wrong()),
    };
    let (host, port) = word.rsplit_once(':').ok_or_else(|| directive.error(format!("no port in {word:?}")))?;
    let host = if host.is_empty() || host == "localhost" { "127.0.0.1" } else { host };
    let address: Option<SocketAddr> = format!("{host}:{port}").parse().ok();
    address.filter(|a| a.ip().is_loopback()).ok_or_else(|| {
        directive.error(format!(
            "{word:?} is not an address of the node's loopback: others would see pages without authentication"
        ))
    })
}

fn autopath(directive: &Directive, zones: &[String], around: &Around) -> Result<Autopath, Error> {
    directive.no_body()?;
    match directive.args.split_last() {
        Some((source, own)) if source == "@kubernetes" => {
            Ok(Autopath { zones: directive.zones(own, zones)?, search: values::search_domains(&around.resolv_conf) })
        }
        _ => Err(directive.error("the search domains come from @kubernetes alone")),
    }
}

impl Directive {
    pub fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::new(self.line, format!("plugin/{}: {what}", self.name))
    }

    pub fn wrong(&self) -> Error {
        Error::new(self.line, format!("Wrong argument count or unexpected line ending after '{}'", self.name))
    }

    pub fn no_body(&self) -> Result<(), Error> {
        self.body.first().map_or(Ok(()), |line| Err(line.unknown()))
    }

    fn bare(&self) -> Result<(), Error> {
        self.no_body()?;
        if self.args.is_empty() { Ok(()) } else { Err(self.wrong()) }
    }

    /// The zones that words name, or those of the block where there are none.
    pub fn zones(&self, words: &[String], block: &[String]) -> Result<Vec<String>, Error> {
        values::zones_or(words, block).map_err(|what| self.error(what))
    }
}

impl Line {
    pub fn property(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub fn args(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::new(self.number, what)
    }

    pub fn unknown(&self) -> Error {
        self.error(format!("unknown property '{}'", self.property()))
    }

    pub fn wrong(&self) -> Error {
        self.error(format!("Wrong argument count or unexpected line ending after '{}'", self.property()))
    }

    /// The only argument, read.
    pub fn read<T>(&self, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Error> {
        match self.args() {
            [word] => read(word).map_err(|what| self.error(what)),
            _ => Err(self.wrong()),
        }
    }

    /// All arguments, at least one, read.
    pub fn read_all<T>(&self, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, Error> {
        if self.args().is_empty() {
            return Err(self.wrong());
        }
        self.args().iter().map(|word| read(word).map_err(|what| self.error(what))).collect()
    }

    pub fn bare(&self) -> Result<(), Error> {
        if self.args().is_empty() { Ok(()) } else { Err(self.wrong()) }
    }

    /// Zones, or those of the block.
    pub fn zones(&self, block: &[String]) -> Result<Vec<String>, Error> {
        values::zones_or(self.args(), block).map_err(|what| self.error(what))
    }
}
