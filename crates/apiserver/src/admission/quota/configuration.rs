//! The plugin's settings: `ResourceQuotaConfiguration`, which says what may be used only where a quota limits it.

use api::{k8s_openapi::api::core::v1::ScopedResourceSelectorRequirement, validation::section::Section};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    pub limited: Vec<Limited>,
}

/// Objects of a resource of which something may be used only where a quota limits it.
#[derive(Debug, Clone, PartialEq)]
pub struct Limited {
    pub group: String,
    pub resource: String,
    /// Parts of the names that a quota has for it.
    pub contains: Vec<String>,
    pub scopes: Vec<ScopedResourceSelectorRequirement>,
}

const VERSIONS: &[&str] = &[
    "apiserver.config.k8s.io/v1",
    "resourcequota.admission.k8s.io/v1beta1",
    "resourcequota.admission.k8s.io/v1alpha1",
];

impl Configuration {
    pub fn parse(section: &Section<'_>) -> Result<Self, String> {
        // The old versions have another name for it.
        let old = section.text("apiVersion")?.is_some_and(|version| version.starts_with("resourcequota."));
        section.is(if old { "Configuration" } else { "ResourceQuotaConfiguration" }, VERSIONS)?;
        section.has_only(&["apiVersion", "kind", "limitedResources"])?;
        let limited = section.sections("limitedResources")?;
        Ok(Configuration { limited: limited.iter().map(limited_resource).collect::<Result<_, _>>()? })
    }
}

fn limited_resource(section: &Section<'_>) -> Result<Limited, String> {
    section.has_only(&["apiGroup", "resource", "matchContains", "matchScopes"])?;
    let resource = section.text("resource")?.unwrap_or("");
    if resource.is_empty() {
        return Err(section.wrong("resource", "it must name a resource"));
    }
    let scope = |scope: &Section<'_>| {
        scope.has_only(&["scopeName", "operator", "values"])?;
        let text = |field| scope.text(field).map(|text| text.unwrap_or("").to_owned());
        let values = scope.texts("values", |_| Vec::new())?;
        Ok(ScopedResourceSelectorRequirement {
            scope_name: text("scopeName")?,
            operator: text("operator")?,
            values: (!values.is_empty()).then_some(values),
        })
    };
    Ok(Limited {
        group: section.text("apiGroup")?.unwrap_or("").to_owned(),
        resource: resource.to_owned(),
        contains: section.texts("matchContains", |_| Vec::new())?,
        scopes: section.sections("matchScopes")?.iter().map(scope).collect::<Result<_, String>>()?,
    })
}
