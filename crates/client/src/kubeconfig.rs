//! Kubeconfig files: which cluster, and as whom. A file that asks for more than is done here, such as running a plugin,
//! is refused with a sentence; the fields that tools keep in it besides are passed over.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    config::{Config, Trust},
    error::{ConfigError, wrong},
    shown::Shown,
};

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Kubeconfig {
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
    contexts: Option<Vec<NamedContext>>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
    /// Relative paths in it are taken from here.
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: Option<String>,
}

/// Where a cluster is, and by what it is known. Data is PEM in Base64, and comes before the file of the same name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Cluster {
    pub server: Option<String>,
    pub insecure_skip_tls_verify: Option<bool>,
    pub certificate_authority: Option<String>,
    pub certificate_authority_data: Option<String>,
    pub tls_server_name: Option<String>,
    pub proxy_url: Option<String>,
}

/// As whom. Of a field that this client cannot act on it only asks whether it is there.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct User {
    pub client_certificate: Option<String>,
    pub client_certificate_data: Option<String>,
    pub client_key: Option<String>,
    pub client_key_data: Option<String>,
    pub token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub token_file: Option<String>,
    pub username: Option<String>,
    pub password: Option<String>,
    #[serde(rename = "as")]
    pub impersonate: Option<String>,
    pub as_uid: Option<String>,
    pub as_groups: Option<Vec<String>>,
    pub as_user_extra: Option<BTreeMap<String, Vec<String>>>,
    pub auth_provider: Option<IgnoredAny>,
    pub exec: Option<IgnoredAny>,
}

impl User {
    /// The first wish of the user that is not fulfilled here, in words.
    fn beyond_us(&self) -> Option<&'static str> {
        [(self.exec.is_some(), "runs a plugin (exec)"), (self.auth_provider.is_some(), "logs in with an auth-provider")]
            .into_iter()
            .find_map(|(asked, what)| asked.then_some(what))
    }
}

impl Kubeconfig {
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.trim().is_empty() {
            return Ok(Kubeconfig::default());
        }
        serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(Box::new(error)))
    }

    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path);
        let text = text.map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let read = Self::parse(&text).map_err(|error| in_file(path, error))?;
        Ok(Kubeconfig { folder: path.parent().map(Path::to_owned).unwrap_or_default(), ..read })
    }

    /// The configuration of the current context of a file.
    pub fn current_of(path: &Path) -> Result<Config, ConfigError> {
        Self::read(path)?.current().map_err(|error| in_file(path, error))
    }

    /// The cluster that stands first, whatever the current context is.
    pub fn first_cluster(&self) -> Option<&Cluster> {
        self.clusters.iter().flatten().next()?.cluster.as_ref()
    }

    /// The configuration of the current context. A user whom the file does not hold is nobody, as for kubectl.
    pub fn current(&self) -> Result<Config, ConfigError> {
        let name = self.current_context.as_deref().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong("it has no current-context"))?;
        let context = self.contexts.iter().flatten().find(|one| one.name == name).and_then(|one| one.context.as_ref());
        let context = context.ok_or_else(|| wrong(format!("it has no context {name:?}, which is its current one")))?;
        let cluster = self.clusters.iter().flatten().find(|one| one.name == context.cluster);
        let cluster = cluster.and_then(|one| one.cluster.as_ref());
        let none = || wrong(format!("it has no cluster {:?}, which the context {name:?} names", context.cluster));
        let user = self.users.iter().flatten().find(|one| Some(&one.name) == context.user.as_ref());
        let user = user.and_then(|one| one.user.clone()).unwrap_or_default();
        Config::of(cluster.ok_or_else(none)?, &user, &self.folder)
    }

    /// The credentials of each user of the file, by its name, whatever the cluster is.
    pub fn shown(&self) -> Result<HashMap<String, Shown>, ConfigError> {
        let anywhere = Cluster { server: Some("https://anywhere".to_owned()), ..Cluster::default() };
        let one = |named: &NamedUser| {
            let config = Config::of(&anywhere, &named.user.clone().unwrap_or_default(), &self.folder);
            let shown = config.and_then(|config| Shown::of(&config));
            let shown = shown.map_err(|error| wrong(format!("its user {:?}: {error}", named.name)))?;
            Ok((named.name.clone(), shown))
        };
        self.users.iter().flatten().map(one).collect()
    }

    /// The user of the current context, where there are both.
    pub fn current_user(&self) -> Option<&str> {
        let name = self.current_context.as_ref().filter(|name| !name.is_empty())?;
        let context = self.contexts.iter().flatten().find(|one| one.name == *name)?;
        context.context.as_ref()?.user.as_deref().filter(|user| !user.is_empty())
    }
}

