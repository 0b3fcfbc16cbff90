//! The plugin case by case: writes by a node, or by somebody else.

use json::json;

use super::*;
use api::features::Features;

use crate::auth::User;
use crate::tests::admission::{Write, context};

fn by_node(write: Write) -> Write {
    Write { user: User::new("system:node:n1", ["system:nodes"]), ..write }
}

fn update(plural: &'static str, sub: &'static str, old: Value, new: Value) -> Write {
    let write = Write::create(plural, new);
    by_node(Write { operation: Operation::Update, kind: ("", plural, sub), old: Some(old), ..write })
}

#[tokio::test]
async fn a_kubelet_keeps_to_its_own() {
    let context = context(vec![(
        "pods",
        json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"}, "spec": {"nodeName": "n1"}}),
    )])
    .await;
    let node = |name: &str, more: Value| json!({"metadata": {"name": name, "labels": more}});
    let create = |object: Value| by_node(Write::create("nodes", object)).through(&context, &PLUGIN);
    assert!(create(node("n1", json!({"kubernetes.io/hostname": "n1", "team": "a"}))).await.is_ok());
    let other = create(node("n2", json!({}))).await.unwrap_err();
    assert!(other.contains(r#"node "n1" is not allowed to modify node "n2""#), "{other}");
    for label in ["node-restriction.kubernetes.io/x", "node-role.kubernetes.io/control-plane"] {
        let error = create(node("n1", json!({label: ""}))).await.unwrap_err();
        assert!(error.contains(&format!("is not allowed to set the following labels: {label}")), "{error}");
    }
    let tainted = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a"}]}});
    let clean = json!({"metadata": {"name": "n1"}, "spec": {}});
    let error = update("nodes", "", tainted, clean).through(&context, &PLUGIN).await.unwrap_err();
    assert!(error.contains("is not allowed to modify taints"), "{error}");

    // Such as the public key of its encrypted ways.
    let annotated = |name: &str| json!({"metadata": {"name": name, "annotations": {"a": "b"}}});
    let annotate = |name: &'static str| update("nodes", "", node(name, json!({})), annotated(name));
    assert!(annotate("n1").through(&context, &PLUGIN).await.is_ok());
    assert!(annotate("n2").through(&context, &PLUGIN).await.is_err());

    let pod = |node: &str| json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": node}});
    assert!(update("pods", "status", pod("n1"), pod("n1")).through(&context, &PLUGIN).await.is_ok());
    assert!(update("pods", "status", pod("n2"), pod("n2")).through(&context, &PLUGIN).await.is_err());
    let claims = |name: &str| {
        let mut pod = pod("n1");
        pod["status"] = json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": name}]});
        pod
    };
    assert!(update("pods", "status", claims("a"), claims("a")).through(&context, &PLUGIN).await.is_ok());
    assert!(update("pods", "status", claims("a"), claims("b")).through(&context, &PLUGIN).await.is_err());
    assert!(update("pods", "resize", pod("n1"), pod("n1")).through(&context, &PLUGIN).await.is_err());

    let claim = |more: Value| json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"a": 1}, "status": more});
    let grown = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
    let write = |sub, status| update("persistentvolumeclaims", sub, claim(json!({"phase": "Bound"})), claim(status));
    assert!(write("status", grown.clone()).through(&context, &PLUGIN).await.is_ok());
    assert!(write("", grown).through(&context, &PLUGIN).await.is_err());
    assert!(write("status", json!({"phase": "Lost"})).through(&context, &PLUGIN).await.is_err());
}

