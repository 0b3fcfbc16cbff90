//! The settings of a `KubeSchedulerConfiguration`, their meaning, and the messages when they are wrong.

use std::time::Duration;

use json::{Value, json};
use scheduler::{
    Settings,
    args::{Args, Strategy},
    config::parse,
    profile::Part,
};

const VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

fn with(more: Value) -> Result<Settings, String> {
    let mut value = json!({"apiVersion": VERSION, "kind": KIND});
    more.as_object().unwrap().iter().for_each(|(field, more)| value[field] = more.clone());
    parse(value, Default::default())
}

fn refused(more: Value, expected: &str) {
    assert_eq!(with(more.clone()).unwrap_err(), expected, "{more}");
}

/// `Name` or `Name=weight` of all plugins with a part.
fn named(settings: &Settings, profile: usize, part: Part) -> String {
    let plugins = settings.profiles[profile].with(part).map(|p| match part {
        Part::Score => format!("{}={}", p.plugin.name, p.weight),
        _ => p.plugin.name.to_owned(),
    });
    plugins.collect::<Vec<_>>().join(" ")
}

const SCORES: &str = "TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 PodTopologySpread=2 InterPodAffinity=2 \
                      DynamicResources=1 NodeResourcesBalancedAllocation=1 ImageLocality=1";

#[test]
fn an_empty_configuration_has_the_defaults() {
    let settings = with(json!({})).unwrap();
    assert_eq!(settings.profiles.len(), 1);
    assert_eq!(settings.profiles[0].scheduler_name, "default-scheduler");
    assert_eq!(*settings.profiles[0].args, Args::default());
    assert_eq!(settings.backoff, (Duration::from_secs(1), Duration::from_secs(10)));
    assert_eq!(named(&settings, 0, Part::Score), SCORES);
    assert_eq!(named(&settings, 0, Part::Preempt), "DynamicResources DefaultPreemption");
    assert_eq!(named(&settings, 0, Part::Gate), "SchedulingGates");
}

#[test]
fn plugins_are_enabled_part_by_part() {
    let plugins = |plugins: Value| with(json!({"profiles": [{"plugins": plugins}]}));
    let scores = |sets: Value| named(&plugins(sets).unwrap(), 0, Part::Score);
    assert_eq!(scores(json!({"score": {"disabled": [{"name": "*"}]}})), "");
    let only = json!({"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality", "weight": 7}]}});
    assert_eq!(scores(only), "ImageLocality=7");
    let heavier = json!({"score": {"enabled": [{"name": "ImageLocality", "weight": 5}]}});
    assert_eq!(scores(heavier), format!("ImageLocality=5 {}", SCORES.replace(" ImageLocality=1", "")));
    let everywhere = json!({"multiPoint": {"disabled": [{"name": "NodeAffinity"}]}});
    let settings = plugins(everywhere).unwrap();
    assert!(!named(&settings, 0, Part::Filter).contains("NodeAffinity"));
    assert_eq!(named(&settings, 0, Part::Score), SCORES.replace("NodeAffinity=2 ", ""));
    let weighed = json!({"multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": 9}]}});
    assert_eq!(scores(weighed), SCORES.replace("NodeAffinity=2", "NodeAffinity=9"));
    let unpreempted = json!({"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}});
    assert_eq!(named(&plugins(unpreempted).unwrap(), 0, Part::Preempt), "DynamicResources");
    let wrong = |sets: Value, expected: &str| assert_eq!(plugins(sets).unwrap_err(), expected);
    let unknown = json!({"filter": {"enabled": [{"name": "Mine"}]}});
    wrong(unknown, "profiles[0].plugins.filter: plugin \"Mine\" does not exist");
    let misplaced = json!({"score": {"enabled": [{"name": "NodePorts"}]}});
    wrong(misplaced, "profiles[0].plugins.score: plugin \"NodePorts\" does not extend score");
    let twice = json!({"filter": {"enabled": [{"name": "NodePorts"}, {"name": "NodePorts"}]}});
    wrong(twice, "profiles[0].plugins.filter: plugin \"NodePorts\" already registered");
    let unbound = json!({"bind": {"disabled": [{"name": "*"}]}});
    wrong(unbound, "profiles[0].plugins.bind: at least one bind plugin is needed");
}

#[test]
fn plugins_have_arguments() {
    let args = |name: &str, args: Value| with(json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]}));
    let shape = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
    let strategy = json!({"type": "RequestedToCapacityRatio", "resources": [{"name": "example.com/gpu", "weight": 5}],
        "requestedToCapacityRatio": {"shape": shape}});
    let settings = args("NodeResourcesFit", json!({"scoringStrategy": strategy})).unwrap();
    let read = &settings.profiles[0].args;
    assert_eq!(read.strategy, Strategy::RequestedToCapacityRatio(vec![(0, 0), (100, 10)]));
    assert_eq!((read.scored[0].name.as_str(), read.scored[0].weight), ("example.com/gpu", 5));
    let place = |name: &str, given: Value, expected: &str| {
        let expected = expected.replace("ARGS", "profiles[0].pluginConfig[0].args");
        assert_eq!(args(name, given.clone()).unwrap_err(), expected, "{given}");
    };
    let weight = json!({"hardPodAffinityWeight": 101});
    place("InterPodAffinity", weight, "ARGS.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]");
    place(
        "InterPodAffinity",
        json!({"hard": 1}),
        "ARGS: unknown field `hard`, expected one of `apiVersion`, `kind`, \
        `hardPodAffinityWeight`, `ignorePreferredTermsOfExistingPods`",
    );
    place(
        "DefaultPreemption",
        json!({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
        "ARGS.minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as \
         minCandidateNodesAbsolute\nARGS.minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time \
         as minCandidateNodesPercentage",
    );
    let listed = json!({"defaultConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "Never"}],
        "defaultingType": "List"});
    place(
        "PodTopologySpread",
        listed,
        "ARGS.defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)\n\
         ARGS.defaultConstraints[0].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \
         \"DoNotSchedule\", \"ScheduleAnyway\"",
    );
    let system = json!({"defaultConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway"}]});
    place(
        "PodTopologySpread",
        system,
        "ARGS.defaultingType: Invalid value: \"System\": when .defaultConstraints are not \
        empty",
    );
    let unshaped = json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}});
    place(
        "NodeResourcesFit",
        unshaped,
        "ARGS.scoringStrategy.requestedToCapacityRatio: Required value: must be \
        specified when type is RequestedToCapacityRatio",
    );
    place(
        "NodeResourcesBalancedAllocation",
        json!({"resources": [{"name": "cpu", "weight": 2}]}),
        "ARGS.resources[0].weight: Invalid value: 2: must be 1",
    );
    place(
        "VolumeBinding",
        json!({"bindTimeoutSeconds": -1}),
        "ARGS.bindTimeoutSeconds: Invalid value: -1: invalid \
        BindTimeoutSeconds, should not be a negative value",
    );
    place("NodePorts", json!({"x": 1}), "ARGS: plugin \"NodePorts\" takes no arguments");
}

