//! How strict a namespace is, and with which release's rules: what the `pod-security.kubernetes.io` labels say.

use std::fmt;

use api::validation::field::{FieldError, Path};
use json::Map;

/// From what allows everything to what allows least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    /// The error is in upstream's words.
    pub fn parse(text: &str) -> Result<Level, &'static str> {
        match text {
            "privileged" => Ok(Level::Privileged),
            "baseline" => Ok(Level::Baseline),
            "restricted" => Ok(Level::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The release whose rules count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// `v1.N`.
    Minor(i64),
    Latest,
}

impl Version {
    /// `latest` or `v1.N` without leading zeros.
    pub fn parse(text: &str) -> Result<Version, &'static str> {
        const WRONG: &str = "must be \"latest\" or \"v1.x\"";
        if text == "latest" {
            return Ok(Version::Latest);
        }
        let digits = text.strip_prefix("v1.").ok_or(WRONG)?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits.len() == 1 || !digits.starts_with('0'));
        digits.parse::<i64>().ok().filter(|_| plain).map(Version::Minor).ok_or(WRONG)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Minor(minor) => write!(f, "v1.{minor}"),
            Version::Latest => f.write_str("latest"),
        }
    }
}

/// A level in the form that it has in one release: `baseline:v1.30`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standard {
    pub level: Level,
    pub version: Version,
}

impl Standard {
    pub const PRIVILEGED: Standard = Standard { level: Level::Privileged, version: Version::Latest };

    /// Whether both demand one and the same standard: the privileged level demands nothing in any version.
    fn is_like(self, other: Standard) -> bool {
        self == other || (self.level == Level::Privileged && other.level == Level::Privileged)
    }
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// The demands of a namespace, by mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Pods that violate it are refused.
    pub enforce: Standard,
    /// Violations go into the annotations of the request, for an audit log.
    pub audit: Standard,
    /// Violations are told to the client.
    pub warn: Standard,
}

/// The labels by mode: that of the level, and that of the version.
pub const ENFORCE: [&str; 2] = ["pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"];
pub const AUDIT: [&str; 2] = ["pod-security.kubernetes.io/audit", "pod-security.kubernetes.io/audit-version"];
pub const WARN: [&str; 2] = ["pod-security.kubernetes.io/warn", "pod-security.kubernetes.io/warn-version"];

impl Policy {
    pub const PRIVILEGED: Policy =
        Policy { enforce: Standard::PRIVILEGED, audit: Standard::PRIVILEGED, warn: Standard::PRIVILEGED };

    /// Whether no mode demands anything.
    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|s| s.level == Level::Privileged)
    }

    pub fn is_like(&self, other: &Policy) -> bool {
        let pairs = [(self.enforce, other.enforce), (self.audit, other.audit), (self.warn, other.warn)];
        pairs.iter().all(|(one, two)| one.is_like(*two))
    }

    /// The policy that a namespace with these labels demands, and the mistakes in the labels. A label that cannot be
    /// understood enforces the strictest level in its newest form; in the modes that only tell, it tells nothing.
    pub fn of(labels: Option<&Map>, defaults: &Policy) -> (Policy, Vec<FieldError>) {
        let mut policy = *defaults;
        let Some(labels) = labels.filter(|l| !l.is_empty()) else { return (policy, Vec::new()) };
        let mut read = Labels { labels, errors: Vec::new() };
        let enforced = read.level(ENFORCE[0], Level::Restricted, &mut policy.enforce.level);
        read.version(ENFORCE[1], &mut policy.enforce.version);
        read.level(AUDIT[0], Level::Privileged, &mut policy.audit.level);
        read.version(AUDIT[1], &mut policy.audit.version);
        read.level(WARN[0], Level::Privileged, &mut policy.warn.level);
        read.version(WARN[1], &mut policy.warn.version);
        // A namespace that enforces more than it warns of warns of workloads too, whose Pods would be refused later.
        if enforced && !labels.contains_key(WARN[0]) && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !labels.contains_key(WARN[1]) {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, read.errors)
    }
}

