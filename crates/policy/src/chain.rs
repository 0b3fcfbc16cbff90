//! The chains that decide about connections, before they are text.

use std::sync::Arc;

use crate::{
    group::GroupName,
    ports::Ports,
    rule::{Clause, Peer},
    traffic::{Direction, Family},
};

/// A chain's name in the kernel.
pub type ChainName = Arc<str>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    Clause(Clause),
    /// Asks this chain, and goes on if it does not decide.
    Ask(ChainName),
    /// A Pod reaches itself.
    Itself,
    Drop,
}

impl Rule {
    /// The groups that it looks into.
    pub fn groups(&self) -> impl Iterator<Item = &GroupName> {
        let clause = if let Rule::Clause(clause) = self { Some(clause) } else { None };
        let peer = clause.and_then(|c| if let Peer::Group(name) = &c.peer { Some(name) } else { None });
        let port = clause.and_then(|c| if let Ports::Named(_, name) = &c.ports { Some(name) } else { None });
        peer.into_iter().chain(port)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub direction: Direction,
    pub family: Family,
    pub rules: Vec<Rule>,
}
