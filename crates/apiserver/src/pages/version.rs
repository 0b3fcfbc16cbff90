//! `/version`: the Kubernetes version that is served, and what this program was built from.

use api::{
    Value,
    codec::encode,
    schema::{self, Type},
};
use json::json;
use meter::{Metric, labels, told};

static BUILD: Metric = Metric::gauge(
    "kubernetes_build_info",
    "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go \
     version, and compiler from which Kubernetes was built, and platform on which it is running.",
);

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

/// The page's text.
pub fn page(build: &Build) -> String {
    let ty = schema::of("io.k8s.apimachinery.pkg.version.Info").unwrap_or(&Type::Any);
    String::from_utf8(encode::text(ty, &info(build))).unwrap_or_default()
}

/// The same for `/metrics`.
pub fn metrics(build: &Build) -> String {
    let info = info(build);
    let text = |field| info[field].as_str().unwrap_or("");
    let pairs = [
        ("build_date", text("buildDate")),
        ("compiler", text("compiler")),
        ("git_commit", text("gitCommit")),
        ("git_tree_state", text("gitTreeState")),
        ("git_version", text("gitVersion")),
        ("go_version", text("goVersion")),
        ("major", text("major")),
        ("minor", text("minor")),
        ("platform", text("platform")),
    ];
    told(&BUILD, [(labels(&pairs), 1.0)])
}

/// The version information, of which the part behind the plus sign is ours.
fn info(build: &Build) -> Value {
    let version = api::KUBERNETES_VERSION;
    let (major, minor) = api::release();
    let arch = api::rules::platform::architecture(std::env::consts::ARCH);
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "34",
        "gitVersion": format!("{version}+skiff"), "gitCommit": build.commit, "gitTreeState": build.tree,
        "buildDate": build.date, "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{arch}", std::env::consts::OS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_the_program_was_built_from() {
        let page = info(&Build { commit: "0123", tree: "dirty", date: "2026-11-22T20:00:00Z" });
        for (field, expected) in [
            ("gitCommit", "0123"),
            ("gitTreeState", "dirty"),
            ("buildDate", "2026-11-22T20:00:00Z"),
            ("gitVersion", "v1.35.0+skiff"),
            ("major", "1"),
            ("minor", "35"),
        ] {
            assert_eq!(page[field], expected, "{field}");
        }
    }
}
