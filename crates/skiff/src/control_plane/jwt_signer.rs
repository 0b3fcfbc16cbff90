//! A program that signs the tokens of service accounts, on its socket: the calls of upstream's `v1.ExternalJWTSigner`.

use std::{path::Path, sync::Arc, time::Duration};

use apiserver::auth::authn::service_account::external::{Failure, Fetched, FetchedKey, Service, Signed};
use futures::{FutureExt, future::BoxFuture};
use runtime::grpc::{self, Channel};

/// The messages of upstream's proto file, with their numbers.
mod messages {
    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct SignJwtRequest {
        #[prost(string, tag = "1")]
        pub claims: String,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct SignJwtResponse {
        #[prost(string, tag = "1")]
        pub header: String,
        #[prost(string, tag = "2")]
        pub signature: String,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct FetchKeysRequest {}

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct FetchKeysResponse {
        #[prost(message, repeated, tag = "1")]
        pub keys: Vec<Key>,
        #[prost(message, optional, tag = "2")]
        pub data_timestamp: Option<Timestamp>,
        #[prost(int64, tag = "3")]
        pub refresh_hint_seconds: i64,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct Key {
        #[prost(string, tag = "1")]
        pub key_id: String,
        #[prost(bytes = "vec", tag = "2")]
        pub key: Vec<u8>,
        #[prost(bool, tag = "3")]
        pub exclude_from_oidc_discovery: bool,
    }

    /// `google.protobuf.Timestamp`
    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct Timestamp {
        #[prost(int64, tag = "1")]
        pub seconds: i64,
        #[prost(int32, tag = "2")]
        pub nanos: i32,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct MetadataRequest {}

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub struct MetadataResponse {
        #[prost(int64, tag = "1")]
        pub max_token_expiration_seconds: i64,
    }
}

use messages::{
    FetchKeysRequest, FetchKeysResponse, MetadataRequest, MetadataResponse, SignJwtRequest, SignJwtResponse, Timestamp,
};

const SIGN: &str = "/v1.ExternalJWTSigner/Sign";
const FETCH_KEYS: &str = "/v1.ExternalJWTSigner/FetchKeys";
const METADATA: &str = "/v1.ExternalJWTSigner/Metadata";
/// Nobody waits longer for a call; keys may take longer to come.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_FOR_KEYS: Duration = Duration::from_secs(60);
/// The times that a Timestamp may have: the years 1 to 9999.
const SECONDS: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;

/// A program behind a socket. The connection is made with the first call, and again after it broke.
struct Socket(Channel);

/// The way to a program.
pub fn connect(socket: &Path) -> Arc<dyn Service> {
    Arc::new(Socket(grpc::channel(socket)))
}

impl Socket {
    async fn ask<Q, A>(&self, path: &'static str, question: Q, limit: Duration) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let answer = grpc::unary(&self.0, path, question, limit).await;
        answer.map_err(|status| Failure { code: format!("{:?}", status.code()), words: grpc::words(&status) })
    }
}

impl Service for Socket {
    fn sign(&self, claims: String) -> BoxFuture<'_, Result<Signed, Failure>> {
        async {
            let SignJwtResponse { header, signature } = self.ask(SIGN, SignJwtRequest { claims }, PATIENCE).await?;
            Ok(Signed { header, signature })
        }
        .boxed()
    }

    fn fetch_keys(&self) -> BoxFuture<'_, Result<Fetched, Failure>> {
        async {
            let answer: FetchKeysResponse = self.ask(FETCH_KEYS, FetchKeysRequest {}, PATIENCE_FOR_KEYS).await?;
            let key = |key: messages::Key| FetchedKey {
                id: key.key_id,
                der: key.key,
                hidden: key.exclude_from_oidc_discovery,
            };
            Ok(Fetched {
                keys: answer.keys.into_iter().map(key).collect(),
                of: answer.data_timestamp.and_then(seconds),
                refresh_seconds: answer.refresh_hint_seconds,
            })
        }
        .boxed()
    }

    fn longest(&self) -> BoxFuture<'_, Result<i64, Failure>> {
        async {
            let answer: MetadataResponse = self.ask(METADATA, MetadataRequest {}, PATIENCE).await?;
            Ok(answer.max_token_expiration_seconds)
        }
        .boxed()
    }
}

fn seconds(time: Timestamp) -> Option<f64> {
    let valid = SECONDS.contains(&time.seconds) && (0..1_000_000_000).contains(&time.nanos);
    valid.then(|| time.seconds as f64 + f64::from(time.nanos) / 1e9)
}

#[cfg(test)]
mod tests {
    use runtime::grpc::{Code, Server};

    use super::*;

    fn program() -> Server {
        Server::default()
            .unary(SIGN, |question: SignJwtRequest| async move {
                let refused = grpc::Status::new(Code::Internal, "no key");
                let signature = format!("of {}", question.claims);
                if question.claims == "no" {
                    Err(refused)
                } else {
                    Ok(SignJwtResponse { header: "h".into(), signature })
                }
            })
            .unary(FETCH_KEYS, |_: FetchKeysRequest| async {
                let key = messages::Key { key_id: "k".into(), key: vec![1, 2], exclude_from_oidc_discovery: true };
                let data_timestamp = Some(Timestamp { seconds: 10, nanos: 500_000_000 });
                Ok(FetchKeysResponse { keys: vec![key], data_timestamp, refresh_hint_seconds: 60 })
            })
            .unary(METADATA, |_: MetadataRequest| async { Ok(MetadataResponse { max_token_expiration_seconds: 7200 }) })
    }

    #[tokio::test]
    async fn calls_carry_what_the_program_says() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("signer.sock");
        let _serving = tokio::spawn(program().serve(grpc::listen(&socket).unwrap()));
        let service = connect(&socket);
        let signed = service.sign("claims".to_owned()).await.unwrap();
        assert_eq!((signed.header.as_str(), signed.signature.as_str()), ("h", "of claims"));
        let refused = service.sign("no".to_owned()).await.unwrap_err();
        let words = "rpc error: code = Internal desc = no key";
        assert_eq!((refused.code.as_str(), refused.words.as_str()), ("Internal", words));
        let key = FetchedKey { id: "k".to_owned(), der: vec![1, 2], hidden: true };
        let fetched = Fetched { keys: vec![key], of: Some(10.5), refresh_seconds: 60 };
        assert_eq!(service.fetch_keys().await.unwrap(), fetched);
        assert_eq!(service.longest().await.unwrap(), 7200);
        assert_eq!(seconds(Timestamp { seconds: 0, nanos: -1 }), None);
        assert_eq!(seconds(Timestamp { seconds: i64::MAX, nanos: 0 }), None);
    }
}
