//! How images are pulled: how many at once and how fast, and by which images that are on the node a Pod's credentials are verified.
//! Upstream counterpart: pkg/kubelet/images/pullmanager/image_pull_policies.go.

use json::Value;
use runtime::reference;

/// The images for which nobody's credentials are verified: `registry.example/team/tool`, or all below `registry.example/team/*`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Allowlist {
    names: Vec<String>,
    beginnings: Vec<String>,
}

impl Allowlist {
    pub fn read(list: &Value) -> Result<Self, String> {
        let mut allowed = Allowlist::default();
        for pattern in list.as_array().ok_or("it must be a list")? {
            let pattern = pattern.as_str().ok_or("it must be a list of texts")?;
            allowed.add(pattern)?;
        }
        Ok(allowed)
    }

    fn add(&mut self, pattern: &str) -> Result<(), String> {
        let (beginning, is_wild) = match pattern.strip_suffix('*').filter(|rest| rest.ends_with('/')) {
            Some(beginning) => (beginning, true),
            None => (pattern, false),
        };
        match () {
            () if pattern != pattern.trim() => Err(format!("leading/trailing spaces are not allowed: {pattern}")),
            () if beginning.is_empty() => Err(format!("the supplied pattern is too short: {pattern}")),
            () if beginning.contains('*') => {
                Err(format!("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"))
            }
            () if is_wild && beginning.len() == 1 => Err("at least registry hostname is required".to_owned()),
            () if is_wild => {
                self.beginnings.push(beginning.to_owned());
                Ok(())
            }
            () => {
                let name =
                    reference::parse(beginning).map_err(|why| format!("failed to parse as an image name: {why}"))?;
                if name.repository != beginning {
                    return Err(format!(
                        "{pattern} must be the whole name of an image, without tag and digest, such as {}",
                        name.repository
                    ));
                }
                self.names.push(name.repository);
                Ok(())
            }
        }
    }

    fn has(&self, repository: &str) -> bool {
        self.names.iter().any(|name| name == repository)
            || self.beginnings.iter().any(|beginning| repository.starts_with(beginning))
    }
}

/// The images on the node whose users have to show that they could pull them.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Verification {
    Never,
    /// Those that the kubelet has pulled.
    #[default]
    NeverPreloaded,
    /// All but those of the list.
    NeverAllowlisted(Allowlist),
    Always,
}

impl Verification {
    pub fn read(name: &str) -> Result<Self, String> {
        match name {
            "NeverVerify" => Ok(Verification::Never),
            "" | "NeverVerifyPreloadedImages" => Ok(Verification::NeverPreloaded),
            "NeverVerifyAllowlistedImages" => Ok(Verification::NeverAllowlisted(Allowlist::default())),
            "AlwaysVerify" => Ok(Verification::Always),
            other => Err(format!(
                "{other:?} is none of NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify"
            )),
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Verification::Never => "NeverVerify",
            Verification::NeverPreloaded => "NeverVerifyPreloadedImages",
            Verification::NeverAllowlisted(_) => "NeverVerifyAllowlistedImages",
            Verification::Always => "AlwaysVerify",
        }
    }

    /// Whether users of an image on the node are verified. The name is that of the registry, without tag and digest.
    pub fn requires(&self, repository: &str, is_pulled: bool) -> bool {
        match self {
            Verification::Never => false,
            Verification::NeverPreloaded => is_pulled,
            Verification::NeverAllowlisted(list) => !list.has(repository),
            Verification::Always => true,
        }
    }
}

/// See the module. The values are upstream's where a configuration says nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Pulls {
    /// One image after the other; where a configuration says nothing, unless it lets several be pulled at once.
    pub serialize: Option<bool>,
    pub at_once: Option<usize>,
    /// Pulls that begin in a second; any number when 0.
    pub per_second: u32,
    pub burst: u32,
    pub verification: Verification,
}

impl Default for Pulls {
    fn default() -> Self {
        Pulls { serialize: None, at_once: None, per_second: 5, burst: 10, verification: Verification::default() }
    }
}

impl Pulls {
    pub fn is_serial(&self) -> bool {
        self.serialize.unwrap_or(self.at_once.is_none_or(|most| most < 2))
    }

    /// The images that are pulled at once; any number when `None`.
    pub fn most(&self) -> Option<usize> {
        if self.is_serial() { Some(1) } else { self.at_once }
    }

    /// Takes the list of images that are not verified, and checks that the values fit together.
    pub fn complete(&mut self, list: Option<Allowlist>) -> Result<(), String> {
        match (&mut self.verification, list) {
            (Verification::NeverAllowlisted(held), Some(list)) if list != Allowlist::default() => *held = list,
            (Verification::NeverAllowlisted(_), _) => {
                return Err(
                    "preloadedImagesVerificationAllowlist: NeverVerifyAllowlistedImages needs the images that it is about"
                        .to_owned(),
                );
            }
            (other, Some(list)) if list != Allowlist::default() => {
                return Err(format!(
                    "preloadedImagesVerificationAllowlist: it stands beside NeverVerifyAllowlistedImages alone, not {}",
                    other.name()
                ));
            }
            _ => {}
        }
        if self.at_once.is_some_and(|most| most > 1) && self.is_serial() {
            return Err(
                "maxParallelImagePulls: it cannot be larger than 1 unless serializeImagePulls is false".to_owned()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_policy_says_for_which_images_credentials_are_verified() {
        let listed = Allowlist::read(&json!(["r.io/team/*", "r.io/tool"])).unwrap();
        let check = |policy: &Verification, repository: &str, is_pulled: bool, expected: bool| {
            assert_eq!(policy.requires(repository, is_pulled), expected, "{policy:?} {repository} {is_pulled}");
        };
        for is_pulled in [true, false] {
            check(&Verification::Never, "r.io/a", is_pulled, false);
            check(&Verification::NeverPreloaded, "r.io/a", is_pulled, is_pulled);
            check(&Verification::Always, "r.io/a", is_pulled, true);
            let listed = Verification::NeverAllowlisted(listed.clone());
            for (repository, verified) in [
                ("r.io/team/a", false),
                ("r.io/team", true),
                ("r.io/tool", false),
                ("r.io/tools", true),
                ("evil.io/r.io/tool", true),
            ] {
                check(&listed, repository, is_pulled, verified);
            }
        }
    }

    #[test]
    fn lists_name_images_whole_or_by_the_beginning_of_their_path() {
        for (pattern, expected) in [
            (" r.io/a", "leading/trailing spaces are not allowed:  r.io/a"),
            ("", "the supplied pattern is too short: "),
            ("/*", "at least registry hostname is required"),
            ("r.io/a*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: r.io/a*"),
            ("*.io/*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: *.io/*"),
            (
                "busybox",
                "busybox must be the whole name of an image, without tag and digest, such as docker.io/library/busybox",
            ),
            ("r.io/a:1", "r.io/a:1 must be the whole name of an image, without tag and digest, such as r.io/a"),
            (
                "r.io/A",
                "failed to parse as an image name: invalid reference format: repository name (A) must be lowercase",
            ),
        ] {
            assert_eq!(Allowlist::read(&json!([pattern])).unwrap_err(), expected);
        }
    }
}
