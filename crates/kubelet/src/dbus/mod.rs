//! The machine's message bus, as far as the kubelet asks it something: its messages ([`message`], pure) and one connection to it
//! ([`connection`]). Whatever is asked over it is known where it is asked.
//! Counterpart: the D-Bus Specification, https://dbus.freedesktop.org/doc/dbus-specification.html.

pub mod connection;
pub mod message;

/// The first line of a connection: the kernel says whether it is true.
pub fn introduction() -> String {
    let user = base16ct::lower::encode_string(nix::unistd::geteuid().to_string().as_bytes());
    format!("\0AUTH EXTERNAL {user}\r\n")
}
