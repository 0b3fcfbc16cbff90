//! The checks one by one, on Pods of several containers. Upstream: the tables of policy/check_*_test.go.

use std::ops::RangeInclusive;

use json::{Value, json};

use super::{
    checks::{details, rules},
    level::{Level, Standard, Version},
    workload::Workload,
};

const ALWAYS: RangeInclusive<i64> = 0..=36;

/// A Pod of containers `a`, `b` and so on with these security contexts; `null` is a container without one.
fn pod(spec: Value, contexts: &[Value]) -> Value {
    let mut pod = json!({ "spec": spec });
    let each =
        ('a'..).zip(contexts).map(|(name, context)| json!({"name": name.to_string(), "securityContext": context}));
    pod["spec"]["containers"] = Value::from(each.collect::<Vec<_>>());
    pod
}

/// Containers of these security contexts behind the usual two: one without a context, and one with an empty one.
fn behind_empty(spec: Value, contexts: &[Value]) -> Value {
    pod(spec, &[&[Value::Null, json!({})][..], contexts].concat())
}

/// The only Pod's container is `a`, which has these fields.
fn fields(container: Value) -> Value {
    let mut pod = json!({"spec": {"containers": [container]}});
    pod["spec"]["containers"][0]["name"] = json!("a");
    pod
}

fn annotated(pod: &Value, annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod.clone();
    for (key, value) in annotations {
        pod["metadata"]["annotations"][key] = json!(value);
    }
    pod
}

/// The check says this of the Pod in each of these minor releases, under each standard that has the check.
fn check(name: &str, minors: RangeInclusive<i64>, pod: &Value, expected: &str) {
    let workload = Workload::read(pod).unwrap();
    for minor in minors {
        let standards = [Level::Baseline, Level::Restricted];
        let standards = standards.map(|level| Standard { level, version: Version::Minor(minor) });
        let found: Vec<_> = standards.into_iter().flat_map(rules).filter(|(one, _)| *one == name).collect();
        assert!(!found.is_empty(), "{name} in v1.{minor}");
        for (_, rule) in found {
            let violations: Vec<_> = rule(&workload).into_iter().collect();
            assert_eq!(details(&violations), expected, "{name} in v1.{minor}: {pod}");
        }
    }
}

#[test]
fn privilege_escalation() {
    const CHECK: &str = "allowPrivilegeEscalation";
    let told = |who: &str| format!("{CHECK} != false ({who} must set securityContext.allowPrivilegeEscalation=false)");
    let several = behind_empty(json!({}), &[json!({CHECK: true}), json!({CHECK: false})]);
    check(CHECK, 8..=36, &several, &told("containers \"a\", \"b\", \"c\""));
    let null = pod(json!({}), &[json!({CHECK: null}), json!({CHECK: false})]);
    check(CHECK, 8..=36, &null, &told("container \"a\""));
    let of = |os: &str| pod(json!({"os": {"name": os}}), &[Value::Null]);
    check(CHECK, 8..=36, &of("linux"), &told("container \"a\""));
    check(CHECK, 8..=24, &of("windows"), &told("container \"a\""));
    check(CHECK, 25..=36, &of("windows"), "");
}

