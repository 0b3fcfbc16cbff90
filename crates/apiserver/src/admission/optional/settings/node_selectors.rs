//! Which nodes the Pods of a namespace may select: the settings of PodNodeSelector.

use std::collections::BTreeMap;

use api::{
    rules::selector::{Operator, Requirement, Selector},
    validation::section::Section,
};

/// The name of the settings for namespaces that say nothing themselves.
pub const DEFAULT: &str = "clusterDefaultNodeSelector";

pub type Labels = BTreeMap<String, String>;

/// Labels by namespace: the only ones that its Pods may select.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selectors(BTreeMap<String, Labels>);

impl Selectors {
    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        let field = "podNodeSelectorPluginConfig";
        section.has_only(&[field])?;
        let list = section.section(field)?;
        let mut selectors = BTreeMap::new();
        for name in list.keys() {
            let selector = labels(list.text(name)?.unwrap_or("")).map_err(|why| list.wrong(name, &why))?;
            selectors.insert(name.to_owned(), selector);
        }
        Ok(Selectors(selectors))
    }

    /// The selectors that the settings give for a name.
    pub fn of(&self, name: &str) -> Labels {
        self.0.get(name).cloned().unwrap_or_default()
    }
}

/// `a=b,c=d`.
pub fn labels(text: &str) -> Result<Labels, String> {
    let invalid = || format!("invalid selector: {text}");
    let selector = Selector::parse(text).map_err(|_| invalid())?;
    let one = |requirement: &Requirement| match (&requirement.operator, requirement.values.as_slice()) {
        (Operator::In, [value]) => Ok((requirement.key.clone(), value.clone())),
        _ => Err(invalid()),
    };
    selector.requirements.iter().map(one).collect()
}
