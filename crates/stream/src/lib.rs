//! Streams between clients, API server, kubelet and container engine: passing requests and their upgrades on,
//! SPDY/3.1, and the translation from WebSocket to SPDY.

#[cfg(test)]
mod broken_frames;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
