//! Feature gates: which features there are, and which of them are on. The value is made once, from the flags, and passed to
//! whoever asks; nothing here is global.
//!
//! A gate that is on where upstream has it off, and of which nothing is here yet, changes nothing and is warned about.
//! Upstream counterpart: k8s.io/component-base/featuregate.

use std::fmt::Write as _;

mod runtime_config;
mod table;

pub use runtime_config::RuntimeConfig;
pub(crate) use runtime_config::is_stable;
pub use table::Feature;
use table::GATES;

/// How far a feature has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Stable,
    Deprecated,
}

impl Stage {
    /// As the metric has it.
    fn label(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Stable => "",
            Stage::Deprecated => "DEPRECATED",
        }
    }
}

/// The stage of a feature, whether it is on by default, and what it needs.
#[derive(Debug, Clone, Copy)]
struct Gate {
    stage: Stage,
    on: bool,
    locked: bool,
    /// The features that must be on for it to be on.
    needs: &'static [Feature],
    /// Whether anything here asks for it.
    acts: bool,
}

impl Gate {
    const ALPHA: Gate = Gate { stage: Stage::Alpha, on: false, locked: false, needs: &[], acts: false };
    const BETA: Gate = Gate { stage: Stage::Beta, on: true, ..Gate::ALPHA };
    const GA: Gate = Gate { stage: Stage::Stable, on: true, ..Gate::ALPHA };
    const DEPRECATED: Gate = Gate { stage: Stage::Deprecated, ..Gate::ALPHA };

    const fn on(self) -> Gate {
        Gate { on: true, ..self }
    }

    const fn off(self) -> Gate {
        Gate { on: false, ..self }
    }

    const fn locked(self) -> Gate {
        Gate { locked: true, ..self }
    }

    const fn needs(self, needs: &'static [Feature]) -> Gate {
        Gate { needs, ..self }
    }

    const fn acts(self) -> Gate {
        Gate { acts: true, ..self }
    }
}

impl Feature {
    fn all() -> impl Iterator<Item = Feature> {
        GATES.iter().map(|(feature, ..)| *feature)
    }

    fn gate(self) -> &'static Gate {
        &GATES[self as usize].2
    }

    pub fn name(self) -> &'static str {
        GATES[self as usize].1
    }

    pub fn named(name: &str) -> Option<Feature> {
        Feature::all().find(|feature| feature.name() == name)
    }

    pub fn stage(self) -> Stage {
        self.gate().stage
    }
}

const WORDS: usize = GATES.len().div_ceil(64);

/// Which features are on. Small, and copied freely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    on: [u64; WORDS],
}

impl Default for Features {
    /// As upstream has them when nothing is said.
    fn default() -> Self {
        let none = Features { on: [0; WORDS] };
        Feature::all().fold(none, |features, feature| features.with(feature, feature.gate().on))
    }
}

impl Features {
    pub fn enabled(&self, feature: Feature) -> bool {
        let place = feature as usize;
        self.on[place / 64] & (1 << (place % 64)) != 0
    }

    #[must_use]
    pub fn with(mut self, feature: Feature, on: bool) -> Self {
        let (place, bit) = (feature as usize / 64, 1 << (feature as usize % 64));
        self.on[place] = if on { self.on[place] | bit } else { self.on[place] & !bit };
        self
    }

