//! Streams between clients, API server, kubelet and container engine: passing requests and their upgrades on,
//! SPDY/3.1, the translation from WebSocket to SPDY, and WebSockets on which the server alone speaks.

#[cfg(test)]
mod broken_frames;
pub mod one_way;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