#[test]
fn app_armor() {
    const CHECK: &str = "appArmorProfile";
    const KEY: &str = "container.apparmor.security.beta.kubernetes.io";
    let profile = |kind: &str| json!({CHECK: {"type": kind}});
    let (good, bad) = (profile("RuntimeDefault"), profile("Unconfined"));
    let told =
        |who: &str| format!("forbidden AppArmor profile ({who} must not set AppArmor profile type to \"Unconfined\")");
    check(CHECK, ALWAYS, &pod(json!({"securityContext": bad}), &[]), &told("pod"));
    let within_good = |contexts: &[Value]| pod(json!({"securityContext": good}), contexts);
    check(CHECK, ALWAYS, &within_good(&[Value::Null, bad.clone()]), &told("container \"b\""));
    let init = json!({"securityContext": good, "initContainers": [{"name": "bar", "securityContext": bad}]});
    check(CHECK, ALWAYS, &pod(init, &[Value::Null]), &told("container \"bar\""));
    check(CHECK, ALWAYS, &within_good(&[profile("Localhost"), good.clone(), json!({})]), "");
    let two = pod(json!({"securityContext": profile("x")}), &[bad.clone(), good.clone(), bad.clone()]);
    let expected = "forbidden AppArmor profiles (pod and containers \"a\", \"c\" must not set AppArmor profile type to \
        \"Unconfined\", \"x\")";
    check(CHECK, ALWAYS, &two, expected);

    let key = |name: &str| format!("{KEY}/{name}");
    let told = |names: &[(&str, &str)]| {
        let each = names.iter().map(|(name, value)| format!("\"{KEY}/{name}=\"{value}\"\"")).collect::<Vec<_>>();
        let each = each.join(", ");
        format!("forbidden AppArmor profiles (annotations must not set AppArmor profile type to {each})")
    };
    let with = |values: &[(&str, &str)]| {
        let keys: Vec<String> = values.iter().map(|(name, _)| key(name)).collect();
        let pairs: Vec<(&str, &str)> = keys.iter().map(String::as_str).zip(values.iter().map(|(_, v)| *v)).collect();
        annotated(&pod(json!({}), &[]), &pairs)
    };
    let values = [
        ("", "bogus"),
        ("a", ""),
        ("b", "runtime/default"),
        ("c", "localhost/"),
        ("d", "localhost/foo"),
        ("e", "unconfined"),
        ("f", "unknown"),
    ];
    check(CHECK, ALWAYS, &with(&values), &told(&[values[0], values[5], values[6]]));
    // They are sorted with their values, so that a name comes behind its longer likes.
    let alike = with(&[("web", "x"), ("web-1", "x"), ("web1", "x"), ("webs", "x")]);
    check(CHECK, ALWAYS, &alike, &told(&[("web-1", "x"), ("web1", "x"), ("web", "x"), ("webs", "x")]));
}

#[test]
fn capabilities() {
    const RESTRICTED: &str = "capabilities_restricted";
    let add = |list: &[&str], drop: &[&str]| json!({"capabilities": {"add": list, "drop": drop}});
    let two = [add(&["FOO", "BAR"], &[]), add(&["BAR", "BAZ"], &[])];
    let expected = "non-default capabilities (containers \"a\", \"b\" must not include \"BAR\", \"BAZ\", \"FOO\" in \
        securityContext.capabilities.add)";
    check("capabilities_baseline", ALWAYS, &pod(json!({}), &two), expected);
    check("capabilities_baseline", ALWAYS, &behind_empty(json!({}), &[json!({"capabilities": {}})]), "");

    let three = [&two[..], &[add(&["NET_BIND_SERVICE", "CHOWN"], &["ALL", "FOO"])][..]].concat();
    let expected = "unrestricted capabilities (containers \"a\", \"b\" must set securityContext.capabilities.drop=[\"ALL\"]; \
        containers \"a\", \"b\", \"c\" must not include \"BAR\", \"BAZ\", \"CHOWN\", \"FOO\" in securityContext.capabilities.add)";
    check(RESTRICTED, 22..=36, &pod(json!({}), &three), expected);
    let missing =
        |who: &str| format!("unrestricted capabilities ({who} must set securityContext.capabilities.drop=[\"ALL\"])");
    let of = |os: &str| pod(json!({"os": {"name": os}}), &[Value::Null]);
    check(RESTRICTED, 22..=36, &of("linux"), &missing("container \"a\""));
    check(RESTRICTED, 22..=24, &of("windows"), &missing("container \"a\""));
    check(RESTRICTED, 25..=36, &of("windows"), "");
    let each_by_name = [
        "SYS_TIME",
        "SYS_MODULE",
        "SYS_RAWIO",
        "SYS_PACCT",
        "SYS_ADMIN",
        "SYS_NICE",
        "SYS_RESOURCE",
        "SYS_TTY_CONFIG",
        "MKNOD",
        "AUDIT_WRITE",
        "AUDIT_CONTROL",
        "MAC_OVERRIDE",
        "MAC_ADMIN",
        "NET_ADMIN",
        "SYSLOG",
        "CHOWN",
        "NET_RAW",
        "DAC_OVERRIDE",
        "FOWNER",
        "DAC_READ_SEARCH",
        "FSETID",
        "KILL",
        "SETGID",
        "SETUID",
        "LINUX_IMMUTABLE",
        "NET_BIND_SERVICE",
        "NET_BROADCAST",
        "IPC_LOCK",
        "IPC_OWNER",
        "SYS_CHROOT",
        "SYS_PTRACE",
        "SYS_BOOT",
        "LEASE",
        "SETFCAP",
        "WAKE_ALARM",
        "BLOCK_SUSPEND",
    ];
    let all = pod(json!({}), &[add(&[], &each_by_name), add(&[], &["ALL"]), add(&[], &each_by_name)]);
    check(RESTRICTED, 22..=36, &all, &missing("containers \"a\", \"c\""));
    // None of what the baseline lets containers add but one.
    let usual = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    let expected = "unrestricted capabilities (container \"a\" must not include \"AUDIT_WRITE\", \"CHOWN\", \"DAC_OVERRIDE\", \
        \"FOWNER\", \"FSETID\", \"KILL\", \"MKNOD\", \"SETFCAP\", \"SETGID\", \"SETPCAP\", \"SETUID\", \"SYS_CHROOT\" in \
        securityContext.capabilities.add)";
    check(RESTRICTED, 22..=36, &pod(json!({}), &[add(&usual, &["ALL"])]), expected);
}

