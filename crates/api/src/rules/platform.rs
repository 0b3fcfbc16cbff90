//! Platforms in the words of Kubernetes and of image indexes.

/// The name of a processor architecture, from the name that Rust has for it.
pub fn architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
