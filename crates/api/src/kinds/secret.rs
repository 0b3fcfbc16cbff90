//! Secret: bytes that Pods need and few may read.

use json::Value;
use k8s_openapi::api::core::v1::Secret;

use crate::codec::syntax;
use crate::kind::cell;
use crate::kind::{Kind, age, col, label, name};
use crate::meta::field_text;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid;

/// All values together, in bytes.
const SIZE_MAX: usize = 1024 * 1024;

pub const SECRET: Kind<Secret> = Kind {
    default: Some(default),
    validate: Some(validate),
    validate_update: Some(|new, old, _| validate_update(new, old)),
    prepare_create: Some(merge_text),
    prepare_update: Some(|new, _, _| merge_text(new)),
    columns: &[
        name(),
        col("Type", "What the secret is for.", |s, _| cell::text(s.type_.as_ref())),
        col("Data", "Number of keys.", |s, _| Value::from(s.data.as_ref().map_or(0, |d| d.len()).to_string())),
        age(),
    ],
    field_labels: &[label("type", |o| field_text(o, &["type"]))],
    ..Kind::BASE
};

fn default(secret: &mut Secret) {
    if secret.type_.as_deref().unwrap_or_default().is_empty() {
        secret.type_ = Some("Opaque".to_owned());
    }
    // `stringData` is for writing only: it becomes data at once.
    for (key, text) in secret.string_data.take().into_iter().flatten() {
        secret.data.get_or_insert_default().insert(key, k8s_openapi::ByteString(text.into_bytes()));
    }
}

/// `stringData` that admission put in after defaulting.
fn merge_text(object: &mut Value) {
    use base64::Engine as _;
    let Some(map) = object.as_object_mut() else { return };
    let Some(Value::Object(texts)) = map.remove("stringData") else { return };
    let data = map.entry("data").or_insert_with(|| Value::Object(json::Map::new()));
    for (key, text) in texts {
        if let (Some(text), Some(data)) = (text.as_str(), data.as_object_mut()) {
            data.insert(key, Value::from(base64::engine::general_purpose::STANDARD.encode(text)));
        }
    }
}

fn validate(secret: &Secret) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in secret.data.iter().flatten() {
        errors.extend(invalid(&path.key(key), key, names::config_key(key)));
        size += value.0.len();
    }
    if size > SIZE_MAX {
        errors.push(FieldError::too_long(&path, SIZE_MAX));
    }
    let value = |key: &str| secret.data.as_ref().and_then(|d| d.get(key));
    let mut need = |keys: &[&str]| {
        for key in keys.iter().filter(|k| value(k).is_none()) {
            errors.push(FieldError::required(&path.key(key), ""));
        }
    };
    match secret.type_.as_deref().unwrap_or_default() {
        "kubernetes.io/service-account-token" => {
            let account = "kubernetes.io/service-account.name";
            let named = secret.metadata.annotations.as_ref().and_then(|a| a.get(account));
            if named.is_none_or(String::is_empty) {
                let place = Path::new("metadata").child("annotations").key(account);
                errors.push(FieldError::required(&place, ""));
            }
        }
        "kubernetes.io/dockercfg" => errors.extend(json_value(&path, ".dockercfg", value(".dockercfg"))),
        "kubernetes.io/dockerconfigjson" => {
            errors.extend(json_value(&path, ".dockerconfigjson", value(".dockerconfigjson")));
        }
        "kubernetes.io/basic-auth" if value("username").is_none() && value("password").is_none() => {
            need(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if value("ssh-privatekey").is_none_or(|v| v.0.is_empty()) => {
            errors.push(FieldError::required(&path.key("ssh-privatekey"), ""));
        }
        "kubernetes.io/tls" => need(&["tls.crt", "tls.key"]),
        _ => {}
    }
    errors
}

fn json_value(path: &Path, key: &str, value: Option<&k8s_openapi::ByteString>) -> Option<FieldError> {
    let place = path.key(key);
    match value {
        None => Some(FieldError::required(&place, "")),
        Some(bytes) => syntax::check_object(&bytes.0)
            .err()
            .map(|why| FieldError::invalid(&place, "<secret contents redacted>", &why)),
    }
}

fn validate_update(new: &Secret, old: &Secret) -> Errors {
    let mut errors = Errors::new();
    if new.type_ != old.type_ {
        errors.push(FieldError::invalid(&Path::new("type"), &new.type_, "field is immutable"));
    }
    if old.immutable == Some(true) {
        let fixed = "field is immutable when `immutable` is set";
        for (field, same) in [("immutable", new.immutable == old.immutable), ("data", new.data == old.data)] {
            if !same {
                errors.push(FieldError::forbidden(&Path::new(field), fixed));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_configuration_of_registries_is_an_object() {
        let check = |text: &str, expected: &str| {
            let found = json_value(&Path::new("data"), ".dockercfg", Some(&ByteString(text.into())));
            let words = "data[.dockercfg]: Invalid value: \"<secret contents redacted>\": ";
            let expected = (!expected.is_empty()).then(|| format!("{words}{expected}"));
            assert_eq!(found.map(|error| error.to_string()), expected, "{text}");
        };
        check(r#"{"auths": {}}"#, "");
        check("null", "");
        check("x", "invalid character 'x' looking for beginning of value");
        check("{\"a\": ", "unexpected end of JSON input");
        check("[1]", "json: cannot unmarshal array into Go value of type map[string]interface {}");
        check(" \"a\"", "json: cannot unmarshal string into Go value of type map[string]interface {}");
    }
}
