//! The credentials that admission webhooks are shown: the users of a kubeconfig file of the administrator's, each for the
//! servers that its name stands for. A file is read once; only tokens that it names in files of their own are read anew.
//!
//! Upstream counterpart: apiserver/pkg/util/webhook, whose order of names this is.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use client::{ConfigError, Kubeconfig, Shown};

/// The port that a name without one stands for.
const USUAL_PORT: &str = ":443";

/// The users of one file. Without a file there are none.
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<Users>>);

struct Users {
    file: PathBuf,
    named: HashMap<String, Shown>,
    /// The name of the current context's user.
    current: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Credentials").field(&self.file()).finish()
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.file() == other.file()
    }
}

impl Credentials {
    pub fn of_file(file: &Path) -> Result<Self, ConfigError> {
        let read = Kubeconfig::read(file)?;
        let current = read.current_user().map(str::to_owned);
        let named = read.shown()?;
        Ok(Credentials(Some(Arc::new(Users { file: file.to_owned(), named, current }))))
    }

    fn file(&self) -> Option<&Path> {
        self.0.as_deref().map(|users| users.file.as_path())
    }

    /// The credentials for a server, `host:port`; that of a Service is `name.namespace.svc:port`.
    pub fn of_server(&self, server: &str) -> Option<&Shown> {
        let users = self.0.as_deref()?;
        let named = |name: &str| users.named.get(name);
        by_name(server, named)
            .or_else(|| {
                // In a name without a port an IPv6 address stands without its brackets.
                let host = server.strip_suffix(USUAL_PORT)?;
                by_name(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), named)
            })
            .or_else(|| named("*"))
            .or_else(|| named(users.current.as_deref()?))
    }
}

/// The entry of exactly this name, or of the longest `*.suffix` of it.
fn by_name<T>(name: &str, entry: impl Fn(&str) -> Option<T>) -> Option<T> {
    let suffixes = name.match_indices('.').map(|(at, _)| &name[at..]);
    entry(name).or_else(|| suffixes.into_iter().find_map(|suffix| entry(&format!("*{suffix}"))))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn credentials(text: &str) -> Result<Credentials, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, text).unwrap();
        Credentials::of_file(&file)
    }

    /// Users whose token is their name are in the file; `current` is that of the current context.
    fn shown(users: &[&str], current: &str, server: &str) -> Option<String> {
        let users: Vec<String> =
            users.iter().map(|name| format!("{{name: '{name}', user: {{token: '{name}'}}}}")).collect();
        let text = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: '', user: '{current}'}}}}], users: [{}]}}",
            users.join(", ")
        );
        let credentials = credentials(&text).unwrap();
        let shown = credentials.of_server(server)?;
        let mut headers = HeaderMap::new();
        shown.stamp(&mut headers);
        headers["authorization"].to_str().unwrap().strip_prefix("Bearer ").map(str::to_owned)
    }

    /// The first ones are the cases of upstream's authentication_test.go.
    #[test]
    fn the_most_selective_name_counts() {
        let check = |users: &[&str], server: &str, expected: &str| {
            assert_eq!(shown(users, "", server).unwrap_or_default(), expected, "{users:?} {server}");
        };
        check(&[], "foo.com:443", "");
        check(&["foo.com", "*.com", "bar.com"], "foo.com:443", "foo.com");
        check(&["*.com", "bar.com"], "foo.com:443", "*.com");
        check(&["*", "bar.com"], "foo.com:443", "*");
        check(&["*", "bar.com"], "kubernetes.default.svc:443", "*");
        let suffixes = ["*.two.three.com", "*.three.com", "*.com"];
        check(&suffixes, "one.two.three.com:443", "*.two.three.com");
        let with = |names: &[&'static str]| [names, &suffixes, &["*"]].concat();
        check(&with(&["one.two.three.com:443"]), "one.two.three.com:443", "one.two.three.com:443");
        check(&with(&["*.two.three.com:443"]), "one.two.three.com:443", "*.two.three.com:443");
        check(&with(&[]), "one.two.three.com:443", "*.two.three.com");
        check(&with(&["one.two.three.com:8443"]), "one.two.three.com:8443", "one.two.three.com:8443");
        let both = with(&["*.two.three.com:8443", "one.two.three.com"]);
        check(&both, "one.two.three.com:8443", "*.two.three.com:8443");
        // A name without a port is about the usual port alone.
        check(&with(&["one.two.three.com"]), "one.two.three.com:8443", "*");
        check(&["one.com", "*.com"], "one.com:8443", "");
        check(&["one.com", "*.com:443"], "one.com:443", "*.com:443");
        check(&["hook.default.svc", "*.svc"], "hook.default.svc:443", "hook.default.svc");
        check(&["*.default.svc", "*.svc"], "hook.other.svc:443", "*.svc");
        check(&["*.hook.default.svc"], "hook.default.svc:443", "");
        check(&["::1"], "[::1]:443", "::1");
        check(&["[::1]:443"], "[::1]:443", "[::1]:443");
    }

    #[test]
    fn a_webhook_may_be_asked_in_the_name_of_another_user() {
        let user = "token: foo, as: user-a, as-uid: user-a-uid-1111, as-groups: [user-a-group1, user-a-group2], \
                    as-user-extra: {foo: [bar, baz, etc]}";
        let credentials = credentials(&format!("users: [{{name: foo.com, user: {{{user}}}}}]")).unwrap();
        let mut headers = HeaderMap::new();
        credentials.of_server("foo.com:443").unwrap().stamp(&mut headers);
        let of = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>().join(" ");
        assert_eq!((of("authorization"), of("impersonate-user")), ("Bearer foo".to_owned(), "user-a".to_owned()));
        assert_eq!(of("impersonate-uid"), "user-a-uid-1111");
        assert_eq!(of("impersonate-group"), "user-a-group1 user-a-group2");
        assert_eq!(of("impersonate-extra-foo"), "bar baz etc");
    }

    #[test]
    fn the_current_user_is_shown_where_no_name_fits() {
        assert_eq!(shown(&["bar.com"], "bar.com", "foo.com:443").as_deref(), Some("bar.com"));
        assert_eq!(shown(&["bar.com", "*"], "bar.com", "foo.com:443").as_deref(), Some("*"));
        assert_eq!(shown(&["bar.com"], "gone", "foo.com:443"), None);
        assert!(Credentials::default().of_server("foo.com:443").is_none());
    }

    #[test]
    fn what_no_webhook_is_shown_is_refused() {
        let check = |user: &str, expected: &str| {
            let said = credentials(&format!("users: [{{name: a.com, user: {{{user}}}}}]")).err().unwrap().to_string();
            assert!(said.contains("its user \"a.com\": ") && said.contains(expected), "{said}");
        };
        check("exec: {command: aws}", "runs a plugin (exec)");
        check("auth-provider: {name: oidc}", "auth-provider");
        check("client-certificate-data: YQ==", "no client-key");
        check("tokenFile: /no/such/file", "cannot read /no/such/file");
        assert!(Credentials::of_file(Path::new("/no/such/file")).is_err());
    }
}
