//! The machine's message bus, as far as the kubelet asks it something: its messages ([`message`], pure) and one connection to it
//! ([`connection`]). Whatever is asked over it is known where it is asked.
//! Counterpart: the D-Bus Specification, https://dbus.freedesktop.org/doc/dbus-specification.html.

pub mod connection;
pub mod message;
