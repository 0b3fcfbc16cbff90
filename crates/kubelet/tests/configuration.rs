//! Configurations of the kubelet and of credential providers that are nearly right: read, or refused in a sentence, and what was
//! read is read again.

use std::path::Path;

use fuzz::Target;
use json::Value;
use kubelet::configuration::{Document, credential_providers, settings::Settings};

fn found() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found"))
}

fn value(input: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(input).map_err(|error| error.to_string())?;
    json::from_text(text).map_err(|error| error.to_string())
}

#[test]
fn kubelet_configuration() {
    let head = r#""apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration""#;
    let seeds = [
        r#""maxPods":50,"evictionHard":{"memory.available":"100Mi","nodefs.available":"10%"},"featureGates":{"AllAlpha":true}"#,
        r#""authentication":{"anonymous":{"enabled":false},"webhook":{"cacheTTL":"2m0s"}},"clusterDNS":["10.96.0.10"],"containerLogMaxSize":"10Mi""#,
        r#""systemReserved":{"cpu":"100m","memory":"1Gi"},"enforceNodeAllocatable":["pods"],"registerWithTaints":[{"key":"a","value":"b","effect":"NoSchedule"}]"#,
        r#""imageGCHighThresholdPercent":85,"imageGCLowThresholdPercent":80,"imageMinimumGCAge":"2m","shutdownGracePeriod":"0s","memorySwap":{"swapBehavior":"NoSwap"}"#,
        r#""evictionSoft":{"memory.available":"200Mi"},"evictionSoftGracePeriod":{"memory.available":"1m"},"mergeDefaultEvictionSettings":true,"podPidsLimit":-1"#,
    ];
    let seeds = seeds.map(|fields| format!("{{{head},{fields}}}").into_bytes()).into();
    let words = [
        head,
        "null",
        "true",
        "-1",
        "\"\"",
        "[]",
        "{}",
        "1e400",
        "\"10%\"",
        "\"1h\"",
        "\"-1s\"",
        "\"1.5Gi\"",
        "evictionHard",
        "systemReserved",
        "kubeReserved",
        "featureGates",
        "podPidsLimit",
        "staticPodURL",
        "\"signal\"",
        ",",
    ];
    fuzz::run(&Target { name: "kubelet-configuration", seeds, words: &words, found: found() }, |input| {
        let document = match value(input).and_then(Document::new) {
            Ok(document) => document,
            Err(why) => return why,
        };
        let again = Document::new(document.value().clone()).expect("what was read is read again");
        assert_eq!((again.warnings(), again.flags()), (document.warnings(), document.flags()));
        let _ = Settings::of(document.value()).expect("a document's settings are settings");
        document.flags().map_or_else(|why| why, |flags| flags.into_iter().map(|(name, _)| name).collect())
    });
}

#[test]
fn credential_providers() {
    let whole = r#"{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"name":"ecr","matchImages":
        ["*.dkr.ecr.*.amazonaws.com","r.io:5000/path"],"defaultCacheDuration":"12h","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
        "args":["get"],"env":[{"name":"A","value":"b"}]}]}"#;
    let tokens = r#"{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"name":"p","matchImages":["r.io"],
        "defaultCacheDuration":"0s","apiVersion":"credentialprovider.kubelet.k8s.io/v1","tokenAttributes":{"serviceAccountTokenAudience":"a",
        "cacheType":"Token","requireServiceAccount":true,"requiredServiceAccountAnnotationKeys":["a.io/b"]}}]}"#;
    let seeds = [whole, tokens].map(|text| text.as_bytes().to_vec()).into();
    let words = [
        "\"matchImages\":",
        "\"../sh\"",
        "\"*\"",
        "\"a//b\"",
        "\"[::1]:5000\"",
        "\"-1s\"",
        "null",
        "[]",
        "{}",
        "\"ServiceAccount\"",
        "\"credentialprovider.kubelet.k8s.io/v1alpha1\"",
        ",",
    ];
    fuzz::run(&Target { name: "credential-providers", seeds, words: &words, found: found() }, |input| {
        match value(input).and_then(|document| credential_providers::read(document, true)) {
            Ok(providers) => {
                for provider in &providers {
                    // It becomes a path below the folder of such programs.
                    let is_plain =
                        !provider.name.is_empty() && !provider.name.contains(['/', '\0']) && provider.name != "..";
                    assert!(is_plain, "{:?}", provider.name);
                }
                format!("{} programs", "x".repeat(providers.len().min(9)))
            }
            Err(why) => why,
        }
    });
}
