//! A kubeconfig file with everything it needs embedded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::Credential;

/// Renders one cluster, one user and the context that joins them. `authority` is PEM.
pub fn kubeconfig(server: &str, authority: &str, user: &str, credential: &Credential) -> String {
    let cluster = "skiff";
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let context = quoted(&format!("{user}@{cluster}"));
    let (server, user) = (quoted(server), quoted(user));
    let authority = STANDARD.encode(authority);
    let certificate = STANDARD.encode(&credential.certificate);
    let key = STANDARD.encode(&credential.key);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {cluster}\n\
         \x20 cluster:\n\
         \x20   server: {server}\n\
         \x20   certificate-authority-data: {authority}\n\
         contexts:\n\
         - name: {context}\n\
         \x20 context:\n\
         \x20   cluster: {cluster}\n\
         \x20   user: {user}\n\
         current-context: {context}\n\
         preferences: {{}}\n\
         users:\n\
         - name: {user}\n\
         \x20 user:\n\
         \x20   client-certificate-data: {certificate}\n\
         \x20   client-key-data: {key}\n"
    )
}
