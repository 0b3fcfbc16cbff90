//! `skiff store`: looking after the embedded store of a cluster that does not run (or, to look only, of one that does).

use std::{process::ExitCode, sync::Arc};

use anyhow::Context;
use client::Kubeconfig;
use store::{
    embedded::{
        self, Embedded,
        maintenance::{self, Status, Use},
    },
    etcd::watch_cache::WatchCache,
    transfer,
};

use crate::{
    commands::server,
    control_plane::at_rest::{AtRest, Done, REGISTRY, lifetime},
    flags::{
        encryption::EncryptionFlags,
        etcd::EtcdFlags,
        options::{Store, StorePlace},
    },
    layout::Layout,
    reach,
};

pub fn run(command: Store) -> anyhow::Result<ExitCode> {
    let folder = |place: &StorePlace| Layout::new(&place.data_dir).store();
    match command {
        Store::Status(place) => show(&maintenance::status(&folder(&place))?),
        Store::Verify(place) => {
            let status = maintenance::verify(&folder(&place))?;
            show(&status);
            println!("every checksum is right and no revision is missing");
        }
        Store::Snapshot { file, place } => {
            let (revision, bytes) = maintenance::snapshot(&folder(&place), &file)?;
            println!("revision {revision}, {bytes} bytes, written to {}", file.display());
        }
        Store::Restore { file, place } => {
            // Before the folder is made: a mistyped name must leave nothing.
            std::fs::File::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let layout = Layout::new(&place.data_dir);
            layout.open()?;
            // Watchers that saw revisions after the snapshot must not see them again with other contents.
            let revision = maintenance::restore(&file, &layout.store(), SKIPPED)?;
            println!("restored; the store goes on at revision {revision}");
        }
        Store::Compact(place) => {
            let (before, after) = maintenance::compact(&folder(&place))?;
            println!("{before} bytes before, {after} bytes after");
        }
        Store::Encrypt { encryption_provider_config, etcd, place } => {
            let flags = EncryptionFlags { encryption_provider_config, ..EncryptionFlags::default() };
            server::runtime()?.block_on(encrypt(&flags, &etcd, &place))?;
        }
        Store::ToEtcd { etcd, place } => {
            reachable(&etcd)?;
            // A mistyped folder is not made.
            maintenance::status(&folder(&place))?;
            let copied = server::runtime()?.block_on(async {
                let from = Embedded::open(&folder(&place), embedded::Options::default())?;
                anyhow::Ok(transfer::copy(&from, &etcd.connect().await?, REGISTRY, lifetime).await?)
            })?;
            println!("{} keys of revision {} are in etcd", copied.keys, copied.revision);
        }
        Store::FromEtcd { etcd, place } => {
            reachable(&etcd)?;
            let layout = Layout::new(&place.data_dir);
            let copied = server::runtime()?.block_on(async {
                // Before the folder is made: an etcd that is not there must leave nothing.
                let from = WatchCache::open(etcd.connect().await?, REGISTRY).await?;
                layout.open()?;
                let to = Embedded::open(&layout.store(), embedded::Options::default())?;
                anyhow::Ok(transfer::copy(&from, &to, REGISTRY, lifetime).await?)
            })?;
            println!("{} keys of etcd's revision {} are in the store", copied.keys, copied.revision);
        }
        Store::AcceptLoss(place) => match maintenance::accept_loss(&folder(&place), SKIPPED)? {
            None => println!("nothing is lost; nothing was changed"),
            Some(accepted) => {
                println!("{}", accepted.why);
                println!("read up to revision {}: {} keys", accepted.found, accepted.keys);
                println!("the store goes on at revision {} with these", accepted.revision);
                for name in accepted.kept {
                    println!("kept: {}", folder(&place).join(name).display());
                }
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn reachable(etcd: &EtcdFlags) -> anyhow::Result<()> {
    anyhow::ensure!(!etcd.etcd_servers.is_empty(), "say where the etcd is, with --etcd-servers");
    etcd.check()
}

/// Rewrites what is stored. A server that runs on the embedded store does it; on etcd it is done from here, beside servers.
async fn encrypt(flags: &EncryptionFlags, etcd: &EtcdFlags, place: &StorePlace) -> anyhow::Result<()> {
    etcd.check()?;
    let layout = Layout::new(&place.data_dir);
    if etcd.etcd_servers.is_empty() && layout.holder().is_some() {
        let kubeconfig = layout.admin_kubeconfig();
        let url = Kubeconfig::read(&kubeconfig)?.first_cluster().and_then(|cluster| cluster.server.clone());
        let answer = client::rest::post(&client::from_kubeconfig(&kubeconfig)?, apiserver::router::REWRITE).await;
        let answer = answer.map_err(|error| reach::explain(&url.unwrap_or_default(), &error))?;
        let done: Done = serde_json::from_slice(&answer).context("the server answered something else")?;
        // The keys of a file that the server does not follow would be taken for those in use.
        if let Some(file) = &flags.encryption_provider_config {
            done.by(file)?;
        }
        return done.show();
    }
    let below: Arc<dyn store::Store> = if etcd.etcd_servers.is_empty() {
        // A mistyped folder is not made.
        maintenance::status(&layout.store())?;
        Arc::new(Embedded::open(&layout.store(), embedded::Options::default())?)
    } else {
        Arc::new(WatchCache::open(etcd.connect().await?, REGISTRY).await?)
    };
    Done::of(AtRest::open(flags, &layout, below).await?.rewrite().await?).show()
}

/// Revisions that a restored store leaves out.
const SKIPPED: u64 = 1_000_000;

fn show(status: &Status) {
    println!("{:<18} {}", "revision", status.figures.revision);
    println!("{:<18} {}", "keys", status.figures.keys);
    println!("{:<18} {} bytes in {} writes since the newest snapshot", "log", status.log_bytes, status.frames);
    println!("{:<18} {}", "newest snapshot", status.snapshot.map_or("none".to_owned(), |r| format!("revision {r}")));
    println!("{:<18} {} bytes", "all files", status.file_bytes);
    if let Some(torn) = &status.torn {
        println!("{:<18} {torn}; the next start cuts it off", "unfinished write");
    }
    let user = match status.used_by {
        Use::Nobody => "nobody".to_owned(),
        Use::Process(pid) => format!("process {pid}"),
        Use::AnotherProcess => "another process".to_owned(),
    };
    println!("{:<18} {user}", "in use by");
}
