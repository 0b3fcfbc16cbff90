//! Validation of what only Windows knows: users with domains, credential specs, host processes. skiff has no Windows nodes
//! of its own, but those of others may belong to its clusters.

use k8s_openapi::api::core::v1::{Container, PodSpec, WindowsSecurityContextOptions};

use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::invalid_at;

const CREDENTIAL_SPEC_KIB: usize = 64;
/// The length of a domain is below this.
const DOMAIN_MAX: usize = 256;
const USER_MAX: usize = 104;
const NET_BIOS_MAX: usize = 15;

pub(super) fn options(options: &WindowsSecurityContextOptions, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(name) = &options.gmsa_credential_spec_name {
        errors.extend(invalid_at(path, "gmsaCredentialSpecName", name, names::dns1123_subdomain(name)));
    }
    if let Some(spec) = &options.gmsa_credential_spec {
        let wrong = match spec.len() {
            0 => Some("gmsaCredentialSpec cannot be an empty string".to_owned()),
            n if n > CREDENTIAL_SPEC_KIB * 1024 => {
                Some(format!("gmsaCredentialSpec size must be under {CREDENTIAL_SPEC_KIB} KiB"))
            }
            _ => None,
        };
        errors.extend(invalid_at(path, "gmsaCredentialSpec", spec, wrong.into_iter().collect()));
    }
    if let Some(name) = &options.run_as_user_name {
        errors.extend(invalid_at(path, "runAsUserName", name, user_name(name)));
    }
    errors
}

/// `USER` or `DOMAIN\USER`.
fn user_name(name: &str) -> Vec<String> {
    let whole = match name.matches('\\').count() {
        _ if name.is_empty() => Some("runAsUserName cannot be an empty string"),
        _ if name.chars().any(|c| c.is_ascii_control()) => Some("runAsUserName cannot contain control characters"),
        0 | 1 => None,
        _ => Some("runAsUserName cannot contain more than one backslash"),
    };
    if let Some(wrong) = whole {
        return vec![wrong.to_owned()];
    }
    let (domain, user) = name.split_once('\\').map_or((None, name), |(domain, user)| (Some(domain), user));
    let mut wrong = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= DOMAIN_MAX) {
        wrong.push(format!("runAsUserName's Domain length must be under {DOMAIN_MAX} characters"));
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_dns(domain)) {
        wrong.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
    }
    if user.is_empty() {
        wrong.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > USER_MAX {
        wrong.push(format!("runAsUserName's User length must not be longer than {USER_MAX} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        wrong.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong.push(r#"runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]"#.to_owned());
    }
    wrong
}

fn is_net_bios(domain: &str) -> bool {
    let length = domain.chars().count();
    (1..=NET_BIOS_MAX).contains(&length)
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

/// Capital letters are as good as small ones here.
fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|part| names::dns1123_label(&part.to_ascii_lowercase()).is_empty())
}

/// Host processes: all containers of a Pod are such, or none.
pub(super) fn host_process<'a>(
    spec: &PodSpec,
    containers: impl Iterator<Item = (&'a Container, Path)>,
    path: &Path,
) -> Errors {
    let context = spec.security_context.as_ref();
    let of_pod = context.and_then(|c| c.windows_options.as_ref()).and_then(|o| o.host_process);
    let (mut count, mut of_host) = (0, 0);
    let mut errors = Errors::new();
    for (container, path) in containers {
        let context = container.security_context.as_ref();
        let own = context.and_then(|c| c.windows_options.as_ref()).and_then(|o| o.host_process);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let detail = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            let place = path.child("securityContext").child("windowsOptions").child("hostProcess");
            errors.push(FieldError::invalid(&place, own, &detail));
        }
        count += 1;
        of_host += usize::from(own.or(of_pod) == Some(true));
    }
    if of_host == 0 {
        return errors;
    }
    if of_host != count {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(path, "", detail));
    }
    if spec.host_network != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&path.child("hostNetwork"), false, detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn users_have_a_name_and_perhaps_a_domain() {
        for good in ["Container User", "a.b", "NT AUTHORITY\\SYSTEM", "Example.Com\\me"] {
            assert_eq!(user_name(good), Vec::<String>::new(), "{good}");
        }
        for (bad, expected) in [
            ("", "runAsUserName cannot be an empty string"),
            ("a\nb", "runAsUserName cannot contain control characters"),
            ("a\\b\\c", "runAsUserName cannot contain more than one backslash"),
            ("a_very_long_domain_name\\b", "runAsUserName's Domain doesn't match the NetBios nor the DNS format"),
            (".a\\b", "runAsUserName's Domain doesn't match the NetBios nor the DNS format"),
            ("a\\", "runAsUserName's User cannot be empty"),
            (". .", "runAsUserName's User cannot contain only periods or spaces"),
            ("a@b", "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"),
        ] {
            assert_eq!(user_name(bad), [expected], "{bad}");
        }
        assert_eq!(user_name(&"a".repeat(105)).len(), 1);
    }

    #[test]
    fn a_credential_spec_is_there_and_small() {
        let check =
            |spec: &str| options(&json::from_value(json!({"gmsaCredentialSpec": spec})).unwrap(), &Path::new("w"));
        assert_eq!(check("{}"), Errors::new());
        assert_eq!(check("").len(), 1);
        let found = check(&"x".repeat(65_537));
        assert_eq!(found[0].detail.rsplit(": ").next(), Some("gmsaCredentialSpec size must be under 64 KiB"));
    }

    #[test]
    fn host_processes_are_all_or_none() {
        let check = |of_pod: bool, own: &[Option<bool>], host_network: bool| {
            let containers: Vec<_> = own
                .iter()
                .map(|own| json!({"name": "c", "securityContext": {"windowsOptions": {"hostProcess": own}}}))
                .collect();
            let spec: PodSpec = json::from_value(json!({"hostNetwork": host_network, "containers": containers,
                "securityContext": {"windowsOptions": {"hostProcess": of_pod}}}))
            .unwrap();
            let all = spec.containers.iter().map(|container| (container, Path::new("c")));
            host_process(&spec, all, &Path::new("spec")).len()
        };
        assert_eq!(check(false, &[None, None], false), 0);
        assert_eq!(check(true, &[None, Some(true)], true), 0);
        assert_eq!(check(true, &[None], false), 1, "the host's network is needed");
        assert_eq!(
            check(true, &[None, Some(false)], true),
            2,
            "one differs from its Pod, and so not all are of the host"
        );
    }
}