    /// The defaults, changed by what the settings say one after another. A setting of one feature counts more than a
    /// setting of all of a stage. The error is upstream's: a feature that is on lacks what it needs.
    pub fn set(settings: &[Setting]) -> Result<Features, String> {
        let mut features = Features::default();
        let explicit = |feature| settings.iter().any(|s| s.feature == feature);
        for Setting { feature, on } in settings {
            let stage = match feature {
                Feature::AllAlpha => Some(Stage::Alpha),
                Feature::AllBeta => Some(Stage::Beta),
                _ => None,
            };
            features = features.with(*feature, *on);
            let implied = |f: &Feature| Some(f.stage()) == stage && !explicit(*f) && !is_special(*f);
            features = Feature::all().filter(implied).fold(features, |all, f| all.with(f, *on));
        }
        let wrong: Vec<String> = Feature::all().filter_map(|feature| features.lacking(feature)).collect();
        match wrong.as_slice() {
            [] => Ok(features),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    /// The error when a feature is on, and another that it needs is not.
    fn lacking(&self, feature: Feature) -> Option<String> {
        let off = feature.gate().needs.iter().filter(|needed| self.enabled(feature) && !self.enabled(**needed));
        let off: Vec<&str> = off.map(|needed| needed.name()).collect();
        let names = off.join(" ");
        let text = || format!("{} is enabled, but depends on features that are disabled: [{names}]", feature.name());
        (!off.is_empty()).then(text)
    }

    /// The warnings for a user who said this: gates that will go, and those of which nothing is here.
    pub fn warnings(&self, settings: &[Setting]) -> Vec<String> {
        let will_go = |s: &&Setting| matches!(s.feature.stage(), Stage::Stable | Stage::Deprecated);
        let will_go = settings.iter().filter(will_go).map(|Setting { feature, on }| {
            let stage = if feature.stage() == Stage::Stable { "GA" } else { "deprecated" };
            format!("Setting {stage} feature gate {}={on}. It will be removed in a future release.", feature.name())
        });
        let changed = |f: &Feature| self.enabled(*f) != f.gate().on && !f.gate().acts;
        let idle: Vec<String> =
            Feature::all().filter(changed).map(|f| format!("{}={}", f.name(), self.enabled(f))).collect();
        let idle = (!idle.is_empty()).then(|| format!("feature gates that change nothing here: {}", idle.join(", ")));
        will_go.chain(idle).collect()
    }

    /// The lines of the metric that says which features are on.
    pub fn metrics(&self) -> String {
        let name = "kubernetes_feature_enabled";
        let mut lines = format!(
            "# HELP {name} [BETA] This metric records the data about the stage and enablement of a k8s feature.\n\
             # TYPE {name} gauge\n"
        );
        for feature in Feature::all() {
            let (stage, on) = (feature.stage().label(), u8::from(self.enabled(feature)));
            let _ = writeln!(lines, "{name}{{name=\"{}\",stage=\"{stage}\"}} {on}", feature.name());
        }
        lines
    }
}

fn is_special(feature: Feature) -> bool {
    matches!(feature, Feature::AllAlpha | Feature::AllBeta)
}

/// One feature switched on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub feature: Feature,
    pub on: bool,
}

/// Reads `A=true,B=false`. A mistake is told in upstream's words.
pub fn settings(text: &str) -> Result<Vec<Setting>, String> {
    text.split(',').filter(|part| !part.is_empty()).map(setting).collect()
}

fn setting(text: &str) -> Result<Setting, String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("missing bool value for {}", text.trim()));
    };
    let (name, value) = (name.trim(), value.trim());
    let on = boolean(value).map_err(|why| format!("invalid value of {name}={value}, err: {why}"))?;
    let feature = Feature::named(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
    let Gate { locked, on: by_default, .. } = *feature.gate();
    if locked && on != by_default {
        return Err(format!("cannot set feature gate {name} to {on}, feature is locked to {by_default}"));
    }
    Ok(Setting { feature, on })
}

