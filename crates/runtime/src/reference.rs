//! Names of images, as Pods write them and as registries know them: `host/path:tag@digest`, where host, tag and digest may be
//! left out. Pure.
//! Upstream counterpart: the package reference of the distribution project.

const USUAL_HOST: &str = "docker.io";

/// A name whose parts are all well formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The name without tag and digest, as registries know it: `docker.io/library/busybox` for `busybox`.
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_tag(text: &str) -> bool {
    text.starts_with(word) && text.len() <= 128 && text.chars().all(|c| word(c) || ".-".contains(c))
}

fn is_part(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(plain) && text.ends_with(plain) && text.chars().all(|c| plain(c) || "._-".contains(c))
}

fn is_host(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c))
}

/// The host that a name begins with, if its first part can be none of a path.
fn host(name: &str) -> Option<(&str, &str)> {
    let (first, rest) = name.split_once('/')?;
    let is_host = first.contains(['.', ':']) || first == "localhost" || first.chars().any(|c| c.is_ascii_uppercase());
    is_host.then_some((first, rest))
}

/// Reads a name. The error is in the words of the reference grammar.
pub fn parse(image: &str) -> Result<Reference, String> {
    let invalid = || "invalid reference format".to_owned();
    if image.len() == 64 && is_hex(image) {
        return Err(format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"));
    }
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
    if digest.is_some_and(|d| !d.split_once(':').is_some_and(|(_, hex)| hex.len() >= 32 && is_hex(hex))) {
        return Err(invalid());
    }
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(invalid());
    }
    let (host, name) = match host(path) {
        Some(("index.docker.io", name)) => (USUAL_HOST, name),
        Some(pair) => pair,
        None => (USUAL_HOST, path),
    };
    let name = if host == USUAL_HOST && !name.contains('/') { format!("library/{name}") } else { name.to_owned() };
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(format!("invalid reference format: repository name ({name}) must be lowercase"));
    }
    if !is_host(host) || !name.split('/').all(is_part) {
        return Err(invalid());
    }
    let repository = format!("{host}/{name}");
    Ok(Reference { repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
}

impl Reference {
    /// The whole name, with the tag that counts where there is neither tag nor digest.
    pub fn whole(&self) -> String {
        let tag = match (&self.tag, &self.digest) {
            (Some(tag), _) => format!(":{tag}"),
            (None, None) => ":latest".to_owned(),
            (None, Some(_)) => String::new(),
        };
        let digest = self.digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        format!("{}{tag}{digest}", self.repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_registries_know_them() {
        for (image, expected) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("index.docker.io/team/a", "docker.io/team/a:latest"),
            ("r.example:5000/team/a_b-c.d:v1", "r.example:5000/team/a_b-c.d:v1"),
            ("localhost/a", "localhost/a:latest"),
            ("Host/a", "Host/a:latest"),
            (
                "a@sha256:0123456789abcdef0123456789abcdef",
                "docker.io/library/a@sha256:0123456789abcdef0123456789abcdef",
            ),
            ("r:5000/a", "r:5000/a:latest"),
        ] {
            assert_eq!(parse(image).unwrap().whole(), expected, "{image}");
        }
    }

    #[test]
    fn names_that_no_registry_could_have_are_refused() {
        let bad = "invalid reference format";
        for (image, expected) in [
            ("a@sha256:01", bad),
            ("", bad),
            ("a:", bad),
            ("a b", bad),
            ("/a", bad),
            ("a:-x", bad),
            ("a//b", bad),
            ("r.io:x y/a", bad),
            ("Nginx", "invalid reference format: repository name (library/Nginx) must be lowercase"),
            ("r.io/Nginx", "invalid reference format: repository name (Nginx) must be lowercase"),
            ("team/Nginx", "invalid reference format: repository name (team/Nginx) must be lowercase"),
        ] {
            assert_eq!(parse(image).unwrap_err(), expected, "{image}");
        }
        let hex = "0".repeat(64);
        let why = format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings");
        assert_eq!(parse(&hex).unwrap_err(), why);
    }
}
