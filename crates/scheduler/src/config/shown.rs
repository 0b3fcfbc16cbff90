//! The settings in force, as `/configz` shows them: a KubeSchedulerConfiguration without the credentials of extenders.

use json::{Value, json};

use crate::{engine::Settings, extender::Extender, profile::Profile};

pub fn shown(settings: &Settings) -> Value {
    let (first, longest) = settings.backoff;
    json!({
        "apiVersion": super::VERSION, "kind": super::KIND,
        "podInitialBackoffSeconds": first.as_secs(), "podMaxBackoffSeconds": longest.as_secs(),
        "profiles": settings.profiles.iter().map(profile).collect::<Vec<_>>(),
        "extenders": settings.extenders.iter().map(extender).collect::<Vec<_>>(),
    })
}

fn profile(profile: &Profile) -> Value {
    let enabled = profile.plugins.iter();
    let enabled = enabled.map(|enabled| json!({"name": enabled.plugin.name, "weight": enabled.weight}));
    json!({
        "schedulerName": profile.scheduler_name,
        "percentageOfNodesToScore": profile.percentage_of_nodes_to_score,
        "plugins": {"multiPoint": {"enabled": enabled.collect::<Vec<_>>()}},
    })
}

fn extender(extender: &Extender) -> Value {
    json!({
        "urlPrefix": extender.url, "filterVerb": extender.filter, "preemptVerb": extender.preempt,
        "prioritizeVerb": extender.prioritize, "bindVerb": extender.bind, "weight": extender.weight,
        "httpTimeout": clock::go_time(extender.timeout), "nodeCacheCapable": extender.knows_nodes,
        "ignorable": extender.ignorable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn settings_are_shown_without_secrets() {
        let written = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "podMaxBackoffSeconds": 20,
            "extenders": [{"urlPrefix": "https://e.example", "filterVerb": "f", "weight": 1,
                "tlsConfig": {"keyData": "U0VDUkVU", "certData": "Q0VSVA=="}}],
        });
        let shown = shown(&parse(written, Default::default()).unwrap());
        assert_eq!((&shown["podInitialBackoffSeconds"], &shown["podMaxBackoffSeconds"]), (&json!(1), &json!(20)));
        assert_eq!(shown["profiles"][0]["schedulerName"], "default-scheduler");
        assert_eq!(
            (&shown["extenders"][0]["filterVerb"], shown.to_string().contains("U0VDUkVU")),
            (&json!("f"), false)
        );
        // The plugins are those that a file can name.
        let again = json!({"apiVersion": shown["apiVersion"], "kind": shown["kind"], "profiles": shown["profiles"]});
        assert!(parse(again, Default::default()).is_ok());
    }
}
