//! The plugin's settings: `PodSecurityConfiguration` of `pod-security.admission.config.k8s.io`.

use api::validation::{field::quote, names, section::Section};

use super::level::{Level, Policy, Standard, Version};

/// The policy that counts where no label says otherwise, and the exemptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    pub defaults: Policy,
    pub exempt: Exemptions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exemptions {
    pub users: Vec<String>,
    pub namespaces: Vec<String>,
    pub runtime_classes: Vec<String>,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration { defaults: Policy::PRIVILEGED, exempt: Exemptions::default() }
    }
}

const VERSIONS: &[&str] = &[
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];

impl Configuration {
    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        section.is("PodSecurityConfiguration", VERSIONS)?;
        section.has_only(&["apiVersion", "kind", "defaults", "exemptions"])?;
        let defaults = section.section("defaults")?;
        defaults.has_only(&["enforce", "enforce-version", "audit", "audit-version", "warn", "warn-version"])?;
        let exemptions = section.section("exemptions")?;
        exemptions.has_only(&["usernames", "namespaces", "runtimeClasses"])?;
        let not_empty = |name: &str| match name {
            "" => vec!["username must not be empty".to_owned()],
            _ => Vec::new(),
        };
        Ok(Configuration {
            defaults: Policy {
                enforce: standard(&defaults, ["enforce", "enforce-version"])?,
                audit: standard(&defaults, ["audit", "audit-version"])?,
                warn: standard(&defaults, ["warn", "warn-version"])?,
            },
            exempt: Exemptions {
                users: exemptions.texts("usernames", not_empty)?,
                namespaces: exemptions.texts("namespaces", names::dns1123_label)?,
                runtime_classes: exemptions.texts("runtimeClasses", names::dns1123_subdomain)?,
            },
        })
    }
}

fn standard(section: &Section<'_>, [level, version]: [&str; 2]) -> Result<Standard, String> {
    let read = |field: &str, otherwise| {
        section.text(field).map(|text| text.filter(|text| !text.is_empty()).unwrap_or(otherwise))
    };
    let wrong =
        |field: &str, text: &str, why: &str| section.wrong(field, &format!("Invalid value: {}: {why}", quote(text)));
    let (given_level, given_version) = (read(level, "privileged")?, read(version, "latest")?);
    Ok(Standard {
        level: Level::parse(given_level).map_err(|why| wrong(level, given_level, why))?,
        version: Version::parse(given_version).map_err(|why| wrong(version, given_version, why))?,
    })
}
