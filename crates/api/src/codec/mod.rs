//! Between bytes on the wire and values: JSON, YAML, protobuf and CBOR, and how large a document may be. The meaning of
//! fields is the schema's, and whether they are right is validation's.

pub(crate) mod base64;
pub mod bounds;
pub mod cbor;
pub mod decode;
pub mod encode;
pub mod go;
pub(crate) mod numbers;
pub mod problem;
pub mod protobuf;
pub(crate) mod syntax;
