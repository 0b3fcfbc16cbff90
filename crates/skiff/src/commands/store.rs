//! `skiff store`: looking after the embedded store of a cluster that does not run (or, to look only, of one that does).

use std::process::ExitCode;

use anyhow::Context;
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
    flags::{
        etcd::EtcdFlags,
        options::{Store, StorePlace},
    },
    layout::Layout,
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

/// What a cluster keeps in its store.
const REGISTRY: &str = "/registry/";

fn reachable(etcd: &EtcdFlags) -> anyhow::Result<()> {
    anyhow::ensure!(!etcd.etcd_servers.is_empty(), "say where the etcd is, with --etcd-servers");
    etcd.check()
}

/// Objects of some kinds live for so long; what is copied lives for that time again.
fn lifetime(key: &str) -> Option<u32> {
    let folder = key.strip_prefix(REGISTRY)?.split('/').next()?;
    api::kinds::built_in().all().iter().find(|d| d.storage_prefix == folder)?.lifetime_seconds
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
