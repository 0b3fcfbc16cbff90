//! The certificates that a node has, by their use, and the user that it is with them.

/// The identity of a node to the API server.
pub fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The use of the certificate, which decides the signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The kubelet's, towards the API server.
    Client,
    /// The kubelet's, towards those who ask it.
    Serving,
    /// That of the parts which serve the node's Pods, towards the API server.
    Services,
}

impl Purpose {
    pub fn signer(self) -> &'static str {
        match self {
            Purpose::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Purpose::Serving => "kubernetes.io/kubelet-serving",
            Purpose::Services => "kubernetes.io/kube-apiserver-client",
        }
    }

    pub fn usages(self) -> Vec<String> {
        let purpose = if self == Purpose::Serving { "server auth" } else { "client auth" };
        vec!["digital signature".to_owned(), purpose.to_owned()]
    }

    pub fn file(self) -> &'static str {
        match self {
            Purpose::Client => "node-client",
            Purpose::Serving => "node-server",
            Purpose::Services => "node-services",
        }
    }
}