#[tokio::test]
async fn a_mirror_pod_is_the_nodes_and_opens_nothing() {
    let context = context(vec![("nodes", json!({"metadata": {"name": "n1", "uid": "u1"}}))]).await;
    let create = |change: &[(&str, Value)]| {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "annotations": {"kubernetes.io/config.mirror": "h"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]},
        });
        for (place, value) in change {
            *pod.pointer_mut(place).unwrap() = value.clone();
        }
        by_node(Write::create("pods", pod)).through(&context, &PLUGIN)
    };
    create(&[]).await.unwrap();
    for (place, value, why) in [
        ("/metadata/annotations", json!({}), "can only create mirror pods"),
        ("/spec/nodeName", json!("n2"), "spec.nodeName set to itself"),
        ("/metadata/ownerReferences", json!([]), "an owner reference"),
        ("/metadata/ownerReferences", json!([{}, {}]), "a single owner reference"),
        ("/metadata/ownerReferences/0/apiVersion", json!("v2"), "owner reference set to itself"),
        ("/metadata/ownerReferences/0/name", json!("n2"), "owner reference set to itself"),
        ("/metadata/ownerReferences/0/kind", json!("Pod"), "owner reference set to itself"),
        ("/metadata/ownerReferences/0/controller", json!(null), "controller owner reference"),
        ("/metadata/ownerReferences/0/controller", json!(false), "controller owner reference"),
        (
            "/metadata/ownerReferences/0",
            json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true, "blockOwnerDeletion": true}),
            "must not set blockOwnerDeletion on an owner reference",
        ),
        ("/metadata/ownerReferences/0/uid", json!("u2"), "UID mismatch"),
        ("/spec/volumes/0", json!({"name": "v", "secret": {"secretName": "x"}}), "reference secrets"),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "x"}}]}}),
            "configmaps",
        ),
        ("/spec/volumes/0", json!({"name": "v", "ephemeral": {}}), "persistentvolumeclaims"),
        (
            "/spec/volumes/0",
            json!({"name": "v", "persistentVolumeClaim": {"claimName": "x"}}),
            "persistentvolumeclaims",
        ),
        ("/spec/volumes/0", json!({"name": "v", "csi": {"driver": "x"}}), "reference csidrivers"),
        ("/spec/volumes/0", json!({"name": "v", "glusterfs": {"endpoints": "x", "path": "/"}}), "reference endpoints"),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            "reference serviceaccounts",
        ),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "t"}}]}}),
            "reference clustertrustbundles",
        ),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": "a/b"}}]}}),
            "podcertificates",
        ),
        ("/spec/containers/0", json!({"env": [{"valueFrom": {"secretKeyRef": {"name": "x"}}}]}), "reference secrets"),
        ("/spec/containers/0", json!({"envFrom": [{"configMapRef": {"name": "x"}}]}), "configmaps"),
        ("/spec", json!({"nodeName": "n1", "serviceAccountName": "bot"}), "reference serviceaccounts"),
        (
            "/spec",
            json!({"nodeName": "n1", "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}),
            "resourceclaims",
        ),
        (
            "/spec",
            json!({"nodeName": "n1", "resourceClaims": [{"name": "c", "resourceClaimName": "r"}]}),
            "resourceclaims",
        ),
        ("/spec", json!({"nodeName": "n1", "imagePullSecrets": [{"name": "x"}]}), "reference secrets"),
    ] {
        let said = create(&[(place, value)]).await.unwrap_err();
        assert!(said.contains(why), "{place}: {said}");
    }
}

