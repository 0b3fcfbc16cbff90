//! A point in time as text with its microseconds, as `metav1.MicroTime` has it.

use std::io::Write as _;

use jiff::Timestamp;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// The first moment whose year has five digits.
const YEAR_10_000: i64 = 253_402_300_800 * SECOND;

/// Appends `2024-01-02T03:04:05.000006Z`. Formatting in general takes ten times as long, and audit does this twice in a request.
pub fn append_micros(out: &mut Vec<u8>, time: Timestamp) {
    let micros = time.as_microsecond();
    if time < Timestamp::UNIX_EPOCH || micros >= YEAR_10_000 {
        // Writing into memory cannot fail.
        return drop(write!(out, "{time:.6}"));
    }
    let (year, month, day) = civil(micros / DAY);
    let (within, mut text) = (micros % DAY, *b"0000-00-00T00:00:00.000000Z");
    let seconds = within / SECOND;
    digits(&mut text[0..4], year);
    digits(&mut text[5..7], month);
    digits(&mut text[8..10], day);
    digits(&mut text[11..13], seconds / 3600);
    digits(&mut text[14..16], seconds / 60 % 60);
    digits(&mut text[17..19], seconds % 60);
    digits(&mut text[20..26], within % SECOND);
    out.extend_from_slice(&text);
}

fn digits(places: &mut [u8], mut number: i64) {
    for place in places.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Year, month and day of a day after 1 January 1970. Years are counted from March, so that the day that some have more is
/// their last one.
fn civil(day: i64) -> (i64, i64, i64) {
    // From 1 March of the year 0 on, in the 400 years after which the calendar repeats.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (of_month, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + i64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_text_that_formatting_makes() {
        let check = |time: Timestamp| {
            let mut text = Vec::new();
            append_micros(&mut text, time);
            assert_eq!(String::from_utf8(text).unwrap(), format!("{time:.6}"));
        };
        for time in [
            "1970-01-01T00:00:00Z",
            "1999-12-31T23:59:59.999999999Z",
            "2000-02-29T12:30:45.000001Z",
            "2100-02-28T23:59:59.5Z",
            "2100-03-01T00:00:00Z",
            "9999-12-30T21:59:59.9Z",
            "1969-12-31T23:59:59.999999Z",
            "1969-12-31T23:59:59.9999999Z",
            "-000001-03-01T00:00:00Z",
        ] {
            check(time.parse().unwrap());
        }
        // Each day of more than the 400 years in which the calendar repeats, at a moment that differs.
        for day in 0..150_000 {
            check(Timestamp::new(day * 86_400 + day % 86_400, (day * 6_661) as i32).unwrap());
        }
    }
}
