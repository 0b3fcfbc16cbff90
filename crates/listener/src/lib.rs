//! Every connection that comes in, of every listener: how many there may be, from whom, how long each part of a
//! conversation may take, and what happens to clients that do not read what they asked for.
//!
//! `accept` takes connections, `serve` speaks HTTP over TLS on them, `pace` watches how the answers of one connection
//! get on, `places` is what is counted with, `coalesce` saves writes, `barrier` keeps answers back until what is recorded of them
//! is written, `descriptors` is the limit of the process.
//!
//! The numbers, all in one place each: handshake, first request and idle time in `pace` and `serve`, connections in
//! [`Bounds`], header sizes and streams in `serve`.

mod accept;
mod barrier;
mod coalesce;
pub mod descriptors;
mod pace;
mod places;
mod serve;

pub use accept::{Accepted, Bounds, DRAIN, Figures, Listener, STREAMS, attend};
pub use barrier::Record;
pub use pace::{Answering, Connection};
pub use places::{Full, Place, Places};
pub use serve::Peer;
