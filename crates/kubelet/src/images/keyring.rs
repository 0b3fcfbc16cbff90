//! Credentials by the registries that they are for, as files of Docker name them: a host, whose parts may hold `*`, with a port and
//! the beginning of a path. Pure.
//! Upstream counterpart: pkg/credentialprovider, its `keyring.go` and `config.go`.

use std::{cmp::Reverse, collections::BTreeMap};

use base64::Engine;
use json::Value;
use sha2::{Digest, Sha256};

/// An object of the cluster, as records of pulls name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// The owner of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Every Pod of the node may use them.
    Node,
    Secret(Coordinates),
    ServiceAccount(Coordinates),
}

/// A user of a registry with its password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Entry {
    pub username: String,
    pub password: String,
    pub email: String,
}

/// Credentials with their owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Tracked {
    pub entry: Entry,
    pub source: Source,
}

impl Tracked {
    /// The digest by which records know these credentials again.
    pub fn hash(&self) -> String {
        let Entry { username, password, email } = &self.entry;
        let given = [("username", username), ("password", password), ("email", email)];
        let mut text = Vec::new();
        // Go writes the fields in the order of their declaration.
        for (name, value) in given.into_iter().filter(|(_, value)| !value.is_empty()) {
            text.push(if text.is_empty() { b'{' } else { b',' });
            json::append_string(&mut text, name);
            text.push(b':');
            json::append_string(&mut text, value);
        }
        text.extend_from_slice(if text.is_empty() { b"{}" } else { b"}" });
        base16ct::lower::encode_string(&Sha256::digest(text))
    }
}

/// The forms of Docker's files: with the registries below `auths`, and the older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Older,
}

/// The entries of a file of Docker, by the registries as it names them. `None` is a file of another form: errors would show
/// what must stay secret.
pub fn entries(text: &[u8], form: Form) -> Option<BTreeMap<String, Entry>> {
    let value: Value = json::from_text(std::str::from_utf8(text).ok()?).ok()?;
    let registries = match form {
        Form::Json => value.as_object()?.get("auths").cloned().unwrap_or_default(),
        Form::Older => value,
    };
    if registries.is_null() {
        return Some(BTreeMap::new());
    }
    registries.as_object()?.iter().map(|(name, given)| Some((name.to_string(), entry(given)?))).collect()
}

fn entry(given: &Value) -> Option<Entry> {
    let map = given.as_object()?;
    let text = |name: &str| match map.get(name) {
        None | Some(Value::Null) => Some(String::new()),
        Some(value) => value.as_str().map(str::to_owned),
    };
    let (username, password, email, auth) = (text("username")?, text("password")?, text("email")?, text("auth")?);
    if auth.is_empty() {
        return Some(Entry { username, password, email });
    }
    let engines = base64::engine::general_purpose::STANDARD;
    let plain = base64::engine::general_purpose::STANDARD_NO_PAD;
    let auth: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let decoded = if auth.trim().ends_with('=') { engines.decode(auth) } else { plain.decode(auth) };
    let decoded = String::from_utf8_lossy(&decoded.ok()?).into_owned();
    let (username, password) = decoded.split_once(':')?;
    // Tools of other systems fill the password up.
    let password = password.trim_end_matches('\0');
    Some(Entry { username: username.to_owned(), password: password.to_owned(), email })
}

/// A registry without its scheme: the parts of its host, its port, and its path.
struct Place<'t> {
    parts: Vec<&'t str>,
    port: &'t str,
    path: &'t str,
}

fn place(text: &str) -> Option<Place<'_>> {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let (host, path) = match text[..end].find('/') {
        Some(at) => (&text[..at], &text[at..end]),
        None => (&text[..end], ""),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let (host, port) = match host.rsplit_once(':') {
        Some((_, port)) if !port.bytes().all(|b| b.is_ascii_digit()) => return None,
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    Some(Place { parts: host.split('.').collect(), port, path })
}

