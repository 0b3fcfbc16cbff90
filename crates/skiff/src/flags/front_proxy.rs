//! Front proxies, which speak for users: whose certificates are believed, under which names and in which headers, and as
//! whom this server speaks to extension API servers. Upstream's flags.

use std::path::PathBuf;

use anyhow::Context;
use apiserver::auth::authn::front_proxy::Headers;
use clap::Args;
use http::HeaderName;
use pki::{ClientCertificates, Credential, Serving};

use super::value;
use crate::control_plane::followed::read;

/// The name in the certificate of this server's own.
pub const OWN_NAME: &str = "front-proxy-client";

#[derive(Args, Clone, Debug, Default)]
pub struct FrontProxyFlags {
    /// The authorities of front proxies, in PEM: whoever shows a certificate of theirs says in headers who asks. They take the place
    /// of the cluster's own, and extension API servers are told to believe them: --proxy-client-cert-file has to be of one of
    /// them, or the file has to hold pki/front-proxy-ca.crt of the data folder too. It is followed
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// The common names of certificates that may speak for others; any that those authorities vouch for when there are none, and
    /// front-proxy-client where the authorities are the cluster's own
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    requestheader_allowed_names: Option<Vec<String>>,
    /// The headers that may hold the user's name, the first one first; X-Remote-User when not given, which extension API servers need
    #[arg(long, value_delimiter = ',', value_name = "HEADERS")]
    requestheader_username_headers: Option<Vec<String>>,
    /// The headers that may hold the user's UID; X-Remote-Uid when not given
    #[arg(long, value_delimiter = ',', value_name = "HEADERS")]
    requestheader_uid_headers: Option<Vec<String>>,
    /// The headers that hold groups; X-Remote-Group when not given
    #[arg(long, value_delimiter = ',', value_name = "HEADERS")]
    requestheader_group_headers: Option<Vec<String>>,
    /// How the names of headers begin that hold more about the user; X-Remote-Extra- when not given
    #[arg(long, value_delimiter = ',', value_name = "PREFIXES")]
    requestheader_extra_headers_prefix: Option<Vec<String>>,
    /// The certificate as which this server speaks for users to extension API servers; the cluster's own when not given. It is followed
    #[arg(long, value_name = "FILE", value_parser = value::readable, requires = "proxy_client_key_file")]
    proxy_client_cert_file: Option<PathBuf>,
    /// The key of --proxy-client-cert-file
    #[arg(long, value_name = "FILE", value_parser = value::readable, requires = "proxy_client_cert_file")]
    proxy_client_key_file: Option<PathBuf>,
}

/// The values of a flag; an empty text is none.
fn values(given: &Option<Vec<String>>) -> Option<Vec<String>> {
    given.clone().map(|values| if values == [""] { Vec::new() } else { values })
}

impl FrontProxyFlags {
    /// The names that may speak for others.
    pub fn allowed_names(&self) -> Vec<String> {
        let own = || if self.requestheader_client_ca_file.is_some() { Vec::new() } else { vec![OWN_NAME.to_owned()] };
        values(&self.requestheader_allowed_names).unwrap_or_else(own)
    }

    pub fn headers(&self) -> Headers {
        let usual = Headers::default();
        Headers {
            user: values(&self.requestheader_username_headers).unwrap_or(usual.user),
            uid: values(&self.requestheader_uid_headers).unwrap_or(usual.uid),
            groups: values(&self.requestheader_group_headers).unwrap_or(usual.groups),
            extra_prefixes: values(&self.requestheader_extra_headers_prefix).unwrap_or(usual.extra_prefixes),
        }
    }

    /// Whether the flags say who is believed to be a front proxy.
    pub fn says_whom_to_believe(&self) -> bool {
        self.requestheader_client_ca_file.is_some() || self.requestheader_allowed_names.is_some()
    }

    /// The files of the certificate that is shown to extension API servers, and of its key.
    pub fn shown(&self) -> Option<[PathBuf; 2]> {
        let files = self.proxy_client_cert_file.clone().zip(self.proxy_client_key_file.clone());
        files.map(|(certificate, key)| [certificate, key])
    }

    /// Says what is wrong with the flags before anything begins: what upstream refuses in its words, and what no header can be named.
    pub fn check(&self) -> anyhow::Result<()> {
        let headers = self.headers();
        for (flag, values, names_headers) in [
            ("requestheader-username-headers", &headers.user, true),
            ("requestheader-group-headers", &headers.groups, true),
            ("requestheader-extra-headers-prefix", &headers.extra_prefixes, true),
            ("requestheader-allowed-names", &self.allowed_names(), false),
            ("requestheader-uid-headers", &headers.uid, true),
        ] {
            for value in values {
                anyhow::ensure!(!value.trim().is_empty(), "empty value in {flag:?}");
                anyhow::ensure!(
                    !names_headers || value.parse::<HeaderName>().is_ok(),
                    "--{flag}: no header's name has {value:?} in it"
                );
            }
        }
        let has = |values: &[String], usual: &str| values.iter().any(|value| value.eq_ignore_ascii_case(usual));
        for (flag, values, usual, sort) in [
            ("username-headers", &headers.user, "X-Remote-User", "header"),
            ("group-headers", &headers.groups, "X-Remote-Group", "header"),
            ("extra-headers-prefix", &headers.extra_prefixes, "X-Remote-Extra-", "header prefix"),
        ] {
            if !values.is_empty() && !has(values, usual) {
                tracing::warn!(
                    "--requestheader-{flag} is set without specifying the standard {usual} {sort} - API aggregation will not work"
                );
            }
        }
        anyhow::ensure!(
            headers.uid.is_empty() || has(&headers.uid, "X-Remote-Uid"),
            "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work"
        );
        self.check_files()
    }

