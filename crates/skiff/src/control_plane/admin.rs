//! The administrator's kubeconfig, for this machine. The file is a person's to change (`kubectl config set-context` chooses a
//! namespace there): it is written anew only when it does not lead into the cluster any more.

use std::path::Path;

use pki::Pki;

/// Writes the file, unless one is there that holds all it takes to come in.
pub fn keep(path: &Path, pki: &Pki, port: u16) -> anyhow::Result<()> {
    let text = pki.kubeconfig(&format!("https://127.0.0.1:{port}"), "kubernetes-admin", &pki.admin()?);
    let held = std::fs::read_to_string(path).unwrap_or_default();
    // Its mode is seen to in either case.
    let text = if leads_in(&held, &text) { held } else { text };
    pki::folder::unless_it_cannot_be_kept(pki::file::keep(path, text.as_bytes()));
    Ok(())
}

/// The fields without which nobody comes in, or comes in elsewhere.
const ESSENTIAL: [&str; 4] =
    ["server: ", "certificate-authority-data: ", "client-certificate-data: ", "client-key-data: "];

/// Whether a file says what a fresh one says, in whatever order and whatever it says besides.
fn leads_in(held: &str, fresh: &str) -> bool {
    let said = |text: &str, field: &str| -> Vec<String> {
        let values = text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(field));
        values.map(|value| value.trim_matches('"').to_owned()).collect()
    };
    ESSENTIAL.iter().all(|field| said(fresh, field).iter().all(|value| said(held, field).contains(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_changed_stays_as_long_as_it_leads_in() {
        let folder = tempfile::tempdir().unwrap();
        let (path, pki) = (folder.path().join("admin.kubeconfig"), Pki::open(&folder.path().join("pki")).unwrap());
        let held = || std::fs::read_to_string(&path).unwrap();
        keep(&path, &pki, 6443).unwrap();
        let fresh = held();
        assert!(leads_in(&fresh, &fresh));
        // As kubectl writes it: other quotation marks, another order, a namespace.
        let changed =
            fresh.replace('"', "").replace("    cluster: skiff\n", "    cluster: skiff\n    namespace: mine\n");
        assert_ne!(changed, fresh);
        std::fs::write(&path, &changed).unwrap();
        keep(&path, &pki, 6443).unwrap();
        assert_eq!(held(), changed);
        // Elsewhere, as somebody else, or nowhere.
        keep(&path, &pki, 7443).unwrap();
        assert!(held().contains("127.0.0.1:7443"));
        let other = Pki::open(&folder.path().join("other")).unwrap();
        keep(&path, &other, 7443).unwrap();
        assert!(!leads_in(&held(), &fresh));
        std::fs::write(&path, "").unwrap();
        keep(&path, &pki, 6443).unwrap();
        assert_eq!(held(), fresh);
    }
}