#[test]
fn the_hosts_namespaces_paths_and_ports() {
    let all = pod(json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}), &[]);
    check("hostNamespaces", ALWAYS, &all, "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)");
    let path = |name: &str| json!({"name": name, "hostPath": {"path": "/"}});
    let volumes = pod(json!({"volumes": [path("a"), path("b"), {"name": "c", "emptyDir": {}}]}), &[]);
    check("hostPathVolumes", ALWAYS, &volumes, "hostPath volumes (volumes \"a\", \"b\")");

    let of = |ports: &[&[i64]]| {
        let mut pod = pod(json!({}), &vec![Value::Null; ports.len()]);
        for (at, ports) in ports.iter().enumerate() {
            let each = ports.iter().map(|port| json!({"containerPort": 1, "hostPort": port}));
            pod["spec"]["containers"][at]["ports"] = Value::from(each.collect::<Vec<_>>());
        }
        pod
    };
    check("hostPorts", ALWAYS, &of(&[&[0], &[0, 20]]), "hostPort (container \"b\" uses hostPort 20)");
    let several = of(&[&[0], &[0, 10, 20], &[0, 10, 30]]);
    check("hostPorts", ALWAYS, &several, "hostPort (containers \"b\", \"c\" use hostPorts 10, 20, 30)");
    check("hostPorts", ALWAYS, &of(&[&[7], &[7]]), "hostPort (containers \"a\", \"b\" use hostPort 7)");
}

#[test]
fn hosts_of_probes_and_hooks() {
    const CHECK: &str = "hostProbesAndHostLifecycle";
    let told = |what: &str| match what {
        "" => String::new(),
        what => format!("probe or lifecycle host ({what})"),
    };
    let http = |host: &str| json!({"httpGet": {"port": 8080, "host": host}});
    let tcp = |host: &str| json!({"tcpSocket": {"port": 8080, "host": host}});
    let one = |host: &str| format!("container \"a\" uses probe or lifecycle host \"{host}\"");
    let unset = json!({"livenessProbe": {"httpGet": {"port": 1}}, "readinessProbe": {"tcpSocket": {"port": 1}},
        "lifecycle": {"postStart": {"httpGet": {"port": 1}}, "preStop": {"exec": {}}}, "startupProbe": {"grpc": {"port": 1}}});
    let local =
        json!({"livenessProbe": http("127.0.0.1"), "readinessProbe": tcp("::1"), "startupProbe": http("localhost")});
    let cases = [
        (unset, String::new()),
        (local, "container \"a\" uses probe or lifecycle hosts \"127.0.0.1\", \"::1\", \"localhost\"".to_owned()),
        (json!({"livenessProbe": http("invalid.host")}), one("invalid.host")),
        (json!({"readinessProbe": tcp("invalid.host")}), one("invalid.host")),
        (json!({"startupProbe": http("invalid.host")}), one("invalid.host")),
        (json!({"lifecycle": {"postStart": tcp("invalid.host")}}), one("invalid.host")),
        (json!({"lifecycle": {"preStop": http("another.invalid.host")}}), one("another.invalid.host")),
        (json!({"livenessProbe": http("8.8.8.8")}), one("8.8.8.8")),
        (json!({"livenessProbe": tcp("2001:4860:4860::8888")}), one("2001:4860:4860::8888")),
    ];
    for (container, what) in cases {
        check(CHECK, 34..=36, &fields(container), &told(&what));
    }
    let init = json!({"name": "init", "restartPolicy": "Always", "livenessProbe": http("invalid.init.host")});
    let expected = told("container \"init\" uses probe or lifecycle host \"invalid.init.host\"");
    check(CHECK, 34..=36, &pod(json!({"initContainers": [init]}), &[Value::Null]), &expected);
    let several = json!({"spec": {"containers": [
        {"name": "valid"},
        {"name": "invalid1", "livenessProbe": http("a.com")},
        {"name": "invalid2", "lifecycle": {"preStop": tcp("b.com")}, "startupProbe": http("a.com")},
    ]}});
    let expected = told("containers \"invalid1\", \"invalid2\" use probe or lifecycle hosts \"a.com\", \"b.com\"");
    check(CHECK, 34..=36, &several, &expected);
}

