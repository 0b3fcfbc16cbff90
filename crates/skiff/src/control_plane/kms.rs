//! KMS plugins on their sockets: the calls of upstream's `v2.KeyManagementService`.

use std::{path::Path, sync::Arc, time::Duration};

use encryption::kms::{Endpoint, Failure, Service, Status, Wrapped};
use futures::{FutureExt, future::BoxFuture};
use runtime::grpc::{self, Channel};

/// The messages of upstream's proto file, with their numbers.
mod messages {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct StatusRequest {}

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct StatusResponse {
        #[prost(string, tag = "1")]
        pub version: String,
        #[prost(string, tag = "2")]
        pub healthz: String,
        #[prost(string, tag = "3")]
        pub key_id: String,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct DecryptRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub ciphertext: Vec<u8>,
        #[prost(string, tag = "2")]
        pub uid: String,
        #[prost(string, tag = "3")]
        pub key_id: String,
        #[prost(btree_map = "string, bytes", tag = "4")]
        pub annotations: BTreeMap<String, Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct DecryptResponse {
        #[prost(bytes = "vec", tag = "1")]
        pub plaintext: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct EncryptRequest {
        #[prost(bytes = "vec", tag = "1")]
        pub plaintext: Vec<u8>,
        #[prost(string, tag = "2")]
        pub uid: String,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct EncryptResponse {
        #[prost(bytes = "vec", tag = "1")]
        pub ciphertext: Vec<u8>,
        #[prost(string, tag = "2")]
        pub key_id: String,
        #[prost(btree_map = "string, bytes", tag = "3")]
        pub annotations: BTreeMap<String, Vec<u8>>,
    }
}

use messages::{DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse};

const STATUS: &str = "/v2.KeyManagementService/Status";
const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// A plugin behind a socket. The connection is made with the first call, and again after it broke.
struct Socket {
    channel: Channel,
    limit: Duration,
}

/// The way to a plugin.
pub fn connect(endpoint: &Endpoint) -> Arc<dyn Service> {
    Arc::new(Socket { channel: grpc::channel(Path::new(&endpoint.socket)), limit: endpoint.limit })
}

impl Socket {
    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let answer = grpc::unary(&self.channel, path, question, self.limit).await;
        answer.map_err(|status| Failure { code: format!("{:?}", status.code()), words: grpc::words(&status) })
    }
}

impl Service for Socket {
    fn status(&self) -> BoxFuture<'_, Result<Status, Failure>> {
        async {
            let StatusResponse { version, healthz, key_id } = self.ask(STATUS, StatusRequest {}).await?;
            Ok(Status { version, healthz, key_id })
        }
        .boxed()
    }

    fn encrypt(&self, uid: String, plaintext: Vec<u8>) -> BoxFuture<'_, Result<Wrapped, Failure>> {
        async {
            let answer: EncryptResponse = self.ask(ENCRYPT, EncryptRequest { plaintext, uid }).await?;
            Ok(Wrapped { ciphertext: answer.ciphertext, key_id: answer.key_id, annotations: answer.annotations })
        }
        .boxed()
    }

    fn decrypt(&self, uid: String, wrapped: Wrapped) -> BoxFuture<'_, Result<Vec<u8>, Failure>> {
        async {
            let Wrapped { ciphertext, key_id, annotations } = wrapped;
            let answer: DecryptResponse =
                self.ask(DECRYPT, DecryptRequest { ciphertext, uid, key_id, annotations }).await?;
            Ok(answer.plaintext)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use runtime::grpc::{Code, Server};

    use super::*;

    fn plugin() -> Server {
        Server::default()
            .unary(STATUS, |_: StatusRequest| async {
                Ok(StatusResponse { version: "v2".to_owned(), healthz: "ok".to_owned(), key_id: "k".to_owned() })
            })
            .unary(ENCRYPT, |question: EncryptRequest| async move {
                let annotations = BTreeMap::from([("a.example.com".to_owned(), question.uid.into_bytes())]);
                Ok(EncryptResponse { ciphertext: question.plaintext, key_id: "k".to_owned(), annotations })
            })
            .unary(DECRYPT, |question: DecryptRequest| async move {
                let known = question.annotations.contains_key("a.example.com") && question.key_id == "k";
                let refused = grpc::Status::new(Code::InvalidArgument, "unknown key");
                if known { Ok(DecryptResponse { plaintext: question.ciphertext }) } else { Err(refused) }
            })
    }

    #[tokio::test]
    async fn a_plugin_is_asked_on_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kms.sock");
        let way = connect(&Endpoint { socket: socket.clone(), limit: Duration::from_secs(3) });
        let failure = way.status().await.unwrap_err();
        assert_eq!(failure.code, "Unavailable", "{failure:?}");
        assert!(failure.words.starts_with("rpc error: code = Unavailable desc = "), "{failure:?}");
        // It may come later than the server.
        let serving = tokio::spawn(plugin().serve(grpc::listen(&socket).unwrap()));
        let status = way.status().await.unwrap();
        assert_eq!(status, Status { version: "v2".to_owned(), healthz: "ok".to_owned(), key_id: "k".to_owned() });
        let wrapped = way.encrypt("uid".to_owned(), b"seed".to_vec()).await.unwrap();
        assert_eq!(wrapped.annotations["a.example.com"], b"uid");
        assert_eq!(way.decrypt("uid".to_owned(), wrapped.clone()).await.as_deref(), Ok(&b"seed"[..]));
        let failure =
            way.decrypt("uid".to_owned(), Wrapped { key_id: "other".to_owned(), ..wrapped }).await.unwrap_err();
        assert_eq!(failure.code, "InvalidArgument");
        assert_eq!(failure.words, "rpc error: code = InvalidArgument desc = unknown key");
        serving.abort();
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_waited_for_no_longer_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("kms.sock");
        let hangs =
            Server::default().unary(STATUS, |_: StatusRequest| std::future::pending::<Result<StatusResponse, _>>());
        let serving = tokio::spawn(hangs.serve(grpc::listen(&socket).unwrap()));
        let way = connect(&Endpoint { socket, limit: Duration::from_millis(50) });
        assert_eq!(way.status().await.unwrap_err().code, "DeadlineExceeded");
        serving.abort();
    }
}
