//! Where an etcd is and how to reach it.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use store::etcd::{Etcd, Options};

use super::value;

#[derive(Args, Clone, Debug, Default)]
pub struct EtcdFlags {
    /// etcd servers; a control plane uses them instead of the embedded store
    #[arg(long, value_delimiter = ',', value_name = "URL", value_parser = value::etcd)]
    pub etcd_servers: Vec<String>,
    /// The authority that signed the etcd servers' certificates
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub etcd_cafile: Option<PathBuf>,
    /// The certificate to show to etcd
    #[arg(long, value_name = "FILE", value_parser = value::readable, requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", value_parser = value::readable, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// How often etcd is told to forget what happened before the last time; 0s leaves that to others
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = value::duration)]
    pub etcd_compaction_interval: Duration,
}

impl EtcdFlags {
    /// Says what is wrong with the flags together.
    pub fn check(&self) -> anyhow::Result<()> {
        let tls = self.etcd_cafile.is_some() || self.etcd_certfile.is_some();
        for server in &self.etcd_servers {
            match server.starts_with("https://") {
                true if self.etcd_cafile.is_none() => anyhow::bail!(
                    "--etcd-servers {server} needs --etcd-cafile, the authority that signed the server's certificate"
                ),
                false if tls => anyhow::bail!(
                    "--etcd-servers {server} is reached without TLS, so --etcd-cafile and --etcd-certfile would have no \
                     effect; write https:// or leave them out"
                ),
                _ => {}
            }
        }
        if self.etcd_servers.is_empty() && tls {
            anyhow::bail!("--etcd-cafile and --etcd-certfile have no effect without --etcd-servers");
        }
        Ok(())
    }

    pub async fn connect(&self) -> anyhow::Result<Etcd> {
        let pair = self.etcd_certfile.as_deref().zip(self.etcd_keyfile.as_deref());
        let identity = pair.map(|(certificate, key)| pki::file::credential(certificate, key)).transpose()?;
        let options = Options {
            endpoints: self.etcd_servers.clone(),
            ca: self.etcd_cafile.as_deref().map(pki::file::authorities).transpose()?.map(String::into_bytes),
            identity: identity.map(|c| (c.certificate.into_bytes(), c.key.into_bytes())),
            compaction: Some(self.etcd_compaction_interval).filter(|every| !every.is_zero()),
            ..Options::default()
        };
        Ok(Etcd::connect(options).await?)
    }
}