/// Says which file an error is about.
pub(crate) fn in_file(path: &Path, error: ConfigError) -> ConfigError {
    ConfigError::InFile { path: path.to_owned(), source: Box::new(error) }
}

impl Config {
    /// `folder` is where relative paths are taken from.
    pub fn of(cluster: &Cluster, user: &User, folder: &Path) -> Result<Self, ConfigError> {
        if let Some(what) = user.beyond_us() {
            return Err(wrong(format!("its user {what}, which skiff does not; give a client certificate or a token")));
        }
        if given(cluster.proxy_url.as_ref()).is_some() {
            return Err(wrong("its cluster is behind a proxy-url, which skiff does not use"));
        }
        let pem = |name: &str, data: Option<&String>, file: Option<&String>| pem(name, data, file, folder);
        let server = given(cluster.server.as_ref()).ok_or_else(|| wrong("its cluster has no server"))?;
        let mut config = Config::new(server)?;
        let authority = (cluster.certificate_authority_data.as_ref(), cluster.certificate_authority.as_ref());
        let authority = pem("certificate-authority", authority.0, authority.1)?;
        config.trust = match (cluster.insecure_skip_tls_verify.unwrap_or_default(), authority) {
            (true, Some(_)) => {
                return Err(wrong(
                    "its cluster has a certificate-authority and insecure-skip-tls-verify, which is one too many",
                ));
            }
            (true, None) => Trust::Anybody,
            (false, Some(pem)) => Trust::Authorities(pem),
            (false, None) => Trust::Machine,
        };
        config.server_name = given(cluster.tls_server_name.as_ref()).map(str::to_owned);
        let certificate =
            pem("client-certificate", user.client_certificate_data.as_ref(), user.client_certificate.as_ref())?;
        let key = pem("client-key", user.client_key_data.as_ref(), user.client_key.as_ref())?;
        config.credential = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(pki::Credential { certificate, key }),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("its user has a client-certificate and no client-key")),
            (None, Some(_)) => return Err(wrong("its user has a client-key and no client-certificate")),
        };
        config.token = given(user.token.as_ref()).map(str::to_owned);
        config.token_file = given(user.token_file.as_ref()).map(|file| folder.join(file));
        if let (Some(name), Some(password)) = (&user.username, &user.password) {
            config.password = Some((name.clone(), password.clone()));
        }
        let groups = user.as_groups.iter().flatten();
        let who = [("impersonate-user", user.impersonate.as_ref()), ("impersonate-uid", user.as_uid.as_ref())];
        let who = who.into_iter().filter_map(|(header, value)| Some((header, given(value)?)));
        for (header, value) in who.chain(groups.map(|group| ("impersonate-group", group.as_str()))) {
            config.say(header, value)?;
        }
        for (key, values) in user.as_user_extra.iter().flatten() {
            let header = format!("impersonate-extra-{}", escaped(key));
            for value in values {
                config.say(&header, value)?;
            }
        }
        Ok(config)
    }
}

