//! Conversion by webhook: what is asked, and what of the answer counts. A webhook changes what stands beside the metadata,
//! and labels and annotations; everything else in the metadata is the server's.
//!
//! Upstream counterpart: apiextensions-apiserver/pkg/apiserver/conversion.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json::{Map, Value, json};

use super::defaults::prune;
use super::head::Head;
use super::strategy::shaped;
use super::version::Version;
use crate::codec::go;
use crate::kind::webhook::{Client, Webhook};
use crate::meta;
use crate::rules::certificate_request::pem_blocks;
use crate::schema::Type;
use crate::validation::field::{Errors, Path};
use crate::validation::object_meta;

/// The versions of ConversionReview.
pub(crate) const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const GROUP: &str = "apiextensions.k8s.io";

/// Why no authority can be read from a bundle; an empty one is none. The words around the reason are client-go's.
pub(crate) fn bundle_error(bundle: &[u8]) -> Option<String> {
    if bundle.is_empty() {
        return None;
    }
    let (text, mut why) = (String::from_utf8_lossy(bundle), "unable to parse bytes as PEM block".to_owned());
    for (label, body) in pem_blocks(&text).filter_map(Result::ok) {
        // A block with headers is no certificate.
        if label != "CERTIFICATE" || body.contains(':') {
            "no valid certificate authority data seen".clone_into(&mut why);
            continue;
        }
        let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let der = STANDARD.decode(body).unwrap_or_default();
        match x509_parser::parse_x509_certificate(&der) {
            Ok(_) => return None,
            Err(broken) => why = format!("failed to parse certificate: {broken}"),
        }
    }
    Some(format!("unable to load root certificates: {why}"))
}

/// Whether the authorities of a definition's webhook can be read, or there are none to be read.
pub(super) fn has_sound_bundle(head: &Head) -> bool {
    let webhook = head.spec.conversion.as_ref().and_then(|conversion| conversion.webhook.as_ref());
    let Some(client) = webhook.and_then(|webhook| webhook.client_config.as_ref()) else { return true };
    STANDARD.decode(&client.ca_bundle).is_ok_and(|bundle| bundle_error(&bundle).is_none())
}

/// The webhook that converts the objects of a definition.
pub struct Conversion {
    name: String,
    client: Client,
    group: String,
    kind: String,
    /// The first version of ConversionReview that both know.
    review: Option<&'static str>,
    versions: Vec<Arc<Version>>,
}

impl Conversion {
    /// `None` where no webhook converts.
    pub(super) fn of(head: &Head, versions: &[Arc<Version>]) -> Option<Conversion> {
        let conversion = head.spec.conversion.as_ref().filter(|conversion| conversion.strategy == "Webhook")?;
        let webhook = conversion.webhook.as_ref()?;
        let known = |wanted: &String| REVIEWS.into_iter().find(|known| known == wanted);
        Some(Conversion {
            name: head.metadata.name.clone(),
            client: webhook.client_config.clone()?,
            group: head.spec.group.clone(),
            kind: head.spec.names.kind.clone(),
            review: webhook.conversion_review_versions.iter().find_map(known),
            versions: versions.to_vec(),
        })
    }

    fn version(&self, api_version: &str) -> Option<&Version> {
        let name = api_version.strip_prefix(&self.group)?.strip_prefix('/')?;
        self.versions.iter().find(|version| version.name() == name).map(|version| &**version)
    }

    fn named(&self, api_version: &str) -> String {
        format!("{api_version}, Kind={}", self.kind)
    }

