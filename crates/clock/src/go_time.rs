//! Times as Go writes them: where configurations are shown as upstream's components show theirs.

use std::time::Duration;

/// A time as Go writes it, of those that settings have.
pub fn go_time(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    if seconds == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}").trim_end_matches('0').to_owned() };
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}{fraction}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}{fraction}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        let check = |millis: u64, expected: &str| assert_eq!(go_time(Duration::from_millis(millis)), expected);
        check(0, "0s");
        check(250, "250ms");
        check(10_000, "10s");
        check(300_000, "5m0s");
        check(3_661_500, "1h1m1.5s");
    }
}
