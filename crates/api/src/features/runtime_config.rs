//! `--runtime-config`: which versions and kinds of the API are served. Stable versions are when nothing is said, others are
//! not.
//! Upstream counterpart: k8s.io/apiserver/pkg/server/resourceconfig.

use super::boolean;
use crate::kind::group::GROUPS;

/// The settings in upstream's grammar: `api/all`, `api/ga`, `api/beta`, `api/alpha`, `group/version`,
/// `group/version/resource`, each `=true` or `=false`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    said: Vec<(String, bool)>,
}

type Matcher = (&'static str, fn(&str) -> bool);

/// The words for many versions at once, the one that counts most first.
const MATCHERS: &[Matcher] = &[
    ("api/alpha", |version| stability(version) == "alpha"),
    ("api/beta", |version| stability(version) == "beta"),
    ("api/ga", is_stable),
    ("api/all", |_| true),
];

/// The stability behind the number of a version: `alpha` of `v1alpha3`, nothing of `v2`, `?` of a text that is no
/// version.
fn stability(version: &str) -> &str {
    const NONE: &str = "?";
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let Some(rest) = version.strip_prefix('v') else { return NONE };
    let word = rest.trim_matches(|c: char| c.is_ascii_digit());
    let numbers = rest.split_once(word).filter(|_| !word.is_empty());
    match numbers {
        None if digits(rest) => "",
        Some((major, minor)) if digits(major) && digits(minor) => word,
        _ => NONE,
    }
}

/// Whether a version is of the form `v1`.
pub(crate) fn is_stable(version: &str) -> bool {
    stability(version).is_empty()
}

impl RuntimeConfig {
    /// Reads what was said in one or several flags. The error is upstream's.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let parts = texts.iter().flat_map(|text| text.split(',')).filter(|part| !part.is_empty());
        let said: Vec<(&str, &str)> = parts.map(|part| part.split_once('=').unwrap_or((part, ""))).collect();
        let said: Vec<(&str, &str)> = said.into_iter().map(|(key, value)| (key.trim(), value.trim())).collect();
        if let [("api/all", "false")] = said[..] {
            return Err("invalid key with only api/all=false".to_owned());
        }
        let unknown = unknown_groups(&said)?;
        if !unknown.is_empty() {
            return Err(format!("unknown api groups {}", unknown.join(",")));
        }
        let said = said.into_iter().map(|(key, value)| Ok((key.to_owned(), meant(key, value)?)));
        said.collect::<Result<_, _>>().map(|said| RuntimeConfig { said })
    }

    /// The last setting of a key.
    fn of(&self, key: &str) -> Option<bool> {
        self.said.iter().rev().find(|(said, _)| said == key).map(|(_, on)| *on)
    }

    /// Whether a resource is served that is `by_default` when nothing is said about it.
    pub fn serves(&self, group: &str, version: &str, plural: &str, by_default: bool) -> bool {
        let of_version = || self.of(&format!("{group}/{version}"));
        let matching = || {
            let matching = MATCHERS.iter().filter(|(_, matches)| matches(version));
            matching.filter_map(|(key, _)| self.of(key)).next()
        };
        let explicit = self.of(&format!("{group}/{version}/{plural}"));
        explicit.or_else(of_version).or_else(matching).unwrap_or(by_default)
    }

    /// The versions and resources that were asked for by name and of which nothing is `there`.
    pub fn missing(&self, there: impl Fn(&str, &str, Option<&str>) -> bool) -> Vec<String> {
        let wanted = self.said.iter().filter(|(key, on)| *on && !is_matcher(key)).map(|(key, _)| key);
        let missing = wanted.filter(|key| {
            let mut parts = key.splitn(3, '/');
            let (group, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            !there(group, version, parts.next())
        });
        missing.cloned().collect()
    }
}

fn is_matcher(key: &str) -> bool {
    MATCHERS.iter().any(|(matcher, _)| *matcher == key)
}

/// The groups that nobody knows.
fn unknown_groups<'k>(said: &[(&'k str, &str)]) -> Result<Vec<&'k str>, String> {
    let mut unknown = Vec::new();
    for (key, _) in said.iter().filter(|(key, _)| !is_matcher(key)) {
        let parts: Vec<&str> = key.split('/').collect();
        if !matches!(parts.len(), 2 | 3) {
            return Err(format!("runtime-config invalid key {key}"));
        }
        if !GROUPS.iter().any(|group| group.name == parts[0]) {
            unknown.push(parts[0]);
        }
    }
    Ok(unknown)
}

