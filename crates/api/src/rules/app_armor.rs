//! AppArmor profiles that are named by annotations, as they were before there were fields.

use k8s_openapi::api::core::v1::AppArmorProfile;

/// With the name of a container behind it.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The profile that an annotation's text means; `None` where it means none.
pub fn of_annotation(text: &str) -> Option<AppArmorProfile> {
    let profile = |type_: &str, file: Option<&str>| {
        Some(AppArmorProfile { type_: type_.to_owned(), localhost_profile: file.map(str::to_owned) })
    };
    match text {
        "unconfined" => profile("Unconfined", None),
        "runtime/default" => profile("RuntimeDefault", None),
        _ => profile("Localhost", Some(text.strip_prefix("localhost/").filter(|name| !name.is_empty())?)),
    }
}
