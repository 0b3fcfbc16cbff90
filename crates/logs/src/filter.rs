//! Which events are written: those that `--log` lets through by target and level, and those that the verbosity of klog asks for, of the
//! whole program or of single files.

use std::{fmt, str::FromStr};

use tracing::{Level, level_filters::LevelFilter};

/// Levels above this one show nothing more.
pub const NOTHING_MORE: u32 = 6;
/// The verbosity from which debug messages are written: upstream's for what a developer follows.
const DEBUG: u32 = 4;

/// Libraries tell of every frame and every handshake, headers with credentials among it: no verbosity shows that, and `--log` only by
/// their names.
const QUIET: [&str; 8] = ["hyper", "h2", "rustls", "tower", "kube_client", "netlink", "netlink_proto", "tonic"];

/// The smallest verbosity at which a message is written.
pub fn verbosity_of(level: Level) -> u32 {
    match level {
        Level::TRACE => NOTHING_MORE,
        Level::DEBUG => DEBUG,
        _ => 0,
    }
}

/// A part of `--vmodule`: files, and the verbosity of what they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pattern: String,
    verbosity: u32,
}

impl Module {
    /// The pattern is for the file's name without its ending, as with klog. With slashes it is for as many folders before the name too:
    /// many files here are called `mod.rs`.
    pub fn new(pattern: &str, verbosity: u32) -> Result<Self, String> {
        if pattern.is_empty() {
            return Err("the pattern of a file is empty".to_owned());
        }
        if pattern.contains(['=', ',']) || pattern.len() > 256 {
            return Err(format!("{pattern:?} is no pattern of files: it has `=`, `,` or more than 256 letters"));
        }
        Ok(Module { pattern: pattern.to_owned(), verbosity })
    }

    fn is_about(&self, file: &str) -> bool {
        let file = file.strip_suffix(".rs").unwrap_or(file);
        let wanted: Vec<&str> = self.pattern.split('/').collect();
        let parts: Vec<&str> = file.rsplit('/').take(wanted.len()).collect();
        parts.len() == wanted.len() && wanted.iter().zip(parts.iter().rev()).all(|(w, p)| matches(w, p))
    }
}

impl FromStr for Module {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not of the form pattern=N");
        let (pattern, verbosity) = text.split_once('=').ok_or_else(wrong)?;
        let verbosity = verbosity.parse::<i32>().ok().and_then(|v| u32::try_from(v).ok()).ok_or_else(wrong)?;
        Module::new(pattern, verbosity)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.verbosity)
    }
}