/// Whether `*` in the pattern can stand for what the text has in its place.
fn glob(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, between)) = pieces.split_last() else { return rest.is_empty() };
    for piece in between {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// Whether an image is one of those that a pattern such as `*.registry.example:5000/path` means.
pub fn matches(pattern: &str, image: &str) -> bool {
    let (Some(pattern), Some(image)) = (place(pattern), place(image)) else { return false };
    pattern.port == image.port
        && pattern.parts.len() == image.parts.len()
        && image.path.starts_with(pattern.path)
        && pattern.parts.iter().zip(&image.parts).all(|(glob_part, part)| glob(glob_part, part))
}

const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Whether an image is pulled from the registry that counts where none is named.
fn is_default(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("", _)) => false,
        Some(("docker.io" | DEFAULT_REGISTRY, _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

/// The key of a registry as a file names it: without scheme, and without the path of a version of the registry's own API.
fn key(name: &str) -> Option<String> {
    let bare = name.strip_prefix("https://").or(name.strip_prefix("http://")).unwrap_or(name);
    place(bare)?;
    let (host, path) = bare.find('/').map_or((bare, ""), |at| bare.split_at(at));
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => &path[3..],
        _ => path,
    };
    Some(if path == "/" { host.to_owned() } else { format!("{host}{path}") })
}

/// See the module.
#[derive(Default)]
pub struct Keyring(BTreeMap<Reverse<String>, Vec<Tracked>>);

impl Keyring {
    pub fn add(&mut self, source: &Source, entries: BTreeMap<String, Entry>) {
        for (name, entry) in entries {
            let Some(key) = key(&name) else { continue };
            self.0.entry(Reverse(key)).or_default().push(Tracked { entry, source: source.clone() });
        }
    }

    /// All credentials for an image, whose name is whole and without its tag; those for longer paths come first.
    pub fn find(&self, image: &str) -> Vec<Tracked> {
        let fitting = self.0.iter().filter(|(Reverse(key), _)| matches(key, image));
        let found: Vec<Tracked> = fitting.flat_map(|(_, all)| all.iter().cloned()).collect();
        if found.is_empty() && is_default(image) {
            return self.0.get(&Reverse(DEFAULT_REGISTRY.to_owned())).cloned().unwrap_or_default();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn named(name: &str) -> Entry {
        Entry { username: name.to_owned(), ..Entry::default() }
    }

    /// The users of those entries that are for an image.
    fn check(registries: &[&str], image: &str, expected: &[&str]) {
        let mut keyring = Keyring::default();
        keyring.add(&Source::Node, registries.iter().map(|name| ((*name).to_owned(), named(name))).collect());
        let found: Vec<String> = keyring.find(image).into_iter().map(|found| found.entry.username).collect();
        assert_eq!(found, expected, "{registries:?} {image}");
    }

    #[test]
    fn an_image_gets_the_credentials_of_its_registry_the_longest_path_first() {
        check(&["r.io", "r.io/team", "r.io/team/a", "other.io"], "r.io/team/a", &["r.io/team/a", "r.io/team", "r.io"]);
        check(&["https://r.io/v2/", "http://r.io"], "r.io/a", &["http://r.io", "https://r.io/v2/"]);
        check(&["https://r.io/v1/team"], "r.io/team/a", &["https://r.io/v1/team"]);
        check(&["r.io:5000"], "r.io:5000/a", &["r.io:5000"]);
        check(&["r.io"], "r.io:5000/a", &[]);
        check(&["r.io:5000"], "r.io/a", &[]);
        check(&["*.io"], "r.io/a", &["*.io"]);
        check(&["*.io"], "x.r.io/a", &[]);
        check(&["*.*.io"], "x.r.io/a", &["*.*.io"]);
        check(&["app*.k8s.*"], "app1.k8s.io/a", &["app*.k8s.*"]);
        check(&["app*.k8s.*"], "ap.k8s.io/a", &[]);
        check(&["*"], "r.io/a", &[]);
        check(&["*.io/team"], "r.io/other", &[]);
        check(&["r.io/te*"], "r.io/team", &[]);
        check(&["r.io:*"], "r.io:5000/a", &[]);
        check(&["r.io"], "evil-r.io/a", &[]);
        check(&["r.io"], "r.io.evil/a", &[]);
        check(&["user@r.io"], "r.io/a", &["user@r.io"]);
    }

    #[test]
    fn the_usual_registry_has_several_names() {
        for name in ["https://index.docker.io/v1/", "index.docker.io", "https://index.docker.io/v2/"] {
            check(&[name], "docker.io/library/busybox", &[name]);
            check(&[name], "r.io/a", &[]);
        }
        check(&["docker.io"], "docker.io/team/a", &["docker.io"]);
        check(&["docker.io", "index.docker.io"], "docker.io/team/a", &["docker.io"]);
        check(&["index.docker.io"], "localhost/a", &["index.docker.io"]);
    }

    #[test]
    fn stars_stand_for_any_letters_of_one_part() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*a", "a", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("**", "x", true),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn files_of_docker_are_read_in_both_forms_and_others_are_none() {
        let read = |value: Value, form| entries(value.to_string().as_bytes(), form);
        let user = |name: &str, password: &str| Entry { password: password.to_owned(), ..named(name) };
        let one = |auth: &str| read(json!({"auths": {"r.io": {"auth": auth, "username": "other"}}}), Form::Json);
        assert_eq!(one("dTpwOnE=").unwrap()["r.io"].password, "p:q");
        assert!(one("dTpw").unwrap()["r.io"] == user("u", "p"));
        for wrong in ["dQ==", "=", "%%"] {
            assert!(one(wrong).is_none(), "{wrong}");
        }
        let plain = read(json!({"r.io": {"username": "u", "password": "p", "email": "e"}}), Form::Older).unwrap();
        assert_eq!((plain["r.io"].username.as_str(), plain["r.io"].email.as_str()), ("u", "e"));
        assert!(read(json!({}), Form::Json).unwrap().is_empty());
        for wrong in [
            json!([]),
            json!({"auths": []}),
            json!({"auths": {"r.io": "x"}}),
            json!({"auths": {"r.io": {"username": 1}}}),
        ] {
            assert!(read(wrong.clone(), Form::Json).is_none(), "{wrong}");
        }
        assert!(entries(b"\xff", Form::Json).is_none());
    }

    #[test]
    fn credentials_are_known_again_by_a_digest_of_theirs() {
        let of = |entry: Entry| Tracked { entry, source: Source::Node }.hash();
        let (a, b) =
            (of(Entry { password: "p<".into(), ..named("u") }), of(Entry { password: "q".into(), ..named("u") }));
        assert_ne!(a, b);
        // Go writes this as `{"username":"u","password":"p\u003c"}`.
        assert_eq!(a, base16ct::lower::encode_string(&Sha256::digest(br#"{"username":"u","password":"p\u003c"}"#)));
    }
}
