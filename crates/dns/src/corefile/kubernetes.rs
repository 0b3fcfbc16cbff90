//! `kubernetes`: how the cluster's names are answered. Pure.

use std::collections::BTreeSet;

use super::{Directive, Error, Line, values};

/// How names like `10-244-0-5.default.pod` are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodMode {
    Disabled,
    /// Only where a Pod of that namespace has the address.
    Verified,
    /// Every address, in every namespace that is there.
    Insecure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    pub zones: Vec<String>,
    pub pods: PodMode,
    pub ttl: u32,
    /// The namespaces that have names; none means all.
    pub namespaces: BTreeSet<String>,
    pub endpoint_pod_names: bool,
    pub endpoints: bool,
    /// Whether a Service without ready endpoints has no name.
    pub ignore_empty: bool,
    /// The zones of which a missing name is asked elsewhere.
    pub through: Vec<String>,
}

impl Kubernetes {
    pub fn read(directive: &Directive, block: &[String]) -> Result<Self, Error> {
        let zones = directive.zones(&directive.args, block)?;
        let mut kubernetes = Kubernetes::of(zones);
        if kubernetes.domain().is_none() {
            return Err(directive.error("non-reverse zone name must be used"));
        }
        for line in &directive.body {
            kubernetes.set(line)?;
        }
        Ok(kubernetes)
    }

    /// With everything else as CoreDNS has it.
    pub fn of(zones: Vec<String>) -> Self {
        Kubernetes {
            zones,
            pods: PodMode::Disabled,
            ttl: 5,
            namespaces: BTreeSet::new(),
            endpoint_pod_names: false,
            endpoints: true,
            ignore_empty: false,
            through: Vec::new(),
        }
    }

    /// The first zone that is not one of addresses: reverse names point into it.
    pub fn domain(&self) -> Option<&String> {
        self.zones.iter().find(|zone| !is_reverse(zone))
    }

    fn set(&mut self, line: &Line) -> Result<(), Error> {
        match line.property() {
            "pods" => {
                self.pods = line.read(|word| match word {
                    "disabled" => Ok(PodMode::Disabled),
                    "verified" => Ok(PodMode::Verified),
                    "insecure" => Ok(PodMode::Insecure),
                    _ => Err(format!("wrong value for pods: {word},  must be one of: disabled, verified, insecure")),
                })?;
            }
            "ttl" => self.ttl = line.read(|w| values::number(w, 0, 3600))?,
            "namespaces" => self.namespaces = line.read_all(|w| Ok(w.to_owned()))?.into_iter().collect(),
            "endpoint_pod_names" => (self.endpoint_pod_names, _) = (true, line.bare()?),
            "noendpoints" => (self.endpoints, _) = (false, line.bare()?),
            "ignore" if line.args() == ["empty_service"] => self.ignore_empty = true,
            "fallthrough" => self.through = line.zones(&self.zones)?,
            "endpoint" | "tls" | "kubeconfig" | "apiserver_qps" | "apiserver_burst" | "apiserver_max_inflight" => {
                return Err(line.error(format!("{}: names come from this cluster's own API server", line.property())));
            }
            "labels" | "namespace_labels" | "multicluster" | "zonal" | "startup_timeout" => {
                return Err(line.error(format!("{} is not supported", line.property())));
            }
            _ => return Err(line.unknown()),
        }
        Ok(())
    }
}

/// Whether a zone is one of addresses.
pub fn is_reverse(zone: &str) -> bool {
    ["in-addr.arpa", "ip6.arpa"].iter().any(|top| crate::question::within(zone, top))
}
