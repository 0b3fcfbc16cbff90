//! NodeDeclaredFeatures: the node declares the features that the Pod needs. It does something where its feature is on.

use api::{features::Feature, rules::declared_feature};

use crate::{
    change::Change,
    node::Node,
    plugin::{Context, Filter, Plugin},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeDeclaredFeatures",
    feature: Some(Feature::NodeDeclaredFeatures),
    concerns: |c| !c.class.features.is_empty(),
    filter: Filter::Fixed { refuses, reasons: &["node(s) didn't match Pod's required features"] },
    retry_on: &[Change::NodeAdded, Change::NodeFeatures],
    ..Plugin::NONE
};

fn refuses(context: &Context, node: &Node) -> Option<u8> {
    (!declared_feature::missing(&context.class.features, &node.facts.features).is_empty()).then_some(0)
}
