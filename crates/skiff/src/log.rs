//! Logging: to standard error, as text or JSON, filtered by target and level.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::flags::options::Common;

/// Installs the process's logger.
pub fn install(options: &Common) -> anyhow::Result<()> {
    install_filter(&options.log, &options.log_format, options.verbosity)
}

pub fn install_filter(log: &str, format: &str, verbosity: u8) -> anyhow::Result<()> {
    let quiet = "hyper=warn,h2=warn,rustls=warn,tower=warn,kube_client=warn,netlink=warn,netlink_proto=warn";
    let base = if verbosity >= 4 && log == "info" { "debug" } else { log };
    let filter = EnvFilter::try_new(format!("{quiet},{base}"))
        .with_context(|| format!("--log {:?} is not a filter; write a level or target=level,…", log))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = if format == "json" { builder.json().try_init() } else { builder.with_ansi(false).try_init() };
    installed.map_err(|e| anyhow::anyhow!("cannot install the logger: {e}"))
}
