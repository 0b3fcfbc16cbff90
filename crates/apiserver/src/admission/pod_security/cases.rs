//! The checks by example: for each standard the smallest Pod that it allows, changed in one place.

use json::{Value, json};

use super::{
    checks::{details, violations},
    level::{Level, Standard, Version},
    workload::Workload,
};

/// The smallest Pod that a standard of Linux allows: an init container `i` and a container `c`.
fn smallest(level: Level, minor: i64) -> Value {
    let mut pod = json!({"metadata": {"annotations": {}}, "spec": {
        "securityContext": {},
        "initContainers": [{"name": "i", "image": "p", "securityContext": {}}],
        "containers": [{"name": "c", "image": "p", "securityContext": {}}],
        "ephemeralContainers": [],
    }});
    if level != Level::Restricted {
        return pod;
    }
    pod["spec"]["securityContext"]["runAsNonRoot"] = json!(true);
    if minor >= 19 {
        pod["spec"]["securityContext"]["seccompProfile"] = json!({"type": "RuntimeDefault"});
    }
    for list in ["initContainers", "containers"] {
        let context = &mut pod["spec"][list][0]["securityContext"];
        if minor >= 8 {
            context["allowPrivilegeEscalation"] = json!(false);
        }
        if minor >= 22 {
            context["capabilities"] = json!({"drop": ["ALL"]});
        }
    }
    pod
}

/// `c:privileged=true` sets a field of the security context of `c` (`i` and `pod` likewise), `c.ports=[…]` one of its
/// own, `@key=value` an annotation. The value is JSON, or text; `null` takes the field away.
fn change(pod: &mut Value, what: &str) {
    let (place, value) = what.split_once('=').unwrap();
    if let Some(key) = place.strip_prefix('@') {
        pod["metadata"]["annotations"][key] = json!(value);
        return;
    }
    let spec = &mut pod["spec"];
    let (holder, field) = place.split_once(['.', ':']).unwrap();
    let mut target = match holder {
        "pod" => spec,
        "c" => &mut spec["containers"][0],
        "i" => &mut spec["initContainers"][0],
        other => panic!("{other}"),
    };
    if place.contains(':') {
        target = &mut target["securityContext"];
    }
    let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
    let target = field.split('.').fold(target, |target, part| &mut target[part]);
    *target = value;
}

/// `baseline:0-33` is a level in these minor releases; `restricted` is the level in all of them.
fn check(standards: &str, changes: &[&str], expected: &str) {
    for standard in standards.split(' ') {
        let (level, range) = standard.split_once(':').unwrap_or((standard, "0-35"));
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let level = Level::parse(level).unwrap();
        let (from, to): (i64, i64) = (from.parse().unwrap(), to.parse().unwrap());
        let mut versions: Vec<_> = (from..=to).map(|minor| (minor, Version::Minor(minor))).collect();
        if to == 35 {
            versions.extend([(36, Version::Minor(36)), (35, Version::Latest)]);
        }
        for (minor, version) in versions {
            let mut pod = smallest(level, minor);
            changes.iter().for_each(|what| change(&mut pod, what));
            let standard = Standard { level, version };
            let found = violations(standard, &Workload::read(&pod).unwrap());
            assert_eq!(details(&found), expected, "{standard} {changes:?}");
        }
    }
}

const BOTH: &str = "baseline restricted";

