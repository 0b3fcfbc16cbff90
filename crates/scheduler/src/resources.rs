//! Amounts of resources as small arrays: cpu, memory and ephemeral storage by field, everything else by interned name.

use std::{collections::HashMap, sync::Arc};

use api::rules::pod::Resources;

use crate::rejection::Text;

/// An interned name of a resource other than the three that every node has.
pub type ResourceId = u16;

/// Amounts of resources: of a Pod, used on a node, or available there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub storage_bytes: i64,
    /// In order of the id.
    pub others: Vec<(ResourceId, i64)>,
}

/// A resource, by where its amount stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Cpu,
    Memory,
    Storage,
    Other(ResourceId),
}

impl Amounts {
    pub fn of(&self, resource: Resource) -> i64 {
        match resource {
            Resource::Cpu => self.cpu_milli,
            Resource::Memory => self.memory_bytes,
            Resource::Storage => self.storage_bytes,
            Resource::Other(id) => self.other(id),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.cpu_milli == 0 && self.memory_bytes == 0 && self.storage_bytes == 0 && self.others.iter().all(|o| o.1 == 0)
    }

    pub fn other(&self, id: ResourceId) -> i64 {
        self.others.binary_search_by_key(&id, |o| o.0).map_or(0, |i| self.others[i].1)
    }

    /// Adds `amounts` `sign` times (1 or -1).
    pub fn add(&mut self, amounts: &Amounts, sign: i64) {
        self.cpu_milli += sign * amounts.cpu_milli;
        self.memory_bytes += sign * amounts.memory_bytes;
        self.storage_bytes += sign * amounts.storage_bytes;
        for &(id, amount) in &amounts.others {
            match self.others.binary_search_by_key(&id, |o| o.0) {
                Ok(i) => self.others[i].1 += sign * amount,
                Err(i) => self.others.insert(i, (id, sign * amount)),
            }
        }
    }
}

/// The interned names, each with the reason a user reads when it is short.
#[derive(Default)]
pub struct ResourceNames {
    ids: HashMap<String, ResourceId>,
    names: Vec<String>,
    short: Vec<Text>,
}

impl ResourceNames {
    pub fn id(&mut self, name: &str) -> ResourceId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        // 65,536 different resource names in one cluster do not happen; past them the last one is shared.
        let id = ResourceId::try_from(self.short.len()).unwrap_or(ResourceId::MAX);
        self.ids.insert(name.to_owned(), id);
        self.names.push(name.to_owned());
        self.short.push(Text::Shared(Arc::from(format!("Insufficient {name}"))));
        id
    }

    /// The resource of this name, if any node or Pod has spoken of it.
    pub fn find(&self, name: &str) -> Option<Resource> {
        match name {
            "cpu" => Some(Resource::Cpu),
            "memory" => Some(Resource::Memory),
            "ephemeral-storage" => Some(Resource::Storage),
            other => self.ids.get(other).map(|id| Resource::Other(*id)),
        }
    }

    pub fn name(&self, id: ResourceId) -> &str {
        &self.names[usize::from(id)]
    }

    pub fn short(&self, id: ResourceId) -> Text {
        self.short[usize::from(id)].clone()
    }

    pub fn amounts(&mut self, resources: &Resources) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, quantity) in resources {
            match name.as_str() {
                "cpu" => amounts.cpu_milli = quantity.milli_value(),
                "memory" => amounts.memory_bytes = quantity.value(),
                "ephemeral-storage" => amounts.storage_bytes = quantity.value(),
                "pods" => {}
                other => {
                    let id = self.id(other);
                    amounts.add(&Amounts { others: vec![(id, quantity.value())], ..Amounts::default() }, 1);
                }
            }
        }
        amounts
    }
}