    /// The objects in an answer.
    fn answered(&self, uid: &str, mut answer: Value) -> Result<Vec<Value>, String> {
        let strict = self.review != Some("v1beta1");
        let (found, kind) = (api_version(&answer), answer["kind"].as_str().unwrap_or_default());
        if strict && (found, kind) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            let found = if found.is_empty() { "/" } else { found };
            let expected = format!("{GROUP}/v1, Kind=ConversionReview");
            return Err(format!("expected webhook response of {expected}, got {found}, Kind={kind}"));
        }
        let response = &mut answer["response"];
        if response.is_null() {
            return Err("no response provided".to_owned());
        }
        let told = response["uid"].as_str().unwrap_or_default();
        if strict && told != uid {
            return Err(format!("expected response.uid={uid:?}, got {told:?}"));
        }
        let result = &response["result"];
        let text = |field: &str| result[field].as_str().unwrap_or_default();
        match (text("status"), text("message")) {
            ("Success", _) => {}
            (other, "") => return Err(format!("response.result.status was '{other}', not 'Success'")),
            (_, message) => return Err(message.to_owned()),
        }
        match response["convertedObjects"].take() {
            Value::Array(objects) => Ok(objects),
            _ => Ok(Vec::new()),
        }
    }

    /// The part that counts of a converted object. The error names what is wrong with it, and why.
    fn settle(&self, original: &Value, mut converted: Value, desired: &str) -> Result<Value, (Part, String)> {
        let version = self.version(desired);
        let version = version
            .ok_or_else(|| (Part::Type, format!("request to convert CR to an invalid group/version: {desired}")))?;
        let found = api_version(&converted);
        if found != desired {
            return Err((Part::Type, format!("invalid groupVersion (expected {desired}, received {found})")));
        }
        let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
        let (expected, found) = (kind(original), kind(&converted));
        if expected != found {
            return Err((Part::Type, format!("invalid kind (expected {expected}, received {found})")));
        }
        for (what, of) in
            [("name", meta::name as fn(&Value) -> &str), ("namespace", meta::namespace), ("UID", meta::uid)]
        {
            let (expected, found) = (of(original), of(&converted));
            if expected != found {
                return Err((Part::Object, format!("must have the same {what}: {expected} != {found}")));
            }
        }
        let restored = restore(original, &mut converted).map_err(|why| (Part::Metadata, why))?;
        converted["metadata"] = Value::Object(restored);
        prune(&mut converted, &version.compiled().schema, true);
        Ok(converted)
    }
}

