//! Which tolerations Pods get, and may have: the settings of PodTolerationRestriction.

use api::{k8s_openapi::api::core::v1::Toleration, validation::section::Section};

/// The tolerations that count in namespaces that say nothing themselves.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Restriction {
    pub default: Vec<Toleration>,
    pub allowed: Vec<Toleration>,
}

impl Restriction {
    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        section.is("Configuration", &["podtolerationrestriction.admission.k8s.io/v1alpha1"])?;
        section.has_only(&["apiVersion", "kind", "default", "whitelist"])?;
        let list = |field: &str| {
            let one = |entry: Section<'_>| {
                entry.has_only(&["key", "operator", "value", "effect", "tolerationSeconds"])?;
                json::from_value(entry.to_value()).map_err(|why| section.wrong(field, &why.to_string()))
            };
            section.sections(field)?.into_iter().map(one).collect::<Result<Vec<Toleration>, String>>()
        };
        Ok(Restriction { default: list("default")?, allowed: list("whitelist")? })
    }
}
