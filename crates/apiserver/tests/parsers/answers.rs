//! Answers of others: values that another server stored, documents of another API server, the metrics of nodes, and certificate
//! requests that users put into objects.

use api::rules::{certificate_request::CertificateRequest, cron::Schedule, metrics_text, quantity::Quantity};
use apiserver::{aggregator::openapi, storage::foreign};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use fuzz::Target;
use json::json;

use crate::{found, kinds, objects};

/// The value of an object in upstream's protobuf.
fn stored() -> Vec<Vec<u8>> {
    let encoded = |text: Vec<u8>| {
        let definition = kinds::of(&text);
        let object = serde_json::from_slice(&text).expect("JSON");
        api::codec::protobuf::encode(&definition.ty.object().expect("a kind is an object").name, &object)
    };
    objects().into_iter().filter_map(encoded).collect()
}

#[test]
fn values_of_another_server() {
    let mut seeds = stored();
    assert!(seeds.len() > 5);
    seeds.push(b"k8s\0\x0a\x0a\x0a\x02v1\x12\x04Odds".to_vec());
    seeds.push(b"\xd9\xd9\xf7\xa2DkindCPodJapiVersionBv1".to_vec());
    let words = ["k8s\0", "\n\u{2}v1", "\u{12}\u{3}Pod", "\u{1a}\0", "\"\0"];
    fuzz::run(&Target { name: "stored", seeds, words: &words, found: found() }, |input| {
        match foreign::as_text(&Bytes::copy_from_slice(input)) {
            Ok(text) if *text == *input => "as it was".to_owned(),
            Ok(text) => {
                let value: api::Value = serde_json::from_slice(&text).expect("what is served is JSON");
                let again = foreign::as_text(&text).expect("text stays");
                assert_eq!(again, text);
                value["kind"].to_string()
            }
            Err(why) => why,
        }
    });
}

#[test]
fn openapi_documents() {
    let refers = |name: &str| json!({"schema": {"$ref": format!("#/definitions/{name}")}});
    let kind = json!([{"group": "a.io", "version": "v1", "kind": "Thing"}]);
    let whole = json!({
        "paths": {"/apis/a.io/v1/things": refers("Thing"), "/apis/a.io/v1/x": {}, "/apis/apps/v1/lies": refers("Lie")},
        "definitions": {"Thing": refers("Meta"), "Meta": refers("Thing"), "Lie": {}, "Other": {"x-kubernetes-group-version-kind": kind}},
    });
    let seeds = vec![whole.to_string().into_bytes(), b"{\"paths\":[],\"definitions\":7}".to_vec()];
    let words = [
        "\"$ref\":\"#/definitions/Thing\"",
        "\"/apis/a.io/v1/y\":",
        "\"Meta_v2\":",
        "\"x-kubernetes-group-version-kind\":[{}]",
        "null",
        "{}",
        "[]",
        ",",
    ];
    let own = json!({"paths": {"/apis/apps/v1/deployments": {"own": true}}, "definitions": {"Meta": {"own": true}}});
    fuzz::run(&Target { name: "openapi", seeds, words: &words, found: found() }, |input| {
        let Ok(document) = serde_json::from_slice(input) else { return "no JSON".to_owned() };
        let Some(part) = openapi::part(document, "/apis/a.io/v1") else { return "no part".to_owned() };
        let mut all = own.clone();
        openapi::merge(&mut all, &part);
        assert_eq!(all["paths"]["/apis/apps/v1/deployments"], own["paths"]["/apis/apps/v1/deployments"]);
        assert_eq!(all["definitions"]["Meta"], own["definitions"]["Meta"]);
        for (path, _) in all["paths"].as_object().expect("paths stay an object") {
            assert!(path.starts_with("/apis/a.io/v1/") || &**path == "/apis/apps/v1/deployments", "{path}");
        }
        let count = |field: &str| all[field].as_object().map_or(0, |fields| fields.iter().count().min(9));
        format!("{} {}", "p".repeat(count("paths")), "d".repeat(count("definitions")))
    });
}

#[test]
fn metrics_of_nodes() {
    let seeds = [
        "# HELP a b\n# TYPE a gauge\ncontainer_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5 1700000000000\nb 2\n",
        "a{b=\"\\\"\\n\\\\\"} NaN\nc{} +Inf 1\n{} 1\n",
    ];
    let words = ["{", "}", "=\"", "\"", "\\\"", "\\n", "\n", " ", "NaN", "-Inf", "1e400", "#", ","];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    fuzz::run(&Target { name: "metrics", seeds, words: &words, found: found() }, |input| {
        let text = String::from_utf8_lossy(input);
        let mut count = 0;
        for row in metrics_text::rows(&text) {
            count += 1;
            let labels: Vec<String> =
                row.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", metrics_text::escaped(value))).collect();
            let written = format!("{}{{{}}} 1", row.name, labels.join(","));
            let again: Vec<_> = metrics_text::rows(&written).collect();
            // A name may hold what begins labels only if there are none.
            if !row.labels.is_empty() {
                assert_eq!(again.first().map(|again| &again.labels), Some(&row.labels), "{written}");
            }
        }
        "r".repeat(count.min(9))
    });
}

#[test]
fn certificate_requests() {
    let wish = pki::Wish::new(&pki::Subject::client("system:node:n", Some("system:nodes"))).unwrap();
    let der = STANDARD.encode(b"0\x03\x02\x01\x00");
    let broken = format!("-----BEGIN CERTIFICATE REQUEST-----\n{der}\n-----END CERTIFICATE REQUEST-----\n");
    let seeds = vec![wish.request.into_bytes(), broken.into_bytes()];
    let words = [
        "-----BEGIN CERTIFICATE REQUEST-----\n",
        "-----END CERTIFICATE REQUEST-----\n",
        "\n",
        "MII",
        "=",
        "Proc-Type: 4,ENCRYPTED\n",
    ];
    fuzz::run(&Target { name: "certificate-requests", seeds, words: &words, found: found() }, |input| {
        match CertificateRequest::parse(input) {
            // The signature is over all of it, so that nothing else can have been asked for.
            Ok(request) => {
                assert_eq!(request.common_name(), "system:node:n");
                "read".to_owned()
            }
            Err(error) => error.to_string(),
        }
    });
}

#[test]
fn schedules_and_quantities() {
    let seeds = ["*/5 1-3 * * mon", "@every 1h30m", "0 0 29 2 *", "1.5Gi", "100m", "-1e3", "TZ=UTC 0 * * * *"];
    let words = ["*", "/", "-", ",", " ", "@every ", "jan", "?", "e", "Ki", "m", "n", "99999999999999999999", ".", "+"];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
    let after = clock::Timestamp::from_second(1_700_000_000).unwrap();
    fuzz::run(&Target { name: "schedules", seeds, words: &words, found: found() }, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return "no text".to_owned() };
        let quantity = text.parse::<Quantity>().map(|quantity| {
            let shown = quantity.to_string();
            let again: Quantity = shown.parse().unwrap_or_else(|error| panic!("{error:?}: {shown}"));
            assert_eq!(again.to_string(), shown, "{text}");
        });
        let schedule = Schedule::parse(text, api::rules::cron::time_zone("UTC").unwrap());
        let next = schedule.map(|schedule| schedule.next(after).is_some_and(|next| next > after));
        format!("{} {next:?}", quantity.is_ok())
    });
}
