//! The plugin sets of a profile: which plugin has which part in it, and with what weight.
//!
//! A set for one extension point counts before the set for all of them. A plugin that is not mentioned stays as by
//! default.
//! Upstream counterpart: pkg/scheduler/apis/config/v1/default_plugins.go, framework/runtime (expandMultiPointPlugins).

use api::validation::field::Path;
use serde::Deserialize;

use super::Errors;
use crate::{
    extender,
    plugin::{Filter, Plugin},
    plugins::PLUGINS,
    profile::{Enabled, Part},
};

/// A plugin as a set names it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginSet {
    #[serde(default)]
    enabled: Vec<Named>,
    #[serde(default)]
    disabled: Vec<Named>,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|named| named.name == name || named.name == "*")
    }

    fn enables(&self, name: &str) -> Option<&Named> {
        self.enabled.iter().find(|named| named.name == name)
    }
}

/// The sets of a profile, by extension point.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginSets {
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
    multi_point: PluginSet,
}

/// Plugins of upstream's that are in no list here, because the core does what they do.
const OUTSIDE: &[&str] = &["PrioritySort", "NodeName", "DefaultBinder"];

fn exists(name: &str) -> bool {
    OUTSIDE.contains(&name) || PLUGINS.iter().any(|plugin| plugin.name == name && name != extender::NAME)
}

fn implements(plugin: &Plugin, part: Part) -> bool {
    match part {
        Part::Gate => plugin.gate.is_some() || plugin.gangs,
        Part::Filter => !matches!(plugin.filter, Filter::None) || plugin.admit.is_some(),
        Part::Preempt => plugin.preempts || plugin.release.is_some(),
        Part::Score => plugin.score.is_some(),
        Part::Reserve => plugin.reserve.is_some() || plugin.unreserve.is_some(),
        Part::PreBind => plugin.pre_bind.is_some(),
    }
}

/// The plugins of a profile with their parts, in the order in which they are asked.
pub(crate) fn enabled(sets: &PluginSets, path: &Path, errors: &mut Errors) -> Vec<Enabled> {
    let points = [
        ("preEnqueue", &sets.pre_enqueue, Some(Part::Gate)),
        ("queueSort", &sets.queue_sort, None),
        ("preFilter", &sets.pre_filter, None),
        ("filter", &sets.filter, Some(Part::Filter)),
        ("postFilter", &sets.post_filter, Some(Part::Preempt)),
        ("preScore", &sets.pre_score, None),
        ("score", &sets.score, Some(Part::Score)),
        ("reserve", &sets.reserve, Some(Part::Reserve)),
        ("permit", &sets.permit, None),
        ("preBind", &sets.pre_bind, Some(Part::PreBind)),
        ("bind", &sets.bind, None),
        ("postBind", &sets.post_bind, None),
        ("multiPoint", &sets.multi_point, None),
    ];
    for (point, set, part) in points {
        check(point, set, part, &path.child(point), errors);
    }
    // The core itself sorts the queue and binds, and no other plugin can.
    for (point, set, plugin, why) in [
        ("queueSort", &sets.queue_sort, "PrioritySort", "only one queue sort plugin can be enabled, and one must be"),
        ("bind", &sets.bind, "DefaultBinder", "at least one bind plugin is needed"),
    ] {
        let off = set.disables(plugin) || sets.multi_point.disables(plugin);
        let on = set.enables(plugin).is_some() || sets.multi_point.enables(plugin).is_some();
        if off && !on {
            errors.say(&path.child(point), why);
        }
    }
    let mut ordered: Vec<&Plugin> = Vec::new();
    let explicit = points.iter().filter(|(_, _, part)| part.is_some()).flat_map(|(_, set, _)| &set.enabled);
    let named = explicit.filter_map(|named| PLUGINS.iter().find(|plugin| plugin.name == named.name));
    for plugin in named.chain(PLUGINS) {
        if !ordered.iter().any(|held| held.name == plugin.name) {
            ordered.push(plugin);
        }
    }
    let found = ordered.into_iter().filter_map(|plugin| one(sets, &points, plugin));
    found.filter(|enabled| enabled.parts != 0).collect()
}

type Point<'a> = (&'static str, &'a PluginSet, Option<Part>);

fn one(sets: &PluginSets, points: &[Point], plugin: &'static Plugin) -> Option<Enabled> {
    let index = PLUGINS.iter().position(|held| held.name == plugin.name)?;
    let everywhere = sets.multi_point.enables(plugin.name);
    let by_default = everywhere.is_some() || !sets.multi_point.disables(plugin.name);
    // A plugin that is named without a weight has 1, whatever it has by default.
    let mut weight = everywhere.map_or(plugin.weight, |named| named.weight.max(1));
    let mut parts = 0;
    for (_, set, part) in points {
        let Some(part) = part.filter(|part| implements(plugin, *part)) else { continue };
        let here = set.enables(plugin.name);
        if here.is_some() || (by_default && !set.disables(plugin.name)) {
            parts |= part as u8;
        }
        if let (Part::Score, Some(named)) = (part, here) {
            weight = named.weight.max(1);
        }
    }
    Some(Enabled { index, plugin, weight, parts })
}

fn check(point: &str, set: &PluginSet, part: Option<Part>, path: &Path, errors: &mut Errors) {
    for (index, Named { name, .. }) in set.enabled.iter().enumerate() {
        let listed = PLUGINS.iter().find(|plugin| plugin.name == *name);
        if !exists(name) {
            errors.say(path, &format!("plugin {name:?} does not exist"));
        } else if set.enabled[..index].iter().any(|other| other.name == *name) {
            errors.say(path, &format!("plugin {name:?} already registered"));
        } else if let (Some(plugin), Some(part)) = (listed, part)
            && !implements(plugin, part)
        {
            errors.say(path, &format!("plugin {name:?} does not extend {point}"));
        }
    }
}
