//! The CNI configuration that tells the container engine to call this plugin.

use files::modes;
use ipnet::IpNet;
use json::json;

use crate::{Config, cni::CNI_VERSION, error::NetworkError};

/// The plugin's file name in the engine's plugin folder: a link to the skiff binary.
pub const PLUGIN: &str = "skiff-cni";
const FILE: &str = "10-skiff.conflist";

fn render(config: &Config, ranges: &[IpNet], mtu: u32) -> String {
    let plugin = json!({
        "type": PLUGIN,
        "subnets": ranges,
        "stateDir": config.state_dir,
        "mtu": mtu,
        "capabilities": {"portMappings": true},
    });
    let list = json!({"cniVersion": CNI_VERSION, "name": "skiff", "plugins": [plugin]});
    format!("{list:#}\n")
}

/// Writes the file in one step, so that the engine never reads half of it.
pub fn write(config: &Config, ranges: &[IpNet], mtu: u32) -> Result<(), NetworkError> {
    let path = config.conf_dir.join(FILE);
    let text = render(config, ranges, mtu);
    if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    modes::folder(&config.conf_dir, modes::PRIVATE_FOLDER)
        .and_then(|()| modes::replace(&path, modes::PRIVATE_FILE, text))
        .map_err(|source| NetworkError::Write { path, source })
}