    fn check_files(&self) -> anyhow::Result<()> {
        if let Some(file) = &self.requestheader_client_ca_file {
            let text = read(std::slice::from_ref(file))?.concat();
            let of_file = || format!("--requestheader-client-ca-file {}", file.display());
            ClientCertificates::new(&text).with_context(of_file)?;
        }
        if let Some(files) = self.shown() {
            let [certificate, key] = &files;
            let of_files = || format!("--proxy-client-cert-file {}, {}", certificate.display(), key.display());
            Serving::new(&credential(&read(&files)?)?).with_context(of_files)?;
        }
        Ok(())
    }
}

/// A certificate and its key by their two texts.
pub fn credential(texts: &[String]) -> anyhow::Result<Credential> {
    let [certificate, key] = texts else { anyhow::bail!("two files have two texts") };
    Ok(Credential { certificate: certificate.clone(), key: key.clone() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        front_proxy: FrontProxyFlags,
    }

    fn parse(args: &[&str]) -> Result<FrontProxyFlags, String> {
        let flags = Flags::try_parse_from([&["test"], args].concat());
        flags.map(|flags| flags.front_proxy).map_err(|error| error.to_string())
    }

    #[test]
    fn names_and_headers_are_the_usual_ones_unless_others_are_given() {
        let usual = parse(&[]).unwrap();
        usual.check().unwrap();
        assert_eq!((usual.allowed_names(), usual.headers()), (vec![OWN_NAME.to_owned()], Headers::default()));
        let given = parse(&[
            "--requestheader-username-headers=X-Remote-User,X-User",
            "--requestheader-uid-headers=",
            "--requestheader-allowed-names=a,b",
        ]);
        let given = given.unwrap();
        given.check().unwrap();
        let headers = given.headers();
        assert_eq!((headers.user, headers.uid), (vec!["X-Remote-User".to_owned(), "X-User".to_owned()], Vec::new()));
        assert_eq!(given.allowed_names(), ["a", "b"]);
        assert!(parse(&["--requestheader-allowed-names="]).unwrap().allowed_names().is_empty());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca");
        std::fs::write(&file, pki::Authority::create("front").unwrap().certificate()).unwrap();
        let file = file.display().to_string();
        let theirs = parse(&["--requestheader-client-ca-file", &file]).unwrap();
        theirs.check().unwrap();
        assert!(theirs.allowed_names().is_empty(), "any that the authorities vouch for");
    }

    #[test]
    fn what_names_no_header_is_refused() {
        let check = |arg: &str, expected: &str| {
            let error = parse(&[arg]).unwrap().check().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{arg}: {error}");
        };
        for flag in ["username-headers", "group-headers", "extra-headers-prefix", "allowed-names", "uid-headers"] {
            let flag = format!("requestheader-{flag}");
            check(&format!("--{flag}=X-Remote-Uid, "), &format!("empty value in {flag:?}"));
            check(&format!("--{flag}=,X-Remote-Uid"), &format!("empty value in {flag:?}"));
        }
        check("--requestheader-username-headers=X Remote User", "no header's name has \"X Remote User\" in it");
        check("--requestheader-group-headers=X-Group:", "no header's name has \"X-Group:\" in it");
        check("--requestheader-allowed-names=Front Proxy", "");
        check("--requestheader-username-headers=X-User", "");
        check("--requestheader-uid-headers=X-Id", "without specifying the standard X-Remote-Uid header");
        check("--requestheader-uid-headers=x-remote-uid,X-Id", "");
    }

    #[test]
    fn files_are_checked_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let authority = pki::Authority::create("front").unwrap();
        let issued = authority.issue(&pki::Subject::client("us", None)).unwrap();
        let other = authority.issue(&pki::Subject::client("us", None)).unwrap();
        for (name, text) in [("c", &issued.certificate), ("k", &issued.key), ("o", &other.key)] {
            std::fs::write(path(name), text).unwrap();
        }
        let shown = |key: &str| parse(&["--proxy-client-cert-file", &path("c"), "--proxy-client-key-file", &path(key)]);
        shown("k").unwrap().check().unwrap();
        let error = format!("{:#}", shown("o").unwrap().check().unwrap_err());
        assert!(error.contains("--proxy-client-cert-file") && error.contains(&path("o")), "{error}");
        assert!(parse(&["--proxy-client-cert-file", &path("c")]).is_err());
        assert!(parse(&["--proxy-client-key-file", &path("k")]).is_err());
        assert!(parse(&["--requestheader-client-ca-file", &path("none")]).is_err());
        let error = parse(&["--requestheader-client-ca-file", &path("k")]).unwrap().check().unwrap_err();
        assert!(format!("{error:#}").contains("--requestheader-client-ca-file"), "{error:#}");
    }
}
