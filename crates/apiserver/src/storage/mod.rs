//! Objects in the store: the form in which they are kept, which kinds there are, and how the server's own parts read and
//! write them. Requests are not known here.

pub mod commit;
pub mod continuation;
pub mod conversion;
pub mod error;
pub mod filter;
pub mod foreign;
pub mod informer;
pub mod kinds;
pub mod loopback;
pub mod measured;
pub mod object;
pub mod object_store;
pub mod recent;
pub mod strategy;
