//! AppArmor profiles that are named by annotations, as they were before there were fields.

use k8s_openapi::api::core::v1::AppArmorProfile;

/// With the name of a container behind it.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
pub const UNCONFINED: &str = "unconfined";
pub const RUNTIME_DEFAULT: &str = "runtime/default";
/// Whoever writes the annotation where no field says it is told this.
pub const WARNING: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// The profile that an annotation's text means; `None` where it means none.
pub fn of_annotation(text: &str) -> Option<AppArmorProfile> {
    let profile = |type_: &str, file: Option<&str>| {
        Some(AppArmorProfile { type_: type_.to_owned(), localhost_profile: file.map(str::to_owned) })
    };
    match text {
        UNCONFINED => profile("Unconfined", None),
        RUNTIME_DEFAULT => profile("RuntimeDefault", None),
        _ => profile("Localhost", Some(text.strip_prefix("localhost/").filter(|name| !name.is_empty())?)),
    }
}
