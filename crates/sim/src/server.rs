//! The API server of the simulation: the whole real one, over a store in memory.

use std::sync::Arc;

use apiserver::{
    Server,
    assemble::{Options, ServiceAccounts, assemble},
    bootstrap::Cluster,
    server::Limits,
};
use store::Store;

/// Starts it on a store.
pub async fn start(store: Arc<dyn Store>) -> Server {
    let cluster = Cluster {
        service_ranges: vec!["10.96.0.0/16".parse().expect("a constant")],
        advertise_address: "192.0.2.1".parse().expect("a constant"),
        secure_port: 6443,
        client_authority: String::new(),
        front_proxy_authority: None,
        front_proxy_names: Vec::new(),
        front_proxy_headers: Default::default(),
        now: clock::now_seconds().to_string(),
    };
    let options = Options {
        store,
        cluster,
        client_certificates: None,
        front_proxy: None,
        service_accounts: ServiceAccounts::new(
            "https://simulation",
            pki::SigningKey::create().expect("a key can be made"),
        ),
        token_file: None,
        anonymous: false,
        authentication: Default::default(),
        token_webhook: None,
        authorization: Default::default(),
        identity: "apiserver-test".to_owned(),
        node_ports: 30000..=32767,
        connector: None,
        front_proxy_client: None,
        routing: Default::default(),
        admission_plugins: Default::default(),
        toleration_seconds: (300, 300),
        admission: apiserver::admission::Configuration::default(),
        components: apiserver::pages::health::Checks::default(),
        checks: apiserver::pages::health::Checks::default(),
        web: apiserver::http::web::Web::default(),
        limits: Limits::default(),
        audit: None,
        features: Default::default(),
        runtime_config: Default::default(),
        build: Default::default(),
        debugging: Default::default(),
        tracer: None,
    };
    assemble(options).await.expect("a server over an empty store starts")
}
