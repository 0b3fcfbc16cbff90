//! The Corefile: CoreDNS' configuration language, for the plugins that clusters use. It is read strictly: what is not
//! known, or would be without effect here, is an error that says where. Pure.
//!
//! [`lex`] finds words and blocks, [`settings`] says what each plugin's directive means, [`values`] reads single words.

pub mod cache;
pub mod forward;
pub mod hosts;
pub mod kubernetes;
mod lex;
pub mod log;
pub mod rewrite;
pub mod settings;
pub mod template;
pub mod values;

use std::collections::BTreeMap;

pub use lex::{Directive, Line};
use settings::Settings;

/// A mistake in a Corefile, in CoreDNS' form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Corefile:{line} - Error during parsing: {what}")]
pub struct Error {
    line: usize,
    what: String,
}

impl Error {
    pub fn new(line: usize, what: impl Into<String>) -> Self {
        Error { line, what: what.into() }
    }
}

/// One server block.
#[derive(Debug)]
pub struct Block {
    /// As `crate::question::text` shows names; the root is empty.
    pub zones: Vec<String>,
    pub settings: Settings,
}

/// The contents of files that a Corefile may refer to.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// The contents of `/etc/resolv.conf`, as the node's flags say which file that is.
    pub resolv_conf: String,
    /// The other values of the ConfigMap: files in `/etc/coredns`, where CoreDNS would have them mounted.
    pub files: BTreeMap<String, String>,
}

/// Reads a Corefile.
pub fn parse(text: &str, around: &Around) -> Result<Vec<Block>, Error> {
    let mut blocks: Vec<Block> = Vec::new();
    for block in lex::blocks(text)? {
        let mut zones = Vec::new();
        for key in &block.keys {
            for zone in values::server_key(key).map_err(|what| Error::new(block.line, what))? {
                if zones.contains(&zone) || blocks.iter().any(|b| b.zones.contains(&zone)) {
                    let what = format!("cannot serve {key} - it is already defined");
                    return Err(Error::new(block.line, what));
                }
                zones.push(zone);
            }
        }
        if zones.is_empty() {
            return Err(Error::new(block.line, "a server block needs a zone"));
        }
        let settings = Settings::read(&block.directives, &zones, around)?;
        blocks.push(Block { zones, settings });
    }
    if blocks.is_empty() {
        return Err(Error::new(1, "there is no server block"));
    }
    Ok(blocks)
}

/// The Corefile of a cluster that has none of its own: kubeadm's, but for the pages of a process of its own.
pub fn standard(domain: &str) -> String {
    format!(
        ". {{
    errors
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    forward . /etc/resolv.conf {{
        max_concurrent 1000
    }}
    cache 30 {{
        disable success {domain}
        disable denial {domain}
    }}
    loop
    reload
    loadbalance
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around() -> Around {
        Around { resolv_conf: "nameserver 10.0.0.1\nsearch a.b\n".to_owned(), files: BTreeMap::new() }
    }

    #[test]
    fn kubeadms_file_is_read() {
        let text = ".:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
";
        let blocks = parse(text, &around()).unwrap();
        let settings = &blocks[0].settings;
        assert_eq!(settings.forwards[0].servers, ["10.0.0.1:53".parse().unwrap()]);
        assert_eq!(settings.prometheus, Some("127.0.0.1:9153".parse().unwrap()));
        let kubernetes = settings.kubernetes.as_ref().unwrap();
        assert_eq!((kubernetes.ttl, kubernetes.through.len()), (30, 2));
        let cache = settings.cache.as_ref().unwrap();
        assert_eq!(
            (cache.success.most, cache.denial.most, cache.success.except[0].as_str()),
            (30, 30, "cluster.local")
        );
        assert!(settings.errors && settings.looping && settings.loadbalance);
        assert!(parse(&standard("cluster.local"), &around()).is_ok());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (inside, expected) in [
            ("etcd", "Unknown directive 'etcd'"),
            ("errors\n errors", "plugin/errors: this plugin can only be used once per Server Block"),
            ("forward .", "Wrong argument count or unexpected line ending after 'forward'"),
            ("forward . resolver.example", "plugin/forward: not an IP address or file: \"resolver.example\""),
            ("forward . /etc/shadow", "plugin/forward: /etc/shadow: of the node's files only /etc/resolv.conf is read"),
            ("forward . tls://1.1.1.1", "plugin/forward: tls to other servers is not supported"),
            ("forward . 1.1.1.1 {\n policy best\n }", "unknown policy 'best'"),
            ("forward . 1.1.1.1 {\n polices\n }", "unknown property 'polices'"),
            ("cache {\n prefetch 10\n }", "prefetch is not supported"),
            ("cache 30 {\n disable all\n }", "cache type for disable must be \"success\" or \"denial\": all"),
            ("kubernetes in-addr.arpa", "plugin/kubernetes: non-reverse zone name must be used"),
            (
                "kubernetes x {\n pods many\n }",
                "wrong value for pods: many,  must be one of: disabled, verified, insecure",
            ),
            ("kubernetes x {\n ttl 4000\n }", "\"4000\" is not a number from 0 to 3600"),
            ("kubernetes x {\n endpoint https://a\n }", "endpoint: names come from this cluster's own API server"),
            (
                "autopath @kubernetes\n kubernetes x",
                "autopath needs the kubernetes plugin with `pods verified` in the same block",
            ),
            ("autopath /etc/resolv.conf", "plugin/autopath: the search domains come from @kubernetes alone"),
            (
                "hosts /etc/shadow",
                "plugin/hosts: /etc/shadow is not there: files are the values of the ConfigMap, in /etc/coredns/",
            ),
            (
                "health 0.0.0.0:8080",
                "plugin/health: \"0.0.0.0:8080\" is not an address of the node's loopback: others would see pages without authentication",
            ),
            ("reload 1s", "plugin/reload: 1s is less than 2s"),
            ("log . \"{nothing}\"", "plugin/log: unknown place holder {nothing}"),
            ("rewrite edns0 local set 0xffee 0x61", "plugin/rewrite: rules about edns0 are not supported"),
            (
                "rewrite name regex (.*) {2}.x",
                "plugin/rewrite: the replacement uses group 2, which the pattern does not have",
            ),
            ("rewrite ttl a.b 9-3", "plugin/rewrite: invalid TTL '9-3' for a ttl rule"),
            ("template IN A {\n answer \"{{ .Meta }} A 1.2.3.4\"\n }", "{{ .Meta }} cannot be filled in"),
            ("loadbalance weighted file", "plugin/loadbalance: only the policy round_robin is supported"),
        ] {
            let error = parse(&format!("x {{\n {inside}\n}}\n"), &around()).err().map(|e| e.to_string());
            let line = if inside.starts_with("errors") || inside.contains(" {\n") { 3 } else { 2 };
            assert_eq!(error, Some(format!("Corefile:{line} - Error during parsing: {expected}")), "{inside}");
        }
        for (text, expected) in
            [("", "there is no server block"), ("x {\n}\nx {\n}", "cannot serve x - it is already defined")]
        {
            let error = parse(text, &around()).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.ends_with(expected), "{text:?}: {error}");
        }
    }
}
