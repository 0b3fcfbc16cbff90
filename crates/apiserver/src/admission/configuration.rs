//! The settings of the admission plugins: upstream's `AdmissionConfiguration` file, read once at start.
//!
//! A setting that is not understood is an error that names the file and the field: a setting that nobody follows would
//! protect nobody.

use std::path::Path;

use api::{
    Value,
    validation::{field::quote, section::Section},
};

use super::{
    names_of_plugins,
    optional::{
        event_rate_limit, image_policy_webhook, pod_node_selector, pod_toleration_restriction,
        settings::{Settings, event_limits, image_policy, node_selectors, tolerations},
    },
    pod_security, quota, webhook,
};
use crate::document;

/// The settings of the plugins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    pub pod_security: pod_security::Configuration,
    pub quota: quota::configuration::Configuration,
    pub optional: Settings,
    pub webhooks: webhook::shown::Shown,
}

type Parse = fn(&mut Configuration, &Section<'_>) -> Result<(), String>;

/// The plugins that can be told something, with what takes it in.
const CONFIGURED: &[(&str, Parse)] = &[
    (pod_security::PLUGIN.name, |all, section| {
        all.pod_security = pod_security::Configuration::parse(section)?;
        Ok(())
    }),
    (quota::PLUGIN.name, |all, section| {
        all.quota = quota::configuration::Configuration::parse(section)?;
        Ok(())
    }),
    (webhook::MUTATING.name, |all, section| {
        all.webhooks.mutating = webhook::shown::parse(section)?;
        Ok(())
    }),
    (webhook::VALIDATING.name, |all, section| {
        all.webhooks.validating = webhook::shown::parse(section)?;
        Ok(())
    }),
    (event_rate_limit::PLUGIN.name, |all, section| {
        all.optional.event_limits = event_limits::Limits::parse(section)?;
        Ok(())
    }),
    (image_policy_webhook::PLUGIN.name, |all, section| {
        all.optional.image_policy = image_policy::ImagePolicy::parse(section)?;
        Ok(())
    }),
    (pod_node_selector::PLUGIN.name, |all, section| {
        all.optional.node_selectors = node_selectors::Selectors::parse(section)?;
        Ok(())
    }),
    (pod_toleration_restriction::PLUGIN.name, |all, section| {
        all.optional.tolerations = tolerations::Restriction::parse(section)?;
        Ok(())
    }),
];

/// The function that takes in the settings of a plugin.
fn parser(plugin: &str) -> Option<Parse> {
    CONFIGURED.iter().find(|(name, _)| *name == plugin).map(|(_, parse)| *parse)
}

const VERSIONS: &[&str] = &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

impl Configuration {
    /// Reads the file, and the ones that it names, through `read`.
    pub fn load(file: &Path, read: impl Fn(&Path) -> std::io::Result<String>) -> Result<Self, String> {
        let of_file = |why: String| format!("{}: {why}", file.display());
        let value = document::read(&read(file).map_err(|e| of_file(e.to_string()))?).map_err(of_file)?;
        let section = Section::of("", &value).map_err(of_file)?;
        let entries = entries(&section).map_err(of_file)?;
        let mut configuration = Configuration::default();
        for entry in entries {
            match entry {
                Entry::Inside(name, place, value) => configuration.set(name, &place, value).map_err(of_file)?,
                Entry::File(name, path) => {
                    let path = file.parent().unwrap_or(Path::new("")).join(path);
                    let of_path = |why: String| format!("{}: {why}", path.display());
                    let value = document::read(&read(&path).map_err(|e| of_path(e.to_string()))?).map_err(of_path)?;
                    configuration.set(name, "", &value).map_err(of_path)?;
                }
            }
        }
        Ok(configuration)
    }

    fn set(&mut self, plugin: &str, place: &str, value: &Value) -> Result<(), String> {
        let section = Section::of(place, value)?;
        parser(plugin).map_or(Ok(()), |parse| parse(self, &section))
    }
}

/// The name of a plugin and where its settings are.
enum Entry<'a> {
    Inside(&'a str, String, &'a Value),
    File(&'a str, &'a str),
}