/// A truth value in the spellings that upstream's parser takes.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Result<Features, String> {
        settings(text).and_then(|settings| Features::set(&settings))
    }

    #[test]
    fn gates_are_set_by_name_and_by_stage() {
        let check = |text: &str, on: &[Feature], off: &[Feature]| {
            let features = set(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert!(on.iter().all(|f| features.enabled(*f)), "{text}: {on:?}");
            assert!(!off.iter().any(|f| features.enabled(*f)), "{text}: {off:?}");
        };
        use Feature::*;
        check("", &[WatchList, SidecarContainers], &[GenericWorkload, ClusterTrustBundle, AllAlpha]);
        check("GenericWorkload=true", &[GenericWorkload], &[GangScheduling]);
        check(" WatchList = f ,,GenericWorkload=1", &[GenericWorkload], &[WatchList]);
        check("GenericWorkload=true,GenericWorkload=false", &[], &[GenericWorkload]);
        check("AllAlpha=true", &[GenericWorkload, GangScheduling, AllAlpha], &[ClusterTrustBundle]);
        check("AllBeta=true", &[ClusterTrustBundle, WatchList], &[GenericWorkload]);
        check("AllBeta=false", &[SidecarContainers], &[WatchList, ClusterTrustBundle]);
        check("GangScheduling=false,AllAlpha=true", &[GenericWorkload], &[GangScheduling]);
        check("AllAlpha=true,GangScheduling=false", &[GenericWorkload], &[GangScheduling]);
        check("SidecarContainers=true", &[SidecarContainers], &[]);
    }

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        let check = |text: &str, expected: &str| assert_eq!(set(text).expect_err(text), expected);
        check("Foo=true", "unrecognized feature gate: Foo");
        check("GenericWorkload", "missing bool value for GenericWorkload");
        check(
            "GenericWorkload=yes",
            "invalid value of GenericWorkload=yes, err: strconv.ParseBool: parsing \"yes\": invalid syntax",
        );
        check(
            "SidecarContainers=false",
            "cannot set feature gate SidecarContainers to false, feature is locked to true",
        );
        check(
            "WatchFromStorageWithoutResourceVersion=true",
            "cannot set feature gate WatchFromStorageWithoutResourceVersion to true, feature is locked to false",
        );
        check(
            "GangScheduling=true",
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
        );
        check(
            "RestartAllContainersOnContainerExits=true,ContainerRestartRules=false,DRADeviceTaintRules=true",
            "[DRADeviceTaintRules is enabled, but depends on features that are disabled: [DRADeviceTaints], \
             RestartAllContainersOnContainerExits is enabled, but depends on features that are disabled: \
             [ContainerRestartRules NodeDeclaredFeatures]]",
        );
    }

    #[test]
    fn nothing_is_accepted_in_silence() {
        let check = |text: &str, expected: &[&str]| {
            let settings = settings(text).expect(text);
            assert_eq!(Features::set(&settings).expect(text).warnings(&settings), expected, "{text}");
        };
        check("", &[]);
        check("APIServingWithRoutine=true", &["feature gates that change nothing here: APIServingWithRoutine=true"]);
        check("APIServingWithRoutine=false,WatchList=true,CSIVolumeHealth=true", &[]);
        check("WinDSR=true", &["Setting GA feature gate WinDSR=true. It will be removed in a future release."]);
        check("KMSv1=false", &["Setting deprecated feature gate KMSv1=false. It will be removed in a future release."]);
    }

    #[test]
    fn the_defaults_are_whole() {
        assert_eq!(set("").expect("valid"), Features::default());
        for (place, (feature, name, gate)) in GATES.iter().enumerate() {
            assert_eq!((*feature as usize, Feature::named(name)), (place, Some(*feature)));
            assert!(gate.stage != Stage::Alpha || !gate.on, "{name}: no alpha feature is on by default");
            assert!(gate.needs.is_sorted_by_key(|f| f.name()), "{name}: upstream names them in order");
        }
    }

    #[test]
    fn the_metric_has_a_line_for_each_gate() {
        let text = set("GenericWorkload=true").expect("valid").metrics();
        for line in [
            "kubernetes_feature_enabled{name=\"GenericWorkload\",stage=\"ALPHA\"} 1",
            "kubernetes_feature_enabled{name=\"GangScheduling\",stage=\"ALPHA\"} 0",
            "kubernetes_feature_enabled{name=\"SidecarContainers\",stage=\"\"} 1",
            "kubernetes_feature_enabled{name=\"KMSv1\",stage=\"DEPRECATED\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
        assert_eq!(text.lines().count(), GATES.len() + 2);
    }
}