#[test]
fn privileged_containers_and_host_processes() {
    let of = |value: bool| json!({"privileged": value});
    let several = behind_empty(json!({}), &[of(false), of(true), of(true)]);
    let expected = "privileged (containers \"d\", \"e\" must not set securityContext.privileged=true)";
    check("privileged", ALWAYS, &several, expected);

    let of = |value: Value| json!({"windowsOptions": value});
    let (no, yes) = (of(json!({"hostProcess": false})), of(json!({"hostProcess": true})));
    let several = behind_empty(json!({"securityContext": yes}), &[of(json!({})), no, yes.clone(), yes.clone()]);
    let expected =
        "hostProcess (pod and containers \"e\", \"f\" must not set securityContext.windowsOptions.hostProcess=true)";
    check("windowsHostProcess", ALWAYS, &several, expected);
}

#[test]
fn proc_mount() {
    let contexts = ["Default", "Unmasked", "other"].map(|kind| json!({"procMount": kind}));
    let of = |host_users: Value| behind_empty(json!({"hostUsers": host_users}), &contexts);
    let expected =
        "procMount (containers \"d\", \"e\" must not set securityContext.procMount to \"Unmasked\", \"other\")";
    for host_users in [json!(true), Value::Null] {
        check("procMount", ALWAYS, &of(host_users.clone()), expected);
        check("procMount_restricted", 35..=36, &of(host_users), expected);
    }
    check("procMount", 0..=34, &of(json!(false)), expected);
    check("procMount", 35..=36, &of(json!(false)), "");
    check("procMount_restricted", 35..=36, &of(json!(false)), expected);
}

#[test]
fn selinux() {
    const CHECK: &str = "seLinuxOptions";
    let of = |options: Value| json!({CHECK: options});
    let kind = |kind: &str| of(json!({"type": kind}));
    let told = |what: &str| format!("{CHECK} ({what})");
    let good = ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"].map(kind);
    let bad = [kind("bar"), of(json!({"user": "bar"})), of(json!({"role": "baz"}))];
    let all = [&good[..], &bad[..]].concat();
    let set = "set forbidden securityContext.seLinuxOptions:";
    let of_pod = |options: Value| json!({"securityContext": of(options)});
    let three = || of_pod(json!({"type": "foo", "user": "bar", "role": "baz"}));
    let both = told(&format!(
        "pod and containers \"e\", \"f\", \"g\" {set} types \"bar\", \"foo\"; user may not be set; role may not be set"
    ));
    check(CHECK, 31..=36, &pod(three(), &all), &both);
    let alone = told(&format!("pod {set} type \"foo\"; user may not be set; role may not be set"));
    check(CHECK, 31..=36, &pod(three(), &good), &alone);
    check(CHECK, ALWAYS, &pod(three(), &good[..3]), &alone);
    let containers =
        told(&format!("containers \"e\", \"f\", \"g\" {set} type \"bar\"; user may not be set; role may not be set"));
    check(CHECK, 31..=36, &pod(of_pod(json!({})), &all), &containers);
    let before = told(&format!(
        "containers \"d\", \"e\", \"f\", \"g\" {set} types \"bar\", \"container_engine_t\"; user may not be set; role may not be set"
    ));
    check(CHECK, 0..=30, &pod(of_pod(json!({})), &all), &before);
    let single = [
        (json!({"type": "bad"}), "type \"bad\""),
        (json!({"user": "bad"}), "user may not be set"),
        (json!({"role": "bad"}), "role may not be set"),
    ];
    for (options, what) in single {
        check(CHECK, ALWAYS, &pod(of_pod(options), &[]), &told(&format!("pod {set} {what}")));
    }
    // Empty texts are as good as none, and every level is allowed.
    let empty =
        pod(of_pod(json!({"type": "", "user": "", "role": ""})), &[of(json!({"level": "somevalue"})), of(json!({}))]);
    check(CHECK, ALWAYS, &empty, "");
}

