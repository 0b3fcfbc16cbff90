//! ServiceAccount: who a Pod is when it speaks to the API server.

use k8s_openapi::api::core::v1::ServiceAccount;

use crate::kind::{Kind, Subresource, Way, age, name};

const TOKEN: Subresource = Subresource {
    name: "token",
    object: ("authentication.k8s.io", "v1", "TokenRequest"),
    verbs: &["create"],
    way: Way::Own,
};

pub const SERVICE_ACCOUNT: Kind<ServiceAccount> = Kind {
    unconditional_update: false,
    short: &["sa"],
    subresources: &[TOKEN],
    columns: &[name(), age()],
    warnings: Some(|new, old| {
        let already = old.is_some_and(has_its_own_secrets);
        (!already && has_its_own_secrets(new)).then(|| OWN_SECRETS_WARNING.to_owned()).into_iter().collect()
    }),
    ..Kind::BASE
};

/// Its Pods mount no other Secrets than those that it names.
const OWN_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
const OWN_SECRETS_WARNING: &str = "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer \
    separate namespaces to isolate access to mounted secrets";

fn has_its_own_secrets(account: &ServiceAccount) -> bool {
    account.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(OWN_SECRETS))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn who_sets_a_deprecated_annotation_is_told() {
        let account =
            |annotations| json::from_value(json!({"metadata": {"name": "a", "annotations": annotations}})).unwrap();
        let (plain, marked) = (account(json!({})), account(json!({OWN_SECRETS: "true"})));
        let warnings = SERVICE_ACCOUNT.warnings.unwrap();
        assert_eq!(warnings(&marked, None), [OWN_SECRETS_WARNING]);
        assert_eq!(warnings(&marked, Some(&plain)), [OWN_SECRETS_WARNING]);
        assert_eq!((warnings(&marked, Some(&marked)), warnings(&plain, None)), (vec![], vec![]));
    }
}
