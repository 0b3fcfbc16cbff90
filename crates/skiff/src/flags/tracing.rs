//! The flag of traces: upstream's TracingConfiguration.

use std::{fs::File, io::Read, path::PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use spans::config::Config;

use super::value;

/// No configuration is longer.
const MOST: u64 = 1 << 16;

#[derive(Args, Clone, Debug, Default)]
pub struct TracingFlags {
    /// Send spans of requests to a collector that speaks OTLP: a TracingConfiguration with its endpoint and how many are sent
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    tracing_config_file: Option<PathBuf>,
}

impl TracingFlags {
    pub fn config(&self) -> anyhow::Result<Option<Config>> {
        let Some(path) = &self.tracing_config_file else { return Ok(None) };
        let wrong = |why: String| anyhow!("--tracing-config-file: {}: {why}", path.display());
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MOST + 1).read_to_string(&mut text));
        read.with_context(|| format!("--tracing-config-file: cannot read {}", path.display()))?;
        if text.len() as u64 > MOST {
            return Err(wrong(format!("it has more than {MOST} bytes")));
        }
        let value = serde_saphyr::from_str(&text).map_err(|error| wrong(format!("it is not valid YAML: {error}")))?;
        Config::of_file(&value).map(Some).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tracing.yaml");
        let config = |text: &str| {
            std::fs::write(&path, text).unwrap();
            TracingFlags { tracing_config_file: Some(path.clone()) }.config()
        };
        let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";
        let good = config(&format!("{head}endpoint: localhost:4317\nsamplingRatePerMillion: 100\n")).unwrap().unwrap();
        assert_eq!(good.per_million, 100);
        for wrong in
            [format!("{head}endpoint: https://x:1\n"), "a: [".to_owned(), format!("{head}#{}", "x".repeat(1 << 16))]
        {
            let error = format!("{:#}", config(&wrong).unwrap_err());
            assert!(error.contains("tracing.yaml"), "{error}");
        }
        assert!(TracingFlags::default().config().unwrap().is_none());
    }
}
