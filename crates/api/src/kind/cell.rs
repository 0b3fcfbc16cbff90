//! Cells of Tables: ages as upstream writes them (`5m3s`, `2d4h`), and the small texts that several kinds share.

use std::collections::BTreeMap;

use jiff::Timestamp;
use json::Value;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A duration in at most two units, coarser as it grows.
pub fn human_duration(seconds: i64) -> String {
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(days, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// Time since `then`, `<unknown>` when there is none.
pub fn age(then: Option<&Time>, now: Timestamp) -> String {
    since(then.map(|t| t.0), now)
}

pub fn since(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or_else(|| "<unknown>".to_owned(), |t| human_duration(now.as_second() - t.as_second()))
}

/// `a=1,b=2`, or `<none>`.
pub fn labels(labels: Option<&BTreeMap<String, String>>) -> String {
    let list: Vec<String> = labels.into_iter().flatten().map(|(k, v)| format!("{k}={v}")).collect();
    if list.is_empty() { "<none>".to_owned() } else { list.join(",") }
}

/// A text cell, empty when there is none.
pub fn text(value: Option<&String>) -> Value {
    Value::from(value.map(String::as_str).unwrap_or_default())
}

/// A text cell with a word for nothing.
pub fn text_or(value: Option<&String>, none: &str) -> Value {
    Value::from(value.map(String::as_str).filter(|v| !v.is_empty()).unwrap_or(none))
}

/// A number as text, with a word for nothing.
pub fn shown_or(value: Option<impl ToString>, none: &str) -> Value {
    Value::from(value.map_or_else(|| none.to_owned(), |v| v.to_string()))
}

pub const CONTAINERS_ABOUT: &str = "Names of each container in the template.";
pub const IMAGES_ABOUT: &str = "Images referenced by each container in the template.";

pub fn container_names(spec: Option<&PodSpec>) -> Value {
    Value::from(containers(spec).0)
}

pub fn container_images(spec: Option<&PodSpec>) -> Value {
    Value::from(containers(spec).1)
}

/// The names and the images of a template's containers.
fn containers(spec: Option<&PodSpec>) -> (String, String) {
    let containers = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
    let names: Vec<&str> = containers.iter().map(|c| c.name.as_str()).collect();
    let images: Vec<&str> = containers.iter().map(|c| c.image.as_deref().unwrap_or_default()).collect();
    (names.join(","), images.join(","))
}

/// The first three of a list, and how many more there are.
pub fn first_three(list: &[String], none: &str) -> String {
    first(&list[..list.len().min(SHOWN)], list.len(), none)
}

/// A cell shows this many items of a list.
pub(crate) const SHOWN: usize = 3;

/// The first of `count`, where the others need not be there.
pub(crate) fn first(list: &[String], count: usize, none: &str) -> String {
    match count {
        0 => none.to_owned(),
        n if n <= list.len() => list.join(","),
        n => format!("{} + {} more...", list.join(","), n - list.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[test]
    fn durations_grow_coarser() {
        let day = 86_400;
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (7 * 3600 + 60, "7h1m"),
            (8 * 3600 + 60, "8h"),
            (47 * 3600, "47h"),
            (2 * day + 3600, "2d1h"),
            (8 * day + 3600, "8d"),
            (2 * 365 * day + day, "2y1d"),
            (8 * 365 * day, "8y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