/// A key as part of a header's name: what cannot stand there is escaped as in URLs.
fn escaped(key: &str) -> String {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    key.bytes().map(|byte| if legal(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

fn pem(name: &str, data: Option<&String>, file: Option<&String>, folder: &Path) -> Result<Option<String>, ConfigError> {
    if let Some(data) = given(data) {
        let pem = STANDARD.decode(data).map_err(|_| wrong(format!("its {name}-data is not Base64")))?;
        return String::from_utf8(pem).map(Some).map_err(|_| wrong(format!("its {name}-data is not PEM")));
    }
    let Some(file) = given(file) else { return Ok(None) };
    let path = folder.join(file);
    fs::read_to_string(&path).map(Some).map_err(|source| ConfigError::Unreadable { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u, namespace: n, extensions: []}}}}]\n\
             clusters: [{{name: other}}, {{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[test]
    fn what_a_file_says() {
        let server = "server: 'https://h:6443/base/'";
        let config = |cluster: &str, user: &str| Kubeconfig::parse(&file(cluster, user)).unwrap().current().unwrap();
        let plain = config(server, "");
        assert_eq!(plain.server.to_string(), "https://h:6443/base/");
        assert!(matches!(plain.trust, Trust::Machine) && plain.credential.is_none() && plain.token.is_none());
        let authority = STANDARD.encode("PEM");
        let known =
            config(&format!("{server}, certificate-authority-data: {authority}, tls-server-name: s"), "token: t");
        assert!(matches!(known.trust, Trust::Authorities(pem) if pem == "PEM"));
        assert_eq!((known.server_name.as_deref(), known.token.as_deref()), (Some("s"), Some("t")));
        let insecure = config(&format!("{server}, insecure-skip-tls-verify: true"), "as: a, as-groups: [g, h]");
        assert!(matches!(insecure.trust, Trust::Anybody));
        let groups: Vec<_> = insecure.headers.get_all("impersonate-group").iter().collect();
        assert_eq!((insecure.headers["impersonate-user"].as_bytes(), groups.len()), (&b"a"[..], 2));
        let known = config(server, "as: a, as-uid: u, as-user-extra: {foo: [bar, baz], a.io/K%: [v]}").headers;
        let said = |name: &str| {
            let values: Vec<&str> = known.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
            values.join(" ")
        };
        assert_eq!(said("impersonate-uid"), "u");
        assert_eq!(said("impersonate-extra-foo"), "bar baz");
        assert_eq!(said("impersonate-extra-a.io%2fk%25"), "v");
    }

    #[test]
    fn paths_are_taken_from_the_files_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pki")).unwrap();
        fs::write(folder.path().join("pki/ca.crt"), "PEM").unwrap();
        let path = folder.path().join("config");
        fs::write(&path, file("server: 'https://h', certificate-authority: pki/ca.crt", "tokenFile: pki/token"))
            .unwrap();
        let config = Kubeconfig::read(&path).unwrap().current().unwrap();
        assert!(matches!(config.trust, Trust::Authorities(pem) if pem == "PEM"));
        assert_eq!(config.token_file, Some(folder.path().join("pki/token")));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let server = "server: 'https://h'";
        let check = |text: &str, expected: &str| {
            let said = Kubeconfig::parse(text).and_then(|file| file.current()).err().map(|error| error.to_string());
            assert!(said.as_deref().is_some_and(|said| said.contains(expected)), "{said:?} for {text}");
        };
        check("", "no current-context");
        check("{current-context: a}", "no context \"a\"");
        check("{current-context: a, contexts: [{name: a, context: {cluster: b}}]}", "no cluster \"b\"");
        check("- a", "not valid YAML");
        check(&file("", ""), "no server");
        check(&file("server: 'h:6443'", ""), "no URL");
        check(&file(server, "exec: {command: aws}"), "runs a plugin (exec), which skiff does not");
        check(&file(server, "auth-provider: {name: oidc}"), "auth-provider");
        check(&file(&format!("{server}, proxy-url: 'http://p'"), ""), "proxy-url");
        check(&file(server, "client-certificate-data: YQ=="), "no client-key");
        check(&file(server, "client-key-data: YQ=="), "no client-certificate");
        check(&file(server, "client-key-data: '*'"), "client-key-data is not Base64");
        check(&file(&format!("{server}, certificate-authority: /no/such/file"), ""), "cannot read /no/such/file");
        let both = format!("{server}, certificate-authority-data: YQ==, insecure-skip-tls-verify: true");
        check(&file(&both, ""), "one too many");
        check(&file(server, "as: \"a\\nb\""), "impersonate-user");
    }
}
