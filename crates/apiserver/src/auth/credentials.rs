//! The forms in which requests carry credentials. Behind authorization none of them is needed, and whoever a request is
//! passed on to (a node, a Pod) must see none.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::authn::front_proxy::Headers;

/// The WebSocket subprotocol with which browsers send a bearer token, before the token.
pub const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// Headers with these prefixes name a user: as a front proxy usually says, or as the caller wants to act.
const IDENTITIES: [&str; 2] = ["x-remote-", "impersonate-"];

/// The further headers in which front proxies name users here. Other API servers are told to believe them from this server.
#[derive(Debug, Clone, Default)]
pub struct Identities {
    /// In lower case, as the prefixes are.
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl Identities {
    pub fn of(headers: &Headers) -> Self {
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>();
        let names = [&headers.user, &headers.uid, &headers.groups].into_iter().flat_map(|names| lower(names));
        Identities { names: names.collect(), prefixes: lower(&headers.extra_prefixes) }
    }

    fn has(&self, name: &str) -> bool {
        let begins = |prefix: &str| name.starts_with(prefix);
        IDENTITIES.into_iter().any(begins)
            || self.names.iter().any(|known| known == name)
            || self.prefixes.iter().any(|prefix| begins(prefix))
    }
}

/// Takes all credentials out of a request's headers.
pub fn strip(headers: &mut HeaderMap, identities: &Identities) {
    for name in [header::AUTHORIZATION, header::PROXY_AUTHORIZATION] {
        headers.remove(name);
    }
    let named = |name: &&HeaderName| identities.has(name.as_str());
    for name in headers.keys().filter(named).cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
    strip_protocols(headers);
}

/// Takes the tokens out of the list of subprotocols and leaves the others.
fn strip_protocols(headers: &mut HeaderMap) {
    let name = header::SEC_WEBSOCKET_PROTOCOL;
    let token = |value: &HeaderValue| contains(value.as_bytes(), WEBSOCKET_TOKEN.as_bytes());
    if !headers.get_all(&name).iter().any(token) {
        return;
    }
    let all: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
    headers.remove(&name);
    for value in all {
        let kept = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let kept: Vec<&[u8]> = kept.filter(|p| !contains(p, WEBSOCKET_TOKEN.as_bytes())).collect();
        if let Ok(value) = HeaderValue::from_bytes(&kept.join(&b", "[..])).map_err(drop)
            && !value.is_empty()
        {
            headers.append(&name, value);
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(&text.to_ascii_lowercase(), part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[(&'static str, &str)], expected: &[(&str, &str)]) {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let more = Headers {
            user: list(&["X-My-User"]),
            uid: list(&["X-My-Id"]),
            groups: list(&["X-Remote-Group", "X-Team"]),
            extra_prefixes: list(&["X-More-"]),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        strip(&mut headers, &Identities::of(&more));
        let left: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (k.as_str(), v.to_str().unwrap())).collect();
        assert_eq!(left, expected, "{given:?}");
    }

    #[test]
    fn no_credential_travels_on() {
        check(&[("authorization", "Bearer a"), ("authorization", "Bearer b"), ("accept", "x")], &[("accept", "x")]);
        check(&[("x-remote-user", "root"), ("x-remote-extra-a", "b"), ("impersonate-user", "root")], &[]);
        check(&[("x-my-user", "root"), ("x-my-id", "0"), ("x-team", "system:masters"), ("x-more-a", "b")], &[]);
        check(&[("x-my-users", "1"), ("x-mor", "2")], &[("x-my-users", "1"), ("x-mor", "2")]);
        let protocol = "sec-websocket-protocol";
        check(&[(protocol, "base64url.bearer.authorization.k8s.io.c2VjcmV0")], &[]);
        check(
            &[(protocol, "v5.channel.k8s.io,  Base64URL.bearer.authorization.k8s.io.c2Vj ")],
            &[(protocol, "v5.channel.k8s.io")],
        );
        check(&[(protocol, "a, b"), (protocol, "c")], &[(protocol, "a, b"), (protocol, "c")]);
    }
}