#[tokio::test]
async fn what_bears_the_nodes_name_is_its_own_and_nothing_else() {
    let pod = |name: &str, node: &str| {
        ("pods", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"nodeName": node}}))
    };
    let context = context(vec![pod("near", "n1"), pod("far", "n2")]).await;
    let named = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}});
    let slice = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
    let (lease, csi) = (("coordination.k8s.io", "leases", ""), ("storage.k8s.io", "csinodes", ""));
    let (eviction, slices) = (("", "pods", "eviction"), ("resource.k8s.io", "resourceslices", ""));
    use Operation::{Create, Delete, Update};
    let check = async |kind, operation, object: Value, expected: &str| {
        let kept = (operation != Create).then(|| object.clone());
        let object = (operation != Delete).then_some(object);
        let write = Write { kind, operation, old: kept, object, ..Write::create("", json!({})) };
        let said = by_node(write).through(&context, &PLUGIN).await.err().unwrap_or_default();
        assert!(said.ends_with(expected) && said.is_empty() == expected.is_empty(), "{kind:?} {operation:?}: {said}");
    };
    let (other_lease, other_csi) = (
        "can only access node lease with the same name as the requesting node",
        "can only access CSINode with the same name as the requesting node",
    );
    for operation in [Create, Update, Delete] {
        check(lease, operation, named("n1", "kube-node-lease"), "").await;
        check(lease, operation, named("n2", "kube-node-lease"), other_lease).await;
        let elsewhere = "can only access leases in the \"kube-node-lease\" system namespace";
        check(lease, operation, named("n1", "kube-system"), elsewhere).await;
        check(csi, operation, named("n1", ""), "").await;
        check(csi, operation, named("n2", ""), other_csi).await;
        check(slices, operation, slice("n1"), "").await;
    }
    for node in ["n2", ""] {
        let why = |verb: &str| format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
        check(slices, Create, slice(node), &why("create")).await;
        check(slices, Delete, slice(node), &why("delete")).await;
    }
    check(eviction, Create, named("near", "ns"), "").await;
    check(eviction, Create, named("far", "ns"), "node n1 can only evict pods with spec.nodeName set to itself").await;
    check(eviction, Create, named("gone", "ns"), "pods \"gone\" not found").await;
    let node = |spec: Value, labels: Value| json!({"metadata": {"name": "n1", "labels": labels}, "spec": spec});
    let created = |node: Value| by_node(Write::create("nodes", node)).through(&context, &PLUGIN);
    let source = json!({"configSource": {"configMap": {"name": "x"}}});
    let refused = created(node(source.clone(), json!({}))).await.unwrap_err();
    assert!(refused.ends_with("node \"n1\" is not allowed to create pods with a non-nil configSource"), "{refused}");
    let changed = |old: Value, new: Value| update("nodes", "", old, new).through(&context, &PLUGIN);
    let plain = || node(json!({}), json!({}));
    assert!(changed(node(source.clone(), json!({})), plain()).await.is_ok(), "old kubelets drop the field");
    let refused = changed(plain(), node(source, json!({}))).await.unwrap_err();
    assert!(refused.ends_with("is not allowed to update configSource to a new non-nil configSource"), "{refused}");
    let refused = changed(plain(), node(json!({}), json!({"x.k8s.io/a": "", "k8s.io/b": ""}))).await.unwrap_err();
    assert!(refused.ends_with("is forbidden: is not allowed to modify labels: k8s.io/b, x.k8s.io/a"), "{refused}");
    let owned = json!({"metadata": {"name": "n1", "ownerReferences": [{"uid": "u"}]}, "spec": {}});
    let refused = changed(plain(), owned).await.unwrap_err();
    assert!(refused.ends_with("is not allowed to modify ownerReferences"), "{refused}");
}

