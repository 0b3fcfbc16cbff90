//! Certificates as Pods get them: PEM blocks alone, without headers and without text around them.

use std::collections::BTreeSet;

use rustls_pki_types::{CertificateDer, pem::PemObject};

const LABEL: &str = "CERTIFICATE";

fn certificates(text: &str) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text.as_bytes()).flatten()
}

/// The certificates of a chain, in their order.
pub fn clean(chain: &str) -> String {
    certificates(chain).map(|der| pki::pem(LABEL, &der)).collect()
}

/// The certificates of some texts, each once, in an order that depends on nothing but them.
pub fn merged<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let all: BTreeSet<Vec<u8>> = texts.flat_map(certificates).map(|der| der.to_vec()).collect();
    all.iter().map(|der| pki::pem(LABEL, der)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_all_that_is_left() {
        let block = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        let (one, two) = (block("AQID"), block("BAUG"));
        assert_eq!(clean(&format!("text\n{two}\nmore\n{one}")), format!("{two}{one}"));
        assert_eq!(clean("no certificate"), "");
        let texts = [format!("{two}{one}"), one.clone(), String::new()];
        assert_eq!(merged(texts.iter().map(String::as_str)), format!("{one}{two}"));
    }
}