/// Whether a name is of a pattern with `*` and `?`. The time is the product of both lengths at most.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(sign) if *sign == b'?' || *sign == name[of] => (at, of) = (at + 1, of + 1),
            _ => match star {
                // The last star takes one letter more.
                Some((star_at, star_of)) => {
                    (at, of) = (star_at + 1, star_of + 1);
                    star = Some((star_at, star_of + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|sign| *sign == b'*')
}

#[derive(Debug)]
pub struct Filter {
    /// The level of everything that no target names.
    usual: LevelFilter,
    /// Beginnings of targets, and their levels.
    targets: Vec<(String, LevelFilter)>,
    modules: Vec<Module>,
}

impl Filter {
    pub fn new(text: &str, modules: Vec<Module>) -> Result<Self, String> {
        let quiet = QUIET.iter().map(|target| ((*target).to_owned(), LevelFilter::WARN));
        let mut filter = Filter { usual: LevelFilter::ERROR, targets: quiet.collect(), modules };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || format!("--log {text:?} is not a filter; write a level or target=level,…");
            let (target, level) = match (part.split_once('='), part.parse()) {
                (Some((target, level)), _) => (target, level.parse().map_err(|_| wrong())?),
                (None, Ok(level)) => ("", level),
                (None, Err(_)) => (part, LevelFilter::TRACE),
            };
            if !target.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.')) {
                return Err(wrong());
            }
            match target {
                "" => filter.usual = level,
                target => filter.targets.push((target.to_owned(), level)),
            }
        }
        Ok(filter)
    }

    pub fn wants(&self, target: &str, level: Level, file: Option<&str>, verbosity: u32) -> bool {
        // The longest beginning counts, and of equal ones the last.
        let named = self.targets.iter().filter(|(beginning, _)| target.starts_with(beginning));
        let of_target = named.max_by_key(|(beginning, _)| beginning.len()).map_or(self.usual, |(_, level)| *level);
        if level <= of_target {
            return true;
        }
        let is_quiet = QUIET.iter().any(|beginning| target.starts_with(beginning));
        !is_quiet && verbosity_of(level) > 0 && self.asked_for(file, verbosity) >= verbosity_of(level)
    }

    fn asked_for(&self, file: Option<&str>, verbosity: u32) -> u32 {
        let module = file.and_then(|file| self.modules.iter().find(|module| module.is_about(file)));
        verbosity.max(module.map_or(0, |module| module.verbosity))
    }

    /// No event beyond this level is written.
    pub fn most(&self, verbosity: u32) -> LevelFilter {
        let by_target = self.targets.iter().map(|(_, level)| *level).fold(self.usual, LevelFilter::max);
        let most = self.modules.iter().map(|module| module.verbosity).fold(verbosity, u32::max);
        by_target.max(match most {
            NOTHING_MORE.. => LevelFilter::TRACE,
            DEBUG.. => LevelFilter::DEBUG,
            _ => LevelFilter::OFF,
        })
    }

    /// As much as any library may say that speaks through `log`.
    pub fn most_of_libraries(&self) -> log::LevelFilter {
        match self.most(0).into_level() {
            None => log::LevelFilter::Off,
            Some(Level::ERROR) => log::LevelFilter::Error,
            Some(Level::WARN) => log::LevelFilter::Warn,
            Some(Level::INFO) => log::LevelFilter::Info,
            Some(Level::DEBUG) => log::LevelFilter::Debug,
            Some(Level::TRACE) => log::LevelFilter::Trace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_levels_say_what_is_written() {
        let check = |text: &str, target: &str, level: Level, expected: bool| {
            let filter = Filter::new(text, Vec::new()).unwrap();
            assert_eq!(filter.wants(target, level, None, 0), expected, "{text}: {target} {level}");
        };
        check("info", "kubelet::pod", Level::INFO, true);
        check("info", "kubelet::pod", Level::DEBUG, false);
        check("info", "h2::codec", Level::INFO, false);
        check("info", "rustls::conn", Level::WARN, true);
        check("warn,kubelet=debug", "kubelet::pod", Level::DEBUG, true);
        check("warn,kubelet=debug,kubelet::pod=info", "kubelet::pod", Level::DEBUG, false);
        check("h2=trace", "h2::codec", Level::TRACE, true);
        check("h2=trace", "kubelet", Level::WARN, false);
        check("waypoint", "waypoint", Level::TRACE, true);
        check("off", "kubelet", Level::ERROR, false);
        for wrong in ["kubelet=loud", "a b", "[span]=info", "a=b=c"] {
            assert!(Filter::new(wrong, Vec::new()).unwrap_err().contains("is not a filter"), "{wrong}");
        }
    }

    #[test]
    fn the_verbosity_shows_more_of_the_program_and_nothing_more_of_libraries() {
        let filter = Filter::new("info", vec!["work*=4".parse().unwrap(), "http/mod=6".parse().unwrap()]).unwrap();
        let check = |target: &str, level: Level, file: &str, verbosity: u32, expected: bool| {
            assert_eq!(filter.wants(target, level, Some(file), verbosity), expected, "{level} {file} {verbosity}");
        };
        check("kubelet", Level::DEBUG, "crates/kubelet/src/run.rs", 3, false);
        check("kubelet", Level::DEBUG, "crates/kubelet/src/run.rs", 4, true);
        check("kubelet", Level::TRACE, "crates/kubelet/src/run.rs", 5, false);
        check("kubelet", Level::TRACE, "crates/kubelet/src/run.rs", 6, true);
        check("kubelet", Level::DEBUG, "crates/kubelet/src/pod/worker.rs", 0, true);
        check("kubelet", Level::TRACE, "crates/kubelet/src/pod/worker.rs", 0, false);
        check("apiserver", Level::TRACE, "crates/apiserver/src/http/mod.rs", 0, true);
        check("apiserver", Level::TRACE, "crates/apiserver/src/auth/mod.rs", 0, false);
        check("h2", Level::DEBUG, "h2/src/work.rs", 10, false);
        assert_eq!(filter.most(0), LevelFilter::TRACE);
        let plain = Filter::new("warn", Vec::new()).unwrap();
        let most = [0, 3, 4, 5, 6, u32::MAX].map(|v| plain.most(v).into_level());
        use Level as L;
        assert_eq!(most, [L::WARN, L::WARN, L::DEBUG, L::DEBUG, L::TRACE, L::TRACE].map(Some));
        assert_eq!(plain.most_of_libraries(), log::LevelFilter::Warn);
    }

    #[test]
    fn patterns_are_of_files() {
        let check = |pattern: &str, file: &str, expected: bool| {
            assert_eq!(Module::new(pattern, 1).unwrap().is_about(file), expected, "{pattern} {file}");
        };
        check("worker", "crates/kubelet/src/pod/worker.rs", true);
        check("work", "crates/kubelet/src/pod/worker.rs", false);
        check("w?rk*r", "worker.rs", true);
        check("*", "worker.rs", true);
        check("**r", "worker.rs", true);
        check("pod/*", "crates/kubelet/src/pod/worker.rs", true);
        check("pod/worker", "worker.rs", false);
        check(&"*a".repeat(100), &"a".repeat(4000), true);
        check(&format!("{}b", "*a".repeat(100)), &"a".repeat(4000), false);
        for wrong in ["", "=3", "a", "a=", "a=-1", "a=x", "a=4294967295"] {
            assert!(wrong.parse::<Module>().is_err(), "{wrong}");
        }
        assert_eq!("a*=3".parse::<Module>().unwrap().to_string(), "a*=3");
    }
}