#[tokio::test]
async fn a_token_is_for_a_pod_of_the_node_and_an_audience_it_names() {
    let sources = json!({"sources": [{"serviceAccountToken": {"path": "a"}}, {"serviceAccountToken": {"path": "b", "audience": "vault"}}]});
    let volumes = json!([{"name": "t", "projected": sources}, {"name": "k", "csi": {"driver": "keys"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}]);
    let pod = |name: &str, volumes: Value, node: &str| {
        (
            "pods",
            json!({"metadata": {"name": name, "namespace": "ns", "uid": "u"}, "spec": {"nodeName": node, "volumes": volumes}}),
        )
    };
    let driver = |name: &str, audience: &str| {
        ("csidrivers", json!({"metadata": {"name": name}, "spec": {"tokenRequests": [{"audience": audience}]}}))
    };
    let claim = |name: &str, volume: &str| {
        let spec = json!({"volumeName": volume});
        ("persistentvolumeclaims", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec}))
    };
    let claimed = |name: &str| json!({"name": "d", "persistentVolumeClaim": {"claimName": name}});
    let context = Context {
        authorizer: std::sync::Arc::new(crate::auth::Union(Vec::new())),
        ..context(vec![
            pod("web", volumes, "n1"),
            pod("bare", json!([]), "n1"),
            pod("far", json!([]), "n2"),
            driver("keys", "kms"),
            driver("disks", "cloud"),
            driver("file.csi.azure.com", "cloud"),
            claim("claim", "pv"),
            claim("scratch-e", "pv"),
            claim("old", "azure"),
            claim("unbound", ""),
            claim("volumeless", "gone"),
            ("persistentvolumes", json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "disks"}}})),
            ("persistentvolumes", json!({"metadata": {"name": "azure"}, "spec": {"azureFile": {"shareName": "s"}}})),
            pod("driverless", json!([{"name": "k", "csi": {"driver": "gone"}}]), "n1"),
            pod("claimless", json!([claimed("gone")]), "n1"),
            pod("volumeless", json!([claimed("volumeless")]), "n1"),
            pod("unbound", json!([claimed("unbound")]), "n1"),
            pod("nothing", json!([{"name": "e", "ephemeral": {}}, {"name": "k", "csi": {"driver": "gone"}}]), "n1"),
            pod("partial", json!([claimed("gone"), {"name": "k", "csi": {"driver": "keys"}}]), "n1"),
            pod("scratch", json!([{"name": "e", "ephemeral": {}}]), "n1"),
            pod("old", json!([claimed("old")]), "n1"),
            pod("older", json!([{"name": "f", "azureFile": {"shareName": "s", "secretName": "x"}}]), "n1"),
        ])
        .await
    };
    let ask = |reference: Value, audiences: &[&str]| {
        let spec = json!({"boundObjectRef": reference, "audiences": audiences});
        let object = json!({"metadata": {"name": "bot", "namespace": "ns"}, "spec": spec});
        let write = Write { kind: ("", "serviceaccounts", "token"), ..Write::create("", object) };
        by_node(write).through(&context, &PLUGIN)
    };
    let of = |name: &str, uid: &str| json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    for audiences in [&[][..], &["vault"], &["kms"], &["cloud"]] {
        ask(of("web", "u"), audiences).await.unwrap();
    }
    // Of a Pod without anything it is not known which audiences it wants, and the objects behind its volumes may be missing.
    let missing = |name: &str, why: &str| (of(name, "u"), format!("error validating audience \"kms\": {why}"));
    for (reference, why) in [
        missing("driverless", "csidriver.storage.k8s.io \"gone\" not found"),
        missing("claimless", "persistentvolumeclaim \"gone\" not found"),
        missing("volumeless", "persistentvolume \"gone\" not found"),
        missing("unbound", "persistentvolume \"\" not found"),
        missing(
            "nothing",
            "[persistentvolumeclaim \"nothing-e\" not found, csidriver.storage.k8s.io \"gone\" not found]",
        ),
    ] {
        let said = ask(reference, &["kms"]).await.unwrap_err();
        assert_eq!(said, format!("serviceaccounts \"bot\" is forbidden: {why}"));
    }
    ask(of("partial", "u"), &["kms"]).await.unwrap();
    for name in ["scratch", "old", "older"] {
        ask(of(name, "u"), &["cloud"]).await.unwrap();
        assert!(ask(of(name, "u"), &["kms"]).await.unwrap_err().contains("not found in pod spec volume"), "{name}");
    }
    for (reference, audiences, why) in [
        (json!(null), &[][..], "not bound to a pod"),
        (of("web", ""), &[], "without a uid"),
        (of("web", "v"), &[], "does not match the UID in record"),
        (of("far", "u"), &[], "scheduled on a different node"),
        (of("gone", "u"), &[], "not found"),
        (of("web", "u"), &["https://kubernetes.default.svc"], "not found in pod spec volume"),
        (of("web", "u"), &["vault", "kms"], "0 or 1 audiences"),
        (of("bare", "u"), &[], "not found in pod spec volume"),
    ] {
        let said = ask(reference, audiences).await.unwrap_err();
        assert!(said.contains(why), "{audiences:?}: {said}");
    }
    // A node that is granted an audience needs no volume.
    let granting = Context { authorizer: std::sync::Arc::new(crate::auth::AlwaysAllow), ..context };
    let object = json!({"metadata": {"name": "bot", "namespace": "ns"},
        "spec": {"boundObjectRef": of("bare", "u"), "audiences": ["registry"]}});
    let write = Write { kind: ("", "serviceaccounts", "token"), ..Write::create("", object) };
    by_node(write).through(&granting, &PLUGIN).await.unwrap();
}