#[test]
fn the_smallest_pods_are_allowed() {
    check(BOTH, &[], "");
    check(BOTH, &[r#"pod.os={"name": "linux"}"#], "");
    let everything = ["pod.hostNetwork=true", "c:privileged=true", r#"c:capabilities.add=["ALL"]"#];
    check("privileged", &everything, "");
}

#[test]
fn all_violations_are_told_in_one_order() {
    let bare =
        ["pod:runAsNonRoot=null", "pod:seccompProfile=null", "i:allowPrivilegeEscalation=null", "i:capabilities=null"];
    let more = ["pod.hostPID=true", "c:privileged=true", "c:runAsUser=0"];
    let expected = "host namespaces (hostPID=true), \
        privileged (container \"c\" must not set securityContext.privileged=true), \
        allowPrivilegeEscalation != false (container \"i\" must set securityContext.allowPrivilegeEscalation=false), \
        unrestricted capabilities (container \"i\" must set securityContext.capabilities.drop=[\"ALL\"]), \
        runAsNonRoot != true (pod or containers \"i\", \"c\" must set securityContext.runAsNonRoot=true), \
        runAsUser=0 (container \"c\" must not set runAsUser=0), \
        seccompProfile (pod or containers \"i\", \"c\" must set securityContext.seccompProfile.type to \
        \"RuntimeDefault\" or \"Localhost\")";
    check("restricted:25-35", &[&bare[..], &more[..]].concat(), expected);
    check("baseline:25-35", &more[..1], "host namespaces (hostPID=true)");
}

/// A debugger is held to everything that a container is.
#[test]
fn ephemeral_containers_are_looked_at() {
    let debugger = |context: &str| {
        let all = r#""allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}"#;
        format!(r#"pod.ephemeralContainers=[{{"name": "e", "image": "i", "securityContext": {{{all}{context}}}}}]"#)
    };
    check(BOTH, &[&debugger("")], "");
    let expected = "privileged (container \"e\" must not set securityContext.privileged=true)";
    check(BOTH, &[&debugger(r#", "privileged": true"#)], expected);
    let expected = "runAsUser=0 (container \"e\" must not set runAsUser=0)";
    check("restricted:23-35", &[&debugger(r#", "runAsUser": 0"#)], expected);
    let bare = r#"pod.ephemeralContainers=[{"name": "e"}]"#;
    let expected = "allowPrivilegeEscalation != false (container \"e\" must set securityContext.allowPrivilegeEscalation=false), \
        unrestricted capabilities (container \"e\" must set securityContext.capabilities.drop=[\"ALL\"])";
    check("restricted:22-35", &[bare], expected);
}

#[test]
fn host_namespaces_paths_and_ports() {
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        check(BOTH, &[&format!("pod.{field}=true")], &format!("host namespaces ({field}=true)"));
        check(BOTH, &[&format!("pod.{field}=false")], "");
    }
    let all = ["pod.hostNetwork=true", "pod.hostPID=true", "pod.hostIPC=true"];
    check(BOTH, &all, "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)");

    let mixed = r#"pod.volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/b"}}]"#;
    check("baseline", &[mixed], "hostPath volumes (volume \"b\")");
    let restricted = "restricted volume types (volume \"b\" uses restricted volume type \"hostPath\")";
    check("restricted", &[mixed], restricted);
    let two =
        r#"pod.volumes=[{"name": "a", "hostPath": {"path": "/a"}}, {"name": "b", "hostPath": {"path": "/dev/null"}}]"#;
    check("baseline", &[two], "hostPath volumes (volumes \"a\", \"b\")");

    check(BOTH, &[r#"c.ports=[{"containerPort": 1, "hostPort": 0}, {"containerPort": 2}]"#], "");
    let expected = "hostPort (container \"c\" uses hostPort 20)";
    check(BOTH, &[r#"c.ports=[{"containerPort": 1}, {"containerPort": 2, "hostPort": 20}]"#], expected);
    let more = [
        r#"i.ports=[{"containerPort": 1, "hostPort": 10}]"#,
        r#"c.ports=[{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 10}]"#,
    ];
    check(BOTH, &more, "hostPort (containers \"i\", \"c\" use hostPorts 10, 9)");
}

#[test]
fn hosts_of_probes_and_hooks() {
    let bad = |who: &str, hosts: &str| {
        let (uses, host) = (
            if who.contains(',') { "containers" } else { "container" },
            if hosts.contains(',') { "hosts" } else { "host" },
        );
        let verb = if who.contains(',') { "use" } else { "uses" };
        format!("probe or lifecycle host ({uses} {who} {verb} probe or lifecycle {host} {hosts})")
    };
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for (action, host) in [("httpGet", "127.0.0.1"), ("tcpSocket", "::1")] {
            let with = |host: &str| format!(r#"c.{probe}={{"{action}": {{"port": 8080, "host": "{host}"}}}}"#);
            check("baseline:0-33 restricted:0-33", &[&with(host)], "");
            check("baseline:34-35 restricted:34-35", &[&with(host)], &bad("\"c\"", &format!("{host:?}")));
            check(BOTH, &[&with("")], "");
            check(BOTH, &[&format!(r#"c.{probe}={{"{action}": {{"port": 8080}}}}"#)], "");
        }
    }
    for hook in ["postStart", "preStop"] {
        for action in ["httpGet", "tcpSocket"] {
            let what = format!(r#"i.lifecycle={{"{hook}": {{"{action}": {{"port": 1, "host": "bad.host"}}}}}}"#);
            check("baseline:34-35", &[&what], &bad("\"i\"", "\"bad.host\""));
            check("baseline:0-33", &[&what], "");
        }
    }
    // Names are sorted here, unlike everywhere else.
    let two = [
        r#"i.livenessProbe={"httpGet": {"port": 1, "host": "b.com"}}"#,
        r#"c.startupProbe={"httpGet": {"port": 1, "host": "a.com"}}"#,
        r#"c.lifecycle={"preStop": {"tcpSocket": {"port": 1, "host": "b.com"}}}"#,
    ];
    check("baseline:34-35", &two, &bad("\"c\", \"i\"", "\"a.com\", \"b.com\""));
}

#[test]
fn privileged_containers() {
    check(BOTH, &["c:privileged=false", "i:privileged=false"], "");
    for name in ["c", "i"] {
        let expected = format!("privileged (container \"{name}\" must not set securityContext.privileged=true)");
        check(BOTH, &[&format!("{name}:privileged=true")], &expected);
    }
    let expected = "privileged (containers \"i\", \"c\" must not set securityContext.privileged=true)";
    check(BOTH, &["c:privileged=true", "i:privileged=true"], expected);
    check("baseline", &["c.securityContext=null"], "");
    // API validation wants this of privileged containers.
    for name in ["c", "i"] {
        let unset = [format!("{name}:privileged=true"), format!("{name}:allowPrivilegeEscalation=null")];
        let expected = format!(
            "privileged (container \"{name}\" must not set securityContext.privileged=true), \
            allowPrivilegeEscalation != false (container \"{name}\" must set securityContext.allowPrivilegeEscalation=false)"
        );
        check("restricted:8-35", &[&unset[0], &unset[1]], &expected);
    }
}

#[test]
fn a_container_without_a_security_context() {
    let escalation =
        "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)";
    let capabilities =
        "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])";
    let null = ["c.securityContext=null"];
    check("restricted:0-7", &null, "");
    check("restricted:8-21", &null, escalation);
    check("restricted:22-35", &null, &format!("{escalation}, {capabilities}"));
}

#[test]
fn app_armor() {
    const KEY: &str = "container.apparmor.security.beta.kubernetes.io/";
    let bad = |who: &str, what: &str| {
        let several = if what.contains(", ") { "profiles" } else { "profile" };
        format!("forbidden AppArmor {several} ({who} must not set AppArmor profile type to {what})")
    };
    for kind in ["RuntimeDefault", "Localhost"] {
        let profile = format!(r#"{{"type": "{kind}", "localhostProfile": "x"}}"#);
        check(BOTH, &[&format!("pod:appArmorProfile={profile}"), &format!("c:appArmorProfile={profile}")], "");
    }
    let unconfined = |place: &str| format!(r#"{place}:appArmorProfile={{"type": "Unconfined"}}"#);
    check(BOTH, &[&unconfined("pod")], &bad("pod", "\"Unconfined\""));
    check(BOTH, &[&unconfined("i")], &bad("container \"i\"", "\"Unconfined\""));
    check(BOTH, &[&unconfined("pod"), &unconfined("c")], &bad("pod and container \"c\"", "\"Unconfined\""));
    for allowed in ["", "runtime/default", "localhost/", "localhost/foo"] {
        check(BOTH, &[&format!("@{KEY}c={allowed}")], "");
    }
    let of_init = bad("annotation", &format!("\"{KEY}i=\"unconfined\"\""));
    check(BOTH, &[&format!("@{KEY}i=unconfined"), &format!("@{KEY}c=localhost/foo")], &of_init);
    let one = format!("\"{KEY}c=\"unconfined\"\"");
    check(BOTH, &[&format!("@{KEY}c=unconfined")], &bad("annotation", &one));
    let two = format!("\"{KEY}=\"bogus\"\", \"{KEY}z=\"un\\\"known\"\"");
    check(BOTH, &[&format!("@{KEY}z=un\"known"), &format!("@{KEY}=bogus")], &bad("annotations", &two));
    let both = bad("pod and annotation", &format!("\"Unconfined\", {one}"));
    check(BOTH, &[&unconfined("pod"), &format!("@{KEY}c=unconfined")], &both);
}

#[test]
fn capabilities() {
    let usual = r#"["AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
        "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"]"#;
    let add = |name: &str, list: &str| format!("{name}:capabilities.add={list}");
    check("baseline restricted:0-21", &[&add("c", usual), &add("i", usual)], "");
    check("restricted:22-35", &[&add("c", r#"["NET_BIND_SERVICE"]"#)], "");
    let bad = |what: &str| format!("container \"c\" must not include \"{what}\" in securityContext.capabilities.add");
    // Case counts, and so does the kernel's prefix.
    for name in ["NET_RAW", "chown", "CAP_CHOWN", "ALL"] {
        let list = format!("[{name:?}]");
        check("baseline restricted:0-21", &[&add("c", &list)], &format!("non-default capabilities ({})", bad(name)));
        check("restricted:22-35", &[&add("c", &list)], &format!("unrestricted capabilities ({})", bad(name)));
    }
    let two = [&*add("i", r#"["FOO", "BAR"]"#), &*add("c", r#"["BAR", "BAZ", "KILL"]"#)];
    let expected = "non-default capabilities (containers \"i\", \"c\" must not include \"BAR\", \"BAZ\", \"FOO\" in \
        securityContext.capabilities.add)";
    check("baseline", &two, expected);
    let expected = "unrestricted capabilities (container \"i\" must set securityContext.capabilities.drop=[\"ALL\"]; \
        containers \"i\", \"c\" must not include \"BAR\", \"BAZ\", \"FOO\", \"KILL\" in securityContext.capabilities.add)";
    check("restricted:22-35", &[two[0], two[1], "i:capabilities.drop=null"], expected);
    // Each one by its name is not all of them, nor is another spelling.
    for drop in [r#"["SYS_ADMIN", "NET_RAW", "CHOWN"]"#, "[]", r#"["all"]"#, "null"] {
        let expected =
            "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])";
        check("restricted:22-35", &[&format!("c:capabilities.drop={drop}")], expected);
    }
    let windows = r#"pod.os={"name": "windows"}"#;
    check("restricted:25-35", &[windows, "c.securityContext=null", "i.securityContext=null"], "");
}

#[test]
fn privilege_escalation() {
    let expected =
        "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)";
    for value in ["true", "null"] {
        let what = format!("c:allowPrivilegeEscalation={value}");
        check("restricted:8-35", &[&what], expected);
        check("baseline restricted:0-7", &[&what], "");
    }
    let both = ["c:allowPrivilegeEscalation=null", "i:allowPrivilegeEscalation=true"];
    check("restricted:8-35", &both, &expected.replace("container \"c\"", "containers \"i\", \"c\""));
    let windows = [both[0], both[1], r#"pod.os={"name": "windows"}"#];
    check("restricted:8-24", &windows, &expected.replace("container \"c\"", "containers \"i\", \"c\""));
    check("restricted:25-35", &windows, "");
    check("restricted:8-35", &[both[0], r#"pod.os={"name": "linux"}"#], expected);
}

#[test]
fn proc_mount() {
    let bad = |who: &str, what: &str| format!("procMount ({who} must not set securityContext.procMount to {what})");
    check(BOTH, &["c:procMount=Default", "i:procMount=Default", "pod.hostUsers=false"], "");
    let expected = bad("container \"c\"", "\"Unmasked\"");
    check(BOTH, &["c:procMount=Unmasked"], &expected);
    check(BOTH, &["c:procMount=Unmasked", "pod.hostUsers=true"], &expected);
    let own_users = ["c:procMount=Unmasked", "pod.hostUsers=false"];
    check("baseline:0-34 restricted", &own_users, &expected);
    check("baseline:35", &own_users, "");
    let two = ["i:procMount=other", "c:procMount=Unmasked"];
    check(BOTH, &two, &bad("containers \"i\", \"c\"", "\"Unmasked\", \"other\""));
}

#[test]
fn selinux() {
    let bad =
        |who: &str, what: &str| format!("seLinuxOptions ({who} set forbidden securityContext.seLinuxOptions: {what})");
    for kind in ["", "container_t", "container_init_t", "container_kvm_t"] {
        check(BOTH, &[&format!("c:seLinuxOptions.type={kind:?}"), "pod:seLinuxOptions.level=s0:c1"], "");
    }
    let engine = "pod:seLinuxOptions.type=container_engine_t";
    check("baseline:0-30 restricted:0-30", &[engine], &bad("pod", "type \"container_engine_t\""));
    check("baseline:31-35 restricted:31-35", &[engine], "");
    check(BOTH, &["c:seLinuxOptions.type=Container_t"], &bad("container \"c\"", "type \"Container_t\""));
    check(BOTH, &["pod:seLinuxOptions.user=system_u"], &bad("pod", "user may not be set"));
    check(BOTH, &["i:seLinuxOptions.role=system_r"], &bad("container \"i\"", "role may not be set"));
    let all = [
        "pod:seLinuxOptions={\"type\": \"foo\", \"user\": \"u\", \"role\": \"r\"}",
        "c:seLinuxOptions.type=bar",
        "i:seLinuxOptions.user=u",
    ];
    let expected = "types \"bar\", \"foo\"; user may not be set; role may not be set";
    check(BOTH, &all, &bad("pod and containers \"i\", \"c\"", expected));
}

#[test]
fn seccomp() {
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
    // As annotations, in the releases that had them.
    for allowed in ["runtime/default", "docker/default", "localhost/foo"] {
        check(
            "baseline:0-18 restricted:0-18",
            &[&format!("@{POD}={allowed}"), &format!("@{CONTAINER}c={allowed}")],
            "",
        );
    }
    let unconfined = [&*format!("@{POD}=unconfined"), &*format!("@{CONTAINER}c="), &*format!("@{CONTAINER}other=x")];
    let expected = format!("seccompProfile (forbidden annotations {CONTAINER}c=\"\", {POD}=\"unconfined\")");
    check("baseline:0-18 restricted:0-18", &unconfined, &expected);
    let expected = format!("seccompProfile (forbidden annotation {POD}=\"unconfined\")");
    check("baseline:0-18", &unconfined[..1], &expected);
    check("baseline:19-35 restricted:19-35", &unconfined, "");
    // As fields.
    let since = "baseline:19-35 restricted:19-35";
    let profile = |place: &str, kind: &str| format!(r#"{place}:seccompProfile={{"type": "{kind}"}}"#);
    let bad = |who: &str| {
        format!("seccompProfile ({who} must not set securityContext.seccompProfile.type to \"Unconfined\")")
    };
    for kind in ["RuntimeDefault", "Localhost"] {
        check(BOTH, &[&profile("pod", kind)], "");
        check(BOTH, &[&profile("c", kind), &profile("i", kind), "pod:seccompProfile=null"], "");
    }
    check(since, &[&profile("pod", "Unconfined")], &bad("pod"));
    check(since, &[&profile("c", "Unconfined")], &bad("container \"c\""));
    let both = [&*profile("i", "Unconfined"), &*profile("c", "Unconfined")];
    check(since, &[both[0], both[1], &profile("pod", "Unconfined")], &bad("pod and containers \"i\", \"c\""));
    check("baseline:0-18 restricted:0-18", &both, "");
    // Restricted Pods must say it.
    let missing = |who: &str| {
        format!(
            "seccompProfile (pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        )
    };
    check("restricted:19-35", &["pod:seccompProfile=null"], &missing("containers \"i\", \"c\""));
    let one = ["pod:seccompProfile=null", &*profile("i", "RuntimeDefault")];
    check("restricted:19-35", &one, &missing("container \"c\""));
    check("baseline", &one, "");
    let windows = ["pod:seccompProfile=null", r#"pod.os={"name": "windows"}"#];
    check("restricted:19-24", &windows, &missing("containers \"i\", \"c\""));
    check("restricted:25-35", &windows, "");
}

#[test]
fn sysctls() {
    let by_release = [
        (0, "kernel.shm_rmid_forced"),
        (0, "net.ipv4.ip_local_port_range"),
        (0, "net.ipv4.tcp_syncookies"),
        (0, "net.ipv4.ping_group_range"),
        (0, "net.ipv4.ip_unprivileged_port_start"),
        (27, "net.ipv4.ip_local_reserved_ports"),
        (29, "net.ipv4.tcp_keepalive_time"),
        (29, "net.ipv4.tcp_fin_timeout"),
        (29, "net.ipv4.tcp_keepalive_intvl"),
        (29, "net.ipv4.tcp_keepalive_probes"),
        (32, "net.ipv4.tcp_rmem"),
        (32, "net.ipv4.tcp_wmem"),
    ];
    let set = |names: &[&str]| {
        let list: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        format!("pod:sysctls={}", Value::from(list))
    };
    for (since, name) in by_release {
        check(&format!("baseline:{since}-35 restricted:{since}-35"), &[&set(&[name])], "");
        if since > 0 {
            let before = since - 1;
            check(&format!("baseline:0-{before}"), &[&set(&[name])], &format!("forbidden sysctls ({name})"));
        }
    }
    check(BOTH, &[&set(&["kernel.msgmax", "net.ipv4.tcp_syncookies", "b"])], "forbidden sysctls (kernel.msgmax, b)");
}

#[test]
fn host_processes_of_windows() {
    let bad = |who: &str| format!("hostProcess ({who} must not set securityContext.windowsOptions.hostProcess=true)");
    check(BOTH, &["pod:windowsOptions={}", "c:windowsOptions.hostProcess=false"], "");
    check(BOTH, &["pod:windowsOptions.hostProcess=true"], &bad("pod"));
    check(BOTH, &["i:windowsOptions.hostProcess=true"], &bad("container \"i\""));
    let all = ["pod", "c", "i"].map(|place| format!("{place}:windowsOptions.hostProcess=true"));
    check(BOTH, &[&all[0], &all[1], &all[2]], &bad("pod and containers \"i\", \"c\""));
    // They need the network of the host.
    let expected = format!("host namespaces (hostNetwork=true), {}", bad("pod"));
    check(BOTH, &["pod.hostNetwork=true", &all[0]], &expected);
}

#[test]
fn volumes() {
    let volumes = |prefix: &str, sources: &[&str]| {
        let each = sources.iter().enumerate();
        each.map(|(at, source)| json!({"name": format!("{prefix}{at}"), *source: minimal(source)})).collect::<Vec<_>>()
    };
    let set = |list: &[Value]| format!("pod.volumes={}", Value::from(list.to_vec()));
    let allowed = [
        "emptyDir",
        "secret",
        "persistentVolumeClaim",
        "downwardAPI",
        "configMap",
        "projected",
        "csi",
        "ephemeral",
        "image",
    ];
    check(BOTH, &[&set(&volumes("a", &allowed))], "");
    let refused = [
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "glusterfs",
        "hostPath",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ];
    for source in refused {
        let expected = format!("restricted volume types (volume \"b0\" uses restricted volume type {source:?})");
        check("restricted", &[&set(&volumes("b", &[source]))], &expected);
    }
    let mut all = volumes("a", &allowed);
    all.extend(volumes("b", &refused[..2]));
    all.push(json!({"name": "c", "ofTomorrow": {}}));
    let expected = "restricted volume types (volumes \"b0\", \"b1\", \"c\" use restricted volume types \
        \"awsElasticBlockStore\", \"azureDisk\", \"unknown\")";
    check("restricted", &[&set(&all)], expected);
    check("baseline", &[&set(&all)], "");

    let mut every = volumes("a", &allowed);
    every.extend(volumes("b", &refused));
    every.push(json!({"name": "c"}));
    let expected = "restricted volume types (volumes \"b0\", \"b1\", \"b2\", \"b3\", \"b4\", \"b5\", \"b6\", \"b7\", \"b8\", \
        \"b9\", \"b10\", \"b11\", \"b12\", \"b13\", \"b14\", \"b15\", \"b16\", \"b17\", \"b18\", \"b19\", \"b20\", \"c\" use \
        restricted volume types \"awsElasticBlockStore\", \"azureDisk\", \"azureFile\", \"cephfs\", \"cinder\", \"fc\", \
        \"flexVolume\", \"flocker\", \"gcePersistentDisk\", \"gitRepo\", \"glusterfs\", \"hostPath\", \"iscsi\", \"nfs\", \
        \"photonPersistentDisk\", \"portworxVolume\", \"quobyte\", \"rbd\", \"scaleIO\", \"storageos\", \"unknown\", \
        \"vsphereVolume\")";
    check("restricted", &[&set(&every)], expected);
    check("baseline", &[&set(&every)], "hostPath volumes (volume \"b11\")");
}

/// A source of this kind with the fields that must be there.
fn minimal(source: &str) -> Value {
    match source {
        "awsElasticBlockStore" | "cinder" => json!({"volumeID": "x"}),
        "azureDisk" => json!({"diskName": "x", "diskURI": "x"}),
        "azureFile" => json!({"secretName": "x", "shareName": "x"}),
        "cephfs" => json!({"monitors": ["x"]}),
        "csi" | "flexVolume" => json!({"driver": "x"}),
        "gcePersistentDisk" => json!({"pdName": "x"}),
        "gitRepo" => json!({"repository": "x"}),
        "glusterfs" => json!({"endpoints": "x", "path": "x"}),
        "hostPath" => json!({"path": "/dev/null"}),
        "iscsi" => json!({"targetPortal": "x", "iqn": "x", "lun": 0}),
        "nfs" => json!({"server": "x", "path": "/"}),
        "persistentVolumeClaim" => json!({"claimName": "x"}),
        "photonPersistentDisk" => json!({"pdID": "x"}),
        "portworxVolume" => json!({"volumeID": "x"}),
        "quobyte" => json!({"registry": "x", "volume": "x"}),
        "rbd" => json!({"monitors": ["x"], "image": "x"}),
        "scaleIO" => json!({"gateway": "x", "system": "x", "secretRef": {"name": "x"}}),
        "vsphereVolume" => json!({"volumePath": "x"}),
        _ => json!({}),
    }
}

#[test]
fn users() {
    let bad = |what: &str| format!("runAsNonRoot != true ({what})");
    let silent = "pod:runAsNonRoot=null";
    check("restricted", &[silent, "c:runAsNonRoot=true", "i:runAsNonRoot=true"], "");
    let missing = bad("pod or containers \"i\", \"c\" must set securityContext.runAsNonRoot=true");
    check("restricted", &[silent], &missing);
    let one = bad("pod or container \"c\" must set securityContext.runAsNonRoot=true");
    check("restricted", &[silent, "i:runAsNonRoot=true"], &one);
    let of_pod = bad("pod must not set securityContext.runAsNonRoot=false");
    check("restricted", &["pod:runAsNonRoot=false"], &of_pod);
    let of_one = bad("container \"c\" must not set securityContext.runAsNonRoot=false");
    check("restricted", &["c:runAsNonRoot=false"], &of_one);
    let of_all = bad("pod and containers \"i\", \"c\" must not set securityContext.runAsNonRoot=false");
    check("restricted", &["pod:runAsNonRoot=false", "c:runAsNonRoot=false", "i:runAsNonRoot=false"], &of_all);

    check("restricted", &["pod:runAsUser=1000", "c:runAsUser=1", "i:runAsUser=65535"], "");
    let zero = |who: &str| format!("runAsUser=0 ({who} must not set runAsUser=0)");
    check("restricted:23-35", &["pod:runAsUser=0"], &zero("pod"));
    check("restricted:23-35", &["i:runAsUser=0", "c:runAsUser=0"], &zero("containers \"i\", \"c\""));
    check("restricted:0-22 baseline", &["i:runAsUser=0", "pod:runAsUser=0"], "");
    check("baseline", &["pod:runAsNonRoot=false"], "");

    // Root of a user namespace of the Pod's own is not root of the node.
    let own = [silent, "pod:runAsUser=0", "pod.hostUsers=false"];
    check("restricted:35", &own, "");
    check("restricted:23-34", &own, &format!("{missing}, {}", zero("pod")));
    check("restricted:23-35", &[own[0], own[1], "pod.hostUsers=true"], &format!("{missing}, {}", zero("pod")));
}
