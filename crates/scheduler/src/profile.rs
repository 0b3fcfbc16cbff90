//! A profile: one scheduler's name, with the plugins that decide about the Pods that ask for it.
//! Upstream counterpart: pkg/scheduler/profile.

use std::sync::Arc;

use crate::{
    args::Args,
    plugin::{Context, Plugin},
};

/// The parts that a plugin can have in the scheduling of a Pod, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    Gate = 1,
    Filter = 1 << 1,
    Preempt = 1 << 2,
    Score = 1 << 3,
    Reserve = 1 << 4,
    PreBind = 1 << 5,
}

impl Part {
    pub const ALL: u8 = 0b11_1111;
}

/// One plugin of a profile.
#[derive(Debug, Clone, Copy)]
pub struct Enabled {
    /// Its place in the list of all plugins.
    pub index: usize,
    pub plugin: &'static Plugin,
    /// The weight of its score.
    pub weight: i64,
    /// The parts that it has in this profile.
    pub parts: u8,
}

impl Enabled {
    pub fn has(&self, part: Part) -> bool {
        self.parts & part as u8 != 0
    }
}

/// One profile.
#[derive(Debug, Clone)]
pub struct Profile {
    pub scheduler_name: String,
    /// In the order in which they are asked.
    pub plugins: Vec<Enabled>,
    /// How many of the nodes, in percent, must be found to fit before the search ends; 0 chooses by their number.
    pub percentage_of_nodes_to_score: usize,
    pub args: Arc<Args>,
}

impl Profile {
    /// All plugins of a list with all their parts.
    pub fn of(scheduler_name: &str, plugins: &'static [Plugin]) -> Self {
        let all = plugins.iter().enumerate();
        let enabled = |(index, plugin): (usize, &'static Plugin)| Enabled {
            index,
            plugin,
            weight: plugin.weight,
            parts: Part::ALL,
        };
        Profile {
            scheduler_name: scheduler_name.to_owned(),
            plugins: all.map(enabled).collect(),
            percentage_of_nodes_to_score: 0,
            args: Arc::default(),
        }
    }

    /// The plugins that have this part.
    pub fn with(&self, part: Part) -> impl DoubleEndedIterator<Item = &Enabled> {
        self.plugins.iter().filter(move |enabled| enabled.has(part))
    }
}

/// The plugins of a profile that have this part and something to say about a class.
pub(crate) fn concerned(profile: &Profile, part: Part, context: &Context) -> Vec<Enabled> {
    profile.with(part).filter(|enabled| (enabled.plugin.concerns)(context)).copied().collect()
}