#[test]
fn seccomp_annotations() {
    const CHECK: &str = "seccompProfile_baseline";
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const A: &str = "container.seccomp.security.alpha.kubernetes.io/a";
    const B: &str = "container.seccomp.security.alpha.kubernetes.io/b";
    let three = pod(json!({}), &[Value::Null, Value::Null, Value::Null]);
    let annotations = [(A, "unconfined"), (B, "unknown"), (POD, "unconfined")];
    let told = |list: &[(&str, &str)]| {
        let each: Vec<String> = list.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
        let what = if list.len() == 1 { "annotation" } else { "annotations" };
        format!("seccompProfile (forbidden {what} {})", each.join(", "))
    };
    for list in [&annotations[2..], &annotations[..2], &annotations[..]] {
        check(CHECK, 0..=18, &annotated(&three, list), &told(list));
        check(CHECK, 19..=36, &annotated(&three, list), "");
    }
    let good = [(POD, "runtime/default"), (A, "localhost/testing"), (B, "docker/default")];
    check(CHECK, 0..=18, &annotated(&three, &good), "");
}

#[test]
fn seccomp_profiles() {
    const RESTRICTED: &str = "seccompProfile_restricted";
    let of = |kind: &str| json!({"seccompProfile": {"type": kind}});
    let (good, bad) = (of("RuntimeDefault"), of("Unconfined"));
    let told = |who: &str| {
        format!("seccompProfile ({who} must not set securityContext.seccompProfile.type to \"Unconfined\")")
    };
    let missing = |who: &str| {
        let what = "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
        format!("seccompProfile (pod or {who} {what})")
    };
    let within = |context: &Value| json!({"securityContext": context});
    let mixed = [bad.clone(), bad.clone(), good.clone(), good.clone()];
    for name in ["seccompProfile_baseline", "seccompProfile_restricted"] {
        check(name, 19..=36, &pod(within(&bad), &[Value::Null]), &told("pod"));
        check(name, 19..=36, &behind_empty(within(&good), &mixed), &told("containers \"c\", \"d\""));
        check(name, 19..=36, &behind_empty(within(&bad), &mixed), &told("pod and containers \"c\", \"d\""));
        // A wrong profile is told before a missing one.
        check(name, 19..=36, &behind_empty(json!({}), &mixed), &told("containers \"c\", \"d\""));
        check(name, 19..=36, &pod(json!({}), &[good.clone(), of("Localhost")]), "");
        check(name, 19..=36, &behind_empty(within(&of("Localhost")), &[good.clone(), of("Localhost")]), "");
        check(name, 19..=36, &pod(json!({}), &[]), "");
    }
    check(RESTRICTED, 19..=36, &pod(json!({}), &[Value::Null]), &missing("container \"a\""));
    let some = behind_empty(json!({}), &[good.clone(), good.clone()]);
    check(RESTRICTED, 19..=36, &some, &missing("containers \"a\", \"b\""));
    check("seccompProfile_baseline", 19..=36, &some, "");
    let os = |os: &str| pod(json!({"os": {"name": os}}), &[Value::Null]);
    check(RESTRICTED, 19..=36, &os("linux"), &missing("container \"a\""));
    check(RESTRICTED, 19..=24, &os("windows"), &missing("container \"a\""));
    check(RESTRICTED, 25..=36, &os("windows"), "");
}

