//! `--kubelet-config` and `--kubelet-config-dir`: a KubeletConfiguration in a file, and a folder with parts of it that are laid over
//! it. What has a flag becomes that flag; the command line and the file of flags win.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use api::write::patch::merge;
use clap::Args;
use json::Value;
use kubelet::configuration::{Document, settings::Settings};

use super::value;

/// No configuration is longer.
const MOST: u64 = 1 << 20;

#[derive(Args, Clone, Debug, Default)]
pub struct KubeletConfig {
    /// Settings of the kubelet: a KubeletConfiguration
    #[arg(long, alias = "config", value_name = "FILE", value_parser = value::readable)]
    pub kubelet_config: Option<PathBuf>,
    /// A folder of files `*.conf` with parts of a KubeletConfiguration, laid over it in the order of their names
    #[arg(long, alias = "config-dir", value_name = "FOLDER")]
    pub kubelet_config_dir: Option<PathBuf>,
}

impl KubeletConfig {
    /// The files in the order in which they are laid over each other, each checked by itself, so that what is wrong is told with its file.
    pub fn parts(&self) -> anyhow::Result<Vec<(PathBuf, Document)>> {
        let mut parts = Vec::from_iter(self.kubelet_config.clone());
        if let Some(folder) = &self.kubelet_config_dir {
            let unreadable = || format!("--kubelet-config-dir: cannot read {}", folder.display());
            let entries = std::fs::read_dir(folder).with_context(unreadable)?;
            let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            found.retain(|path| path.extension().is_some_and(|end| end == "conf"));
            found.sort();
            parts.extend(found);
        }
        let checked = |path: PathBuf| {
            let document = Document::new(read("kubelet-config", &path)?).map_err(|why| wrong(&path, &why))?;
            Ok((path, document))
        };
        parts.into_iter().map(checked).collect()
    }

    /// The configuration that the files make together; `None` where there are none.
    pub fn document(&self) -> anyhow::Result<Option<Document>> {
        whole(&self.parts()?)
    }

    /// The files for another node, as flags.
    pub fn texts(&self) -> Vec<(&'static str, PathBuf)> {
        let file = self.kubelet_config.clone().map(|path| ("kubelet-config", path));
        let folder = self.kubelet_config_dir.clone().map(|path| ("kubelet-config-dir", path));
        file.into_iter().chain(folder).collect()
    }
}

/// The configuration that parts make together; `None` where there are none.
pub fn whole(parts: &[(PathBuf, Document)]) -> anyhow::Result<Option<Document>> {
    let Some((last, _)) = parts.last() else { return Ok(None) };
    let whole = parts.iter().fold(Value::Null, |whole, (_, part)| merge::apply(whole, part.value()));
    Document::new(whole).map(Some).map_err(|why| wrong(last, &why))
}

/// The settings that a document has beside its flags.
pub fn settings(document: Option<&Document>) -> anyhow::Result<Settings> {
    let settings = document.map(|document| Settings::of(document.value())).transpose();
    Ok(settings.map_err(|why| anyhow!("--kubelet-config: {why}"))?.unwrap_or_default())
}

pub fn wrong(path: &Path, why: &str) -> anyhow::Error {
    anyhow!("--kubelet-config: {}: {why}", path.display())
}

/// The document in a file that a flag names, JSON or YAML.
pub fn read(flag: &str, path: &Path) -> anyhow::Result<Value> {
    let unreadable = || format!("--{flag}: cannot read {}", path.display());
    let wrong = |why: String| anyhow!("--{flag}: {}: {why}", path.display());
    let mut text = String::new();
    // A pipe, or a file that grows, tells its length only while it is read.
    File::open(path).and_then(|file| file.take(MOST + 1).read_to_string(&mut text)).with_context(unreadable)?;
    if text.len() as u64 > MOST {
        return Err(wrong(format!("it has more than {MOST} bytes")));
    }
    serde_saphyr::from_str(&text).map_err(|error| wrong(format!("it is not valid YAML: {error}")))
}

/// Says in the log what the configuration says in vain.
pub fn warn(document: Option<&Document>) {
    for warning in document.iter().flat_map(|document| document.warnings()) {
        tracing::warn!("--kubelet-config: {warning}");
    }
}
