//! How values are encrypted in the store.

use std::path::PathBuf;

use clap::Args;

use super::value;

#[derive(Args, Clone, Debug, Default)]
pub struct EncryptionFlags {
    /// How values are encrypted in the store: an EncryptionConfiguration; Secrets with a key of the cluster's own when not given
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Follow changes of that file while running
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub encryption_provider_config_automatic_reload: bool,
}

impl EncryptionFlags {
    /// Says what is wrong with the flags together, in upstream's words.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.encryption_provider_config.is_some() || !self.encryption_provider_config_automatic_reload,
            "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
        );
        Ok(())
    }
}
