//! `--image-credential-provider-config` and `--image-credential-provider-bin-dir`: the programs that know credentials of registries,
//! upstream's flags of the kubelet.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use api::features::{Feature, Features};
use clap::Args;
use kubelet::configuration::credential_providers::{self, CredentialProvider};

use super::kubelet_config;

const CONFIG: &str = "image-credential-provider-config";
const BIN_DIR: &str = "image-credential-provider-bin-dir";

#[derive(Args, Clone, Debug, Default)]
pub struct ImageCredentials {
    /// The programs that are asked for credentials of registries: a CredentialProviderConfig, or a folder of them
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    image_credential_provider_config: Option<PathBuf>,
    /// The folder with these programs
    #[arg(long, value_name = "FOLDER", requires = "image_credential_provider_config")]
    image_credential_provider_bin_dir: Option<PathBuf>,
}

/// The files of a configuration: itself, or those of a folder in the order of their names.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = || format!("--{CONFIG}: cannot read {}", path.display());
    let entries = std::fs::read_dir(path).with_context(unreadable)?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let is_one = |end: &std::ffi::OsStr| ["json", "yaml", "yml"].iter().any(|known| end == *known);
    found.retain(|path| path.extension().is_some_and(is_one) && path.is_file());
    found.sort();
    if found.is_empty() {
        bail!("--{CONFIG}: {} has no file *.json, *.yaml or *.yml", path.display());
    }
    Ok(found)
}

/// The program of that name, which somebody may start.
fn program(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    match std::fs::metadata(&path) {
        Ok(of) if of.is_file() && of.permissions().mode() & 0o111 != 0 => Ok(path),
        Ok(_) => bail!("--{BIN_DIR}: {} is no program that can be started", path.display()),
        Err(error) => Err(error).with_context(|| format!("--{BIN_DIR}: cannot find {}", path.display())),
    }
}

impl ImageCredentials {
    /// The programs that the files name, all of which are there.
    pub fn providers(&self, features: Features) -> anyhow::Result<Vec<CredentialProvider>> {
        let (Some(config), Some(folder)) =
            (&self.image_credential_provider_config, &self.image_credential_provider_bin_dir)
        else {
            return Ok(Vec::new());
        };
        let with_tokens = features.enabled(Feature::KubeletServiceAccountTokenForCredentialProviders);
        let mut all = Vec::new();
        for path in files(config)? {
            let document = kubelet_config::read(CONFIG, &path)?;
            let read = credential_providers::read(document, with_tokens);
            all.push(read.map_err(|why| anyhow!("--{CONFIG}: {}: {why}", path.display()))?);
        }
        let joined =
            credential_providers::join(all).map_err(|why| anyhow!("--{CONFIG}: {}: {why}", config.display()))?;
        let with_program = |provider: CredentialProvider| {
            Ok(CredentialProvider { program: program(folder, &provider.name)?, ..provider })
        };
        joined.into_iter().map(with_program).collect()
    }

    /// The flags as they were given, for another node.
    pub fn texts(&self) -> Vec<(&'static str, PathBuf)> {
        let config = self.image_credential_provider_config.clone().map(|path| (CONFIG, path));
        let folder = self.image_credential_provider_bin_dir.clone().map(|path| (BIN_DIR, path));
        config.into_iter().chain(folder).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: {name}\n  \
             matchImages: ['*.r.io']\n  defaultCacheDuration: 1h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
        )
    }

    #[test]
    fn a_folder_of_configurations_names_programs_that_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let given = ImageCredentials {
            image_credential_provider_config: Some(folder.path().join("conf")),
            image_credential_provider_bin_dir: Some(folder.path().to_owned()),
        };
        let read = || given.providers(Features::default());
        let why = || read().unwrap_err().to_string();
        std::fs::create_dir(folder.path().join("conf")).unwrap();
        assert!(why().ends_with("conf has no file *.json, *.yaml or *.yml"), "{}", why());
        put("conf/20-b.yml", &document("b"));
        put("conf/10-a.yaml", &document("a"));
        put("conf/notes.txt", "x");
        assert!(why().contains("/a"), "{}", why());
        for name in ["a", "b"] {
            std::os::unix::fs::symlink("/bin/sh", folder.path().join(name)).unwrap();
        }
        let names: Vec<String> = read().unwrap().into_iter().map(|provider| provider.name).collect();
        assert_eq!(names, ["a", "b"]);
        put("plain", "x");
        put("conf/20-b.yml", &document("plain"));
        assert!(why().ends_with("plain is no program that can be started"), "{}", why());
        put("conf/20-b.yml", &document("a"));
        assert!(why().ends_with("two providers have the name \"a\""), "{}", why());
        put("conf/20-b.yml", "kind: X\n");
        assert!(why().contains("20-b.yml: kind is \"X\""), "{}", why());
        assert!(ImageCredentials::default().providers(Features::default()).unwrap().is_empty());
    }
}
