//! The features and versions of the API that are switched on and off by name.

use api::features::{self, Features, RuntimeConfig, Setting};
use clap::Args;

/// One text of `--feature-gates`, and what it sets.
#[derive(Clone, Debug)]
struct Gates(String, Vec<Setting>);

#[derive(Args, Clone, Debug, Default)]
pub struct FeatureGates {
    /// Features to switch on or off, as Name=true,Other=false; AllAlpha and AllBeta are all of their stage
    #[arg(long, value_name = "NAME=BOOL,…", value_parser = |text: &str| features::settings(text).map(|set| Gates(text.to_owned(), set)))]
    feature_gates: Vec<Gates>,
}

impl FeatureGates {
    fn settings(&self) -> Vec<Setting> {
        self.feature_gates.iter().flat_map(|gates| gates.1.iter().copied()).collect()
    }

    /// The texts, as another process is given them.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.feature_gates.iter().map(|gates| gates.0.as_str())
    }

    pub fn features(&self) -> anyhow::Result<Features> {
        Features::set(&self.settings()).map_err(|why| anyhow::anyhow!("--feature-gates: {why}"))
    }

    /// Says in the log what does not act as its name says.
    pub fn warn(&self) -> anyhow::Result<()> {
        for warning in self.features()?.warnings(&self.settings()) {
            tracing::warn!("--feature-gates: {warning}");
        }
        Ok(())
    }
}

#[derive(Args, Clone, Debug, Default)]
pub struct ServedVersions {
    /// The parts of the API that are served: api/all, api/beta, api/alpha, group/version or group/version/resource, each
    /// =true or =false
    #[arg(long, value_name = "KEY=BOOL,…")]
    runtime_config: Vec<String>,
}

impl ServedVersions {
    pub fn config(&self) -> anyhow::Result<RuntimeConfig> {
        RuntimeConfig::parse(&self.runtime_config).map_err(|why| anyhow::anyhow!("--runtime-config: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use api::features::Feature;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        gates: FeatureGates,
        #[command(flatten)]
        versions: ServedVersions,
    }

    #[test]
    fn flags_add_up() {
        let flags = ["test", "--feature-gates=GangScheduling=true", "--feature-gates", "GenericWorkload=true"];
        let features = Flags::parse_from(flags).gates.features().unwrap();
        assert!(features.enabled(Feature::GangScheduling) && features.enabled(Feature::GenericWorkload));
        let lacking = Flags::parse_from(&flags[..2]).gates.features().unwrap_err().to_string();
        assert!(lacking.starts_with("--feature-gates: GangScheduling is enabled, but depends"), "{lacking}");
        let unknown = Flags::try_parse_from(["test", "--feature-gates=Foo=true"]).err().unwrap().to_string();
        assert!(unknown.contains("unrecognized feature gate: Foo"), "{unknown}");
        let config = Flags::parse_from(["test", "--runtime-config=api/all=false", "--runtime-config=api/ga=true"]);
        assert!(config.versions.config().unwrap().serves("apps", "v1", "deployments", true));
        let wrong = Flags::parse_from(["test", "--runtime-config=a/v1"]).versions.config().unwrap_err().to_string();
        assert_eq!(wrong, "--runtime-config: unknown api groups a");
    }
}
