//! Certificates beside the cluster's own: whose clients are believed, and what is shown to clients that ask for a name. The files
//! are followed.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use futures::FutureExt;
use pki::{ClientCertificates, Credential, Pki, Serving, Site, Sites};

use super::{
    followed::{Followed, read},
    front_proxy::{self, FrontProxies},
    told::Told,
};
use crate::flags::serving::{Named, ServingFlags};

/// The authorities of clients: the cluster's own, and those of the flag's file.
pub struct Clients {
    own: String,
    file: Option<(PathBuf, String)>,
    pub certificates: ClientCertificates,
}

impl Clients {
    pub fn open(flags: &ServingFlags, pki: &Pki) -> anyhow::Result<Self> {
        let own = pki.authority.certificate();
        let file = match &flags.client_ca_file {
            None => None,
            Some(file) => Some((file.clone(), read(std::slice::from_ref(file))?.concat())),
        };
        let text = file.as_ref().map_or("", |(_, text)| text);
        let certificates = ClientCertificates::new(&both(own, text)).context("--client-ca-file")?;
        Ok(Clients { own: own.to_owned(), file, certificates })
    }

    /// All authorities, in PEM.
    pub fn authorities(&self) -> String {
        both(&self.own, self.file.as_ref().map_or("", |(_, text)| text))
    }

    /// The authorities whose names clients are told when they connect; many show no certificate of another. With a file that
    /// may change they are told none, so that each shows the certificate that it has.
    pub fn hints(&self, proxies: &FrontProxies) -> String {
        let may_change = self.file.is_some() || proxies.may_change();
        if may_change { String::new() } else { both(&self.own, &proxies.authorities) }
    }

    /// The task that follows the file, if there is one: it is believed, and extension servers are told so.
    pub fn followed(self, told: &Arc<Told>, proxies: &FrontProxies) -> Option<Followed> {
        let Clients { own, file, certificates, .. } = self;
        let (file, text) = file?;
        let (told, names) = (told.clone(), proxies.names.clone());
        let apply = move |texts: Vec<String>| {
            let authorities = both(&own, &texts.concat());
            let (certificates, told, names) = (certificates.clone(), told.clone(), names.clone());
            async move {
                let changed = told.change(|cluster| {
                    front_proxy::apart(
                        &authorities,
                        cluster.front_proxy_authority.as_deref().unwrap_or_default(),
                        &names,
                    )?;
                    certificates.replace(&authorities)?;
                    cluster.client_authority = authorities;
                    Ok(())
                });
                changed.await.context("--client-ca-file")
            }
            .boxed()
        };
        Some(Followed::new((vec![file], vec![text]), apply))
    }
}

fn both(own: &str, more: &str) -> String {
    format!("{}\n{more}", own.trim_end())
}

/// The certificates that the server shows: its own, and those of the flags to a client that asks for their names.
pub fn shown(flags: &ServingFlags, own: Arc<Serving>) -> anyhow::Result<(Arc<Sites>, Option<Followed>)> {
    let sites = Sites::new(own);
    let named = flags.certificates();
    if named.is_empty() {
        return Ok((sites, None));
    }
    let files: Vec<PathBuf> = named.iter().flat_map(|one| [one.certificate.clone(), one.key.clone()]).collect();
    let texts = read(&files)?;
    show(&sites, &named, &texts)?;
    let replaced = sites.clone();
    let apply = move |texts: Vec<String>| std::future::ready(show(&replaced, &named, &texts)).boxed();
    Ok((sites, Some(Followed::new((files, texts), apply))))
}

fn show(sites: &Sites, named: &[Named], texts: &[String]) -> anyhow::Result<()> {
    let site = |(one, pair): (&Named, &[String])| Site {
        credential: Credential { certificate: pair[0].clone(), key: pair[1].clone() },
        names: one.names.clone(),
    };
    let all: Vec<Site> = named.iter().zip(texts.chunks_exact(2)).map(site).collect();
    // One after another first, so that an error says which one it is about.
    for (one, site) in named.iter().zip(&all) {
        Serving::new(&site.credential)
            .with_context(|| format!("{} and {}", one.certificate.display(), one.key.display()))?;
    }
    Ok(sites.replace(&all)?)
}
