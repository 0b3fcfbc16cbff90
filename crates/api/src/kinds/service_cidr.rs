//! ServiceCIDR: address ranges that Services get their addresses from.
//! Upstream counterpart: pkg/registry/networking/servicecidr.

use ipnet::IpNet;
use json::Value;
use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};

use crate::kind::{Kind, StatusMetadata, Target, age, col, name};
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;

pub const SERVICE_CIDR: Kind<ServiceCIDR> = Kind {
    status: true,
    status_metadata: StatusMetadata::Stays,
    status_on_create: true,
    validate: Some(validate),
    validate_update: Some(validate_update),
    columns: &[name(), col("CIDRs", "The address ranges.", |c, _| Value::from(cidrs(c).join(","))), age()],
    ..Kind::BASE
};

/// The message about a text that is no address range.
pub(crate) const BAD_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const IMMUTABLE: &str = "field is immutable";

fn cidrs(range: &ServiceCIDR) -> &[String] {
    range.spec.as_ref().and_then(|s| s.cidrs.as_deref()).unwrap_or_default()
}

/// One range, or one of each family.
fn validate(range: &ServiceCIDR) -> Errors {
    let path = Path::new("spec").child("cidrs");
    let cidrs = cidrs(range);
    let whole = |detail: &str| {
        let none = ServiceCIDRSpec::default();
        let shown = internal_form::compact("ServiceCIDRSpec", range.spec.as_ref().unwrap_or(&none));
        vec![FieldError::invalid_shown(&path, &shown, detail)]
    };
    match cidrs {
        [] => return vec![FieldError::required(&path, "at least one CIDR required")],
        [_] => {}
        [one, other] => {
            let is_v4 = |text: &str| text.parse::<IpNet>().ok().map(|net| net.addr().is_ipv4());
            if !matches!((is_v4(one), is_v4(other)), (Some(a), Some(b)) if a != b) {
                let each = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                return whole(each);
            }
        }
        _ => return whole("may only hold up to 2 values"),
    }
    let wrong = cidrs.iter().enumerate().filter_map(|(i, text)| Some((i, text, fault(text)?)));
    wrong.map(|(i, text, fault)| FieldError::invalid(&path.index(i), text, &fault)).collect()
}

/// The reason why a text is no range in its one canonical form.
fn fault(text: &str) -> Option<String> {
    let Some((address, length)) = text.split_once('/').filter(|(address, _)| ip::parse(address).is_some()) else {
        return Some(BAD_CIDR.to_owned());
    };
    let longest = if address.contains(':') { 128 } else { 32 };
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    if !digits || length.parse::<u8>().is_ok_and(|length| length > longest) {
        return Some(BAD_CIDR.to_owned());
    }
    let has_zero = |number: &str| number.len() > 1 && number.starts_with('0');
    let octets = address.rsplit(':').next().filter(|octets| octets.contains('.'));
    if has_zero(length) || octets.is_some_and(|octets| octets.split('.').any(has_zero)) {
        return Some("must not have leading 0s in IP or prefix length".to_owned());
    }
    let Ok(range) = text.parse::<IpNet>() else { return Some(BAD_CIDR.to_owned()) };
    if let IpNet::V6(v6) = &range
        && v6.addr().to_ipv4_mapped().is_some()
    {
        return Some("must not have an IPv4-mapped IPv6 address".to_owned());
    }
    if range.addr() != range.network() {
        return Some("must not have bits set beyond the prefix length".to_owned());
    }
    (range.to_string() != text).then(|| format!("must be in canonical form (\"{range}\")"))
}

/// A range never changes under the Services that have addresses of it; one of the other family may join it.
fn validate_update(new: &ServiceCIDR, old: &ServiceCIDR, target: Target) -> Errors {
    let path = Path::new("spec").child("cidrs");
    let (new, old) = (cidrs(new), cidrs(old));
    if target == Target::Status {
        return Errors::new();
    }
    if new.len() != old.len() && (old.len(), new.len()) != (1, 2) {
        return vec![FieldError::invalid(&path, new, IMMUTABLE)];
    }
    let changed = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
    changed.map(|(i, (_, new))| FieldError::invalid(&path.index(i), new, IMMUTABLE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn range(cidrs: &[&str]) -> ServiceCIDR {
        json::from_value(json!({"metadata": {"name": "r"}, "spec": {"cidrs": cidrs}})).unwrap()
    }

    fn texts(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_range_or_one_of_each_family() {
        let check = |cidrs: &[&str], expected: &[&str]| {
            assert_eq!(texts(validate(&range(cidrs))), expected, "{cidrs:?}");
        };
        check(&["192.168.0.0/24"], &[]);
        check(&["fd00::/64"], &[]);
        check(&["192.168.0.0/24", "fd00::/64"], &[]);
        check(&[], &["spec.cidrs: Required value: at least one CIDR required"]);
        let three = r#"spec.cidrs: Invalid value: {"CIDRs":["10.0.0.0/8","fd00::/64","11.0.0.0/8"]}: may only hold up to 2 values"#;
        check(&["10.0.0.0/8", "fd00::/64", "11.0.0.0/8"], &[three]);
        let each = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        let same = format!(r#"spec.cidrs: Invalid value: {{"CIDRs":["10.0.0.0/8","11.0.0.0/8"]}}: {each}"#);
        check(&["10.0.0.0/8", "11.0.0.0/8"], &[&same]);
        let at = |text: &str, why: &str| format!("spec.cidrs[0]: Invalid value: \"{text}\": {why}");
        let beyond = "must not have bits set beyond the prefix length";
        for (text, why) in [
            ("nonsense", BAD_CIDR),
            ("10.0.0.0", BAD_CIDR),
            ("10.0.0.0/33", BAD_CIDR),
            ("10.0.0.1/24", beyond),
            ("fd00::1/64", beyond),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            ("::ffff:10.0.0.0/104", "must not have an IPv4-mapped IPv6 address"),
            ("FD00::/64", "must be in canonical form (\"fd00::/64\")"),
        ] {
            check(&[text], &[&at(text, why)]);
        }
    }

    #[test]
    fn a_range_stays_and_may_be_joined_by_the_other_family() {
        let check = |old: &[&str], new: &[&str], expected: &[&str]| {
            assert_eq!(texts(validate_update(&range(new), &range(old), Target::Object)), expected, "{old:?} {new:?}");
        };
        let (a, b, c) = ("10.0.0.0/24", "fd00::/64", "10.0.1.0/24");
        check(&[a], &[a], &[]);
        check(&[a], &[a, b], &[]);
        check(&[a], &[c], &[r#"spec.cidrs[0]: Invalid value: "10.0.1.0/24": field is immutable"#]);
        check(&[a], &[b, a], &[r#"spec.cidrs[0]: Invalid value: "fd00::/64": field is immutable"#]);
        check(&[a, b], &[c, b], &[r#"spec.cidrs[0]: Invalid value: "10.0.1.0/24": field is immutable"#]);
        check(&[a, b], &[a], &[r#"spec.cidrs: Invalid value: ["10.0.0.0/24"]: field is immutable"#]);
    }
}
