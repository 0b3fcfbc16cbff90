//! The authorities that extension servers are told to believe. Each API server of a cluster adds what it believes itself to what others have
//! written: what one of them believes more is not taken away by the next that starts. Certificates go when they are too old, and when the
//! server that told of them believes them no longer.
//!
//! Upstream counterpart: pkg/controlplane/controller/clusterauthenticationtrust, whose servers take back nothing.

use json::{Map, Value, json};
use pki::inspect;

const CLIENTS: &str = "client-ca-file";
const PROXIES: &str = "requestheader-client-ca-file";
/// The keys that hold lists of texts; without authorities of proxies they mean nothing.
const LISTS: [&str; 5] = [
    "requestheader-allowed-names",
    "requestheader-username-headers",
    "requestheader-uid-headers",
    "requestheader-group-headers",
    "requestheader-extra-headers-prefix",
];
/// A certificate counts for this many seconds longer, for clocks differ.
const SLACK_SECONDS: i64 = 5 * 60;
/// The bytes that a ConfigMap can hold. With more, others' parts are left out, and they write these once more.
const MOST: usize = 1 << 20;

/// The data of the ConfigMap: what is there and was not told by this server before, and what is wanted in it.
pub fn joined(present: &Value, told: &Value, wanted: &Value) -> Value {
    let now = clock::now().as_second();
    let mut data = Map::new();
    for key in [CLIENTS, PROXIES] {
        if let Some(text) = certificates([&present[key], &told[key], &wanted[key]], now) {
            data.insert(key, json!(text));
        }
    }
    let has_proxies = data.contains_key(PROXIES);
    for key in LISTS.into_iter().filter(|_| has_proxies) {
        data.insert(key, json!(list(&present[key], &wanted[key])));
    }
    let bytes = data.values().filter_map(Value::as_str).map(str::len).sum::<usize>();
    if bytes > MOST && present.is_object() {
        return joined(&Value::Null, told, wanted);
    }
    Value::Object(data)
}

/// Each certificate once, in PEM: what is there, but for what was told before and is wanted no longer, and what is wanted. Text that
/// holds no certificate is dropped.
fn certificates(texts: [&Value; 3], now: i64) -> Option<String> {
    let read = |text: &Value| inspect::chain(text.as_str().unwrap_or_default()).unwrap_or_default();
    let [mut all, told, wanted] = texts.map(read);
    all.retain(|certificate| !told.contains(certificate) || wanted.contains(certificate));
    all.extend(wanted);
    let is_young = |der: &[u8]| inspect::facts_der(der).is_ok_and(|facts| facts.not_after > now - SLACK_SECONDS);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for certificate in all.into_iter().filter(|certificate| is_young(certificate)) {
        if !kept.iter().any(|known| **known == *certificate) {
            kept.push(certificate.to_vec());
        }
    }
    (!kept.is_empty()).then(|| inspect::to_pem(&kept))
}

/// Each text of two lists once, as the list that stands in the ConfigMap.
fn list(present: &Value, wanted: &Value) -> String {
    let mut all: Vec<String> = Vec::new();
    for text in [present, wanted] {
        let list = json::parse(text.as_str().unwrap_or_default()).unwrap_or_default();
        for one in list.as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !all.iter().any(|known| known == one) {
                all.push(one.to_owned());
            }
        }
    }
    json!(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> String {
        pki::Authority::create("one").unwrap().certificate().to_owned()
    }

    fn count(data: &Value, key: &str) -> usize {
        data[key].as_str().map_or(0, |pem| pem.matches("BEGIN").count())
    }

    #[test]
    fn each_server_adds_its_own_part() {
        let (one, other) = (authority(), authority());
        let first = joined(
            &Value::Null,
            &Value::Null,
            &json!({CLIENTS: one, PROXIES: one, "requestheader-allowed-names": "[\"a\"]",
                "requestheader-username-headers": "[\"X-Remote-User\"]"}),
        );
        assert_eq!(first["requestheader-uid-headers"], "[]");
        let wanted = json!({CLIENTS: format!("# theirs\n{other}{one}"), PROXIES: other,
            "requestheader-allowed-names": "[\"b\",\"a\"]", "requestheader-username-headers": "[\"X-Remote-User\"]"});
        let both = joined(&first, &Value::Null, &wanted);
        assert_eq!((count(&both, CLIENTS), count(&both, PROXIES)), (2, 2));
        assert_eq!(both["requestheader-allowed-names"], "[\"a\",\"b\"]");
        assert_eq!(both["requestheader-username-headers"], "[\"X-Remote-User\"]");
        assert_eq!(joined(&both, &wanted, &wanted), both, "nothing is left to write");
        assert_eq!(joined(&both, &Value::Null, &json!({CLIENTS: one})), both, "what others believe stays");
        let back = joined(&both, &wanted, &json!({CLIENTS: one, PROXIES: one}));
        assert_eq!((count(&back, CLIENTS), count(&back, PROXIES)), (1, 1), "what it believes no longer goes");
    }

    #[test]
    fn what_means_nothing_goes() {
        let one = authority();
        let broken = json!({CLIENTS: "none", "more": "text", "requestheader-allowed-names": "[\"a\"]"});
        assert_eq!(joined(&broken, &Value::Null, &json!({CLIENTS: one})), json!({CLIENTS: one}));
        let large =
            json!({CLIENTS: one, PROXIES: one, "requestheader-allowed-names": json!(["a".repeat(MOST)]).to_string()});
        assert_eq!(joined(&large, &Value::Null, &json!({CLIENTS: one})), json!({CLIENTS: one}));
        let after = inspect::facts(&one).unwrap().not_after;
        let left = |now| certificates([&json!(one), &Value::Null, &Value::Null], now).is_some();
        assert_eq!([after + SLACK_SECONDS - 1, after + SLACK_SECONDS].map(left), [true, false]);
    }
}