#[tokio::test]
async fn a_node_asks_for_certificates_of_its_own_name() {
    let context = context(Vec::new()).await;
    let ask = |name: &str, signer: &str| {
        let pem = pki::Wish::new(&pki::Subject::client(name, Some("system:nodes"))).unwrap().request;
        let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
        let csr = json!({"metadata": {"name": "c"}, "spec": {"signerName": signer, "request": request}});
        let kind = ("certificates.k8s.io", "certificatesigningrequests", "");
        by_node(Write { kind, ..Write::create("", csr) }).through(&context, &PLUGIN)
    };
    for signer in ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"] {
        ask("system:node:n1", signer).await.unwrap();
        assert!(
            ask("system:node:n2", signer)
                .await
                .unwrap_err()
                .contains("can only create a node CSR with CN=system:node:n1")
        );
    }
    ask("somebody", "example.com/signer").await.unwrap();
    ask("somebody", "kubernetes.io/kube-apiserver-client").await.unwrap();
    let feature = Feature::AllowInsecureKubeletCertificateSigningRequests;
    let lax = Context {
        features: Features::default().with(feature, true),
        ..crate::tests::admission::context(Vec::new()).await
    };
    let request = |context, name: &str, pem: &str| {
        let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
        let spec = json!({"signerName": "kubernetes.io/kubelet-serving", "request": request});
        let csr = json!({"metadata": {"name": name}, "spec": spec});
        let kind = ("certificates.k8s.io", "certificatesigningrequests", "");
        by_node(Write { kind, ..Write::create("", csr) }).through(context, &PLUGIN)
    };
    let of_another = pki::Wish::new(&pki::Subject::client("system:node:n2", Some("system:nodes"))).unwrap().request;
    assert!(request(&lax, "c", &of_another).await.is_ok());
    let broken = "-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----";
    let said = request(&context, "c", broken).await.unwrap_err();
    assert!(said.contains("is forbidden: unable to parse csr: "), "{said}");
}

/// A Pod is `mirror` or `normal`, on node `n1`, on another one, or on none. Upstream: Test_nodePlugin_Admit.
#[tokio::test]
async fn a_node_writes_its_own_pods_and_no_others() {
    use Operation::{Create, Delete, Update};
    let pod = |name: &str, mirror: bool, node: &str| {
        let mut metadata = json!({"name": name, "namespace": "ns", "uid": "pod-uid"});
        if mirror {
            metadata["annotations"] = json!({"kubernetes.io/config.mirror": "true"});
            metadata["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": format!("{node}-uid"), "controller": true}]);
        }
        json!({"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "c"}]}})
    };
    let all = [("own", "n1"), ("far", "n2"), ("unbound", "")];
    let mut there = vec![("nodes", json!({"metadata": {"name": "n1", "uid": "n1-uid"}}))];
    for mirror in [true, false] {
        there.extend(all.map(|(name, node)| ("pods", pod(&format!("{name}-{mirror}"), mirror, node))));
    }
    let context = context(there).await;
    let (elsewhere, unexpected) = ("spec.nodeName set to itself", "forbidden: unexpected operation");
    for mirror in [true, false] {
        for (name, node) in all {
            let object = pod(&format!("{name}-{mirror}"), mirror, node);
            let here = if node == "n1" { "" } else { elsewhere };
            let made = if mirror { here } else { "can only create mirror pods" };
            for (subresource, operation, expected) in [
                ("", Create, made),
                ("", Update, unexpected),
                ("", Delete, here),
                ("status", Create, unexpected),
                ("status", Update, here),
                ("status", Delete, unexpected),
                ("eviction", Create, here),
                ("eviction", Update, unexpected),
                ("eviction", Delete, unexpected),
                ("binding", Create, "unexpected pod subresource"),
            ] {
                let old = (operation != Create).then(|| object.clone());
                let new = (operation != Delete).then(|| object.clone());
                let write = |user| Write {
                    operation,
                    kind: ("", "pods", subresource),
                    user,
                    old: old.clone(),
                    object: new.clone(),
                };
                let node = User::new("system:node:n1", ["system:nodes"]);
                let said = write(node).through(&context, &PLUGIN).await.err().unwrap_or_default();
                let fits = said.contains(expected) && said.is_empty() == expected.is_empty();
                assert!(fits, "{name} {mirror} {subresource} {operation:?}: {said}");
                assert!(write(User::new("bob", ["dev"])).through(&context, &PLUGIN).await.is_ok(), "it is no node");
                let nameless = write(User::new("system:node:", ["system:nodes"])).through(&context, &PLUGIN).await;
                assert!(nameless.unwrap_err().contains("could not determine node from user"));
            }
        }
    }
    // Nothing of these is the plugin's.
    for operation in [Create, Update, Delete] {
        let map = json!({"metadata": {"name": "m", "namespace": "ns"}});
        let write = Write { operation, old: Some(map.clone()), ..Write::create("configmaps", map) };
        assert!(by_node(write).through(&context, &PLUGIN).await.is_ok(), "{operation:?}");
    }
}

