//! Cluster DNS tells the network policies of its node which addresses the domains have that these are about.

use std::{future::Future, net::IpAddr, pin::Pin, time::Duration};

/// The policies' end, as DNS asks it.
#[derive(Debug)]
pub struct Learning(pub policy::Names);

impl dns::plugins::Learner for Learning {
    fn wants(&self, name: &str) -> bool {
        self.0.wants(name)
    }

    fn learn(&self, name: String, addresses: Vec<(IpAddr, Duration)>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move { self.0.learned(&name, &addresses).await })
    }
}