fn entries<'a>(section: &Section<'a>) -> Result<Vec<Entry<'a>>, String> {
    section.is("AdmissionConfiguration", VERSIONS)?;
    section.has_only(&["apiVersion", "kind", "plugins"])?;
    let mut seen = Vec::new();
    let mut entries = Vec::new();
    for plugin in section.sections("plugins")? {
        plugin.has_only(&["name", "path", "configuration"])?;
        let name = plugin.text("name")?.unwrap_or("");
        if parser(name).is_none() {
            let why = match names_of_plugins().any(|known| known == name) {
                true => "takes no configuration",
                false => "is no admission plugin of this server",
            };
            return Err(plugin.wrong("name", &format!("{} {why}", quote(name))));
        }
        if seen.contains(&name) {
            return Err(plugin.wrong("name", &format!("{} is configured twice", quote(name))));
        }
        seen.push(name);
        let inside = plugin.get("configuration");
        match (inside, plugin.text("path")?.filter(|path| !path.is_empty())) {
            (Some(_), Some(_)) => {
                return Err(plugin.wrong("path", "the plugin has a configuration too; give one of both"));
            }
            (Some(value), None) => entries.push(Entry::Inside(name, plugin.place("configuration"), value)),
            (None, Some(path)) => entries.push(Entry::File(name, path)),
            (None, None) => {}
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(files: &[(&str, &str)]) -> Result<Configuration, String> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| std::io::Error::other("there is no such file"))
        };
        Configuration::load(Path::new("/etc/skiff/admission.yaml"), read)
    }

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
    const INSIDE: &str = "plugins:\n- name: PodSecurity\n  configuration:\n    \
                          apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n";

    /// `text` stands behind the head of the file.
    fn refused(text: &str, expected: &str) {
        let error = load(&[("/etc/skiff/admission.yaml", &format!("{HEAD}{text}"))]).unwrap_err();
        assert_eq!(error.strip_prefix("/etc/skiff/admission.yaml: "), Some(expected), "{error}");
    }

    #[test]
    fn settings_stand_in_the_file_or_beside_it() {
        let text = format!("{HEAD}{INSIDE}    defaults: {{enforce: baseline}}\n");
        let inside = load(&[("/etc/skiff/admission.yaml", &text)]).unwrap();
        assert_eq!(inside.pod_security.defaults.enforce.to_string(), "baseline:latest");
        let text = format!("{HEAD}plugins:\n- name: PodSecurity\n  path: podsec/settings.yaml\n");
        let other = "apiVersion: pod-security.admission.config.k8s.io/v1beta1\nkind: PodSecurityConfiguration\n\
                     defaults: {enforce: baseline}\n";
        let files = [("/etc/skiff/admission.yaml", text.as_str()), ("/etc/skiff/podsec/settings.yaml", other)];
        assert_eq!(load(&files).unwrap(), inside);
        let wrong = [files[0], ("/etc/skiff/podsec/settings.yaml", "kind: x")];
        let expected = "/etc/skiff/podsec/settings.yaml: kind: it must be PodSecurityConfiguration, not \"x\"";
        assert_eq!(load(&wrong).unwrap_err(), expected);
        assert_eq!(load(&files[..1]).unwrap_err(), "/etc/skiff/podsec/settings.yaml: there is no such file");
        assert_eq!(load(&[("/etc/skiff/admission.yaml", HEAD)]).unwrap(), Configuration::default());
    }

    #[test]
    fn quotas_may_be_demanded() {
        let head = format!(
            "{HEAD}plugins:\n- name: ResourceQuota\n  configuration:\n    kind: ResourceQuotaConfiguration\n    "
        );
        let text = format!(
            "{head}apiVersion: apiserver.config.k8s.io/v1\n    limitedResources:\n    - resource: pods\n      \
             matchScopes: [{{scopeName: PriorityClass, operator: In, values: [high]}}]\n"
        );
        let limited = load(&[("/etc/skiff/admission.yaml", &text)]).unwrap().quota.limited;
        assert_eq!((limited[0].resource.as_str(), limited[0].scopes[0].operator.as_str()), ("pods", "In"));
        let text =
            format!("{head}apiVersion: apiserver.config.k8s.io/v1\n    limitedResources: [{{apiGroup: apps}}]\n");
        let error = load(&[("/etc/skiff/admission.yaml", &text)]).unwrap_err();
        let place = "plugins[0].configuration.limitedResources[0].resource";
        assert_eq!(error, format!("/etc/skiff/admission.yaml: {place}: it must name a resource"));
    }

    /// Upstream: TestLoadConfiguration of resourcequota.
    #[test]
    fn demands_of_quotas_are_read_in_all_their_versions() {
        let said = |kind: &str, version: &str, more: &str| {
            let text = format!(
                "{HEAD}plugins:\n- name: ResourceQuota\n  configuration:\n    kind: {kind}\n    apiVersion: {version}\n    \
                 limitedResources:\n    - apiGroup: ''\n      resource: persistentvolumeclaims\n{more}      \
                 matchContains: [.storageclass.storage.k8s.io/requests.storage]\n    - resource: pods\n      \
                 matchScopes: [{{scopeName: PriorityClass, operator: In, values: [cluster-services]}}]\n"
            );
            load(&[("/etc/skiff/admission.yaml", &text)])
        };
        let (kind, newest) = ("ResourceQuotaConfiguration", "apiserver.config.k8s.io/v1");
        let limited = said(kind, newest, "").unwrap().quota.limited;
        let told: Vec<_> =
            limited.iter().map(|one| (one.resource.as_str(), one.contains.len(), one.scopes.len())).collect();
        assert_eq!(told, [("persistentvolumeclaims", 1, 0), ("pods", 0, 1)]);
        for version in ["v1alpha1", "v1beta1"] {
            let old = said("Configuration", &format!("resourcequota.admission.k8s.io/{version}"), "").unwrap();
            assert_eq!(old.quota.limited, limited, "{version}");
        }
        let refused = |outcome: Result<Configuration, String>, why: &str| {
            let error = outcome.unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused(said("''", newest, ""), "kind: it must be ResourceQuotaConfiguration, not \"\"");
        refused(said("Unknown", "v1", ""), "kind: it must be ResourceQuotaConfiguration, not \"Unknown\"");
        refused(said("Configuration", newest, ""), "kind: it must be ResourceQuotaConfiguration");
        refused(said(kind, "apiserver.config.k8s.io/v2", ""), "apiVersion: it must be");
        refused(said(kind, newest, "      foo: bar\n"), "limitedResources[0].foo: there is no such field");
        refused(said(kind, newest, "      resource: pods\n"), "it is not valid YAML");
    }

    #[test]
    fn webhooks_are_shown_what_a_kubeconfig_file_holds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, "users: [{name: '*', user: {token: t}}]").unwrap();
        let said = |kind: &str, version: &str, file: &str| {
            let text = format!(
                "{HEAD}plugins:\n- name: ValidatingAdmissionWebhook\n  configuration: {{kind: {kind}, \
                 apiVersion: apiserver.config.k8s.io/{version}, kubeConfigFile: {file}}}\n"
            );
            load(&[("/etc/skiff/admission.yaml", &text)])
        };
        let path = file.display().to_string();
        for (kind, version) in [("WebhookAdmissionConfiguration", "v1"), ("WebhookAdmission", "v1alpha1")] {
            let webhooks = said(kind, version, &path).unwrap().webhooks;
            assert!(webhooks.validating.of_server("a:443").is_some() && webhooks.mutating.of_server("a:443").is_none());
        }
        let refused = |kind: &str, version: &str, file: &str, expected: &str| {
            let error = said(kind, version, file).unwrap_err();
            assert!(error.contains(&format!("plugins[0].configuration.{expected}")), "{error}");
        };
        let (kind, version) = ("WebhookAdmissionConfiguration", "v1");
        refused("WebhookAdmission", version, &path, "kind: it must be WebhookAdmissionConfiguration");
        refused(kind, "v1alpha1", &path, "kind: it must be WebhookAdmission, not");
        refused(kind, "v2", &path, "apiVersion: it must be");
        refused(kind, version, "conf", "kubeConfigFile: Invalid value: \"conf\": must be an absolute file path");
        refused(kind, version, "''", "kubeConfigFile: Invalid value: \"\": must be an absolute");
        refused(kind, version, "/no/such/file", "kubeConfigFile: cannot read /no/such/file");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let of_file = |text: &str| load(&[("/etc/skiff/admission.yaml", text)]).unwrap_err();
        assert_eq!(of_file("[]"), "/etc/skiff/admission.yaml: it must hold a map");
        assert!(of_file("a: [").starts_with("/etc/skiff/admission.yaml: it is not valid YAML: "));
        let version = "/etc/skiff/admission.yaml: apiVersion: it must be apiserver.config.k8s.io/v1 or \
                       apiserver.k8s.io/v1alpha1, not \"v1\"";
        assert_eq!(of_file("{kind: AdmissionConfiguration, apiVersion: v1}"), version);
        refused("plugin: []", "plugin: there is no such field; there are apiVersion, kind, plugins");
        refused("plugins: {}", "plugins: it must be a list");
        refused("plugins: [{name: 1}]", "plugins[0].name: it must be text");
        refused("plugins: [{name: Priority}]", "plugins[0].name: \"Priority\" takes no configuration");
        let unknown = "plugins[0].name: \"ImagePolicy\" is no admission plugin of this server";
        refused("plugins: [{name: ImagePolicy}]", unknown);
        let twice = "plugins[1].name: \"PodSecurity\" is configured twice";
        refused("plugins: [{name: PodSecurity}, {name: PodSecurity}]", twice);
        let both = "plugins[0].path: the plugin has a configuration too; give one of both";
        refused("plugins: [{name: PodSecurity, path: x, configuration: {}}]", both);
        let place = "plugins[0].configuration";
        let check = |text: &str, expected: &str| refused(&format!("{INSIDE}{text}"), &format!("{place}.{expected}"));
        let level = "Invalid value: \"Baseline\": must be one of privileged, baseline, restricted";
        check("    defaults: {warn: Baseline}", &format!("defaults.warn: {level}"));
        let version = "Invalid value: \"1.35\": must be \"latest\" or \"v1.x\"";
        check("    defaults: {enforce-version: '1.35'}", &format!("defaults.enforce-version: {version}"));
        check("    defaults: {enforce-version: 1.35}", "defaults.enforce-version: it must be text");
        let fields = "enforce, enforce-version, audit, audit-version, warn, warn-version";
        let unknown = format!("defaults.enforceVersion: there is no such field; there are {fields}");
        check("    defaults: {enforceVersion: latest}", &unknown);
        let empty = "exemptions.usernames[1]: Invalid value: \"\": username must not be empty";
        check("    exemptions: {usernames: [a, '']}", empty);
        check("    exemptions: {usernames: [a, a]}", "exemptions.usernames[1]: Duplicate value: \"a\"");
        check("    exemptions: {namespaces: x}", "exemptions.namespaces: it must be a list");
        check("    exemptions: {namespaces: [a, a]}", "exemptions.namespaces[1]: Duplicate value: \"a\"");
        check("    exemptions: {runtimeClasses: [a, a]}", "exemptions.runtimeClasses[1]: Duplicate value: \"a\"");
        let long = "test".repeat(16);
        for (field, name) in [
            ("namespaces", "A_b"),
            ("namespaces", ""),
            ("namespaces", "TEST"),
            ("namespaces", "_&$%#"),
            ("namespaces", long.as_str()),
            ("runtimeClasses", ""),
            ("runtimeClasses", "TEST"),
            ("runtimeClasses", "_&$%#"),
        ] {
            let text = format!("{HEAD}{INSIDE}    exemptions: {{{field}: ['{name}']}}");
            let error = load(&[("/etc/skiff/admission.yaml", &text)]).unwrap_err();
            let start = format!("/etc/skiff/admission.yaml: {place}.exemptions.{field}[0]: Invalid value: {name:?}: ");
            assert!(error.starts_with(&start), "{error}");
        }
    }
}
