//! Between bytes on the wire and values: JSON, YAML and protobuf, and how large a document may be. What fields mean is
//! the schema's, and whether they are right is validation's.

mod base64;
pub mod bounds;
pub mod decode;
pub mod encode;
pub mod protobuf;