struct Labels<'a> {
    labels: &'a Map,
    errors: Vec<FieldError>,
}

impl Labels<'_> {
    /// Sets the level when its label is there; true when the label is there and understood.
    fn level(&mut self, label: &str, otherwise: Level, level: &mut Level) -> bool {
        let Some(text) = self.text(label) else { return false };
        let parsed = Level::parse(&text).map_err(|why| self.wrong(label, &text, why));
        *level = parsed.unwrap_or(otherwise);
        parsed.is_ok()
    }

    fn version(&mut self, label: &str, version: &mut Version) {
        let Some(text) = self.text(label) else { return };
        let parsed = Version::parse(&text).map_err(|why| self.wrong(label, &text, why));
        *version = parsed.unwrap_or(Version::Latest);
    }

    fn text(&self, label: &str) -> Option<String> {
        self.labels.get(label).map(|value| value.as_str().unwrap_or("").to_owned())
    }

    fn wrong(&mut self, label: &str, text: &str, why: &str) {
        let path = Path::new("metadata").child("labels").key(label);
        self.errors.push(FieldError::invalid(&path, text, why));
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    /// Labels as `enforce=baseline warn-version=v1.2`, the policy as `enforce audit warn`, errors behind it.
    fn check(defaults: &Policy, labels: &str, expected: &str) {
        let map = labels.split_whitespace().map(|pair| {
            let (key, value) = pair.split_once('=').unwrap();
            (format!("pod-security.kubernetes.io/{key}"), json!(value))
        });
        let (policy, errors) = Policy::of(Some(&map.collect()), defaults);
        let mut shown = format!("{} {} {}", policy.enforce, policy.audit, policy.warn);
        for error in &errors {
            shown.push_str(&format!("; {error}"));
        }
        assert_eq!(shown.replace("metadata.labels[pod-security.kubernetes.io/", "["), expected, "{labels}");
    }

    #[test]
    fn labels_override_the_defaults_one_by_one() {
        let none = Policy::PRIVILEGED;
        check(&none, "", "privileged:latest privileged:latest privileged:latest");
        check(&none, "enforce=baseline", "baseline:latest privileged:latest baseline:latest");
        check(&none, "enforce=restricted enforce-version=v1.0", "restricted:v1.0 privileged:latest restricted:v1.0");
        check(&none, "warn=restricted", "privileged:latest privileged:latest restricted:latest");
        check(&none, "audit=baseline", "privileged:latest baseline:latest privileged:latest");
        check(&none, "enforce=baseline warn=restricted", "baseline:latest privileged:latest restricted:latest");
        let version = "enforce=baseline enforce-version=v1.22";
        check(&none, version, "baseline:v1.22 privileged:latest baseline:v1.22");
        check(&none, "enforce=baseline warn=privileged", "baseline:latest privileged:latest privileged:latest");
        check(&none, "enforce=restricted warn=baseline", "restricted:latest privileged:latest baseline:latest");
        let versions = "enforce=baseline enforce-version=v1.9 warn-version=v1.8";
        check(&none, versions, "baseline:v1.9 privileged:latest baseline:v1.8");
        let latest = "enforce=baseline enforce-version=v1.22 warn-version=latest";
        check(&none, latest, "baseline:v1.22 privileged:latest baseline:latest");
        check(&none, "enforce=baseline warn-version=v1.23", "baseline:latest privileged:latest baseline:v1.23");
        let all = "enforce=baseline enforce-version=v1.20 warn=restricted warn-version=v1.21 audit=restricted \
                   audit-version=v1.22";
        check(&none, all, "baseline:v1.20 restricted:v1.22 restricted:v1.21");
        check(&none, "audit=baseline audit-version=v1.2", "privileged:latest baseline:v1.2 privileged:latest");
        let strict = Standard { level: Level::Restricted, version: Version::Minor(20) };
        let strict = Policy { enforce: strict, audit: strict, warn: strict };
        check(&strict, "app=x", "restricted:v1.20 restricted:v1.20 restricted:v1.20");
        check(&strict, "enforce=privileged", "privileged:v1.20 restricted:v1.20 restricted:v1.20");
        assert_eq!(Policy::of(None, &strict), (strict, Vec::new()));
    }

    #[test]
    fn what_is_not_understood_enforces_most_and_tells_least() {
        const LEVEL: &str = "must be one of privileged, baseline, restricted";
        const VERSION: &str = "must be \"latest\" or \"v1.x\"";
        let all = |policy: &str, errors: &[(&str, &str, &str)]| {
            let tail = errors.iter().map(|(l, v, why)| format!("; [{l}]: Invalid value: {v:?}: {why}"));
            format!("{policy}{}", tail.collect::<String>())
        };
        let none = Policy::PRIVILEGED;
        let expected =
            all("restricted:latest privileged:latest privileged:latest", &[("enforce", "Restricted", LEVEL)]);
        check(&none, "enforce=Restricted", &expected);
        let tells =
            all("privileged:latest privileged:latest privileged:latest", &[("audit", "x", LEVEL), ("warn", "", LEVEL)]);
        check(&none, "audit=x warn=", &tells);
        let warned = all("baseline:latest privileged:latest privileged:latest", &[("warn", "foo", LEVEL)]);
        check(&none, "enforce=baseline warn=foo", &warned);
        for version in [
            "",
            "foo",
            "v1",
            "v2.0",
            "1.1",
            "1.2",
            "v1.02",
            "v1.+2",
            "v1.",
            "v2.1",
            "v1.2.3",
            "Latest",
            "v1.99999999999999999999",
            "v1.2 ",
        ] {
            let labels = json!({"pod-security.kubernetes.io/enforce-version": version});
            let (policy, errors) = Policy::of(labels.as_object(), &none);
            assert_eq!((policy.enforce.version, errors.len()), (Version::Latest, 1), "{version}");
            assert!(errors[0].detail.ends_with(VERSION), "{}", errors[0].detail);
        }
        assert_eq!(Version::parse("v1.0"), Ok(Version::Minor(0)));
        assert_eq!(Version::parse("v1.135"), Ok(Version::Minor(135)));
        assert_eq!(Version::parse("v1.10000"), Ok(Version::Minor(10000)));
        assert_eq!(Version::parse("latest"), Ok(Version::Latest));
        assert!(Version::Minor(135) < Version::Latest);
    }

    fn standard(text: &str) -> Standard {
        let (level, version) = text.split_once(':').unwrap();
        Standard { level: Level::parse(level).unwrap(), version: Version::parse(version).unwrap() }
    }

    #[test]
    fn what_demands_the_same_is_alike() {
        for (one, two, expected) in [
            ("privileged:latest", "privileged:latest", true),
            ("privileged:latest", "privileged:v1.16", true),
            ("privileged:v1.18", "privileged:v1.13", true),
            ("baseline:latest", "baseline:latest", true),
            ("baseline:v1.18", "baseline:v1.18", true),
            ("restricted:v1.30", "restricted:v1.30", true),
            ("baseline:latest", "baseline:v1.16", false),
            ("baseline:v1.18", "baseline:v1.13", false),
            ("restricted:v1.30", "restricted:v1.16", false),
            ("privileged:latest", "baseline:latest", false),
            ("baseline:latest", "restricted:latest", false),
            ("privileged:latest", "restricted:latest", false),
        ] {
            let (one, two) = (standard(one), standard(two));
            assert_eq!(one.is_like(two), expected, "{one} {two}");
            assert_eq!(two.is_like(one), expected, "{two} {one}");
        }
        let privileged = Policy { enforce: standard("privileged:v1.20"), ..Policy::PRIVILEGED };
        assert!(Policy::PRIVILEGED.is_privileged() && privileged.is_privileged());
        assert!(Policy::PRIVILEGED.is_like(&privileged));
        let audited = Policy { audit: standard("baseline:latest"), ..Policy::PRIVILEGED };
        assert!(!audited.is_privileged() && audited.is_like(&audited));
        assert!(!Policy::PRIVILEGED.is_like(&audited));
    }
}