#[tokio::test]
async fn a_status_changes_no_labels_and_a_mirror_pod_needs_its_node() {
    let context = context(Vec::new()).await;
    let pod = |labels: &[&str]| {
        let labels: std::collections::BTreeMap<&str, &str> = labels.iter().map(|key| (*key, "v")).collect();
        json!({"metadata": {"name": "p", "namespace": "ns", "labels": labels}, "spec": {"nodeName": "n1"}})
    };
    for (old, new) in [(&["a"][..], &["a", "b"][..]), (&["a", "b"], &["a"]), (&["a"], &[]), (&[], &["a"])] {
        let said = update("pods", "status", pod(old), pod(new)).through(&context, &PLUGIN).await.unwrap_err();
        assert!(said.ends_with("node \"n1\" cannot update labels through pod status"), "{said}");
        assert!(update("pods", "status", pod(old), pod(old)).through(&context, &PLUGIN).await.is_ok());
    }
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true});
    let metadata = json!({"name": "p", "namespace": "ns", "annotations": {"kubernetes.io/config.mirror": "h"},
        "ownerReferences": [owner]});
    let mirror = json!({"metadata": metadata, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}});
    let said = by_node(Write::create("pods", mirror)).through(&context, &PLUGIN).await.unwrap_err();
    assert_eq!(said, "nodes \"n1\" not found");
}

/// Upstream: setAllowedUpdateLabels, setForbiddenUpdateLabels and the cases of nodes with them; Test_getModifiedLabels.
#[tokio::test]
async fn a_node_chooses_the_labels_that_are_its_own() {
    const ALLOWED: &[&str] = &[
        "foo",
        "example.com/foo",
        "kubernetes.io/hostname",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "kubelet.kubernetes.io/foo",
        "foo.kubelet.kubernetes.io/foo",
        "node.kubernetes.io/foo",
        "foo.node.kubernetes.io/foo",
    ];
    const FORBIDDEN: &[&str] = &[
        "foo.node-restriction.kubernetes.io/foo",
        "node-restriction.kubernetes.io/foo",
        "other.k8s.io/foo",
        "other.kubernetes.io/foo",
    ];
    let context = context(Vec::new()).await;
    let node = |labels: &[(&[&str], &str)]| {
        let each = labels.iter().flat_map(|(keys, value)| keys.iter().map(move |key| (*key, *value)));
        json!({"metadata": {"name": "n1", "labels": each.collect::<std::collections::BTreeMap<_, _>>()}})
    };
    let told = async |old: Option<Value>, new: Value| {
        let operation = if old.is_some() { Operation::Update } else { Operation::Create };
        let write = by_node(Write { operation, old, ..Write::create("nodes", new) });
        write.through(&context, &PLUGIN).await.err().unwrap_or_default()
    };
    let all = FORBIDDEN.join(", ");
    let changed = format!("nodes \"n1\" is forbidden: is not allowed to modify labels: {all}");
    assert_eq!(told(None, node(&[(ALLOWED, "v")])).await, "");
    let set = format!("nodes \"n1\" is forbidden: node \"n1\" is not allowed to set the following labels: {all}");
    assert_eq!(told(None, node(&[(ALLOWED, "v"), (FORBIDDEN, "v")])).await, set);
    assert!(told(None, node(&[(&["failure-domain.kubernetes.io/zone"], "v")])).await.contains("is not allowed to set"));
    let both = &[(ALLOWED, "v"), (FORBIDDEN, "v")][..];
    for (old, new, allowed) in [
        (&[][..], &[(ALLOWED, "v")][..], true),
        (&[(ALLOWED, "v")], &[], true),
        (&[(ALLOWED, "a")], &[(ALLOWED, "b")], true),
        (both, both, true),
        (&[(FORBIDDEN, "v")], both, true),
        (both, &[(FORBIDDEN, "v")], true),
        (&[], &[(FORBIDDEN, "v")], false),
        (&[], &[(FORBIDDEN, "")], false),
        (&[(FORBIDDEN, "v")], &[], false),
        (&[(FORBIDDEN, "")], &[], false),
        (&[(FORBIDDEN, "old")], &[(FORBIDDEN, "new")], false),
        (&[(FORBIDDEN, "old")], &[(FORBIDDEN, "")], false),
        (&[(FORBIDDEN, "")], &[(FORBIDDEN, "new")], false),
    ] {
        let expected = if allowed { "" } else { &changed };
        assert_eq!(told(Some(node(old)), node(new)).await, expected, "{old:?} {new:?}");
    }
}

