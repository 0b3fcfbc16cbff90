//! From a connection to a handler and back: what a request is, who may have how much of the server, and the form of the
//! answer. The nature of an object, and the effect of a verb on it, are not known here.

pub mod access;
pub mod body;
pub mod chain;
pub mod encoding;
pub mod ending;
pub mod large;
pub mod listen;
pub mod options;
pub mod pieces;
pub mod places;
pub mod request;
pub mod respond;
pub mod timing;
pub mod traced;
pub mod view;
pub mod web;
pub mod websocket;
