//! Sessions with iSCSI targets, as iscsiadm begins and ends them.

use super::{Chap, Disk};
use crate::volumes::remote::programs::{Failed, Programs};

pub const PROGRAM: &str = "iscsiadm";
/// iscsiadm's word for a session that is there already.
const SESSION_EXISTS: i32 = 15;
/// iscsiadm's word for what is not there.
const NOT_FOUND: i32 = 21;

/// The fields of a secret, of the node's side and of the target's.
const SECRETS: [&str; 4] = ["username", "password", "username_in", "password_in"];

/// The sessions of this node with a target, one for each portal.
pub struct Sessions<'a> {
    pub programs: &'a Programs,
    pub disk: &'a Disk,
    pub chap: &'a Chap,
}

impl Sessions<'_> {
    async fn run(&self, arguments: &[&str]) -> Result<String, Failed> {
        self.programs.run(PROGRAM, arguments).await
    }

    /// The portals of the target that this node has a session with.
    async fn open(&self) -> Result<Vec<String>, String> {
        match self.run(&["-m", "session"]).await {
            Ok(list) => Ok(portals(&list, &self.disk.iqn)),
            Err(failed) if failed.code == Some(NOT_FOUND) => Ok(Vec::new()),
            Err(failed) => Err(format!("iscsi: cannot list sessions: {failed}")),
        }
    }

    pub async fn any(&self) -> Result<bool, String> {
        Ok(!self.open().await?.is_empty())
    }

    /// Logs in at those portals where there is no session. The portals that work, unless none of the disk's does.
    pub async fn begin(&self, portals: &[String]) -> Result<Vec<String>, String> {
        let open = self.open().await?;
        let (mut work, mut last) = (Vec::new(), String::new());
        for portal in portals {
            let done = if open.contains(portal) { self.look_again(portal).await } else { self.log_in(portal).await };
            match done {
                Ok(()) => work.push(portal.clone()),
                Err(why) => last = why,
            }
        }
        if work.is_empty() && portals.len() == self.disk.portals.len() {
            return Err(format!("failed to get any path for iscsi disk, last err seen:\n{last}"));
        }
        Ok(work)
    }

    /// Disks that the target has got since the session began are found.
    async fn look_again(&self, portal: &str) -> Result<(), String> {
        let looked = self.run(&["-m", "node", "-p", portal, "-T", &self.disk.iqn, "--rescan"]).await;
        looked.map(drop).map_err(|failed| format!("iscsi: failed to rescan portal {portal}: {failed}"))
    }

    async fn log_in(&self, portal: &str) -> Result<(), String> {
        let (iqn, interface) = (self.disk.iqn.as_str(), self.disk.interface());
        let database = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", interface];
        let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", interface];
        // It may be there already; what matters is what follows.
        let _ = self.run(&[&database[..], &["-o", "new"]].concat()).await;
        if self.chap.discovery {
            self.authenticate(&database, "discovery.sendtargets.auth").await?;
        }
        if let Err(failed) = self.run(&[&database[..], &["--discover"]].concat()).await {
            let _ = self.run(&[&database[..], &["-o", "delete"]].concat()).await;
            return Err(format!("iscsi: failed to sendtargets to portal {portal}: {}", self.without_secrets(&failed)));
        }
        if self.chap.session {
            self.authenticate(&node, "node.session.auth").await?;
        }
        match self.run(&[&node[..], &["--login"]].concat()).await {
            Err(failed) if failed.code != Some(SESSION_EXISTS) => {
                let _ = self.run(&[&node[..], &["-o", "delete"]].concat()).await;
                return Err(format!("iscsi: failed to attach disk: {}", self.without_secrets(&failed)));
            }
            _ => {}
        }
        // The machine's next start must not wait for a target that no Pod may want any more.
        let manual = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        if let Err(failed) = self.run(&[&node[..], &manual].concat()).await {
            tracing::warn!(
                portal,
                iqn,
                failed = self.without_secrets(&failed),
                "iSCSI logs in at this portal at every start"
            );
        }
        Ok(())
    }

    /// Writes the secrets of the target into iscsiadm's database, in which the kernel's helper finds them. iscsiadm takes them as
    /// arguments and in no other way; they are in nothing that is logged or told.
    async fn authenticate(&self, place: &[&str], prefix: &str) -> Result<(), String> {
        let method = ("authmethod".to_owned(), "CHAP");
        let secrets = SECRETS.iter().filter_map(|field| {
            let value = self.chap.secrets.get(&format!("{prefix}.{field}")).filter(|value| !value.is_empty())?;
            Some(((*field).to_owned(), value.as_str()))
        });
        for (field, value) in std::iter::once(method).chain(secrets) {
            let name = format!("{prefix}.{field}");
            let update = ["-o", "update", "-n", &name, "-v", value];
            self.run(&[place, &update].concat()).await.map_err(|failed| {
                format!("iscsi: failed to update {name} for CHAP: {}", self.without_secrets(&failed))
            })?;
        }
        Ok(())
    }

    fn without_secrets(&self, failed: &Failed) -> String {
        let mut text = failed.to_string();
        for value in self.chap.secrets.values().filter(|value| !value.is_empty()) {
            text = text.replace(value.as_str(), "***");
        }
        text
    }

    /// An interface like the one that the volume names, with a name to log in by, where the volume has such a name.
    pub async fn make_interface(&self) -> Result<(), String> {
        let Some((name, initiator)) = &self.disk.own else { return Ok(()) };
        let (name, initiator) = (name.as_str(), initiator.as_str());
        let failed = |failed: Failed| format!("iscsi: failed to make interface {name}: {failed}");
        let like = self.run(&["-m", "iface", "-I", &self.disk.interface, "-o", "show"]).await.map_err(failed)?;
        if let Err(error) = self.run(&["-m", "iface", "-I", name, "-o", "new"]).await
            && error.code != Some(SESSION_EXISTS)
        {
            return Err(failed(error));
        }
        let copied = settings(&like).filter(|(field, _)| *field != "iface.initiatorname");
        for (field, value) in copied.chain([("iface.initiatorname", initiator)]) {
            let update = ["-m", "iface", "-I", name, "-o", "update", "-n", field, "-v", value];
            self.run(&update).await.map_err(failed)?;
        }
        Ok(())
    }

    pub async fn end(&self) -> Result<(), String> {
        let (iqn, interface) = (self.disk.iqn.as_str(), self.disk.interface());
        let is_gone = |done: Result<String, Failed>| match done {
            Err(failed) if failed.code != Some(NOT_FOUND) => Err(failed),
            _ => Ok(()),
        };
        for portal in &self.disk.portals {
            let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", interface];
            for last in [&["--logout"][..], &["-o", "delete"]] {
                let done = is_gone(self.run(&[&node[..], last].concat()).await);
                done.map_err(|failed| format!("iscsi: failed to detach disk of {iqn} at {portal}: {failed}"))?;
            }
        }
        if let Some((name, _)) = &self.disk.own {
            let done = is_gone(self.run(&["-m", "iface", "-I", name, "-o", "delete"]).await);
            done.map_err(|failed| format!("iscsi: failed to delete interface {name}: {failed}"))?;
        }
        Ok(())
    }
}

/// The portals of a target's sessions: each line is `tcp: [1] 10.0.0.1:3260,1 iqn.… (non-flash)`.
fn portals(list: &str, iqn: &str) -> Vec<String> {
    let of = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let portal = words.next()?.split(',').next()?;
        (words.next()? == iqn).then(|| portal.to_owned())
    };
    list.lines().filter_map(of).collect()
}

/// The settings of an interface as iscsiadm shows them, but for its name and what is not set.
fn settings(shown: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = shown.lines().filter_map(|line| line.split_once(" = "));
    let pairs = pairs.map(|(field, value)| (field.trim(), value.trim()));
    pairs.filter(|(field, value)| {
        *value != "<empty>" && *field != "iface.iscsi_ifacename" && field.starts_with("iface.")
    })
}
