//! The sorts of plugins that this kubelet takes: one line each.

use std::sync::Arc;

use crate::{
    claims::drivers::DraPlugins, csi::register::CsiPlugins, devices::register::DevicePlugins, kubelet::Kubelet,
    plugins::sort::Sort,
};

pub fn all(kubelet: &Arc<Kubelet>) -> Vec<Arc<dyn Sort>> {
    vec![
        Arc::new(DevicePlugins(kubelet.devices.clone())),
        Arc::new(DraPlugins(kubelet.claims.drivers.clone())),
        Arc::new(CsiPlugins(kubelet.csi.clone())),
    ]
}
