//! Answers load balancers that ask, at a Service's `healthCheckNodePort`, whether this node has endpoints of it.
//! Plain HTTP without authentication, as load balancers expect; it says a number and nothing else.
//! Upstream counterpart: pkg/proxy/healthcheck/service_health.go.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use client::Key;
use http::{Response, StatusCode};
use tokio::task::JoinHandle;

use crate::{
    answers::{self, Body, json_answer},
    liveness::Liveness,
    service_rules::HealthCheck,
};

/// The listeners of this node, by Service.
pub struct HealthChecks {
    listeners: BTreeMap<Key, Listener>,
    /// All addresses of the machine, of either family where Services have both.
    any: IpAddr,
    proxy: Liveness,
}

struct Listener {
    port: u16,
    count: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HealthChecks {
    /// For Services that may have addresses of IPv6 too.
    pub fn of(v6: bool, proxy: Liveness) -> Self {
        let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        HealthChecks { listeners: BTreeMap::new(), any, proxy }
    }

    /// Brings a Service's listener to what is wanted.
    pub fn set(&mut self, key: &Key, wanted: Option<HealthCheck>) {
        let Some(HealthCheck { port, local_endpoints }) = wanted else {
            self.listeners.remove(key);
            return;
        };
        if let Some(held) = self.listeners.get(key).filter(|l| l.port == port) {
            held.count.store(local_endpoints, Ordering::Relaxed);
            return;
        }
        let count = Arc::new(AtomicUsize::new(local_endpoints));
        let (service, shared, proxy) = (key.clone(), count.clone(), self.proxy.clone());
        let answer: answers::Answer =
            Arc::new(move |_| answer(&service, shared.load(Ordering::Relaxed), proxy.is_healthy()));
        let task = tokio::spawn(answers::serve(SocketAddr::new(self.any, port), "health checks of Services", answer));
        self.listeners.insert(key.clone(), Listener { port, count, task });
    }
}

fn answer(key: &Key, count: usize, healthy: bool) -> Response<Body> {
    let body = json::json!({
        "service": {"namespace": key.namespace, "name": key.name},
        "localEndpoints": count,
        "serviceProxyHealthy": healthy,
    });
    let good = count > 0 && healthy;
    let mut response =
        json_answer(if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body.to_string());
    response.headers_mut().insert("X-Load-Balancing-Endpoint-Weight", count.into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_endpoints_or_with_a_proxy_that_is_late_is_not_to_be_used() {
        let key = Key::new("d", "web");
        let check = |count, healthy| answer(&key, count, healthy).status().as_u16();
        assert_eq!((check(0, true), check(2, true), check(2, false)), (503, 200, 503));
        assert_eq!(answer(&key, 2, true).headers()["X-Load-Balancing-Endpoint-Weight"], "2");
    }
}