/// Whether a key is switched on. Its group is known.
fn meant(key: &str, value: &str) -> Result<bool, String> {
    if is_matcher(key) {
        return match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("invalid value {key}={value}")),
        };
    }
    let mut parts = key.splitn(3, '/');
    let (group, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let group = GROUPS.iter().find(|known| known.name == group);
    if !group.is_some_and(|group| group.versions.iter().any(|(known, _)| *known == version)) {
        let name = group.map_or("", |group| group.name);
        return Err(format!("group version {name}/{version} that has not been registered"));
    }
    let on = if value.is_empty() { Ok(true) } else { boolean(value) };
    let on = on.map_err(|why| format!("invalid value of {key}: {value}, err: {why}"))?;
    match parts.next().filter(|resource| resource.to_lowercase() != *resource) {
        Some(resource) => Err(format!(
            "invalid key {key}: group/version/resource and resource is always lowercase plural, not {resource:?}"
        )),
        None => Ok(on),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RuntimeConfig, String> {
        RuntimeConfig::parse(&[text.to_owned()])
    }

    #[test]
    fn the_narrowest_word_counts() {
        let check = |text: &str, resource: &str, expected: bool| {
            let (version, plural) = resource.rsplit_once('/').unwrap_or_default();
            let (group, version) = version.split_once('/').unwrap_or_default();
            let served = parse(text).expect(text).serves(group, version, plural, is_stable(version));
            assert_eq!(served, expected, "{text}: {resource}");
        };
        let (stable, beta, alpha) = (
            "apps/v1/deployments",
            "certificates.k8s.io/v1beta1/clustertrustbundles",
            "scheduling.k8s.io/v1alpha1/workloads",
        );
        for (text, expected) in [
            ("", [true, false, false]),
            ("api/all=true", [true, true, true]),
            ("api/beta=true", [true, true, false]),
            ("api/alpha=true", [true, false, true]),
            ("api/ga=false,api/beta=true", [false, true, false]),
            ("api/all=false,api/ga=true", [true, false, false]),
            ("api/all=true,api/alpha=false", [true, true, false]),
            ("scheduling.k8s.io/v1alpha1=true", [true, false, true]),
            ("scheduling.k8s.io/v1alpha1", [true, false, true]),
            ("api/alpha=true,scheduling.k8s.io/v1alpha1=false", [true, false, false]),
            ("certificates.k8s.io/v1beta1/clustertrustbundles=true", [true, true, false]),
            ("certificates.k8s.io/v1beta1/podcertificaterequests=true", [true, false, false]),
            (
                "certificates.k8s.io/v1beta1=true,certificates.k8s.io/v1beta1/clustertrustbundles=false",
                [true, false, false],
            ),
            ("apps/v1=false", [false, false, false]),
            ("apps/v1=false,apps/v1=true", [true, false, false]),
        ] {
            for (resource, expected) in [stable, beta, alpha].into_iter().zip(expected) {
                check(text, resource, expected);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        let check = |text: &str, expected: &str| assert_eq!(parse(text).expect_err(text), expected);
        check("api/all=false", "invalid key with only api/all=false");
        check("api/all=yes", "invalid value api/all=yes");
        check("api/beta", "invalid value api/beta=");
        check("v1=true", "runtime-config invalid key v1");
        check("a/b/c/d=true", "runtime-config invalid key a/b/c/d");
        check("example.org/v1=true,other/v1=true,apps/v1=true", "unknown api groups example.org,other");
        check("apps/v7=true", "group version apps/v7 that has not been registered");
        check("apps/v1=x", "invalid value of apps/v1: x, err: strconv.ParseBool: parsing \"x\": invalid syntax");
        check(
            "apps/v1/Deployments=true",
            "invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not \
             \"Deployments\"",
        );
    }

    #[test]
    fn versions_have_a_stability() {
        for (version, expected) in [
            ("v1", ""),
            ("v10", ""),
            ("v1alpha1", "alpha"),
            ("v2beta13", "beta"),
            ("v1beta", "?"),
            ("1", "?"),
            ("v", "?"),
        ] {
            assert_eq!(stability(version), expected, "{version}");
        }
    }
}
