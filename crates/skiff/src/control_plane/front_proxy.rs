//! Front proxies at work: whom the server lets speak for users, and as whom it speaks to extension API servers itself. The files are
//! followed.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use apiserver::auth::authn::front_proxy::{FrontProxy, Headers};
use futures::FutureExt;
use pki::{ClientCertificates, Pki, Serving, inspect};

use super::{
    followed::{Followed, read},
    fresh::Fresh,
    told::Told,
};
use crate::flags::front_proxy::{FrontProxyFlags, credential};

const NOT_BELIEVED: &str = "extension API servers would not believe this server by --requestheader-client-ca-file and \
     --requestheader-allowed-names";
const ADVICE: &str = "Give --proxy-client-cert-file and --proxy-client-key-file of a certificate that they would believe, or add the \
     cluster's own to both: pki/front-proxy-ca.crt of the data folder, and front-proxy-client";

pub struct FrontProxies {
    /// PEM.
    pub authorities: String,
    pub certificates: ClientCertificates,
    pub names: Vec<String>,
    pub headers: Headers,
    /// The certificate that extension API servers see.
    pub shown: Arc<Serving>,
    file: Option<PathBuf>,
    shown_followed: Option<Followed>,
}

impl FrontProxies {
    /// `clients` are the authorities of clients, in PEM.
    pub fn open(flags: &FrontProxyFlags, pki: &Pki, fresh: &Fresh, clients: &str) -> anyhow::Result<Self> {
        let file = flags.requestheader_client_ca_file.clone();
        let authorities = match &file {
            None => pki.front_proxy.certificate().to_owned(),
            Some(file) => read(std::slice::from_ref(file))?.concat(),
        };
        let (names, headers) = (flags.allowed_names(), flags.headers());
        apart(clients, &authorities, &names)?;
        let certificates = ClientCertificates::new(&authorities).context("--requestheader-client-ca-file")?;
        let rule = Rule { certificates: certificates.clone(), names: names.clone() };
        let (shown, shown_followed) = match flags.shown() {
            None => {
                if flags.says_whom_to_believe() {
                    let believed = rule.believes(&pki.front_proxy_client()?.certificate);
                    believed.map_err(|why| anyhow::anyhow!("{NOT_BELIEVED}: {why}. {ADVICE}"))?;
                }
                (fresh.shown(pki, Pki::front_proxy_client)?, None)
            }
            Some(files) => {
                let texts = read(&files)?;
                let shown = Serving::new(&credential(&texts)?).context("--proxy-client-cert-file")?;
                rule.warn(&texts[0]);
                let replaced = shown.clone();
                let apply = move |texts: Vec<String>| {
                    let replace = || {
                        replaced.replace(&credential(&texts)?).context("--proxy-client-cert-file")?;
                        rule.warn(&texts[0]);
                        Ok(())
                    };
                    std::future::ready(replace()).boxed()
                };
                (shown, Some(Followed::new((files.to_vec(), texts), apply)))
            }
        };
        Ok(FrontProxies { authorities, certificates, names, headers, shown, file, shown_followed })
    }

    /// Whether the authorities may change while the server runs.
    pub fn may_change(&self) -> bool {
        self.file.is_some()
    }

    /// The tasks that follow the files: others are believed then, and extension servers are told so.
    pub fn followed(self, told: &Arc<Told>) -> Vec<Followed> {
        let FrontProxies { authorities, certificates, names, file, shown_followed, .. } = self;
        let believed = file.map(|file| {
            let told = told.clone();
            let apply = move |texts: Vec<String>| {
                let (authorities, certificates) = (texts.concat(), certificates.clone());
                let (told, names) = (told.clone(), names.clone());
                async move {
                    let changed = told.change(|cluster| {
                        apart(&cluster.client_authority, &authorities, &names)?;
                        certificates.replace(&authorities)?;
                        cluster.front_proxy_authority = Some(authorities);
                        Ok(())
                    });
                    changed.await.context("--requestheader-client-ca-file")
                }
                .boxed()
            };
            Followed::new((vec![file], vec![authorities]), apply)
        });
        believed.into_iter().chain(shown_followed).collect()
    }
}

