//! Detached signatures under a shared secret (JWS, HS256): how a cluster proves to a new node that it knows its token.
//! Upstream counterpart: staging/src/k8s.io/cluster-bootstrap/token/jws.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;

/// Header and signature without the content in between: `header..signature`. The same input gives the same text.
pub fn sign(content: &str, key_id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{key_id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signed = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(signed))
}

/// Whether `signature` is the one that [`sign`] gives, compared in constant time.
pub fn is_valid(signature: &str, content: &str, key_id: &str, secret: &str) -> bool {
    let Some((header, signature)) = signature.split_once("..") else { return false };
    let expected_header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{key_id}"}}"#));
    let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let content = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    header == expected_header && hmac::verify(&key, content.as_bytes(), &signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_makes_the_signature() {
        // From kubernetes/kubernetes, staging/src/k8s.io/cluster-bootstrap/token/jws/jws_test.go.
        let (content, id, secret) =
            ("Hello from the other side. I must have called a thousand times.", "joshua", "my voice is my passcode");
        let expected = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
        assert_eq!(sign(content, id, secret), expected);
        assert!(is_valid(expected, content, id, secret));
        assert!(!is_valid(expected, content, id, "other"));
        assert!(!is_valid(expected, "other", id, secret));
        assert!(!is_valid(expected, content, "other", secret));
        assert!(!is_valid("", content, id, secret));
    }
}
