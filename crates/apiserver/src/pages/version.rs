//! `/version`: the Kubernetes version that is served, and what this program was built from.

use api::{
    Value,
    codec::encode,
    schema::{self, Type},
};
use json::json;
pub use meter::build::Build;

/// The page's text.
pub fn page(build: &Build) -> String {
    let ty = schema::of("io.k8s.apimachinery.pkg.version.Info").unwrap_or(&Type::Any);
    String::from_utf8(encode::text(ty, &info(build))).unwrap_or_default()
}

/// The version information.
fn info(build: &Build) -> Value {
    let facts = build.facts();
    let fact = |name: &str| facts.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value.as_str());
    let (major, minor) = (fact("major"), fact("minor"));
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "34",
        "gitVersion": fact("git_version"), "gitCommit": fact("git_commit"), "gitTreeState": fact("git_tree_state"),
        "buildDate": fact("build_date"), "goVersion": fact("go_version"), "compiler": fact("compiler"),
        "platform": fact("platform"),
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
