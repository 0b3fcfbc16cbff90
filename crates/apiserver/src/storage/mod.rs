//! Objects in the store: the form in which they are kept, which kinds there are, and how the server's own parts read and
//! write them. Requests are not known here.

pub mod core;
pub mod filter;
pub mod inside;
pub mod kinds;
pub mod mirror;
pub mod object;
