//! How another API server is told whom it answers: headers that it believes from the front proxy, which this server shows
//! itself to be by its certificate. Upstream counterpart: client-go/transport (SetAuthProxyHeaders).

use api::status::StatusError;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::auth::User;

/// Names the user. Headers that said anything about users must be gone already.
pub fn name(headers: &mut HeaderMap, user: &User) -> Result<(), StatusError> {
    let value = |text: &str| {
        let unfit = |_| StatusError::internal("the user's name or groups do not fit into headers");
        HeaderValue::from_bytes(text.as_bytes()).map_err(unfit)
    };
    headers.insert("x-remote-user", value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert("x-remote-uid", value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append("x-remote-group", value(group)?);
    }
    for (key, values) in &user.extra {
        let header: HeaderName = format!("x-remote-extra-{}", escaped(key)).parse().map_err(StatusError::internal)?;
        for text in values {
            headers.append(&header, value(text)?);
        }
    }
    Ok(())
}

/// A key as a part of a header's name: what may not stand there, and `%`, as `%XX`.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => out.push(byte as char),
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~' => {
                out.push(byte as char);
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::authn::front_proxy::FrontProxy;

    /// The headers that are told are those that our own front proxy authentication reads.
    #[test]
    fn what_is_told_is_read_again() {
        let mut user = User::new("jösé", ["a", "b c"]);
        user.uid = "1".to_owned();
        user.extra.insert("acme.com/pro%ject".to_owned(), vec!["x".to_owned(), "y".to_owned()]);
        let mut headers = HeaderMap::new();
        name(&mut headers, &user).unwrap();
        let authority = pki::Authority::create("front").unwrap();
        let issued = authority.issue(&pki::Subject::client("front-proxy-client", None)).unwrap();
        let chain = pki::inspect::chain(&issued.certificate).unwrap();
        let authorities = pki::ClientCertificates::new(authority.certificate()).unwrap();
        let read = FrontProxy::new(authorities, Vec::new()).check(&chain, &headers).unwrap().unwrap();
        assert_eq!(read, user);
    }

    #[test]
    fn no_name_makes_a_header_of_its_own() {
        let mut headers = HeaderMap::new();
        assert!(name(&mut headers, &User::new("a\r\nX-Remote-Group: system:masters", ["g"])).is_err());
        assert_eq!(escaped("a b:\r\nc/ü"), "a%20b%3A%0D%0Ac%2F%C3%BC");
    }
}
