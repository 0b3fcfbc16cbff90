//! Which admission plugins are at work, and what they are told: upstream's flags.

use std::path::PathBuf;

use apiserver::admission::{Choice, Configuration};
use clap::Args;

use super::value;

#[derive(Args, Clone, Debug)]
pub struct AdmissionFlags {
    /// Admission plugins that are to be at work beside those that always are
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins that are not to be at work
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// Settings of admission plugins: an AdmissionConfiguration
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    admission_control_config_file: Option<PathBuf>,
    /// How many seconds a Pod that does not say stays on a node that is not ready
    #[arg(long, value_name = "SECONDS", default_value_t = apiserver::admission::TOLERATION_SECONDS)]
    default_not_ready_toleration_seconds: i64,
    /// How many seconds a Pod that does not say stays on a node that cannot be reached
    #[arg(long, value_name = "SECONDS", default_value_t = apiserver::admission::TOLERATION_SECONDS)]
    default_unreachable_toleration_seconds: i64,
}

impl AdmissionFlags {
    /// Whether they are understood: said before anything begins.
    pub fn check(&self) -> anyhow::Result<()> {
        self.choice()?;
        self.configuration().map(|_| ())
    }

    pub fn choice(&self) -> anyhow::Result<Choice> {
        // An empty text is an empty list.
        let named = |list: &[String]| list.iter().filter(|name| !name.is_empty() || list.len() > 1).cloned().collect();
        let (enable, disable) = (named(&self.enable_admission_plugins), named(&self.disable_admission_plugins));
        let choice = Choice { enable, disable };
        choice.check().map_err(|why| anyhow::anyhow!(why))?;
        Ok(choice)
    }

    /// The settings of the plugins.
    pub fn configuration(&self) -> anyhow::Result<Configuration> {
        let Some(file) = &self.admission_control_config_file else { return Ok(Configuration::default()) };
        let read = |path: &std::path::Path| std::fs::read_to_string(path);
        let loaded = Configuration::load(file, read);
        loaded.map_err(|why| anyhow::anyhow!("--admission-control-config-file: {why}"))
    }

    /// How long Pods stay on a node that is not ready, and on one that cannot be reached.
    pub fn toleration_seconds(&self) -> (i64, i64) {
        (self.default_not_ready_toleration_seconds, self.default_unreachable_toleration_seconds)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Given {
        #[command(flatten)]
        flags: AdmissionFlags,
    }

    #[test]
    fn an_empty_text_is_an_empty_list_of_plugins() {
        let choice = |list: &str| {
            let given = Given::parse_from(["skiff", &format!("--enable-admission-plugins={list}")]);
            given.flags.choice().map(|choice| choice.enable).map_err(|why| why.to_string())
        };
        assert_eq!(choice(""), Ok(Vec::new()));
        assert_eq!(choice("AlwaysPullImages"), Ok(vec!["AlwaysPullImages".to_owned()]));
        assert!(choice("AlwaysPullImages,").is_err_and(|why| why.contains("\"\" is unknown")));
    }
}
