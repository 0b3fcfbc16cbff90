//! A CredentialProviderConfig (`kubelet.config.k8s.io`): the programs that are asked for credentials of registries, by the images
//! that they know. Reading files is the caller's.
//! Upstream counterpart: pkg/credentialprovider/plugin/config.go.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use api::validation::names;
use json::Value;
use serde::Deserialize;

use super::time::duration;

/// The versions of a configuration.
const CONFIGURATIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1beta1"];
const KIND: &str = "CredentialProviderConfig";
/// The version of requests in which tokens of service accounts are sent.
const WITH_TOKENS: &str = "credentialprovider.kubelet.k8s.io/v1";
const REQUESTS: [&str; 3] =
    [WITH_TOKENS, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];
/// No configuration names more programs.
const MOST: usize = 64;

/// The owner of an answer, where a program is asked with the token of a service account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheType {
    ServiceAccount,
    /// Each token has answers of its own.
    Token,
}

/// The token and the annotations of a Pod's service account that a program is told.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAttributes {
    pub audience: String,
    /// Pods without a service account get nothing of this program.
    pub requires_account: bool,
    pub cache: CacheType,
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

/// One program. Its name is that of a file in the folder of such programs.
#[derive(Debug, Clone, PartialEq)]
pub struct CredentialProvider {
    pub name: String,
    pub program: PathBuf,
    pub images: Vec<String>,
    /// How long an answer counts that does not say so itself.
    pub cache: Duration,
    pub api_version: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub token: Option<TokenAttributes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Configuration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    providers: Vec<Provider>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Provider {
    #[serde(default)]
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    token_attributes: Option<Attributes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Attributes {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: String,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: Vec<String>,
}

/// The programs of one file. `with_tokens` is whether tokens of service accounts may be sent at all.
pub fn read(document: Value, with_tokens: bool) -> Result<Vec<CredentialProvider>, String> {
    let Some(map) = document.as_object() else { return Err(format!("it must be a {KIND}")) };
    let said = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    if said("kind") != KIND {
        return Err(format!("kind is {:?}, it must be {KIND:?}", said("kind")));
    }
    let version = said("apiVersion").to_owned();
    if !CONFIGURATIONS.contains(&version.as_str()) {
        return Err(format!("apiVersion is {version:?}, it must be one of {}", CONFIGURATIONS.join(", ")));
    }
    let configuration: Configuration = json::from_value(document).map_err(|error| error.to_string())?;
    let given = configuration.providers;
    if given.is_empty() {
        return Err("providers: at least one is required".to_owned());
    }
    given
        .into_iter()
        .enumerate()
        .map(|(at, provider)| {
            if provider.token_attributes.is_some() && version != CONFIGURATIONS[0] {
                return Err(format!(
                    "providers[{at}].tokenAttributes: {version} does not have it, {} does",
                    CONFIGURATIONS[0]
                ));
            }
            one(provider, with_tokens).map_err(|why| format!("providers[{at}].{why}"))
        })
        .collect()
}

/// The programs of all files together, in the order in which they are asked.
pub fn join(files: Vec<Vec<CredentialProvider>>) -> Result<Vec<CredentialProvider>, String> {
    let all: Vec<CredentialProvider> = files.into_iter().flatten().collect();
    if all.len() > MOST {
        return Err(format!("{} providers are too many; {MOST} may be given", all.len()));
    }
    let mut seen = BTreeSet::new();
    match all.iter().find(|provider| !seen.insert(&provider.name)) {
        Some(twice) => Err(format!("two providers have the name {:?}", twice.name)),
        None => Ok(all),
    }
}

fn one(given: Provider, with_tokens: bool) -> Result<CredentialProvider, String> {
    let name = given.name;
    if name.is_empty() || name.contains(['/', ' ', '\0']) || matches!(name.as_str(), "." | "..") {
        return Err(format!("name: {name:?} must be the name of a program, without '/' and spaces"));
    }
    if !REQUESTS.contains(&given.api_version.as_str()) {
        return Err(format!("apiVersion: {:?} must be one of {}", given.api_version, REQUESTS.join(", ")));
    }
    if given.match_images.is_empty() {
        return Err("matchImages: at least one image is required".to_owned());
    }
    if let Some(wrong) = given.match_images.iter().find(|image| image.is_empty() || image.contains("://")) {
        return Err(format!("matchImages: {wrong:?} must be such as *.registry.example:5000/path"));
    }
    let cache = given.default_cache_duration.ok_or("defaultCacheDuration: it is required")?;
    let cache = duration(&cache).map_err(|why| format!("defaultCacheDuration: {why}"))?;
    if given.env.iter().any(|variable| variable.name.is_empty() || variable.name.contains(['=', '\0'])) {
        return Err("env: each variable has a name without '='".to_owned());
    }
    if given.token_attributes.is_some() && given.api_version != WITH_TOKENS {
        return Err(format!("tokenAttributes: only requests of {WITH_TOKENS} have them"));
    }
    let token = given.token_attributes.map(|attributes| token(attributes, with_tokens)).transpose();
    Ok(CredentialProvider {
        name,
        program: PathBuf::new(),
        images: given.match_images,
        cache,
        api_version: given.api_version,
        args: given.args,
        env: given.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
        token: token.map_err(|why| format!("tokenAttributes{why}"))?,
    })
}

fn token(given: Attributes, with_tokens: bool) -> Result<TokenAttributes, String> {
    if !with_tokens {
        return Err(": the feature gate KubeletServiceAccountTokenForCredentialProviders is off".to_owned());
    }
    if given.service_account_token_audience.is_empty() {
        return Err(".serviceAccountTokenAudience: it is required".to_owned());
    }
    let requires_account = given.require_service_account.ok_or(".requireServiceAccount: it is required")?;
    let cache = match given.cache_type.as_str() {
        "ServiceAccount" => CacheType::ServiceAccount,
        "Token" => CacheType::Token,
        other => return Err(format!(".cacheType: {other:?} must be ServiceAccount or Token")),
    };
    let (required, optional) =
        (given.required_service_account_annotation_keys, given.optional_service_account_annotation_keys);
    if !requires_account && !required.is_empty() {
        return Err(".requiredServiceAccountAnnotationKeys: they stand beside requireServiceAccount: true".to_owned());
    }
    let mut seen = BTreeSet::new();
    for key in required.iter().chain(&optional) {
        if let Some(why) = names::qualified_name(&key.to_lowercase()).into_iter().next() {
            return Err(format!(": the annotation {key:?} has no possible name: {why}"));
        }
        if !seen.insert(key) {
            return Err(format!(": the annotation {key:?} is named twice"));
        }
    }
    Ok(TokenAttributes {
        audience: given.service_account_token_audience,
        requires_account,
        cache,
        required_annotations: required,
        optional_annotations: optional,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn with(change: impl FnOnce(&mut Value)) -> Result<Vec<CredentialProvider>, String> {
        let mut document = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{
            "name": "ecr", "matchImages": ["*.dkr.ecr.*.example"], "defaultCacheDuration": "12h", "args": ["get"],
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "env": [{"name": "A", "value": "b"}],
            "tokenAttributes": {"serviceAccountTokenAudience": "r", "requireServiceAccount": true, "cacheType": "Token",
                "requiredServiceAccountAnnotationKeys": ["x.io/Role"], "optionalServiceAccountAnnotationKeys": ["x.io/Tenant"]},
        }]});
        change(&mut document);
        read(document, true)
    }

    #[test]
    fn a_configuration_names_programs_with_all_that_they_are_asked_with() {
        let all = with(|_| ()).unwrap();
        let one = &all[0];
        assert_eq!((one.name.as_str(), one.cache, one.args.len()), ("ecr", Duration::from_secs(43_200), 1));
        assert_eq!(one.env, [("A".to_owned(), "b".to_owned())]);
        let token = one.token.as_ref().unwrap();
        assert_eq!((token.cache, token.requires_account, token.audience.as_str()), (CacheType::Token, true, "r"));
        for version in ["v1alpha1", "v1beta1"] {
            let read = with(|document| {
                document["apiVersion"] = format!("kubelet.config.k8s.io/{version}").into();
                document["providers"][0]["apiVersion"] = format!("credentialprovider.kubelet.k8s.io/{version}").into();
                document["providers"][0]["tokenAttributes"] = Value::Null;
            });
            assert!(read.unwrap()[0].token.is_none());
        }
        assert_eq!(join(vec![all.clone(), all]).unwrap_err(), "two providers have the name \"ecr\"");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |path: &str, value: Value, expected: &str| {
            let why = with(|document| *document.pointer_mut(path).unwrap() = value).unwrap_err();
            assert!(why.starts_with(expected), "{path}: {why}");
        };
        check("/kind", "X".into(), "kind is \"X\", it must be \"CredentialProviderConfig\"");
        check("/apiVersion", "kubelet.config.k8s.io/v2".into(), "apiVersion is \"kubelet.config.k8s.io/v2\"");
        check(
            "/apiVersion",
            "kubelet.config.k8s.io/v1beta1".into(),
            "providers[0].tokenAttributes: kubelet.config.k8s.io/v1beta1",
        );
        check("/providers", json!([]), "providers: at least one is required");
        for name in ["", "a/b", "a b", ".", ".."] {
            check("/providers/0/name", name.into(), "providers[0].name: ");
        }
        check("/providers/0/apiVersion", "v1".into(), "providers[0].apiVersion: \"v1\" must be one of");
        check("/providers/0/matchImages", json!([]), "providers[0].matchImages: at least one");
        check("/providers/0/matchImages", json!(["https://r.io"]), "providers[0].matchImages: \"https://r.io\"");
        check("/providers/0/defaultCacheDuration", Value::Null, "providers[0].defaultCacheDuration: it is required");
        check("/providers/0/defaultCacheDuration", "-1s".into(), "providers[0].defaultCacheDuration: ");
        check("/providers/0/env", json!([{"name": "A=B"}]), "providers[0].env: ");
        check("/providers/0/env", json!([{"nam": "A"}]), "unknown field");
        let token = |name: &str| format!("/providers/0/tokenAttributes/{name}");
        check(&token("cacheType"), "Pod".into(), "providers[0].tokenAttributes.cacheType: ");
        check(
            &token("serviceAccountTokenAudience"),
            "".into(),
            "providers[0].tokenAttributes.serviceAccountTokenAudience: ",
        );
        check(&token("requireServiceAccount"), Value::Null, "providers[0].tokenAttributes.requireServiceAccount: ");
        check(
            &token("requireServiceAccount"),
            false.into(),
            "providers[0].tokenAttributes.requiredServiceAccountAnnotationKeys",
        );
        let twice = "providers[0].tokenAttributes: the annotation \"x.io/Role\" is named twice";
        check(&token("optionalServiceAccountAnnotationKeys"), json!(["x.io/Role"]), twice);
        check(
            &token("optionalServiceAccountAnnotationKeys"),
            json!(["a b"]),
            "providers[0].tokenAttributes: the annotation",
        );
        let older = "providers[0].tokenAttributes: only requests of credentialprovider.kubelet.k8s.io/v1 have them";
        check("/providers/0/apiVersion", "credentialprovider.kubelet.k8s.io/v1beta1".into(), older);
    }
}
