//! The source that the program was built from, as every component tells it under upstream's name.

use std::sync::OnceLock;

use crate::{Metric, labels, told};

static BUILD: Metric = Metric::gauge(
    "kubernetes_build_info",
    "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go \
     version, and compiler from which Kubernetes was built, and platform on which it is running.",
);

static OF_PROGRAM: OnceLock<Build> = OnceLock::new();

/// The source that the program was built from.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    /// The commit of the source; empty where that was not known.
    pub commit: &'static str,
    /// `clean`, or `dirty` when something was not committed; empty like the commit.
    pub tree: &'static str,
    /// When the commit was made: the same source gives the same program.
    pub date: &'static str,
}

impl Default for Build {
    fn default() -> Self {
        Build { commit: "", tree: "", date: "1970-01-01T00:00:00Z" }
    }
}

impl Build {
    /// Says once, at its start, which source this program is of.
    pub fn is_of_program(self) {
        let _ = OF_PROGRAM.set(self);
    }

    /// The facts that are told of it, by the names of labels and in their order. The part of the version behind the plus sign is ours.
    pub fn facts(&self) -> [(&'static str, String); 9] {
        let (major, minor) = api::release();
        let arch = api::rules::platform::architecture(std::env::consts::ARCH);
        [
            ("build_date", self.date.to_owned()),
            ("compiler", "rustc".to_owned()),
            ("git_commit", self.commit.to_owned()),
            ("git_tree_state", self.tree.to_owned()),
            ("git_version", format!("{}+skiff", api::KUBERNETES_VERSION)),
            ("go_version", "none".to_owned()),
            ("major", major.to_string()),
            ("minor", minor.to_string()),
            ("platform", format!("{}/{arch}", std::env::consts::OS)),
        ]
    }

    /// The lines of a page of metrics.
    pub fn page(&self) -> String {
        let facts = self.facts();
        let pairs: Vec<(&str, &str)> = facts.iter().map(|(name, value)| (*name, value.as_str())).collect();
        told(&BUILD, [(labels(&pairs), 1.0)])
    }
}

/// The lines about this program.
pub fn page() -> String {
    OF_PROGRAM.get().copied().unwrap_or_default().page()
}
