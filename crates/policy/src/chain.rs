//! The chains that decide about connections, before they are text.

use crate::{
    group::GroupName,
    rule::{Allow, Peer, Ports},
    traffic::{Direction, Family},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    Allow(Allow),
    /// Asks this chain, and goes on if it does not decide.
    Ask(String),
    Drop,
}

impl Rule {
    /// The groups that it looks into.
    pub fn groups(&self) -> impl Iterator<Item = &GroupName> {
        let allow = if let Rule::Allow(allow) = self { Some(allow) } else { None };
        let peer = allow.and_then(|a| if let Peer::Pods(name) = &a.peer { Some(name) } else { None });
        let port = allow.and_then(|a| if let Ports::Named(_, name) = &a.ports { Some(name) } else { None });
        peer.into_iter().chain(port)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub direction: Direction,
    pub family: Family,
    pub rules: Vec<Rule>,
}