/// The rule by which extension API servers believe a front proxy.
struct Rule {
    certificates: ClientCertificates,
    names: Vec<String>,
}

impl Rule {
    fn believes(&self, certificate: &str) -> Result<(), String> {
        let chain = inspect::chain(certificate).map_err(|error| error.to_string())?;
        let proxy = FrontProxy::new(self.certificates.clone(), self.names.clone());
        proxy.believes(&chain)
    }

    /// A certificate that was believed may be too old one day, which must not keep the server from starting.
    fn warn(&self, certificate: &str) {
        if let Err(why) = self.believes(certificate) {
            tracing::warn!("{NOT_BELIEVED}, which shows --proxy-client-cert-file: {why}");
        }
    }
}

/// Where any certificate of the front proxies' authorities speaks for others, no client may have one of them. Upstream refuses
/// certificates that are in both files; an authority that has the key of another one, or signed it, vouches for its clients too.
pub fn apart(clients: &str, proxies: &str, names: &[String]) -> anyhow::Result<()> {
    if !names.is_empty() {
        return Ok(());
    }
    let (clients, proxies) = (inspect::chain(clients)?, inspect::chain(proxies)?);
    let text = |der: &[u8]| pki::pem("CERTIFICATE", der);
    for client in &clients {
        for proxy in &proxies {
            let vouches = inspect::key_pin_der(client)? == inspect::key_pin_der(proxy)?
                || inspect::signed_by(&text(client), &text(proxy)).unwrap_or(false);
            anyhow::ensure!(
                !vouches,
                "--requestheader-client-ca-file and the authorities of clients (--client-ca-file and the cluster's own) contain \
                 overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client \
                 certificates cannot set authenticating proxy headers for arbitrary users"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use pki::{Authority, Credential, Subject};

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        front_proxy: FrontProxyFlags,
    }

    #[test]
    fn no_client_is_a_proxy_by_its_authority_alone() {
        let (clients, proxies) = (Authority::create("clients").unwrap(), Authority::create("proxies").unwrap());
        let pem = |authority: &Authority| authority.certificate().to_owned();
        let both = |one: &Authority, other: &Authority| format!("{}{}", pem(one), pem(other));
        let check = |clients: &str, proxies: &str, names: &[&str], expected: bool| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let refused = apart(clients, proxies, &names).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(refused.contains("--requestheader-allowed-names must be specified"), expected, "{refused}");
        };
        check(&pem(&clients), &pem(&proxies), &[], false);
        check(&pem(&clients), &both(&proxies, &clients), &[], true);
        check(&both(&clients, &proxies), &pem(&proxies), &[], true);
        check(&pem(&clients), &pem(&clients), &["proxy"], false);
        // Another certificate of the key vouches for everything that the first one does.
        let renewed = clients.renewed("clients").unwrap().unwrap();
        assert_ne!(renewed.certificate(), clients.certificate());
        check(&pem(&clients), &pem(&renewed), &[], true);
        // As a certificate that one of the proxies' authorities signed, an authority of clients is beneath it.
        let beneath = proxies.issue(&Subject::client("beneath", None)).unwrap();
        check(&beneath.certificate, &pem(&proxies), &[], true);
    }

    struct Scene {
        folder: tempfile::TempDir,
        pki: Pki,
        fresh: Fresh,
    }

    impl Scene {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let fresh = Fresh::new(folder.path().join("pki"));
            Scene { pki: Pki::open(&folder.path().join("pki")).unwrap(), folder, fresh }
        }

        fn write(&self, name: &str, text: &str) -> String {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        }

        fn open(&self, args: &[String]) -> Result<FrontProxies, String> {
            let args = [&["test".to_owned()], args].concat();
            let flags = Flags::try_parse_from(args).map_err(|error| error.to_string())?.front_proxy;
            let opened = FrontProxies::open(&flags, &self.pki, &self.fresh, self.pki.authority.certificate());
            opened.map_err(|error| format!("{error:#}"))
        }
    }

    fn spoken_for(proxies: &FrontProxies, shown: &Credential) -> bool {
        let rule = Rule { certificates: proxies.certificates.clone(), names: proxies.names.clone() };
        rule.believes(&shown.certificate).is_ok()
    }

    #[test]
    fn whom_extension_servers_would_not_believe_does_not_begin() {
        let scene = Scene::new();
        let theirs = Authority::create("theirs").unwrap();
        let file = |path: String| format!("--requestheader-client-ca-file={path}");
        let names = |names: &str| format!("--requestheader-allowed-names={names}");
        let own = scene.pki.front_proxy_client().unwrap();
        let proxy = theirs.issue(&Subject::client("proxy", None)).unwrap();
        let usual = scene.open(&[]).unwrap();
        assert!(spoken_for(&usual, &own) && !spoken_for(&usual, &proxy) && !usual.may_change());
        let only = file(scene.write("only", theirs.certificate()));
        let refused = |args: &[String]| scene.open(args).err().unwrap_or_default();
        assert!(refused(std::slice::from_ref(&only)).contains("Give --proxy-client-cert-file"));
        assert!(refused(&[names("proxy")]).contains("subject with cn=front-proxy-client is not in the allowed list"));
        let both = format!("{}{}", theirs.certificate(), scene.pki.front_proxy.certificate());
        let both = file(scene.write("both", &both));
        assert!(refused(&[both.clone(), names("proxy")]).contains(NOT_BELIEVED));
        let opened = scene.open(&[both, names("proxy,front-proxy-client")]).unwrap();
        assert!(spoken_for(&opened, &own) && spoken_for(&opened, &proxy) && opened.may_change());
        let shown = [
            only,
            format!("--proxy-client-cert-file={}", scene.write("crt", &proxy.certificate)),
            format!("--proxy-client-key-file={}", scene.write("key", &proxy.key)),
        ];
        let opened = scene.open(&shown).unwrap();
        assert!(
            spoken_for(&opened, &proxy) && !spoken_for(&opened, &own),
            "their file takes the place of the own authority"
        );
        assert!(opened.names.is_empty());
        // The authority of clients is no authority of proxies, unless it says who they are.
        let clients = file(scene.write("clients", scene.pki.authority.certificate()));
        assert!(refused(&[clients, shown[1].clone(), shown[2].clone()]).contains("overlapping certificates"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_certificate_that_is_shown_is_followed() {
        let scene = Scene::new();
        let [old, new] =
            [(); 2].map(|()| scene.pki.front_proxy.issue(&Subject::client("front-proxy-client", None)).unwrap());
        let write = |shown: &Credential| [scene.write("crt", &shown.certificate), scene.write("key", &shown.key)];
        let [certificate, key] = write(&old);
        let flags = [format!("--proxy-client-cert-file={certificate}"), format!("--proxy-client-key-file={key}")];
        let FrontProxies { shown, shown_followed, .. } = scene.open(&flags).unwrap();
        let following = tokio::spawn(shown_followed.unwrap().run());
        let leaf =
            || tokio_rustls::rustls::client::ResolvesClientCert::resolve(&*shown, &[], &[]).unwrap().cert[0].clone();
        let of = |credential: &Credential| inspect::chain(&credential.certificate).unwrap()[0].clone();
        assert_eq!(leaf(), of(&old));
        std::fs::write(Path::new(&key), &new.key).unwrap();
        clock::sleep(files::followed::LOOK * 2).await;
        assert_eq!(leaf(), of(&old), "a key of another certificate changes nothing");
        write(&new);
        clock::sleep(files::followed::LOOK * 2).await;
        assert_eq!(leaf(), of(&new));
        following.abort();
    }
}