impl Webhook for Conversion {
    fn name(&self) -> &str {
        &self.name
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn ty(&self, api_version: &str) -> Option<Type> {
        Some(self.version(api_version)?.ty(&self.kind))
    }

    fn shape(&self, object: &mut Value) -> Result<(), String> {
        let own = api_version(object);
        let unknown = || format!("request to convert CR from an invalid group/version: {own}");
        let version = self.version(own).ok_or_else(unknown)?;
        shaped(object, version.compiled());
        Ok(())
    }

    fn review(&self, uid: &str, desired: &str, objects: &[Value]) -> Result<Value, String> {
        let version = self.review.ok_or("no supported conversion review versions")?;
        Ok(json!({
            "kind": "ConversionReview", "apiVersion": format!("{GROUP}/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": desired, "objects": objects},
        }))
    }

    fn read(
        &self,
        uid: &str,
        desired: &str,
        objects: &[Value],
        answer: Result<Value, String>,
    ) -> Result<Vec<Value>, String> {
        let of = self.named(objects.first().map_or("", api_version));
        let answer = answer.and_then(|answer| self.answered(uid, answer));
        let converted = answer.map_err(|why| format!("conversion webhook for {of} failed: {why}"))?;
        for object in &converted {
            if object["kind"].as_str().is_none_or(str::is_empty) {
                return Err(format!("conversion webhook for {of} failed: Object 'Kind' is missing in '{object}'"));
            }
        }
        let (found, expected) = (converted.len(), objects.len());
        if found != expected {
            return Err(format!("conversion webhook for {of} returned {found} objects, expected {expected}"));
        }
        let settle = |(at, (original, converted)): (usize, (&Value, Value))| {
            self.settle(original, converted, desired).map_err(|(part, why)| {
                format!("conversion webhook for {of} returned invalid {}: {why}", part.named(at, expected))
            })
        };
        objects.iter().zip(converted).enumerate().map(settle).collect()
    }
}

/// The part of a converted object that is wrong.
#[derive(Clone, Copy)]
enum Part {
    Type,
    Object,
    Metadata,
}

impl Part {
    /// As messages have it; one object alone is called otherwise than those of a list.
    fn named(self, at: usize, objects: usize) -> String {
        match (self, objects) {
            (Part::Type, 1) => format!("object at index {at}"),
            (Part::Object, 1) => "object".to_owned(),
            (Part::Metadata, 1) => "metadata".to_owned(),
            (Part::Type | Part::Object, _) => format!("converted object at index {at}"),
            (Part::Metadata, _) => format!("metadata in object at index {at}"),
        }
    }
}

fn api_version(object: &Value) -> &str {
    object["apiVersion"].as_str().unwrap_or_default()
}

/// The metadata of the original with the labels and annotations of what it became.
fn restore(original: &Value, converted: &mut Value) -> Result<Map, String> {
    let given = match converted["metadata"].take() {
        Value::Object(given) => given,
        Value::Null if converted.get("metadata").is_none() => {
            return Err("missing metadata in converted object".to_owned());
        }
        other => return Err(format!("invalid metadata of type {} in converted object", go::type_name(&other))),
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for (name, check) in [("labels", labels as fn(&BTreeMap<String, String>) -> Errors), ("annotations", annotations)] {
        let fields = match given.get(name) {
            None | Some(Value::Null) => {
                metadata.remove(name);
                continue;
            }
            Some(Value::Object(fields)) => fields,
            Some(other) => {
                return Err(format!("invalid metadata.{name} of type {} in converted object", go::type_name(other)));
            }
        };
        let mut texts = BTreeMap::new();
        for (key, value) in fields {
            let Value::String(text) = value else {
                let found = go::type_name(value);
                return Err(format!("metadata.{name}[{key}] must be a string, but is {found} in converted object"));
            };
            texts.insert(key.as_str().to_owned(), text.as_str().to_owned());
        }
        if metadata.get(name).and_then(Value::as_object) != Some(fields) {
            let errors = check(&texts);
            if !errors.is_empty() {
                return Err(aggregate(&errors));
            }
        }
        metadata.insert(json::Key::of(name), Value::Object(fields.clone()));
    }
    Ok(metadata)
}

fn labels(labels: &BTreeMap<String, String>) -> Errors {
    object_meta::labels(Some(labels), &Path::new("metadata").child("labels"))
}

fn annotations(annotations: &BTreeMap<String, String>) -> Errors {
    object_meta::annotations(Some(annotations), &Path::new("metadata").child("annotation"))
}

pub(crate) fn aggregate(errors: &Errors) -> String {
    match errors.as_slice() {
        [one] => one.to_string(),
        many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::{Stored, definitions};

    fn webhook(reviews: &[&str]) -> Arc<dyn Webhook> {
        let version = |name: &str, field: &str, stored: bool| {
            let properties = json!({field: {"type": "string", "default": "none"}});
            json!({"name": name, "served": true, "storage": stored,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
        };
        let crd = json!({"metadata": {"name": "hosts.a.io", "uid": "u", "generation": 1}, "spec": {
            "group": "a.io", "scope": "Namespaced", "names": {"plural": "hosts", "kind": "Host"},
            "versions": [version("v1", "hostPort", true), version("v2", "host", false)],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": reviews,
                "clientConfig": {"url": "https://a/convert"}}}}});
        let bytes = crd.to_string().into_bytes();
        let head = Head::read(&bytes).unwrap();
        let stored: Stored = Arc::new(bytes);
        definitions(&head, &stored, 0)[1].webhook.clone().unwrap()
    }

    fn host(api_version: &str, field: &str) -> Value {
        json!({"kind": "Host", "apiVersion": api_version, field: "x",
            "metadata": {"name": "n", "namespace": "s", "uid": "u", "generation": 2, "labels": {"a": "b"}}})
    }

    /// The result of an answer for one object: the object or the message.
    fn answer(change: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let webhook = webhook(&["v9", "v1", "v1beta1"]);
        let original = host("a.io/v1", "hostPort");
        let mut answer = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": "1", "result": {"status": "Success"}, "convertedObjects": [host("a.io/v2", "host")]}});
        change(&mut answer);
        webhook.read("1", "a.io/v2", &[original], Ok(answer)).map(|mut objects| objects.remove(0))
    }

    fn object(change: impl FnOnce(&mut Value)) -> Result<Value, String> {
        answer(|answer| change(&mut answer["response"]["convertedObjects"][0]))
    }

    #[test]
    fn of_the_metadata_only_labels_and_annotations_count() {
        let converted = object(|host| {
            host["metadata"] = json!({"name": "n", "namespace": "s", "uid": "u", "generation": 9, "finalizers": ["x"],
                "annotations": {"c": "d"}, "labels": null});
            host["unknown"] = json!(1);
        });
        let metadata = json!({"name": "n", "namespace": "s", "uid": "u", "generation": 2, "annotations": {"c": "d"}});
        let expected = json!({"kind": "Host", "apiVersion": "a.io/v2", "host": "x", "metadata": metadata});
        assert_eq!(converted, Ok(expected), "what the schema does not know is gone too");
    }

    #[test]
    fn lies_are_refused_in_upstreams_words() {
        const OF: &str = "conversion webhook for a.io/v1, Kind=Host";
        let check = |converted: Result<Value, String>, expected: &str| {
            assert_eq!(converted.unwrap_err(), format!("{OF} {expected}"));
        };
        let failed = "failed:";
        let expected = "apiextensions.k8s.io/v1, Kind=ConversionReview";
        for (field, value, words) in [
            (
                "kind",
                json!("Review"),
                format!("expected webhook response of {expected}, got apiextensions.k8s.io/v1, Kind=Review"),
            ),
            (
                "apiVersion",
                json!("v7"),
                format!("expected webhook response of {expected}, got v7, Kind=ConversionReview"),
            ),
            ("response", Value::Null, "no response provided".to_owned()),
        ] {
            check(answer(|answer| answer[field] = value), &format!("{failed} {words}"));
        }
        for (field, value, words) in [
            ("uid", json!("2"), "expected response.uid=\"1\", got \"2\""),
            ("result", json!({}), "response.result.status was '', not 'Success'"),
            ("result", json!({"status": "Failure", "message": "too hot"}), "too hot"),
        ] {
            check(answer(|answer| answer["response"][field] = value), &format!("{failed} {words}"));
        }
        let objects = |value| answer(|answer| answer["response"]["convertedObjects"] = value);
        check(objects(json!([])), "returned 0 objects, expected 1");
        check(objects(Value::Null), "returned 0 objects, expected 1");
        check(objects(json!([7])), "failed: Object 'Kind' is missing in '7'");
        let invalid = "returned invalid object:";
        let of_type = "returned invalid object at index 0:";
        let named = |field: &'static str, value: &str| {
            let value = json!(value);
            object(move |host| host["metadata"][field] = value)
        };
        check(named("name", "m"), &format!("{invalid} must have the same name: n != m"));
        check(named("namespace", ""), &format!("{invalid} must have the same namespace: s != "));
        check(named("uid", "v"), &format!("{invalid} must have the same UID: u != v"));
        let wrong = object(|host| host["apiVersion"] = json!("a.io/v1"));
        check(wrong, &format!("{of_type} invalid groupVersion (expected a.io/v2, received a.io/v1)"));
        let wrong = object(|host| host["kind"] = json!("Guest"));
        check(wrong, &format!("{of_type} invalid kind (expected Host, received Guest)"));
        let metadata = "returned invalid metadata:";
        let wrong = object(|host| host["metadata"]["labels"] = json!(["a"]));
        check(wrong, &format!("{metadata} invalid metadata.labels of type []interface {{}} in converted object"));
        let wrong = object(|host| host["metadata"]["annotations"] = json!({"a": 1}));
        check(wrong, &format!("{metadata} metadata.annotations[a] must be a string, but is int64 in converted object"));
        let wrong = object(|host| host["metadata"]["labels"] = json!({"a": "b c"}));
        assert!(wrong.unwrap_err().contains(&format!("{metadata} metadata.labels: Invalid value: \"b c\"")));
    }

    #[test]
    fn the_first_known_review_is_spoken() {
        let check = |reviews: &[&str], expected: Result<&str, &str>| {
            let review = webhook(reviews).review("1", "a.io/v2", &[host("a.io/v1", "hostPort")]);
            let said = review.as_ref().map(|review| review["apiVersion"].as_str().unwrap()).map_err(String::as_str);
            assert_eq!(said, expected);
        };
        check(&["v7", "v1beta1", "v1"], Ok("apiextensions.k8s.io/v1beta1"));
        check(&["v1"], Ok("apiextensions.k8s.io/v1"));
        check(&[], Err("no supported conversion review versions"));
        let old = webhook(&["v1beta1"]);
        let answer =
            json!({"response": {"result": {"status": "Success"}, "convertedObjects": [host("a.io/v2", "host")]}});
        let read = old.read("1", "a.io/v2", &[host("a.io/v1", "hostPort")], Ok(answer));
        assert_eq!(read.map(|objects| objects.len()), Ok(1), "the old one names neither itself nor the question");
    }

    #[test]
    fn what_is_stored_gets_the_shape_of_its_own_version() {
        let webhook = webhook(&["v1"]);
        let mut stored = host("a.io/v1", "odd");
        webhook.shape(&mut stored).unwrap();
        assert_eq!((&stored["hostPort"], stored.get("odd")), (&json!("none"), None));
        let gone = webhook.shape(&mut host("a.io/v0", "x")).unwrap_err();
        assert_eq!(gone, "request to convert CR from an invalid group/version: a.io/v0");
    }
}