#[test]
fn sysctls() {
    let of = |names: &[&str]| {
        let each: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        pod(json!({"securityContext": {"sysctls": each}}), &[])
    };
    check("sysctls", ALWAYS, &of(&["a", "b"]), "forbidden sysctls (a, b)");
    let all = [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    ];
    for (minors, known) in [(0..=26, 5), (27..=28, 6), (29..=31, 10)] {
        let expected = format!("forbidden sysctls ({})", all[known..].join(", "));
        check("sysctls", minors, &of(&all), &expected);
    }
    check("sysctls", 32..=36, &of(&all), "");
    check("sysctls", ALWAYS, &pod(json!({"securityContext": {"sysctls": null}}), &[]), "");
    // In the order of the Pod, and as often as there.
    check("sysctls", ALWAYS, &of(&["b", "kernel.shm_rmid_forced", "a", "b"]), "forbidden sysctls (b, a, b)");
    // The next ones came after the newest release whose rules are known.
    for name in ["net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat"] {
        check("sysctls", ALWAYS, &of(&[name]), &format!("forbidden sysctls ({name})"));
    }
}

#[test]
fn users() {
    const NON_ROOT: &str = "runAsNonRoot";
    const USER: &str = "runAsUser";
    let of = |value: bool| json!({NON_ROOT: value});
    let within = |context: Value| json!({"securityContext": context});
    let told = |what: &str| format!("runAsNonRoot != true ({what})");
    let missing = |who: &str| told(&format!("pod or {who} must set securityContext.runAsNonRoot=true"));
    let wrong = |who: &str| told(&format!("{who} must not set securityContext.runAsNonRoot=false"));
    check(NON_ROOT, ALWAYS, &pod(json!({}), &[Value::Null]), &missing("container \"a\""));
    check(NON_ROOT, ALWAYS, &pod(within(of(false)), &[Value::Null]), &wrong("pod"));
    let mixed = [of(false), of(false), of(true), of(true)];
    check(NON_ROOT, ALWAYS, &behind_empty(within(of(true)), &mixed), &wrong("containers \"c\", \"d\""));
    // A wrong value is told before a missing one, and counts in a Pod whose containers all overrule it.
    check(NON_ROOT, ALWAYS, &behind_empty(json!({}), &mixed), &wrong("containers \"c\", \"d\""));
    check(NON_ROOT, ALWAYS, &pod(within(of(false)), &mixed[2..]), &wrong("pod"));
    check(NON_ROOT, ALWAYS, &behind_empty(json!({}), &mixed[2..]), &missing("containers \"a\", \"b\""));
    let own = |contexts: &[Value]| pod(json!({"hostUsers": false, "securityContext": {"runAsUser": 0}}), contexts);
    check(NON_ROOT, 0..=34, &own(&mixed), &wrong("containers \"a\", \"b\""));
    check(NON_ROOT, 35..=36, &own(&mixed), "");
    check(NON_ROOT, ALWAYS, &own(&[]), "");

    let of = |user: i64| json!({USER: user});
    let zero = |who: &str| format!("runAsUser=0 ({who} must not set runAsUser=0)");
    check(USER, 23..=36, &pod(within(of(0)), &[Value::Null]), &zero("pod"));
    check(USER, 23..=36, &pod(within(of(1000)), &[Value::Null]), "");
    check(USER, 23..=36, &pod(within(json!({USER: null})), &[Value::Null]), "");
    let mixed = [of(0), of(0), of(1), of(1)];
    check(USER, 23..=36, &behind_empty(within(of(1000)), &mixed), &zero("containers \"c\", \"d\""));
    check(USER, 23..=36, &pod(within(of(0)), &mixed), &zero("pod and containers \"a\", \"b\""));
    check(USER, 23..=36, &pod(json!({}), &[of(1), of(2), of(3), of(4)]), "");
    check(USER, 23..=34, &own(&mixed), &zero("pod and containers \"a\", \"b\""));
    check(USER, 35..=36, &own(&mixed), "");
}

/// In each form of each check a debugger counts as a container does, and behind the others.
#[test]
fn containers_of_all_sorts_are_told_in_one_order() {
    let bad = |name: &str| json!({"name": name, "securityContext": {"privileged": true}});
    let all = json!({"spec": {"ephemeralContainers": [bad("e1"), bad("e0")], "containers": [bad("c1"), bad("c0")],
        "initContainers": [bad("i1"), bad("i0")]}});
    let expected = "privileged (containers \"i1\", \"i0\", \"c1\", \"c0\", \"e1\", \"e0\" must not set securityContext.privileged=true)";
    check("privileged", ALWAYS, &all, expected);
}
