//! The certificates that the API server shows to its clients and believes of them beyond the cluster's own: upstream's
//! flags.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use listener::STREAMS;
use pki::{ClientCertificates, Credential, Protocols, Serving};

use super::value;
use crate::control_plane::followed::read;

#[derive(Args, Clone, Debug, Default)]
pub struct ServingFlags {
    /// Further authorities whose client certificates are believed, in PEM; the file is followed
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub client_ca_file: Option<PathBuf>,
    /// A certificate for clients that reach the API server by one of the names in it; all others see the cluster's own. It is followed
    #[arg(long, value_name = "FILE", value_parser = value::readable, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// The key of --tls-cert-file
    #[arg(long, value_name = "FILE", value_parser = value::readable, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// A further certificate and its key, perhaps with the names that it is for: `cert.pem,key.pem:*.example.com,example.com`. It is
    /// followed, and the flag may be given again
    #[arg(long, value_name = "CERT,KEY[:NAMES]", value_parser = named)]
    tls_sni_cert_key: Vec<Named>,
    /// The oldest version of TLS that clients may speak: VersionTLS12 (the usual) or VersionTLS13
    #[arg(long, value_name = "VERSION", value_parser = |text: &str| Protocols::default().since(text).map(|_| text.to_owned()))]
    tls_min_version: Option<String>,
    /// The cipher suites of TLS 1.2 that clients may speak, by upstream's names; all without known weaknesses if there are none
    #[arg(long, value_delimiter = ',', value_name = "SUITES", value_parser = |text: &str| Protocols::default().with_suites([text]).map(|_| text.to_owned()))]
    tls_cipher_suites: Vec<String>,
    /// How many requests one HTTP/2 connection has open at once; 0 is upstream's 100
    #[arg(long, default_value_t = STREAMS, value_name = "REQUESTS")]
    http2_max_streams_per_connection: u32,
}

/// The bound of upstream's server where no other is given to it.
const UNGIVEN: u32 = 100;

/// Files of a certificate, and its names; those in it where there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub names: Vec<String>,
}

fn named(text: &str) -> Result<Named, String> {
    let (files, names) = text.split_once(':').unwrap_or((text, ""));
    let Some((certificate, key)) = files.split_once(',').filter(|(_, key)| !key.contains(',')) else {
        return Err("it must name two files, a certificate and its key, with a comma between them".to_owned());
    };
    let names: Vec<String> = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    for name in &names {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        value::host(plain).map_err(|why| format!("{name:?} is no name that clients ask for: {why}"))?;
    }
    Ok(Named { certificate: value::readable(certificate)?, key: value::readable(key)?, names })
}

impl ServingFlags {
    /// The certificates beside the cluster's own.
    pub fn certificates(&self) -> Vec<Named> {
        let files = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone());
        let first = files.map(|(certificate, key)| Named { certificate, key, names: Vec::new() });
        self.tls_sni_cert_key.iter().cloned().chain(first).collect()
    }

    /// How many requests one HTTP/2 connection has open at once.
    pub fn streams(&self) -> u32 {
        match self.http2_max_streams_per_connection {
            0 => UNGIVEN,
            given => given,
        }
    }

    /// The versions and suites of TLS that are spoken.
    pub fn protocols(&self) -> anyhow::Result<Protocols> {
        let protocols = Protocols::default().since(self.tls_min_version.as_deref().unwrap_or_default());
        let suites = self.tls_cipher_suites.iter().map(String::as_str);
        protocols.and_then(|protocols| protocols.with_suites(suites)).map_err(anyhow::Error::msg)
    }

    /// Whether the files can be used: said before anything begins.
    pub fn check(&self) -> anyhow::Result<()> {
        for one in self.certificates() {
            let texts = read(&[one.certificate.clone(), one.key.clone()])?;
            let [certificate, key] = texts.try_into().map_err(|_| anyhow::anyhow!("two files have two texts"))?;
            Serving::new(&Credential { certificate, key })
                .with_context(|| format!("{} and {}", one.certificate.display(), one.key.display()))?;
        }
        if let Some(file) = &self.client_ca_file {
            let text = read(std::slice::from_ref(file))?.concat();
            ClientCertificates::new(&text).with_context(|| format!("--client-ca-file {}", file.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        serving: ServingFlags,
    }

    #[test]
    fn certificates_have_keys_and_perhaps_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let authority = pki::Authority::create("ca").unwrap();
        let issued = authority.issue(&pki::Subject::server("x", vec!["a.io".to_owned()])).unwrap();
        std::fs::write(path("c"), &issued.certificate).unwrap();
        std::fs::write(path("k"), &issued.key).unwrap();
        let (c, k) = (path("c").display().to_string(), path("k").display().to_string());
        let parse = |args: &[&str]| Flags::try_parse_from([&["test"], args].concat()).map(|flags| flags.serving);
        let sni = format!("--tls-sni-cert-key={c},{k}:*.a.io,b.io");
        let flags = parse(&["--tls-cert-file", &c, "--tls-private-key-file", &k, &sni]).unwrap();
        let names = flags.certificates().into_iter().map(|one| one.names).collect::<Vec<_>>();
        assert_eq!(names, [vec!["*.a.io".to_owned(), "b.io".to_owned()], Vec::new()]);
        flags.check().unwrap();
        for wrong in [&["--tls-cert-file", &c][..], &["--tls-sni-cert-key", &c], &["--client-ca-file=/no/such/file"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&[&format!("--tls-sni-cert-key={c},{k}:a_b!")]).is_err());
        assert!(
            parse(&["--tls-min-version=VersionTLS9"]).is_err() && parse(&["--tls-cipher-suites=TLS_NONE"]).is_err()
        );
        let weak = "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_GCM_SHA256";
        let spoken = parse(&["--tls-min-version=VersionTLS13", weak]).unwrap().protocols().unwrap();
        assert_ne!(spoken, Protocols::default());
        assert_eq!(spoken.warnings().len(), 2, "{spoken:?}");
        let other = authority.issue(&pki::Subject::server("x", Vec::new())).unwrap();
        std::fs::write(path("k"), &other.key).unwrap();
        let error = flags.check().unwrap_err();
        assert!(format!("{error:#}").contains(&c), "{error:#}");
        assert_eq!(
            [parse(&[]), parse(&["--http2-max-streams-per-connection=0"])].map(|f| f.unwrap().streams()),
            [1000, 100]
        );
        assert_eq!(parse(&["--http2-max-streams-per-connection=7"]).unwrap().streams(), 7);
        assert!(parse(&["--http2-max-streams-per-connection=-1"]).is_err());
        let no_authority = parse(&["--client-ca-file", &k]).unwrap().check().unwrap_err();
        assert!(format!("{no_authority:#}").contains("--client-ca-file"), "{no_authority:#}");
    }
}