#[test]
fn what_is_wrong_is_said() {
    refused(
        json!({"parallel": 1}),
        "unknown field `parallel`, expected one of `apiVersion`, `kind`, `parallelism`, \
        `leaderElection`, `clientConnection`, `enableProfiling`, `enableContentionProfiling`, `delayCacheUntilActive`, \
        `percentageOfNodesToScore`, `podInitialBackoffSeconds`, `podMaxBackoffSeconds`, `profiles`, `extenders`",
    );
    refused(
        json!({"kind": "Pod"}),
        "it is of kind \"Pod\" in \"kubescheduler.config.k8s.io/v1\"; expected \
        \"KubeSchedulerConfiguration\" in \"kubescheduler.config.k8s.io/v1\"",
    );
    refused(json!({"parallelism": 0}), "parallelism: Invalid value: 0: should be an integer value greater than zero");
    refused(
        json!({"percentageOfNodesToScore": 101}),
        "percentageOfNodesToScore: Invalid value: 101: not in valid \
        range [0-100]",
    );
    refused(
        json!({"podInitialBackoffSeconds": 20}),
        "podMaxBackoffSeconds: Invalid value: 10: must be greater than or \
        equal to PodInitialBackoffSeconds",
    );
    refused(
        json!({"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]}),
        "profiles[1].schedulerName: Duplicate value: \"profiles[0].schedulerName\"",
    );
    refused(json!({"profiles": [{"schedulerName": "a"}, {}]}), "profiles[1].schedulerName: Required value");
    refused(json!({"extenders": [{}]}), "extenders[0].urlPrefix: Invalid value: \"\": must be an http or https URL");
    refused(
        json!({"extenders": [{"urlPrefix": "http://e", "prioritizeVerb": "p"}]}),
        "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
    );
    let managed = json!([{"name": "cpu"}, {"name": "a.com/b"}, {"name": "a.com/b"}]);
    refused(
        json!({"extenders": [{"urlPrefix": "http://e", "managedResources": managed}]}),
        "extenders[0].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended resource name\n\
        extenders[0].managedResources[2].name: Invalid value: \"a.com/b\": duplicate extender managed resource name",
    );
    let binder = json!({"urlPrefix": "http://e", "bindVerb": "b", "httpTimeout": "x"});
    refused(
        json!({"extenders": [binder, {"urlPrefix": "http://f", "bindVerb": "b"}]}),
        "extenders[0].httpTimeout: Invalid value: \"x\": must be a duration\n\
        extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can implement bind",
    );
}

#[test]
fn extenders_are_read() {
    let settings = with(json!({"extenders": [
        {"urlPrefix": "http://e/x/", "filterVerb": "f", "managedResources": [{"name": "a.com/b", "ignoredByScheduler": true}]},
        {"urlPrefix": "https://e", "prioritizeVerb": "p", "weight": 3, "enableHTTPS": true, "httpTimeout": "1m0.5s",
            "nodeCacheCapable": true, "ignorable": true, "tlsConfig": {"serverName": "s", "caData": "QQ=="}},
    ]}))
    .unwrap();
    let [first, second] = &settings.extenders[..] else { panic!("two extenders") };
    assert_eq!((first.url.as_str(), first.filter.as_str(), first.timeout.as_secs()), ("http://e/x", "f", 5));
    assert_eq!(settings.profiles[0].args.ignored_resources, ["a.com/b"]);
    assert_eq!(
        (second.weight, second.timeout.as_millis(), second.knows_nodes, second.ignorable),
        (3, 60_500, true, true)
    );
    assert!(!second.tls.insecure, "an authority is given");
    let bare = with(json!({"extenders": [{"urlPrefix": "https://e", "enableHTTPS": true}]})).unwrap();
    assert!(bare.extenders[0].tls.insecure, "as upstream has it");
}