/// Upstream: the cases of nodes in Test_nodePlugin_Admit.
#[tokio::test]
async fn a_node_keeps_its_taints_and_its_configuration() {
    let context = context(Vec::new()).await;
    let node = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let taint = |value: &str| json!({"taints": [{"key": "mykey", "value": value}]});
    let source = |name: &str| json!({"configSource": {"configMap": {"name": name}}});
    let (other, taints) = ("is not allowed to modify node", "is not allowed to modify taints");
    let new_source = "is not allowed to update configSource to a new non-nil configSource";
    let made_source = "is not allowed to create pods with a non-nil configSource";
    for (name, subresource, old, new, expected) in [
        ("n1", "", None, json!({}), ""),
        ("n1", "", None, taint("A"), ""),
        ("n1", "", None, source("foo"), made_source),
        ("n1", "", Some(json!({})), json!({}), ""),
        ("n1", "status", Some(json!({})), json!({}), ""),
        ("n1", "", Some(json!({})), source("foo"), new_source),
        ("n1", "", Some(source("foo")), source("qux"), new_source),
        ("n1", "", Some(source("foo")), source("foo"), ""),
        ("n1", "", Some(source("foo")), json!({}), ""),
        ("n1", "", Some(taint("A")), taint("A"), ""),
        ("n1", "", Some(json!({})), taint("A"), taints),
        ("n1", "", Some(taint("A")), json!({}), taints),
        ("n1", "", Some(taint("B")), taint("A"), taints),
        ("n1", "status", Some(json!({})), taint("A"), taints),
        ("n2", "", None, json!({}), other),
        ("n2", "", Some(json!({})), json!({}), other),
        ("n2", "status", Some(json!({})), json!({}), other),
    ] {
        let operation = if old.is_some() { Operation::Update } else { Operation::Create };
        let old = old.map(|spec| node(name, spec));
        let write =
            Write { operation, kind: ("", "nodes", subresource), old, ..Write::create("", node(name, new.clone())) };
        let said = by_node(write).through(&context, &PLUGIN).await.err().unwrap_or_default();
        assert!(
            said.contains(expected) && said.is_empty() == expected.is_empty(),
            "{name} {subresource} {new}: {said}"
        );
    }
    for (name, allowed) in [("n1", true), ("n2", false)] {
        let (operation, old) = (Operation::Delete, Some(node(name, json!({}))));
        let write = Write { operation, old, object: None, ..Write::create("nodes", json!({})) };
        assert_eq!(by_node(write).through(&context, &PLUGIN).await.is_ok(), allowed, "{name}");
    }
}

/// Upstream: TestAdmitPVCStatus.
#[tokio::test]
async fn of_a_claim_a_node_writes_what_became_of_its_volume() {
    let context = context(Vec::new()).await;
    let claim = |condition: &str, size: &str, failed: bool| {
        let mut claim = json!({"metadata": {"name": "c", "namespace": "ns"},
            "spec": {"volumeName": "volume1", "resources": {"requests": {"storage": "10G"}}},
            "status": {"phase": "Bound", "capacity": {"storage": size}, "allocatedResources": {"storage": size},
                "conditions": [{"type": condition, "status": "True"}]}});
        if failed {
            claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
        }
        claim
    };
    let (resizing, pending) = ("Resizing", "FileSystemResizePending");
    let write = |sub, new| update("persistentvolumeclaims", sub, claim(resizing, "10G", false), new);
    let whole = write("", claim("", "10G", false)).through(&context, &PLUGIN).await.unwrap_err();
    assert_eq!(whole, "persistentvolumeclaims \"c\" is forbidden: may only update PVC status");
    for new in [claim(pending, "10G", false), claim(pending, "15G", false), claim(resizing, "10G", true)] {
        assert!(write("status", new.clone()).through(&context, &PLUGIN).await.is_ok(), "{new}");
    }
    for (place, value) in [
        ("/metadata/labels", json!({"a": "b"})),
        ("/metadata/finalizers", json!(["a"])),
        ("/spec/volumeName", json!("x")),
    ] {
        let mut new = claim(resizing, "10G", false);
        let (parent, field) = place.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[field] = value;
        assert!(write("status", new).through(&context, &PLUGIN).await.is_err(), "{place}");
    }
    for operation in [Operation::Create, Operation::Delete] {
        let write = Write { operation, ..write("status", claim(resizing, "10G", false)) };
        assert!(write.through(&context, &PLUGIN).await.unwrap_err().contains("unexpected operation"));
    }
}
