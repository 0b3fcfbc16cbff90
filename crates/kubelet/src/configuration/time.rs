//! Times, as Go writes them.

use std::time::Duration;

/// A time as Go writes it: `1h2m3.5s`, `100ms`, `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        seconds += number.parse::<f64>().map_err(|_| wrong())? * unit;
        rest = tail;
    }
    let most = f64::from(i32::MAX);
    if text.is_empty() || seconds > most { Err(wrong()) } else { Ok(Duration::from_secs_f64(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_go_writes_them() {
        let ok = |text: &str| duration(text).unwrap().as_secs_f64();
        assert_eq!((ok("1m30s"), ok("1.5h"), ok("100ms"), ok("0"), ok("0s")), (90.0, 5400.0, 0.1, 0.0, 0.0));
        for text in ["", "5", "s", "5x", "1m30", "-1s", "9999999h", "1..2s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
