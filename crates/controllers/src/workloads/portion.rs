//! Numbers that may be percentages.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A number, or a percentage of `total`. A text that cannot be read counts as none.
pub fn scaled(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(n)) => *n,
        Some(IntOrString::String(text)) => {
            let percent: i64 = text.strip_suffix('%').and_then(|n| n.parse().ok()).unwrap_or(0);
            let hundredths = percent * i64::from(total);
            (if round_up { (hundredths + 99) / 100 } else { hundredths / 100 }) as i32
        }
    }
}
