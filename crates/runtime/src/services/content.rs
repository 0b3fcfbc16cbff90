//! Blobs in containerd's content store, read over its content service: their size, where they come from, and their bytes.

use std::{collections::HashMap, path::Path, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tonic::{Status, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{grpc, services};

pub const INFO: &str = "/containerd.services.content.v1.Content/Info";
pub const READ: &str = "/containerd.services.content.v1.Content/Read";
/// The label of a blob begins so that names the repositories of a registry which it was pulled from. The registry's port is no part of it.
const SOURCE: &str = "containerd.io/distribution.source.";
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq, prost::Message)]
pub struct InfoRequest {
    #[prost(string, tag = "1")]
    pub digest: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InfoResponse {
    #[prost(message, optional, tag = "1")]
    pub info: Option<Info>,
}

/// As far as it is read here.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Info {
    #[prost(int64, tag = "2")]
    pub size: i64,
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadContentRequest {
    #[prost(string, tag = "1")]
    pub digest: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadContentResponse {
    #[prost(int64, tag = "1")]
    pub offset: i64,
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
}

/// A blob that is there as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Blob {
    pub size: u64,
    labels: HashMap<String, String>,
}

impl Blob {
    /// Whether it was pulled from that repository. What was imported from a file comes from none.
    pub fn is_from(&self, registry: &str, repository: &str) -> bool {
        let repositories = self.labels.get(&format!("{SOURCE}{registry}"));
        repositories.is_some_and(|list| list.split(',').any(|one| one == repository))
    }
}

/// The content store of the containerd behind a socket.
#[derive(Clone)]
pub struct Content(Channel);

impl Content {
    pub fn new(socket: &Path) -> Self {
        Content(grpc::channel(socket))
    }

    pub async fn find(&self, digest: &str) -> Result<Option<Blob>, Status> {
        let question = services::request(InfoRequest { digest: digest.to_owned() });
        let call = async {
            let codec = ProstCodec::<InfoRequest, InfoResponse>::default();
            grpc::ready(&self.0).await?.unary(question, PathAndQuery::from_static(INFO), codec).await
        };
        match grpc::within(PATIENCE, call).await {
            Ok(answer) => {
                let blob = |info: Info| Some(Blob { size: u64::try_from(info.size).ok()?, labels: info.labels });
                Ok(answer.into_inner().info.and_then(blob))
            }
            Err(status) if status.code() == grpc::Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// The bytes of a blob, from its beginning to its end.
    pub async fn read(&self, digest: &str) -> Result<impl Stream<Item = Result<Bytes, Status>> + use<>, Status> {
        let mut client = grpc::within(PATIENCE, grpc::ready(&self.0)).await?;
        let question = services::request(ReadContentRequest { digest: digest.to_owned() });
        let codec = ProstCodec::<ReadContentRequest, ReadContentResponse>::default();
        let call = client.server_streaming(question, PathAndQuery::from_static(READ), codec);
        let answer = grpc::within(PATIENCE, call).await?;
        Ok(answer.into_inner().map(|part| part.map(|part| part.data)))
    }
}

#[cfg(test)]
mod tests {
    use futures::{TryStreamExt, stream};

    use super::*;

    #[tokio::test]
    async fn a_blob_is_found_with_its_sources_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("c.sock");
        let labels = HashMap::from([(format!("{SOURCE}r.example.com"), "team/app,team/base".to_owned())]);
        let server = grpc::Server::default()
            .unary(INFO, move |asked: InfoRequest| {
                let info = Info { size: 6, labels: labels.clone() };
                let found = (asked.digest == "sha256:1").then_some(InfoResponse { info: Some(info) });
                async move { found.ok_or_else(|| Status::not_found("content sha256:2: not found")) }
            })
            .streaming(READ, |_: ReadContentRequest| {
                let part = |offset, data: &'static str| Ok(ReadContentResponse { offset, data: data.into() });
                stream::iter([part(0, "con"), part(3, "tent")])
            });
        let _serving = tokio::spawn(server.serve(grpc::listen(&socket).unwrap()));
        let content = Content::new(&socket);
        let blob = content.find("sha256:1").await.unwrap().unwrap();
        assert_eq!(blob.size, 6);
        let from = |registry, repository| blob.is_from(registry, repository);
        assert!(from("r.example.com", "team/app") && from("r.example.com", "team/base"));
        for (registry, repository) in [("r.example.com", "team"), ("r.example.com", ""), ("example.com", "team/app")] {
            assert!(!from(registry, repository), "{registry} {repository}");
        }
        assert_eq!(content.find("sha256:2").await.unwrap(), None);
        let parts: Vec<Bytes> = content.read("sha256:1").await.unwrap().try_collect().await.unwrap();
        assert_eq!(parts.concat(), b"content");
        assert!(Content::new(&folder.path().join("none")).find("sha256:1").await.is_err());
    }
}
