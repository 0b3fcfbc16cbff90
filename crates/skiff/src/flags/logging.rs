//! The log's flags, and the part of a configuration file that says the same: upstream's names and meanings.
//! Upstream counterpart: k8s.io/component-base/logs/api/v1.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use json::Value;
use logs::{Format, Module, Settings};
use serde::Deserialize;

use super::value;

#[derive(Args, Clone, Debug)]
pub struct LoggingFlags {
    /// The log's filter: a level, or targets with levels such as `info,waypoint=debug`
    #[arg(long, default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// How log lines look: text, as klog writes it, or json
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    logging_format: String,
    #[arg(long, hide = true, value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// How much is logged beside --log: debug messages from 4, everything from 6. It can be set at /debug/flags/v too
    #[arg(short = 'v', long = "v", default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=2_147_483_647))]
    verbosity: u32,
    /// The same for single files, by their names: `worker=4,http/*=6`; only with text
    #[arg(long, value_delimiter = ',', value_name = "PATTERN=N")]
    vmodule: Vec<Module>,
    /// Without effect, as each line is written at once
    #[arg(long, hide = true, value_name = "DURATION", value_parser = value::duration)]
    log_flush_frequency: Option<Duration>,
}

/// A LoggingConfiguration, as it stands in a component's configuration.
#[derive(Default, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoggingFile {
    format: Option<String>,
    verbosity: Option<u32>,
    vmodule: Option<Vec<ModuleFile>>,
    #[serde(rename = "flushFrequency")]
    _flush_frequency: Option<Value>,
    #[serde(rename = "options")]
    _options: Option<Value>,
}

#[derive(Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ModuleFile {
    file_pattern: String,
    verbosity: u32,
}

impl LoggingFlags {
    fn format(&self) -> &str {
        self.log_format.as_deref().unwrap_or(&self.logging_format)
    }

    /// Makes the log of this process.
    pub fn install(&self) -> anyhow::Result<()> {
        self.install_with(&LoggingFile::default())
    }

    /// A flag that says something else than what counts without it overrules the file.
    pub fn install_with(&self, file: &LoggingFile) -> anyhow::Result<()> {
        logs::install(self.settings(file)?).map_err(|why| anyhow!(why))?;
        if self.log_format.is_some() {
            tracing::warn!("--log-format is deprecated, use --logging-format");
        }
        if self.log_flush_frequency.is_some() {
            tracing::warn!("--log-flush-frequency has no effect: each line is written at once");
        }
        Ok(())
    }

    fn settings(&self, file: &LoggingFile) -> anyhow::Result<Settings> {
        let format = match (self.format(), file.format.as_deref().unwrap_or_default()) {
            ("json", _) | (_, "json") => Format::Json,
            (_, "" | "text") => Format::Text,
            (_, other) => return Err(anyhow!("logging.format: {other:?} is not supported; there are text and json")),
        };
        let of_file = file.vmodule.iter().flatten();
        let of_file = of_file.map(|module| Module::new(&module.file_pattern, module.verbosity));
        let of_file = of_file.collect::<Result<Vec<_>, _>>().map_err(|why| anyhow!(why)).context("logging.vmodule")?;
        Ok(Settings {
            format,
            filter: self.log.clone(),
            verbosity: if self.verbosity == 0 { file.verbosity.unwrap_or(0) } else { self.verbosity },
            modules: if self.vmodule.is_empty() { of_file } else { self.vmodule.clone() },
        })
    }

    /// The flags for another process of this cluster.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let modules = self.vmodule.iter().map(|module| ("vmodule", module.to_string()));
        let rest = [
            ("log", self.log.clone()),
            ("logging-format", self.format().to_owned()),
            ("v", self.verbosity.to_string()),
        ];
        rest.into_iter().chain(modules).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        logging: LoggingFlags,
    }

    fn flags(args: &[&str]) -> Result<LoggingFlags, clap::Error> {
        Flags::try_parse_from([&["test"], args].concat()).map(|flags| flags.logging)
    }

    fn file(value: Value) -> LoggingFile {
        json::from_value(value).unwrap()
    }

    #[test]
    fn flags_overrule_the_file() {
        let check = |args: &[&str], given: Value, expected: (Format, u32, &str)| {
            let settings = flags(args).unwrap().settings(&file(given)).unwrap();
            let modules = settings.modules.iter().map(Module::to_string).collect::<Vec<_>>().join(",");
            assert_eq!((settings.format, settings.verbosity, &*modules), expected, "{args:?}");
        };
        let whole = || {
            json::json!({"format": "json", "verbosity": 3, "vmodule": [{"filePattern": "a", "verbosity": 5}], "flushFrequency": 0,
                "options": {"json": {"infoBufferSize": "0"}}})
        };
        check(&[], json::json!({}), (Format::Text, 0, ""));
        check(&["-v4", "--logging-format=json"], json::json!({}), (Format::Json, 4, ""));
        check(&["--log-format=json"], json::json!({}), (Format::Json, 0, ""));
        check(&[], whole(), (Format::Json, 3, "a=5"));
        check(&["--v=6", "--vmodule=b=1,c*=2"], whole(), (Format::Json, 6, "b=1,c*=2"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in ["--vmodule=a", "--v=-1", "--v=2147483648", "--logging-format=xml", "--log-flush-frequency=soon"] {
            assert!(flags(&[wrong]).is_err(), "{wrong}");
        }
        let with = |given: Value| flags(&[]).unwrap().settings(&file(given)).map(|_| ());
        assert!(with(json::json!({"format": "xml"})).unwrap_err().to_string().contains("\"xml\" is not supported"));
        assert!(with(json::json!({"vmodule": [{"filePattern": "", "verbosity": 1}]})).is_err());
        for wrong in [json::json!({"level": 3}), json::json!({"vmodule": [{"pattern": "a", "verbosity": 1}]})] {
            assert!(json::from_value::<LoggingFile>(wrong).is_err());
        }
    }
}
